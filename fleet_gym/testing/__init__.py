"""What users import in their own tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, coded_color_envs, decode_color
    from fleet_gym.testing.frame_counting_writer import FrameCountingWriter
    from fleet_gym.testing.leaks import assert_no_leak
    from fleet_gym.testing.vector_env_check import check_vector_env

_MODULES = {
    "CodedColorVectorEnv": "fleet_gym.testing.coded_color_env",
    "FrameCountingWriter": "fleet_gym.testing.frame_counting_writer",
    "assert_no_leak": "fleet_gym.testing.leaks",
    "check_vector_env": "fleet_gym.testing.vector_env_check",
    "coded_color_envs": "fleet_gym.testing.coded_color_env",
    "decode_color": "fleet_gym.testing.coded_color_env",
}

__all__ = [
    "CodedColorVectorEnv",
    "FrameCountingWriter",
    "assert_no_leak",
    "check_vector_env",
    "coded_color_envs",
    "decode_color",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fleet_gym.testing' has no attribute {name!r}")
