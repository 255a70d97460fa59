"""Environments that leak in known ways."""

from __future__ import annotations

import tracemalloc
from typing import Any

import gymnasium as gym
import numpy as np
from profiled_env import ScriptedVectorEnv

from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path, quiet_descriptors


class KeepingEnv(gym.Env[Any, Any]):
    """Keeps 8 KiB a step, and says whether its process is traced."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.kept: list[bytearray] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.kept.append(bytearray(b"x" * 8192))
        return np.zeros(3, np.float32), 0.0, False, False, {"traced": tracemalloc.is_tracing()}


class UrdfVectorEnv(ScriptedVectorEnv):
    """A PyBullet world whose reset loads its robot anew, freeing the old one with removeBody or resetSimulation."""

    def __init__(self, by_remove_body: bool) -> None:
        super().__init__(self._simulate, self._reload)
        self.client = DirectClient()
        self.bodies: list[int] = []
        self.by_remove_body = by_remove_body

    def _simulate(self) -> None:
        pybullet().stepSimulation(physicsClientId=self.client.id)

    def _reload(self) -> None:
        p = pybullet()
        with quiet_descriptors():
            if self.by_remove_body:
                while self.bodies:
                    p.removeBody(self.bodies.pop(), physicsClientId=self.client.id)
            else:
                p.resetSimulation(physicsClientId=self.client.id)
                p.setAdditionalSearchPath(pybullet_data_path(), physicsClientId=self.client.id)
        self.bodies = [self.client.load_urdf("r2d2.urdf")]

    def close_extras(self, **kwargs: Any) -> None:
        super().close_extras(**kwargs)
        self.client.close()
