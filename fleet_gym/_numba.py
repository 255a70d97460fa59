"""Compilation of hot loops: one decorator that caches where it can."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import numba

logger = logging.getLogger("fleet_gym.numba")

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """Compiles `function` with numba: nogil, cached on disk when a cache folder is writable.

    No ``fastmath``: results must not depend on how LLVM groups a sum. numba raises at decoration time when it finds
    no writable cache folder (a read-only install without ``NUMBA_CACHE_DIR``); the loop is then compiled per process.
    """
    return _compile(function, "python")


def compiled_like_numpy(function: _F) -> _F:
    """As `compiled`, but division by zero gives inf or NaN instead of raising, and loops with divisions vectorise."""
    return _compile(function, "numpy")


def compiled_inner(function: _F) -> _F:
    """As `compiled_like_numpy`, for functions that only compiled code of the same file calls: half the compile time.

    Their machine code is part of their callers', and cached with it.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "no_rewrites": True,  # of array expressions, which inner loops have none of
    }
    return cast(_F, numba.njit(**options)(function))


def _compile(function: _F, error_model: Literal["python", "numpy"]) -> _F:
    try:
        dispatcher = numba.njit(nogil=True, cache=True, error_model=error_model)(function)
    except RuntimeError:
        dispatcher = numba.njit(nogil=True, error_model=error_model)(function)
    _tolerate_full_disk(dispatcher)
    _compile_without_collecting(dispatcher)
    return cast(_F, dispatcher)


def _compile_without_collecting(dispatcher: Any) -> None:
    """Keeps the garbage collector out of the compiler, which makes and drops millions of objects: a tenth faster."""
    compile_signature = dispatcher.compile

    def compile_uncollected(*args: Any) -> Any:
        if not gc.isenabled():
            return compile_signature(*args)
        gc.disable()
        try:
            return compile_signature(*args)
        finally:
            gc.enable()

    dispatcher.compile = compile_uncollected


def _tolerate_full_disk(dispatcher: Any) -> None:
    """Lets a compiled function run although its cache cannot be written: a full disk should cost time, not the run."""
    cache = getattr(dispatcher, "_cache", None)
    save = getattr(cache, "save_overload", None)
    if cache is None or save is None:
        return

    def save_or_warn(*args: Any) -> None:
        try:
            save(*args)
        except OSError as error:
            logger.warning("compiled code could not be cached, the next process compiles again: %s", error)

    cache.save_overload = save_or_warn
