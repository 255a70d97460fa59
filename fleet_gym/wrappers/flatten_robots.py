"""`FlattenRobots`: every robot of every world as an environment of its own, for policies that robots share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorRewardWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import NormalizeReward
from numpy.typing import ArrayLike, NDArray

from fleet_gym._gymnasium import AnyVectorWrapper
from fleet_gym.profiling.forwarding import ForwardsToInner
from fleet_gym.vector_arguments import (
    as_array,
    autoreset_mode_of,
    checked_reset_mask,
    checked_world,
    checked_worlds,
)

_FINAL = ("final_obs", "final_info")


class FlattenRobots(ForwardsToInner, AnyVectorWrapper):
    """Shows E worlds of R robots as E * R environments: robot r of world w is environment ``w * R + r``.

    Each has its robot's row of the state, its row of the actions and its own reward, ``infos["robot_reward"]``. The
    episode is the world's: its robots end together. A camera's image goes to every robot of its world, unless
    `robot_cameras` says which camera is whose.

    Infos of shape (E, R, ...) become (E * R, ...), others with a row for each world are repeated for its robots, and
    what has no rows stays as it is; the same holds for the content of ``final_obs`` and ``final_info``. Put the
    recorder inside: its episodes are those of worlds. Put wrappers that change rewards outside: inside they would
    change the team's, which nobody sees.

    Args:
        env: a `FleetVectorEnv`, possibly wrapped, or any vector environment with actions (E, R, A), observations
            ``{"state": (E, R, D), "camera_obs": {name: (E, ...)}}`` (the images may be absent) and infos
            ``robot_reward`` (E, R).
        robot_cameras: observation key -> names of R cameras, that of robot 0 first: the key then holds each robot's own
            image, and these cameras appear under no other key.

    Raises:
        TypeError: when `env` is no vector environment.
        ValueError: when its spaces are others, `robot_cameras` names cameras that are not there or differ in size, or a
            wrapper inside changes rewards.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], *, robot_cameras: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        if not isinstance(env, VectorEnv):
            raise TypeError(f"env: expected a gymnasium.vector.VectorEnv, got {type(env).__name__}")
        world_action, state, images = _world_spaces(env)
        _check_rewards_untouched(env)
        self._same_step = autoreset_mode_of(env) is AutoresetMode.SAME_STEP
        own = _checked_robot_cameras(robot_cameras, images, world_action.shape[0])
        # After all checks: Gymnasium before 1.3 closes the environment of a wrapper that is not to be.
        super().__init__(env)
        self.num_worlds = env.num_envs
        self.num_robots = world_action.shape[0]
        self._robot_cameras = own
        self._shared_cameras = _unowned(images, own)
        parts: dict[str, spaces.Space[Any]] = {"state": _row_space(state)}
        if images:
            parts["camera_obs"] = spaces.Dict(
                {
                    **{name: images[name] for name in self._shared_cameras},
                    **{key: images[names[0]] for key, names in self._robot_cameras.items()},
                }
            )
        self.single_observation_space = spaces.Dict(parts)
        self.single_action_space = _row_space(world_action)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    @property
    def num_envs(self) -> int:  # type: ignore[override] # as in VectorWrapper
        """E * R."""
        return self.num_worlds * self.num_robots

    @property  # type: ignore[misc] # as in FleetVectorEnv
    def np_random(self) -> Any:
        """The generator of each robot's world, where the environment inside has one per world."""
        return self._for_robots(self.env.np_random)

    @property
    def np_random_seed(self) -> Any:
        """The seed of each robot's world, where the environment inside has one per world."""
        return self._for_robots(self.env.np_random_seed)

    def _for_robots(self, values: Any) -> Any:
        is_per_world = isinstance(values, tuple) and len(values) == self.num_worlds
        return tuple(value for value in values for _ in range(self.num_robots)) if is_per_world else values

    def get_episode_index(self, env_idx: int) -> int:
        """Index of the current episode of a robot's world."""
        inner: Any = self.env.unwrapped
        robot = checked_world("env_idx", env_idx, self.num_envs, what="robots")
        index: int = inner.get_episode_index(robot // self.num_robots)
        return index

    def render_cameras(
        self, env_indices: Sequence[int] | None = None, cameras: Sequence[str] | None = None, *, final: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Draws the worlds of some robots, each world once; see `FleetVectorEnv.render_cameras`.

        Args:
            env_indices: robots, in the order of the returned rows; None: all.
            cameras: names, those of the worlds' cameras; None: all.
            final: draw how the episodes ended that ended in the last call.
        """
        robots = checked_worlds(env_indices, self.num_envs, what="robots")
        worlds, rows = np.unique(robots // self.num_robots, return_inverse=True)
        inner: Any = self.env.unwrapped
        images = inner.render_cameras(worlds.tolist(), cameras, final=final)
        return {key: image[rows] for key, image in images.items()}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; see `gymnasium.vector.VectorEnv.reset`.

        Args:
            seed: an int s seeds world w with ``s + w``, as without this wrapper; of a list with one entry per robot,
                the entry of a world's first robot counts.
            options: ``reset_mask`` is (E * R,) and the same for all robots of a world.
        """
        if isinstance(seed, (Sequence, np.ndarray)) and not isinstance(seed, str) and np.ndim(seed):
            if len(seed) != self.num_envs:
                raise ValueError(f"seed: expected an int or {self.num_envs} seeds, got {len(seed)}")
            seed = list(seed[:: self.num_robots])
        if isinstance(options, Mapping) and "reset_mask" in options:
            options = {**options, "reset_mask": self._world_mask(options)}
        observation, infos = self.env.reset(seed=seed, options=options)
        return self._observation(observation), self._infos(infos)

    def step(self, actions: ArrayLike) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the worlds.

        Args:
            actions: (E * R, A).

        Returns:
            Observation, reward (E * R,) float64, terminated and truncated (E * R,) bool, infos.

        Raises:
            ValueError: for actions of another shape, or an environment whose infos have no ``robot_reward``.
        """
        expected = f"shape {self.action_space.shape} (robots of all worlds, channels)"
        array = as_array("actions", actions, expected)
        if array.shape != self.action_space.shape:
            raise ValueError(f"actions: expected {expected}, got {array.shape}")
        worlds = array.reshape(self.num_worlds, self.num_robots, -1)
        observation, _, terminated, truncated, infos = self.env.step(worlds)
        return (
            self._observation(observation),
            self._rewards(infos, ended=np.logical_or(terminated, truncated)),
            self._per_robot(terminated),
            self._per_robot(truncated),
            self._infos(infos),
        )

    def render(self) -> tuple[Any, ...] | None:
        """Draws each world; its robots have the same picture."""
        frames = self.env.render()
        return None if frames is None else tuple(frame for frame in frames for _ in range(self.num_robots))

    def _per_robot(self, values: Any) -> NDArray[Any]:
        return np.repeat(np.asarray(values), self.num_robots, axis=0)

    def _world_mask(self, options: dict[str, Any]) -> NDArray[np.bool_]:
        mask = checked_reset_mask(options, self.num_envs).reshape(self.num_worlds, self.num_robots)
        if (mask != mask[:, :1]).any():
            mixed = np.flatnonzero((mask != mask[:, :1]).any(axis=1)).tolist()
            raise ValueError(f"reset_mask: expected the same for all robots of a world, got worlds {mixed} with both")
        return np.array(mask[:, 0])

    def _rewards(self, infos: Mapping[str, Any], *, ended: NDArray[np.bool_]) -> NDArray[np.float64]:
        rewards = self._robot_reward("infos", infos)
        if self._same_step and ended.any():
            # The rows of worlds that ended are the new episode's, whose reward is still 0.
            rewards[ended] = self._robot_reward("final_info", infos.get("final_info", {}))[ended]
        return rewards.reshape(self.num_envs)

    def _robot_reward(self, name: str, infos: Mapping[str, Any]) -> NDArray[np.float64]:
        shape = (self.num_worlds, self.num_robots)
        if not isinstance(infos, Mapping) or "robot_reward" not in infos:
            got = f"the keys {sorted(infos)}" if isinstance(infos, Mapping) else type(infos).__name__
            raise ValueError(f"{name}: expected robot_reward of shape {shape}, got {got}")
        rewards = np.array(infos["robot_reward"], dtype=np.float64)
        if rewards.shape != shape:
            raise ValueError(f"{name}: expected robot_reward of shape {shape}, got {rewards.shape}")
        return rewards

    def _observation(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        flat = {"state": _rows(observation["state"], self.num_envs)}
        return {**flat, **self._images(observation, world_axis=True)}

    def _images(self, observation: Mapping[str, Any], *, world_axis: bool) -> dict[str, Any]:
        images = observation.get("camera_obs")
        if images is None:
            return {}
        axis = 1 if world_axis else 0
        flat = {
            name: np.repeat(images[name], self.num_robots, axis=0)
            if world_axis
            else np.stack([images[name]] * self.num_robots)
            for name in self._shared_cameras
        }
        for key, names in self._robot_cameras.items():
            stacked = np.stack([images[name] for name in names], axis=axis)
            flat[key] = _rows(stacked, self.num_envs) if world_axis else stacked
        return {"camera_obs": flat}

    def _infos(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        flat = {key: self._info(value) for key, value in infos.items() if key != "final_obs"}
        if "final_obs" in infos:
            flat["final_obs"] = self._final_observations(infos["final_obs"])
        return flat

    def _info(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._info(entry) for key, entry in value.items()}
        if not has_rows(value, self.num_worlds):
            return value
        array = np.asarray(value)
        if array.ndim >= 2 and array.shape[:2] == (self.num_worlds, self.num_robots):
            return _rows(array, self.num_envs)
        return self._per_robot(array)

    def _final_observations(self, final: Any) -> NDArray[np.object_]:
        flat = np.full(self.num_envs, None, dtype=object)
        for world, observation in enumerate(final):
            if observation is None:
                continue
            images = self._images(observation, world_axis=False).get("camera_obs", {})
            for robot in range(self.num_robots):
                row: dict[str, Any] = {"state": observation["state"][robot]}
                if images:
                    row["camera_obs"] = {key: value[robot] for key, value in images.items()}
                flat[world * self.num_robots + robot] = row
        return flat


def has_rows(values: Any, rows: int) -> bool:
    """Whether an info has a row for each of `rows` environments."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sized) or getattr(values, "ndim", 1) == 0:
        return False
    return len(values) == rows


def _check_rewards_untouched(env: VectorEnv[Any, Any, Any]) -> None:
    inner: Any = env
    while inner is not None:
        if isinstance(inner, (VectorRewardWrapper, NormalizeReward)):
            raise ValueError(
                f"env: expected {type(inner).__name__} around FlattenRobots, got it inside, where it does not "
                "reach the robots' own rewards"
            )
        inner = vars(inner).get("env")


def _rows(array: NDArray[Any], rows: int) -> NDArray[Any]:
    return array.reshape(rows, *array.shape[2:])


def _world_spaces(env: VectorEnv[Any, Any, Any]) -> tuple[spaces.Box, spaces.Box, dict[str, spaces.Box]]:
    """Returns spaces of one world: actions, state, images by key."""
    action, observation = env.single_action_space, env.single_observation_space
    if not isinstance(action, spaces.Box) or len(action.shape) != 2:
        raise ValueError(f"env: expected actions of one world in a Box (robots, channels), got {action}")
    parts = dict(observation.spaces) if isinstance(observation, spaces.Dict) else {}
    state, images = parts.pop("state", None), parts.pop("camera_obs", spaces.Dict({}))
    if not isinstance(state, spaces.Box) or state.shape[:1] != action.shape[:1] or parts:
        raise ValueError(
            f"env: expected observations with state (robots, columns) for {action.shape[0]} robots, and camera_obs at "
            f"most, got {observation}"
        )
    if not isinstance(images, spaces.Dict):
        raise ValueError(f"env: expected a Dict of images as camera_obs, got {images}")
    return action, state, {key: box for key, box in images.spaces.items() if isinstance(box, spaces.Box)}


def _row_space(space: spaces.Box) -> spaces.Box:
    """Space of one robot: wide enough for each."""
    return spaces.Box(space.low.min(axis=0), space.high.max(axis=0), dtype=space.dtype.type)


def is_names(values: Any) -> bool:
    """Whether these are strings in a sequence, and not one string."""
    return isinstance(values, Sequence) and not isinstance(values, str) and all(isinstance(v, str) for v in values)


def _checked_robot_cameras(
    robot_cameras: Mapping[str, Sequence[str]] | None, images: Mapping[str, spaces.Box], num_robots: int
) -> dict[str, tuple[str, ...]]:
    if robot_cameras is not None and not isinstance(robot_cameras, Mapping):
        raise TypeError(f"robot_cameras: expected a mapping of key -> camera names, got {robot_cameras!r}")
    checked: dict[str, tuple[str, ...]] = {}
    for key, names in (robot_cameras or {}).items():
        if not is_names(names):
            raise TypeError(f"robot_cameras[{key!r}]: expected a sequence of camera names, got {names!r}")
        if len(names) != num_robots:
            raise ValueError(f"robot_cameras[{key!r}]: expected {num_robots} names, one per robot, got {names!r}")
        if unknown := [name for name in names if name not in images]:
            raise ValueError(f"robot_cameras[{key!r}]: expected names among {sorted(images)}, got {unknown}")
        if any(images[name] != images[names[0]] for name in names):
            raise ValueError(
                f"robot_cameras[{key!r}]: expected images of one shape, got {[images[name].shape for name in names]}"
            )
        checked[str(key)] = tuple(names)
    if clash := sorted(set(_unowned(images, checked)) & set(checked)):
        raise ValueError(f"robot_cameras: expected keys that are no other camera's, got {clash}")
    return checked


def _unowned(images: Mapping[str, Any], robot_cameras: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Cameras that all robots of a world share."""
    owned = {name for names in robot_cameras.values() for name in names}
    return tuple(name for name in images if name not in owned)
