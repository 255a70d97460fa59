"""What users import in their own tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_gym.testing.vector_env_check import check_vector_env

_MODULES = {
    "check_vector_env": "fleet_gym.testing.vector_env_check",
}

__all__ = ["check_vector_env"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fleet_gym.testing' has no attribute {name!r}")
