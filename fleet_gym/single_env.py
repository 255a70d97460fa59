"""FleetEnv: one world, for ``gym.make``, ``check_env`` and everything that wants a `gymnasium.Env`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from fleet_gym.vector_arguments import action_array
from fleet_gym.vector_env import FleetVectorEnv


class FleetEnv(gym.Env[dict[str, Any], NDArray[Any]]):
    """`FleetVectorEnv` with one world, seen without its world axis: the same numbers to the last bit.

    Args:
        max_episode_steps: None: the env never truncates; under ``gym.make`` the TimeLimit wrapper does, of which the
            env knows nothing: cameras with ``render_every`` above 1 may then repeat an image in the last step.
        render_mode: None or ``"rgb_array"``.
        **kwargs: as `FleetVectorEnv`, without `num_envs` and `autoreset_mode`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10.0}  # noqa: RUF012 # gymnasium's form

    def __init__(self, *, max_episode_steps: int | None = None, render_mode: str | None = None, **kwargs: Any) -> None:
        for name in ("num_envs", "autoreset_mode"):
            if name in kwargs:
                raise TypeError(f"{name}: expected none for a single environment, got {kwargs[name]!r}")
        self._fleet = FleetVectorEnv(
            1,
            max_episode_steps=max_episode_steps,
            render_mode=render_mode,
            autoreset_mode=AutoresetMode.DISABLED,
            **kwargs,
        )
        self._over = False
        self.render_mode = self._fleet.render_mode
        self.metadata = {key: self._fleet.metadata[key] for key in ("render_modes", "render_fps")}
        self.observation_space = self._fleet.single_observation_space
        self.action_space = self._fleet.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts a new episode; see `FleetVectorEnv.reset`. `options` are not used."""
        observation, infos = self._fleet.reset(seed=seed)
        self._over = False
        self._np_random, self._np_random_seed = self._fleet.np_random[0], self._fleet.np_random_seed[0]
        return _first(observation), _first_info(infos)

    def step(self, action: ArrayLike) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advances the world by one control step; `action` is (R, A). See `FleetVectorEnv.step`."""
        # Checked here in terms of this class; the vector env inside would speak of worlds and masks.
        array = action_array("action", action, self.action_space.shape, "robots, channels")
        if self._over:
            raise ResetNeeded("step: expected reset() after the episode has ended")
        observation, reward, terminated, truncated, infos = self._fleet.step(array[None])
        self._over = bool(terminated[0] | truncated[0])
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first_info(infos)

    def render(self) -> NDArray[np.uint8] | None:
        """Draws the world: (480, 640, 3) uint8; see `FleetVectorEnv.render`."""
        frames = self._fleet.render()
        return None if frames is None else frames[0]

    def render_cameras(self, cameras: Any = None, *, final: bool = False) -> dict[str, NDArray[Any]]:
        """Draws through the given cameras (all by default): key -> image. See `FleetVectorEnv.render_cameras`."""
        images = self._fleet.render_cameras(None, cameras, final=final)
        return {key: image[0] for key, image in images.items()}

    def close(self) -> None:
        """Frees what the env holds; calling it again does nothing."""
        self._fleet.close()

    @property
    def scene(self) -> Any:
        """What is in the world and never changes."""
        return self._fleet.scene

    @property
    def task(self) -> Any:
        """The task."""
        return self._fleet.task

    @property
    def state_layout(self) -> Any:
        """Name -> columns of the last axis of ``observation["state"]``."""
        return self._fleet.state_layout

    @property
    def state(self) -> Any:
        """The simulation's state itself, with a world axis of length 1: read it, do not write it."""
        return self._fleet.state


def _first(batched: Any) -> Any:
    if isinstance(batched, dict):
        return {key: _first(value) for key, value in batched.items()}
    return batched[0]


def _first_info(infos: dict[str, Any]) -> dict[str, Any]:
    """Row 0 without masks; scalars as Python's own types (a NumPy bool would become an object array when batched)."""
    info = {}
    for key, value in infos.items():
        if not key.startswith("_"):
            row = value[0]
            info[key] = row.item() if isinstance(row, np.generic) else row
    return info
