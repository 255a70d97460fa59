"""`SB3VecEnv`: a Gymnasium vector environment as the `VecEnv` of Stable-Baselines3."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray

from fleet_gym.adapters._views import check_mode, flat_observation, flat_space, info_rows
from fleet_gym.vector_arguments import as_array

try:
    from stable_baselines3.common.vec_env import VecEnv
    from torch.nn import ModuleDict
except ModuleNotFoundError as error:
    if error.name != "stable_baselines3":
        raise
    raise ImportError("SB3VecEnv needs Stable-Baselines3: pip install 'fleet-gym[sb3]'") from None

Indices = int | Iterable[int] | None

#: What the convolutions of SB3's NatureCNN need at least, pixels.
MIN_IMAGE_SIZE = 36
# Attributes that hold a tuple with an entry per environment.
_PER_ENV = ("np_random", "np_random_seed")
# Return and length of an ended episode, of Gymnasium's RecordEpisodeStatistics; SB3 reads the same key.
_STATISTICS = "episode"


class SB3VecEnv(VecEnv):
    """Shows a vector environment to Stable-Baselines3, each of its environments as one of SB3's.

    Observations are one-level dictionaries: ``state`` and each camera's images under its own key (policy
    ``"MultiInputPolicy"``). Actions have the environment's shape, such as (R, A); SB3 flattens them itself. Rewards are
    float32. The infos of each environment are its row of the batched infos, and besides:

    - ``TimeLimit.truncated``: the episode was cut off and did not terminate;
    - ``terminal_observation``, in the step that ends an episode; the other infos of that step are the ended episode's,
      those of the new one are in `reset_infos`;
    - ``is_success``, in the step that ends an episode, if the environment says ``success``.

    Wrap it into SB3's `VecMonitor` to have returns and lengths of episodes logged. With `FlattenRobots` inside, one
    policy drives every robot by itself.

    Args:
        env: a vector environment in SAME_STEP mode, possibly wrapped.
        check_images: refuse images that SB3's convolutional network cannot take; False for a features extractor of
            your own.

    Raises:
        ImportError: without Stable-Baselines3.
        TypeError: when `env` is no vector environment.
        ValueError: when its autoreset mode is another, or its observations cannot be SB3's.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, check_images: bool = True) -> None:
        check_mode(env, AutoresetMode.SAME_STEP, "Stable-Baselines3")
        observation_space = flat_space(env.single_observation_space)
        if isinstance(observation_space, spaces.Dict):
            _check_parts(observation_space, check_images)
        self.env = env
        self._actions: NDArray[Any] | None = None
        self._seed: int | None = None
        super().__init__(env.num_envs, observation_space, env.single_action_space)
        self.metadata = dict(env.metadata)

    # ---- Stepping ----

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds the next `reset`.

        Args:
            seed: of world 0, world i gets ``seed + i``; drawn by NumPy if None.

        Returns:
            The seed of each environment; robots of a world that are environments of their own have their world's.
        """
        first = super().seed(seed)[0]
        self._seed = first
        share = max(1, self.num_envs // self.env.unwrapped.num_envs)
        self._seeds = [first + env // share for env in range(self.num_envs)]
        return self._seeds

    def reset(self) -> Any:
        """Starts new episodes in all environments; their infos are in `reset_infos`.

        Raises:
            ValueError: when `set_options` got different options for different environments.
        """
        if any(not _equal(options, self._options[0]) for options in self._options):
            raise ValueError(f"set_options: expected the same options for all environments, got {self._options}")
        self._actions = None
        seed, self._seed = self._seed, None  # also of a reset that fails, so that another one can succeed
        self._reset_seeds()
        observation, infos = self.env.reset(seed=seed, options=self._options[0] or None)
        self._reset_options()
        self.reset_infos = info_rows(infos, self.num_envs)
        return flat_observation(observation)

    def step_async(self, actions: ArrayLike) -> None:
        """Keeps the actions for `step_wait`: (num_envs, ...), or flattened to (num_envs, size)."""
        shape = (self.num_envs, *(self.action_space.shape or ()))
        array = as_array("actions", actions, f"shape {shape}")
        if array.shape not in (shape, (self.num_envs, int(np.prod(shape[1:])))):
            raise ValueError(f"actions: expected shape {shape}, got {array.shape}")
        self._actions = array.reshape(shape)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Steps the environments with the actions of `step_async`.

        Returns:
            Observation, reward (num_envs,) float32, done (num_envs,) bool, infos of each environment.
        """
        if self._actions is None:
            raise RuntimeError("step_wait: expected step_async() before, got none since the last step or reset")
        actions, self._actions = self._actions, None
        observation, rewards, terminated, truncated, infos = self.env.step(actions)
        dones = np.logical_or(terminated, truncated)
        rows = info_rows(infos, self.num_envs)
        if dones.any():
            self._end(np.flatnonzero(dones), infos, rows)
        for row, cut in zip(rows, np.logical_and(truncated, np.logical_not(terminated)).tolist(), strict=True):
            row["TimeLimit.truncated"] = cut
        return flat_observation(observation), np.asarray(rewards).astype(np.float32), dones, rows

    def _end(self, ended: NDArray[np.intp], infos: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Puts the infos of ended episodes into `rows`, and those of the new ones into `reset_infos`."""
        if "final_obs" not in infos:
            raise ValueError(f"infos: expected final_obs in a step that ends episodes, got the keys {sorted(infos)}")
        last = info_rows(infos.get("final_info", {}), self.num_envs)
        for env in ended.tolist():
            new = rows[env]
            if _STATISTICS in new:  # added by a wrapper to the infos of a reset
                last[env].setdefault(_STATISTICS, new.pop(_STATISTICS))
            self.reset_infos[env] = new
            rows[env] = {**last[env], "terminal_observation": flat_observation(infos["final_obs"][env])}
            if "success" in last[env]:
                rows[env].setdefault("is_success", last[env]["success"])

    def close(self) -> None:
        """Closes the environment, its wrappers included. Twice is fine."""
        self.env.close()

    # ---- Looking ----

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """Draws each environment; None each without ``render_mode="rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"get_images: expected render_mode='rgb_array', got {self.render_mode!r}", stacklevel=2)
            return [None] * self.num_envs
        frames: Any = self.env.render()
        return list(frames)

    # ---- Attributes and methods: there is one object for all environments, or one each in a SyncVectorEnv ----

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Returns the attribute of the outermost wrapper that has it, once for each of `indices` (all if None)."""
        envs = self._checked_indices(indices)
        if (singles := self._singles(attr_name)) is not None:
            return [singles[env].get_wrapper_attr(attr_name) for env in envs]
        value = getattr(self._holder(attr_name), attr_name)
        if attr_name in _PER_ENV and isinstance(value, tuple):
            return [value[env] for env in envs]
        return [value] * len(envs)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets the attribute where it is, else on the environment itself.

        Raises:
            ValueError: for some environments only, which share the attribute with the others.
        """
        if (singles := self._singles(attr_name)) is not None:
            for env in self._checked_indices(indices):
                singles[env].set_wrapper_attr(attr_name, value)
            return
        self._checked_all(f"set_attr({attr_name!r})", indices)
        # Wrappers show attributes of the environment inside that can be set only there.
        holders = [env for env in self._chain() if attr_name in vars(env)]
        inner = self.env.unwrapped
        if isinstance(inner, AsyncVectorEnv) and not holders and not hasattr(inner, attr_name):
            inner.set_attr(attr_name, [value] * self.num_envs)
        else:
            setattr(holders[0] if holders else inner, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method and returns its result for each of `indices` (all if None).

        ``get_episode_index`` is asked for each environment; ``render_cameras`` draws those of `indices` in one call and
        returns each one's images. Any other method is called once for all environments, which share its result.

        Raises:
            AttributeError: when nobody has the method.
            TypeError: when it is no method.
            ValueError: for any other method with some environments only.
        """
        envs = self._checked_indices(indices)
        if (singles := self._singles(method_name)) is not None:
            return [singles[env].get_wrapper_attr(method_name)(*method_args, **method_kwargs) for env in envs]
        method = getattr(self._holder(method_name), method_name)
        if not callable(method):
            raise TypeError(f"env_method: expected the name of a method, got {method_name!r}, which is {method!r}")
        if method_name == "get_episode_index":
            return [method(env, *method_args, **method_kwargs) for env in envs]
        if method_name == "render_cameras":
            images = method(envs, *method_args, **method_kwargs)
            return [{key: image[row] for key, image in images.items()} for row in range(len(envs))]
        self._checked_all(f"env_method({method_name!r})", indices)
        return [method(*method_args, **method_kwargs)] * len(envs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether a wrapper of this class is around the environment, for each of `indices` (all if None)."""
        wrapped = any(isinstance(env, wrapper_class) for env in self._chain())
        return [wrapped] * len(self._checked_indices(indices))

    def _chain(self) -> list[Any]:
        """The environment and what it wraps, outermost first."""
        chain: list[Any] = [self.env]
        while (inner := vars(chain[-1]).get("env")) is not None:
            chain.append(inner)
        return chain

    def _singles(self, name: str) -> list[Any] | None:
        """The single environments of a SyncVectorEnv, if it and its wrappers have no attribute `name`."""
        inner = self.env.unwrapped
        if not isinstance(inner, SyncVectorEnv) or any(hasattr(env, name) for env in self._chain()):
            return None
        return list(inner.envs)

    def _holder(self, name: str) -> Any:
        for env in self._chain():
            if hasattr(env, name):
                return env
        raise AttributeError(f"{name}: expected an attribute of {self.env} or of an environment inside, got none")

    def _checked_indices(self, indices: Indices) -> list[int]:
        envs = [int(index) for index in self._get_indices(indices)]
        if unknown := [env for env in envs if not -self.num_envs <= env < self.num_envs]:
            raise ValueError(f"indices: expected environments in 0..{self.num_envs - 1}, got {unknown}")
        return [env % self.num_envs for env in envs]

    def _checked_all(self, what: str, indices: Indices) -> None:
        if sorted(self._checked_indices(indices)) != list(range(self.num_envs)):
            raise ValueError(f"{what}: expected indices=None, all environments share one object, got {indices!r}")


def _equal(left: Any, right: Any) -> bool:
    """Whether two options are the same, arrays in them included."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(np.array_equal(left, right))


def _check_parts(space: spaces.Dict, check_images: bool) -> None:
    for key, part in space.spaces.items():
        if "." in key:  # torch names modules after the keys
            raise ValueError(f"observation {key!r}: expected a name without '.', which torch does not take; rename it")
        if hasattr(ModuleDict(), key):  # as they become attributes
            raise ValueError(
                f"observation {key!r}: expected a name that is no attribute of torch's ModuleDict; rename it"
            )
        is_image = isinstance(part, spaces.Box) and len(part.shape) == 3 and part.dtype == np.uint8
        if check_images and is_image and min((part.shape or ())[:2]) < MIN_IMAGE_SIZE:
            raise ValueError(
                f"observation {key!r}: SB3's convolutional network expects images of at least {MIN_IMAGE_SIZE} x "
                f"{MIN_IMAGE_SIZE}, got {part.shape}; make the camera larger, or pass check_images=False with a "
                "features extractor of your own"
            )
