"""What differs between the supported versions of Gymnasium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import VectorWrapper

if TYPE_CHECKING:
    AnyVectorWrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    AnyVectorWrapper = VectorWrapper  # generic only since 1.4
