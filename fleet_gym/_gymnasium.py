"""What differs between the supported versions of Gymnasium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import VectorWrapper

if TYPE_CHECKING:
    AnyVectorWrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:

    class AnyVectorWrapper(VectorWrapper):
        """A `VectorWrapper` as of 1.4 (where it is generic): only `close` closes it."""

        if hasattr(VectorWrapper, "__del__"):

            def __del__(self) -> None:
                """Leaves open what Gymnasium before 1.3 closes when it is collected, even if never constructed."""
