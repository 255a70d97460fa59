"""Which source lines grow: snapshots of the traced heap, and the C heap watched call by call."""

from __future__ import annotations

import gc
import itertools
import linecache
import math
import os
import sys
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from fleet_gym.profiling.report import TopLine
from fleet_gym.profiling.tracing import TraceLease

Location = tuple[tuple[str, int], ...]
"""(file name, line number) of each frame, innermost last."""

TOP_LINES = 10
SHARE_OF_LEAK = 0.1
UNTRACED_SHARE = 0.3
TELLING_STEPS = 10
"""Of an unfinished window: after fewer, everything looks as if it grew."""
WATCHED_S = 2.0
"""Time a window may spend on readings around calls into C: in a fragmented heap each can take milliseconds."""
_PACKAGE = Path(__file__).resolve().parent.parent
_OWN_PREFIXES = (f"{_PACKAGE / 'profiling'}{os.sep}", "<frozen ")
_OWN_FILES = frozenset(
    {
        str(_PACKAGE / "wrappers" / "memory_profiling.py"),
        str(_PACKAGE / "wrappers" / "time_profiling.py"),
        tracemalloc.__file__,
        linecache.__file__,
    }
)


def traced_lines(nframe: int, *, collect: bool = True) -> dict[Location, tuple[int, int]]:
    """Returns bytes and blocks of the traced heap by where they were allocated, this package's profilers left out.

    Args:
        nframe: 1 groups by line, more by traceback.
        collect: whether garbage is collected first, so that it does not look like growth.
    """
    if collect:
        gc.collect()
    statistics = tracemalloc.take_snapshot().statistics("lineno" if nframe == 1 else "traceback")
    found: dict[Location, tuple[int, int]] = {}
    for statistic in statistics:
        location = tuple((frame.filename, frame.lineno) for frame in statistic.traceback)
        if not _is_own(location[-1][0]):
            found[location] = (statistic.size, statistic.count)
    return found


def growing_lines(
    before: Mapping[Location, tuple[int, int]], after: Mapping[Location, tuple[int, int]], steps: int
) -> list[TopLine]:
    """Returns the lines that hold more bytes after than before, most first."""
    grown = []
    for location, (size, count) in after.items():
        old_size, old_count = before.get(location, (0, 0))
        if size > old_size:
            grown.append(_python_line(location, size - old_size, count - old_count, steps))
    return _most(grown)


def relevant_lines(lines: Iterable[TopLine], slopes: Mapping[str, float], untraced: float = 0.0) -> tuple[TopLine, ...]:
    """Returns the lines that can explain a leak, fastest first: those with at least a tenth of its slope.

    Python's larger objects live in the C heap, so a line of Python may be what makes that leak. A call into C is not
    when what tracemalloc does not know of hardly grows: then calls around which Python's small objects are freed look
    as if they allocated.

    Args:
        lines: candidates.
        slopes: bytes per step of the signals that leak. Without one, lines of Python are all returned.
        untraced: growth of the C heap without what tracemalloc knows of, bytes per step.
    """
    native = slopes.get("native", slopes.get("rss", math.inf))
    least = {"python": slopes.get("python", 0.0 if native == math.inf else native), "native": math.inf}
    if untraced >= UNTRACED_SHARE * native:
        least["native"] = max(native, untraced)
    kept = [line for line in lines if line.bytes_per_step >= SHARE_OF_LEAK * least[line.kind]]
    return tuple(sorted(kept, key=lambda line: -line.bytes_per_step))


def _most(lines: list[TopLine]) -> list[TopLine]:
    """Sorts by growth; less than a byte per step or a hundredth of the first is not worth a line."""
    lines = sorted(lines, key=lambda line: -line.bytes)[:TOP_LINES]
    return [line for line in lines if line.bytes_per_step >= max(1.0, 0.01 * lines[0].bytes_per_step)]


def _python_line(location: Location, size: int, count: int, steps: int) -> TopLine:
    *outer, (filename, lineno) = location
    frames = tuple(f"{name}:{line}" for name, line in outer)
    return TopLine("python", filename, lineno, size, count, size / max(steps, 1), frames=frames)


def _is_own(filename: str) -> bool:
    return filename in _OWN_FILES or filename.startswith(_OWN_PREFIXES)


