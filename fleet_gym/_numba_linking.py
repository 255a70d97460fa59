"""Spares numba the optimising and loading of compiled functions that are only ever part of others."""
# numba's classes have no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder


class _NoEnvironment:
    """Stands in for the code generator where a loaded function would be given its environment."""

    @staticmethod
    def set_env(_name: str, _environment: Any) -> None:
        """Does nothing: only code that makes Python objects reads it."""


class _LinkedLibrary(JITCodeLibrary):
    """The code of one function, to be linked into its callers and optimised there."""

    codegen = _NoEnvironment()

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """Returns 0, as numba does for a function that Python cannot call."""
        self._ensure_finalized()
        return 0


class LinkedOnly(CompilerBase):
    """A ``pipeline_class`` of `numba.njit`: numba's own, less a third of what LLVM does."""

    def define_pipelines(self) -> list[Any]:
        """Returns numba's passes, for a library that is never loaded."""
        state = self.state
        if all(hasattr(JITCodeLibrary, name) for name in vars(_LinkedLibrary) if not name.startswith("__")):
            state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        # else a version of numba that does it in another way: the usual, slower, will do
        return [DefaultPassBuilder.define_nopython_pipeline(state)]
