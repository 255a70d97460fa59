"""`rllib_env`: what RLlib calls to make a vector environment of its own (``VECTOR_ENTRY_POINT``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike

from fleet_gym._validation import non_negative_int, positive_int
from fleet_gym.adapters._views import VectorView, check_mode, flat_observation, flat_space
from fleet_gym.vector_arguments import as_array
from fleet_gym.vector_env import FleetVectorEnv
from fleet_gym.wrappers.flatten_robots import FlattenRobots, is_names


class RLlibVectorEnv(VectorView):
    """Shows a vector environment with the spaces RLlib's default networks take.

    Actions are one row of numbers per environment. So is each part of the observation, except for images, (H, W, C):
    those of bytes become float32 in [0, 1]. An observation of a single part is bare, one of several a one-level
    dictionary (for an RLModule of your own).

    Args:
        env: a vector environment in NEXT_STEP mode, possibly wrapped.
        observation_keys: parts of the observation to keep, such as ``["state"]`` or one camera; None: all.

    Raises:
        TypeError: when `env` is no vector environment, or the keys are no sequence of names.
        ValueError: when its autoreset mode is another, or an observation key is not there.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, observation_keys: Sequence[str] | None = None) -> None:
        check_mode(env, AutoresetMode.NEXT_STEP, "RLlib")
        space = flat_space(env.single_observation_space)
        keys: tuple[str, ...] | None = None
        if isinstance(space, spaces.Dict):
            keys = _checked_keys(observation_keys, list(space.spaces))
            parts = {key: _row_space(space.spaces[key]) for key in keys}
            space = parts[keys[0]] if len(parts) == 1 else spaces.Dict(parts)
        elif observation_keys is not None:
            raise ValueError(
                f"observation_keys: expected None, the observation is no dictionary, got {observation_keys!r}"
            )
        super().__init__(env)
        self._keys = keys
        self.single_observation_space = _row_space(space)
        self.single_action_space = _row_space(env.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; see `gymnasium.vector.VectorEnv.reset`.

        Args:
            seed: a list has the environments' own. An int is that of an EnvRunner, from which theirs are drawn: RLlib
                seeds its runners s + 1, s + 2 and so on, and counting up from there each would play its neighbour's
                episodes.
            options: of the environment.
        """
        if seed is not None and np.ndim(seed) == 0:
            seed = non_negative_int("seed", seed.item() if isinstance(seed, np.ndarray) else seed)
            seed = np.random.SeedSequence(seed).generate_state(self.num_envs).tolist()
        observation, infos = self.env.reset(seed=seed, options=options)
        return self._rows(observation), infos

    def step(self, actions: ArrayLike) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments; `actions` are (num_envs, size)."""
        array = as_array("actions", actions, f"shape {self.action_space.shape}")
        if array.shape != self.action_space.shape:
            raise ValueError(f"actions: expected shape {self.action_space.shape}, got {array.shape}")
        observation, *rest = self.env.step(array.reshape(self.env.action_space.shape or ()))
        return self._rows(observation), *rest

    def _rows(self, observation: Any) -> Any:
        if self._keys is None:
            return _row(observation, self.single_observation_space)
        flat = flat_observation(observation)
        if len(self._keys) == 1:
            return _row(flat[self._keys[0]], self.single_observation_space)
        space: Any = self.single_observation_space
        return {key: _row(flat[key], space[key]) for key in self._keys}


def rllib_env(ctx: Mapping[str, Any] | None = None, /, **kwargs: Any) -> RLlibVectorEnv:
    """Makes the environment of an RLlib EnvRunner.

    Give it to RLlib as ``config.environment("fleet_gym:FleetGym/NavigationRLlib-v0", env_config={...})``, or under a
    name of your own after ``ray.tune.register_env("fleet", rllib_env)``. It needs
    ``config.env_runners(gym_env_vectorize_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT)``; RLlib then adds ``num_envs``,
    its ``num_envs_per_env_runner``.

    Args:
        ctx: the ``env_config``: arguments of `FleetVectorEnv` without `num_envs`, and besides, all optional:
            ``observation_keys`` as in `RLlibVectorEnv`; ``flatten_robots``: True makes each robot an environment of
            RLlib's, whose number is then a multiple of the robots in a world; ``robot_cameras`` as in `FlattenRobots`;
            ``wrap``: a function that gets the `FleetVectorEnv` and returns it wrapped, with a recorder for example.
        **kwargs: the same as keywords.

    Raises:
        TypeError: when an argument has the wrong type, or ``wrap`` returns no vector environment.
        ValueError: for another autoreset mode than NEXT_STEP, without ``num_envs``, or for a number that does not fit.
    """
    config = {**(ctx or {}), **kwargs}
    if "num_envs" not in config:
        raise ValueError(
            "rllib_env: expected num_envs from RLlib; set gym_env_vectorize_mode="
            "gym.VectorizeMode.VECTOR_ENTRY_POINT in config.env_runners(...)"
        )
    num_envs = positive_int("num_envs", config.pop("num_envs"))
    observation_keys, wrap = config.pop("observation_keys", None), config.pop("wrap", None)
    flatten_robots, robot_cameras = config.pop("flatten_robots", False), config.pop("robot_cameras", None)
    if wrap is not None and not callable(wrap):
        raise TypeError(f"wrap: expected a function that returns the environment wrapped, or None, got {wrap!r}")
    if not isinstance(flatten_robots, bool):
        raise TypeError(f"flatten_robots: expected a bool, got {flatten_robots!r}")
    num_robots = positive_int("num_robots", config.get("num_robots", 3))
    if flatten_robots and num_envs % num_robots:
        raise ValueError(
            f"num_envs_per_env_runner: expected a multiple of num_robots={num_robots}, with flatten_robots, "
            f"got {num_envs}"
        )
    if robot_cameras is not None and not flatten_robots:
        raise ValueError(f"robot_cameras: expected flatten_robots=True with it, got {flatten_robots!r}")
    env: Any = FleetVectorEnv(num_envs // num_robots if flatten_robots else num_envs, **config)
    try:
        check_mode(env, AutoresetMode.NEXT_STEP, "RLlib")
        env = env if wrap is None else _wrapped(env, wrap)
        env = FlattenRobots(env, robot_cameras=robot_cameras) if flatten_robots else env
        return RLlibVectorEnv(env, observation_keys=observation_keys)
    except BaseException:
        env.close()
        raise


def _wrapped(env: FleetVectorEnv, wrap: Callable[[FleetVectorEnv], Any]) -> VectorEnv[Any, Any, Any]:
    wrapped = wrap(env)
    if not isinstance(wrapped, VectorEnv):
        raise TypeError(f"wrap: expected a function that returns the environment wrapped, it returned {wrapped!r}")
    return wrapped


def _checked_keys(keys: Sequence[str] | None, known: list[str]) -> tuple[str, ...]:
    if keys is None:
        return tuple(known)
    if not is_names(keys):
        raise TypeError(f"observation_keys: expected a sequence of names or None, got {keys!r}")
    if not keys or not set(keys) <= set(known) or len(set(keys)) < len(keys):
        raise ValueError(f"observation_keys: expected some of {known}, each once, got {keys!r}")
    return tuple(keys)


def _row_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """A row of numbers, or an image."""
    if not isinstance(space, spaces.Box):
        return space
    if len(space.shape) == 3:
        return spaces.Box(0.0, 1.0, space.shape, np.float32) if space.dtype == np.uint8 else space
    return spaces.Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type)


def _row(batch: Any, space: spaces.Space[Any]) -> Any:
    if not isinstance(space, spaces.Box):
        return batch
    rows = batch.reshape(len(batch), *space.shape)
    return rows * np.float32(1 / 255) if rows.dtype == np.uint8 and len(space.shape) == 3 else rows
