"""Fleets of simulated robots with cameras as a Gymnasium vector environment.

Public names load when first used, so that importing the package is quick and prints nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register

if TYPE_CHECKING:
    from fleet_gym.simulation import MultiRobotSimulationCore
    from fleet_gym.single_env import FleetEnv
    from fleet_gym.vector_env import FleetVectorEnv
    from fleet_gym.world.cameras import Camera
    from fleet_gym.world.robots import RobotModel
    from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder
    from fleet_gym.wrappers.flatten_robots import FlattenRobots
    from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper
    from fleet_gym.wrappers.time_profiling import TimeProfilingWrapper

__version__ = "0.1.0"

_MODULES = {
    "Camera": "fleet_gym.world.cameras",
    "CameraObsVideoRecorder": "fleet_gym.wrappers.camera_obs_video_recorder",
    "FlattenRobots": "fleet_gym.wrappers.flatten_robots",
    "FleetEnv": "fleet_gym.single_env",
    "FleetVectorEnv": "fleet_gym.vector_env",
    "MemoryProfilingWrapper": "fleet_gym.wrappers.memory_profiling",
    "MultiRobotSimulationCore": "fleet_gym.simulation",
    "RobotModel": "fleet_gym.world.robots",
    "TimeProfilingWrapper": "fleet_gym.wrappers.time_profiling",
}

__all__ = [
    "Camera",
    "CameraObsVideoRecorder",
    "FlattenRobots",
    "FleetEnv",
    "FleetVectorEnv",
    "MemoryProfilingWrapper",
    "MultiRobotSimulationCore",
    "RobotModel",
    "TimeProfilingWrapper",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fleet_gym' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])


register(
    id="FleetGym/Navigation-v0",
    entry_point="fleet_gym.single_env:FleetEnv",
    vector_entry_point="fleet_gym.vector_env:FleetVectorEnv",
    max_episode_steps=200,
)
register(id="FleetGym/NavigationRLlib-v0", vector_entry_point="fleet_gym.adapters.rllib:rllib_env")
