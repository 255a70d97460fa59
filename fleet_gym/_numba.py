"""Compilation of hot loops: one decorator that caches where it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """Compiles `function` with numba: nogil, cached on disk when a cache folder is writable.

    No ``fastmath``: results must not depend on how LLVM groups a sum. numba raises at decoration time when it finds
    no writable cache folder (a read-only install without ``NUMBA_CACHE_DIR``); the loop is then compiled per process.
    """
    try:
        return cast(_F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:
        return cast(_F, numba.njit(nogil=True)(function))
