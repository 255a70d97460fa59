"""`assert_no_leak`: a test that fails when memory grows with every repetition, the C heap's included."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import numbers
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from fleet_gym.profiling.growth import TracingWindow
from fleet_gym.profiling.report import TopLine
from fleet_gym.profiling.signals import native_heap_reader, python_blocks

POINTS = 10
ROUNDS = 3
DIAGNOSED_CYCLES = 20


@dataclass(frozen=True)
class LeakMeasurement:
    """Growth per cycle, as `assert_no_leak` found it.

    Attributes:
        native_bytes: bytes of the C heap.
        blocks: Python memory blocks.
    """

    native_bytes: float
    blocks: float


def assert_no_leak(
    target: Any,
    cycles: int = 100,
    *,
    max_native_bytes: float = 512.0,
    max_blocks: float = 1.0,
    warm_up: int | None = None,
    steps: int = 10,
) -> LeakMeasurement:
    """Repeats something and fails if memory grows with each repetition.

    Growth is the slope over the last two thirds of the cycles, after garbage collection. Too much of it is looked at
    again, up to three times: a leak grows every time, a cache does not. The default limits lie between what clean
    PyBullet calls show (up to 225 bytes and 0.7 blocks a cycle) and its smallest known leaks (532 bytes or 8 blocks);
    the one object per cycle that Python code keeps by mistake is seen too.

    Args:
        target: a callable without arguments; or an environment (single or vector), whose cycle is a reset and `steps`
            steps with random actions.
        cycles: repetitions per look, at least 10.
        max_native_bytes: allowed growth of the C heap, bytes per cycle; ``math.inf`` does not look at it.
        max_blocks: growth of Python's blocks per cycle from which on (less a tenth, for noise) the test fails;
            ``math.inf`` does not look at it.
        warm_up: repetitions that do not count; a tenth of `cycles`, at least 3, by default.
        steps: length of an environment's cycle.

    Returns:
        The growth measured.

    Raises:
        AssertionError: when it grows, with the lines that grow; and when a signal cannot be read here, so that a test
            never passes for want of a measurement.
        TypeError: when `target` is neither callable nor an environment.
        ValueError: when a number is out of range.
    """
    cycle = _cycle(target, _whole("steps", steps, 1))
    cycles = _whole("cycles", cycles, POINTS)
    warm_up = max(3, cycles // 10) if warm_up is None else _whole("warm_up", warm_up, 0)
    limits = LeakMeasurement(_limit("max_native_bytes", max_native_bytes), _limit("max_blocks", max_blocks))
    native = _native_reader() if limits.native_bytes < math.inf else _nothing
    if limits.blocks < math.inf and python_blocks() == 0:
        raise AssertionError("Python's blocks are not counted here (is PYTHONMALLOC set?): nothing was measured")
    for _ in range(warm_up):
        cycle()
    with _quick_collections(), _warnings_not_kept():
        forget_logs = _kept_logs()
        for _ in range(ROUNDS):
            found = _measure(cycle, cycles, native, forget_logs)
            too_much = _exceeded(found, limits)
            if not too_much:
                return found
        lines = [line for line in _diagnose(cycle, native, forget_logs) if line.kind in too_much]
    raise AssertionError(_message(found, limits, cycles, lines))


def _exceeded(found: LeakMeasurement, limits: LeakMeasurement) -> set[str]:
    too_much = set()
    if found.native_bytes > limits.native_bytes:
        too_much.add("native")
    if found.blocks > 0.9 * limits.blocks:
        too_much.add("python")
    return too_much


@contextlib.contextmanager
def _quick_collections() -> Iterator[None]:
    """Keeps what exists now out of garbage collections, which take 50 ms and more in a process with many modules."""
    gc.collect()
    if gc.get_freeze_count():  # somebody's own: unfreezing would undo it
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _cycle(target: Any, steps: int) -> Callable[[], object]:
    if all(hasattr(target, name) for name in ("reset", "step", "action_space")):
        is_vector = isinstance(target, VectorEnv)
        return lambda: _episode(target, steps, is_vector)
    if callable(target):
        return target  # type: ignore[no-any-return]
    raise TypeError(f"target: expected a callable or an environment, got {target!r}")


def _episode(env: Any, steps: int, is_vector: bool) -> None:
    env.reset()
    stops = not is_vector or env.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if stops and np.any(np.logical_or(terminated, truncated)):
            return


def _measure(
    cycle: Callable[[], object], cycles: int, native: Callable[[], int], forget_logs: Callable[[], None]
) -> LeakMeasurement:
    """Reads at ten points spread over the cycles and returns the slopes over the last seven."""
    at = np.linspace(cycles / POINTS, cycles, POINTS).round()
    readings = np.zeros((2, POINTS))
    done = 0
    for point, end in enumerate(at.astype(int).tolist()):
        while done < end:
            cycle()
            done += 1
        forget_logs()
        gc.collect()
        _forget_attribute_names()
        readings[0, point] = native()
        readings[1, point] = python_blocks()
    kept = slice(POINTS // 3, None)
    return LeakMeasurement(*(_slope(at[kept], row[kept]) for row in readings))


def _kept_logs() -> Callable[[], None]:
    """Returns a function that takes from pytest what it has kept of the log since now: all a test logs, for its report.

    What was logged before stays, so that a test may look at it with ``caplog``.
    """
    module = sys.modules.get("_pytest.logging")
    if module is None:
        return lambda: None
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, module.LogCaptureHandler)]
    before = [(handler, len(handler.records), handler.stream.tell()) for handler in handlers]

    def forget() -> None:
        for handler, count, position in before:
            del handler.records[count:]
            handler.stream.seek(position)
            handler.stream.truncate()

    return forget


@contextlib.contextmanager
def _warnings_not_kept() -> Iterator[None]:
    """Silences warnings under pytest, which keeps each for its summary; those of the warm-up are in it."""
    if "_pytest.warnings" not in sys.modules:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _forget_attribute_names() -> None:
    """Empties CPython's cache of looked-up attributes.

    It holds up to 4,096 names, one more each time C code looks one up by a string it has just made (NumPy's scalars do,
    and numba's dispatchers): a few blocks per cycle for hundreds of cycles, and no leak.
    """
    if sys.version_info < (3, 13):
        sys._clear_type_cache()
    else:
        sys._clear_internal_caches()


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    centred = x - x.mean()
    return float((centred * (y - y.mean())).sum() / (centred * centred).sum())


def _diagnose(
    cycle: Callable[[], object], native: Callable[[], int], forget_logs: Callable[[], None]
) -> tuple[TopLine, ...]:
    window = TracingWindow(DIAGNOSED_CYCLES, 1, native)
    try:
        is_over = False
        while not is_over:
            window.before_call()
            try:
                cycle()
            finally:
                window.after_call()
            forget_logs()
            is_over = window.step_done()
    except BaseException:
        window.release()
        raise
    return window.close()


def _message(found: LeakMeasurement, limits: LeakMeasurement, cycles: int, lines: list[TopLine]) -> str:
    parts = [
        f"memory grows by {found.native_bytes:+.0f} native bytes (limit {limits.native_bytes:g}) and"
        f" {found.blocks:+.2f} Python blocks (limit {limits.blocks:g}) per cycle, {ROUNDS} x {cycles} cycles"
    ]
    for line in lines:
        what = f"native, in {line.call}" if line.kind == "native" else "Python"
        growth = f"{line.bytes_per_step:+.0f} bytes per cycle ({what})"
        parts.append(f"  {line.filename}:{line.lineno}: {growth}  {line.source}")
    return "\n".join(parts)


def _native_reader() -> Callable[[], int]:
    reader = native_heap_reader()
    if reader is None:
        raise AssertionError(
            "the native heap cannot be read here (it takes glibc's own allocator and psutil >= 7.2): nothing was"
            " measured. max_native_bytes=math.inf asks for Python's blocks only"
        )
    return reader


def _nothing() -> int:
    return 0


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise ValueError(f"{name}: expected a whole number, at least {least}, got {value!r}")
    return int(value)


def _limit(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) >= 0:
        raise ValueError(f"{name}: expected a number, at least 0, got {value!r}")
    return float(value)
