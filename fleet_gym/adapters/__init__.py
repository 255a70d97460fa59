"""Views of `FleetVectorEnv` for trainers that want another interface than Gymnasium's.

Each is loaded when first used and needs its trainer: ``pip install 'fleet-gym[sb3]'`` and so on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_gym.adapters.pettingzoo import parallel_env
    from fleet_gym.adapters.rllib import RLlibVectorEnv, rllib_env
    from fleet_gym.adapters.sb3 import SB3VecEnv
    from fleet_gym.adapters.torchrl import torchrl_env

_MODULES = {
    "RLlibVectorEnv": "fleet_gym.adapters.rllib",
    "SB3VecEnv": "fleet_gym.adapters.sb3",
    "parallel_env": "fleet_gym.adapters.pettingzoo",
    "rllib_env": "fleet_gym.adapters.rllib",
    "torchrl_env": "fleet_gym.adapters.torchrl",
}

__all__ = ["RLlibVectorEnv", "SB3VecEnv", "parallel_env", "rllib_env", "torchrl_env"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fleet_gym.adapters' has no attribute {name!r}")
