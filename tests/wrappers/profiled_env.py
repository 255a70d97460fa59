"""An environment whose step and reset do what the test says, as a vector env and as a single one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv


def nothing() -> None:
    pass


class ScriptedVectorEnv(VectorEnv[Any, Any, Any]):
    """Calls `on_step` and `on_reset`; counts its own calls."""

    def __init__(self, on_step: Callable[[], Any] = nothing, on_reset: Callable[[], Any] = nothing, num_envs: int = 2):
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.on_step, self.on_reset = on_step, on_reset
        self.steps = self.resets = self.closes = 0
        self.actions = np.zeros(self.action_space.shape, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.resets += 1
        self.seed, self.options = seed, options
        self.on_reset()
        return np.zeros((self.num_envs, 3), np.float32), {"reset": True}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        self.last_actions = actions
        self.on_step()
        flags = np.zeros(self.num_envs, bool)
        return np.full((self.num_envs, 3), self.steps, np.float32), np.zeros(self.num_envs), flags, flags, {"a": 1}

    def close_extras(self, **kwargs: Any) -> None:
        self.closes += 1
        self.close_kwargs = kwargs


class ScriptedEnv(gym.Env[Any, Any]):
    """The same for one environment."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, on_step: Callable[[], Any] = nothing, on_reset: Callable[[], Any] = nothing):
        self.on_step, self.on_reset = on_step, on_reset
        self.steps = 0
        self.closed = False
        self.actions = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.on_reset()
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.on_step()
        return np.zeros(3, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.closed = True


def run(env: Any, steps: int) -> None:
    """Steps with zero actions."""
    actions = env.unwrapped.actions
    for _ in range(steps):
        env.step(actions)
