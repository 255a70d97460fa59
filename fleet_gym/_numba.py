"""Compilation of hot loops: one decorator that caches where it can."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numba
from numba.core import types

from fleet_gym._numba_linking import LinkedOnly

logger = logging.getLogger("fleet_gym.numba")

_F = TypeVar("_F", bound=Callable[..., object])
_IMPORT = re.compile(r"^from ([\w.]+) import", re.MULTILINE)


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
    dispatcher = _njit(function, error_model="numpy", no_cpython_wrapper=True, pipeline_class=LinkedOnly)
    _compile_once_for_integers(dispatcher)
    return cast(_F, dispatcher)


def _compile(function: _F, error_model: Literal["python", "numpy"]) -> _F:
    try:
        dispatcher = _njit(function, error_model=error_model, cache=True)
    except RuntimeError:
        dispatcher = _njit(function, error_model=error_model)
    _stamp_with_imports(dispatcher, function)
    _tolerate_full_disk(dispatcher)
    _tolerate_broken_cache(dispatcher)
    _compile_without_collecting(dispatcher)
    _compile_once_for_integers(dispatcher)
    return cast(_F, dispatcher)


def _njit(function: _F, **options: Any) -> Any:
    # Wrappers for C callers and the rewriting of array expressions cost compile time, and loops need neither.
    options |= {"nogil": True, "no_cfunc_wrapper": True, "no_rewrites": True}
    return numba.njit(**options)(function)


def _stamp_with_imports(dispatcher: Any, function: Any) -> None:
    """Lets cached code expire when any file changes whose functions or constants are part of it.

    numba looks at the file of the function only: after an update of another one the old code would go on running.
    """
    cache_file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    path, depth = Path(function.__code__.co_filename), function.__module__.count(".")
    if cache_file is None or not depth or not path.is_file():
        return
    package = path.parents[depth - 1]
    stats = [source.stat() for source in _sources(path, package)]
    cache_file._source_stamp = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)


def _sources(path: Path, package: Path) -> list[Path]:
    """A file and those of its package that it imports from, directly or not, sorted."""
    found, new = {path}, [path]
    while new:
        imported = _imported(new.pop(), package) - found
        found |= imported
        new.extend(imported)
    return sorted(found)


@cache
def _imported(path: Path, package: Path) -> frozenset[Path]:
    names = (name.split(".") for name in _IMPORT.findall(path.read_text(encoding="utf-8")))
    modules = (package.joinpath(*rest) for top, *rest in names if top == package.name and rest)
    candidates = (file for module in modules for file in (module.with_suffix(".py"), module / "__init__.py"))
    return frozenset(file for file in candidates if file.is_file())


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


def _compile_once_for_integers(dispatcher: Any) -> None:
    """Takes a literal for a value: numba would compile a function again for a counter that its caller begins at 0."""
    template = dispatcher.get_call_template
    value_type: Callable[[Any], Any] = types.unliteral

    def template_for_values(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        return template(tuple(map(value_type, args)), {name: value_type(kind) for name, kind in kws.items()})

    dispatcher.get_call_template = template_for_values


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


def _tolerate_broken_cache(dispatcher: Any) -> None:
    """Compiles again what cannot be read from the cache: a machine that loses power leaves empty or cut-off files."""
    cache = getattr(dispatcher, "_cache", None)
    load = getattr(cache, "load_overload", None)
    if cache is None or load is None:
        return

    def load_or_compile(*args: Any) -> Any:
        try:
            return load(*args)
        except Exception as error:  # pickle's own, and whatever else broken bytes make of it
            logger.warning("cached code could not be read and is compiled again: %s: %s", type(error).__name__, error)
        try:
            cache.flush()
        except OSError as error:
            logger.warning("the broken cache could not be emptied: %s", error)
        return None

    cache.load_overload = load_or_compile
