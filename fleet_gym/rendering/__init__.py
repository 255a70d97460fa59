"""Rendering: from state to images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_gym.rendering.attached import attach

__all__ = ["attach"]


def __getattr__(name: str) -> Any:
    # Loaded at first use: it needs PyBullet.
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("fleet_gym.rendering.attached"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
