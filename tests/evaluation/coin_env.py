"""An environment whose episodes succeed with a known probability, and are short when they do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

SUCCESS = 0.3
SHORT, LONG = 1, 6
#: Rewards of an episode add up to a draw from an exponential distribution of this mean.
MEAN_RETURN = 2.0


class CoinEnv(gym.Env[Any, Any]):
    """The seed decides the outcome; the actions change nothing but are remembered."""

    metadata = {"render_modes": [], "render_fps": 5}  # noqa: RUF012 # as in gymnasium.Env
    observation_space = gym.spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.won = bool(self.np_random.random() < SUCCESS)
        self.total = float(self.np_random.exponential(MEAN_RETURN))
        self.length = SHORT if self.won else LONG
        self.steps = 0
        return self._observation(), {}

    def _observation(self) -> Any:
        return np.array([self.steps, self.total], dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ends = self.steps == self.length
        info = {"success": ends and self.won}
        return self._observation(), self.total / self.length, ends and self.won, ends and not self.won, info


def coin_envs(num_envs: int, mode: AutoresetMode = AutoresetMode.DISABLED) -> SyncVectorEnv:
    return SyncVectorEnv([CoinEnv] * num_envs, autoreset_mode=mode)


def truth(seed: int) -> tuple[bool, float]:
    """Whether the episode of a seed succeeds, and its return."""
    env = CoinEnv()
    env.reset(seed=seed)
    return env.won, env.total


def idle(observation: Any) -> Any:
    return np.zeros((len(observation), 1), dtype=np.float32)