class NativeCalls:
    """Growth of the C heap by the call into C during which it happened, while `sys.setprofile` points here.

    Args:
        native: reads the bytes of the C heap, those of Python objects and arrays excluded: these are freed when their
            last name goes, which no call shows.
    """

    def __init__(self, native: Callable[[], int]) -> None:
        self._native = native
        self._spent_s = 0.0
        self._open: list[list[int]] = []  # of each running call: bytes at its start, growth of calls inside it
        self._grown: dict[tuple[str, int, str], list[int]] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Takes an event of `sys.setprofile`."""
        if event == "c_call":
            self._open.append([self._timed(), 0])
        elif event in ("c_return", "c_exception") and self._open:
            before, inside = self._open.pop()
            grown = self._timed() - before
            if self._open:
                self._open[-1][1] += grown
            if grown != inside and not _is_own(frame.f_code.co_filename):
                self._add(frame, argument, grown - inside)

    @property
    def is_exhausted(self) -> bool:
        """Whether the readings took the time they may."""
        return self._spent_s > WATCHED_S

    def forget_open_calls(self) -> None:
        """To be called when profiling is switched on or off: the calls around that are seen only half."""
        self._open.clear()

    def lines(self, steps: int) -> list[TopLine]:
        """Returns the lines with net growth, most first."""
        lines = [
            TopLine("native", filename, lineno, size, calls, size / max(steps, 1), call=call)
            for (filename, lineno, call), (size, calls) in self._grown.items()
            if size > 0
        ]
        return _most(lines)

    def _timed(self) -> int:
        start = time.perf_counter()
        reading = self._native()
        self._spent_s += time.perf_counter() - start
        return reading

    def _add(self, frame: FrameType, function: Any, size: int) -> None:
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", repr(function))
        key = (frame.f_code.co_filename, frame.f_lineno, f"{module}.{name}" if module else name)
        entry = self._grown.setdefault(key, [0, 0])
        entry[0] += size
        entry[1] += 1


def _without_traced(native: Callable[[], int]) -> Callable[[], int]:
    """Returns a reader of the C heap without what tracemalloc knows of.

    A method of the window would make a circle of it and its calls: snapshots that outlive their use until garbage is
    collected, which then looks as if the program's growth had been garbage.
    """
    return lambda: native() - tracemalloc.get_traced_memory()[0]


class TracingWindow:
    """A bounded stretch of steps with tracemalloc on and C calls watched, to name what a cheap signal only suspects.

    A line counts with the smaller of its growths in the two halves: a buffer that filled up in the first is no leak.

    Args:
        steps: length.
        nframe: frames kept per allocation.
        native: reads the bytes of the C heap.

    Attributes:
        untraced: growth of the C heap without what tracemalloc knows of, bytes per step, as of `so_far` or `close`.
    """

    def __init__(self, steps: int, nframe: int, native: Callable[[], int]) -> None:
        self._half = max(1, steps // 2)
        self._nframe = nframe
        self._lease = TraceLease(nframe)
        self._read = read = _without_traced(native)
        self._calls = NativeCalls(read)
        self._snapshots = [(0, traced_lines(nframe))]
        self._start = read()
        self.untraced = 0.0
        self._steps = 0
        self._watches_calls = False
        self.release = weakref.finalize(self, _release, self._lease, self._calls)  # forgotten, it must not trace on

    def before_call(self) -> None:
        """Starts watching this thread's calls into C, unless another profiler is, or it has taken long enough."""
        # Its own is left behind by an interrupt that came before the call.
        self._watches_calls = not self._calls.is_exhausted and sys.getprofile() in (None, self._calls)
        if self._watches_calls:
            self._calls.forget_open_calls()
            sys.setprofile(self._calls)

    def after_call(self) -> None:
        """Stops watching."""
        if self._watches_calls:
            if sys.getprofile() is self._calls:  # else the call started a profiler of its own
                sys.setprofile(None)
            self._watches_calls = False

    @property
    def takes_snapshot_next(self) -> bool:
        """Whether the next `step_done` collects garbage and takes a snapshot."""
        return (self._steps + 1) % self._half == 0

    def step_done(self) -> bool:
        """Counts a step; True when the window is over."""
        self._steps += 1
        if self._steps % self._half == 0 and not self._lease.is_lost:
            self._snapshots.append((self._steps, traced_lines(self._nframe)))
        return self._steps >= 2 * self._half

    def so_far(self) -> tuple[TopLine, ...]:
        """Returns what grew, and sets `untraced`. Before the window is over this takes a snapshot.

        Until after its middle, growth is the only evidence: a buffer that is filling up is named too.
        """
        if self._lease.is_lost:
            return tuple(self._calls.lines(self._steps))
        self.untraced = (self._read() - self._start) / max(self._steps, 1)
        snapshots = self._snapshots[:3]
        unseen = self._steps - snapshots[-1][0]
        if 2 * unseen >= self._half or (len(snapshots) == 1 and unseen >= TELLING_STEPS):
            snapshots.append((self._steps, traced_lines(self._nframe)))
        return (*_steady(snapshots), *self._calls.lines(self._steps))

    def close(self) -> tuple[TopLine, ...]:
        """Ends tracing and returns what grew."""
        lines = self.so_far()
        self.release()
        return lines


def _release(lease: TraceLease, calls: NativeCalls) -> None:
    if sys.getprofile() is calls:
        sys.setprofile(None)
    lease.release()


def _steady(snapshots: Sequence[tuple[int, Mapping[Location, tuple[int, int]]]]) -> list[TopLine]:
    """Returns the lines that grow between all snapshots, with their slowest growth; with one snapshot, none.

    Args:
        snapshots: the step each was taken at, and its lines.
    """
    steps = snapshots[-1][0]
    grown = []
    for location in snapshots[-1][1]:
        sizes = [(step, *lines.get(location, (0, 0))) for step, lines in snapshots]
        pieces = [
            ((size - old_size) / (step - old_step), (count - old_count) / (step - old_step))
            for (old_step, old_size, old_count), (step, size, count) in itertools.pairwise(sizes)
        ]
        rate = min((rate for rate, _ in pieces), default=0.0)
        if rate > 0:
            blocks = min(blocks for _, blocks in pieces)
            grown.append(_python_line(location, round(rate * steps), round(blocks * steps), steps))
    return _most(grown)
