"""What users import in their own tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_gym.testing.frame_counting_writer import FrameCountingWriter
    from fleet_gym.testing.leaks import assert_no_leak
    from fleet_gym.testing.vector_env_check import check_vector_env

_MODULES = {
    "FrameCountingWriter": "fleet_gym.testing.frame_counting_writer",
    "assert_no_leak": "fleet_gym.testing.leaks",
    "check_vector_env": "fleet_gym.testing.vector_env_check",
}

__all__ = ["FrameCountingWriter", "assert_no_leak", "check_vector_env"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fleet_gym.testing' has no attribute {name!r}")
