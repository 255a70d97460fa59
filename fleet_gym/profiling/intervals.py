"""Statistics of one interval of steps, the record they become, and the lines that say it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fleet_gym.profiling.signals import MIB


class Spread:
    """Mean, lowest and highest of what was added since the last `clear`.

    `add` makes no object that lives on: it is called between allocations that are being traced.
    """

    __slots__ = ("_buffer", "_count", "_high", "_low", "_pending", "_total", "_values")

    BUFFERED = 250  # indices that small are objects Python keeps anyway

    def __init__(self) -> None:
        self._buffer = array("q", bytes(8 * self.BUFFERED))
        self._values = np.frombuffer(self._buffer, np.int64)  # the same memory: an array stores, NumPy sums up faster
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._pending = self._count = self._total = 0
        self._low, self._high = 1 << 62, -1

    def add(self, value: int) -> None:
        """Takes one value into account, bytes."""
        self._buffer[self._pending] = value
        self._pending += 1
        if self._pending == self.BUFFERED:
            self._fold()

    @property
    def mean(self) -> float:
        """The mean; 0 when nothing was added."""
        self._fold()
        return self._total / self._count if self._count else 0.0

    @property
    def low(self) -> int:
        """The lowest value; 2^62 when nothing was added."""
        self._fold()
        return self._low

    @property
    def high(self) -> int:
        """The highest value; -1 when nothing was added."""
        self._fold()
        return self._high

    def _fold(self) -> None:
        if self._pending:
            values = self._values[: self._pending]
            self._count += self._pending
            self._total += int(np.add.reduce(values))
            self._low = min(self._low, int(np.minimum.reduce(values)))
            self._high = max(self._high, int(np.maximum.reduce(values)))
            self._pending = 0


class Samples:
    """Levels and the peaks between them, added together: one call per step.

    Attributes:
        levels: of the samples.
        peaks: of the stretches before them.
    """

    __slots__ = ("levels", "peaks")

    def __init__(self) -> None:
        self.levels, self.peaks = Spread(), Spread()

    def clear(self) -> None:
        """Forgets everything."""
        self.levels.clear()
        self.peaks.clear()

    def add(self, level: int, peak: int) -> None:
        """Takes one sample into account, bytes."""
        levels, peaks = self.levels, self.peaks
        at = levels._pending
        if at != peaks._pending:  # somebody has looked at one of them
            levels._fold()
            peaks._fold()
            at = 0
        levels._buffer[at] = level
        peaks._buffer[at] = peak
        levels._pending = peaks._pending = at = at + 1
        if at == Spread.BUFFERED:
            levels._fold()
            peaks._fold()


@dataclass(frozen=True)
class MemoryRecord:
    """What one interval of steps held. MB are MiB (1,048,576 bytes).

    Attributes:
        step: steps since profiling started, at the interval's end.
        steps: steps in the interval.
        time_s: seconds since profiling started, at the interval's end.
        source: what `current_mb` and its kin measure: ``"tracemalloc"`` (Python heap) or ``"rss"``.
        current_mb: mean over the interval's samples.
        min_mb: lowest sample.
        max_mb: highest sample.
        peak_mb: mean over the samples of the highest value reached since the sample before.
        peak_max_mb: highest value reached in the interval.
        growth_mb: last sample minus the previous interval's last sample (at first: minus the one at construction).
        rss_mb: resident set size at the end.
        uss_mb: unique set size, None until it was read (which takes at most 0.2 % of the time); the latest reading.
        native_mb: bytes handed out by the C allocator at the end, None where it cannot be read.
        python_blocks: live blocks of the Python allocator at the end.
        resets: calls of ``reset`` in the interval.
        step_native_bytes: native growth by the interval's calls of ``step`` together, what they returned and the caller
            let go of again not counted.
        reset_native_bytes: and of ``reset``.
        num_workers: worker processes of the environment.
        workers_mb: their USS together.
        num_encoders: ffmpeg processes among this process's children, counted when `uss_mb` is read.
        encoders_mb: their USS together.
        limit_mb: memory this process may use (its cgroup's limit, else the machine's memory).
        steps_per_second: over the interval, whatever happened between the steps included.
        verdicts: signal -> ``"leak"``, ``"stable"`` or ``"not enough data"``, as of the latest look.
        uss_step: `step` of the interval in which `uss_mb` was read, None if unknown.
    """

    step: int
    steps: int
    time_s: float
    source: str
    current_mb: float
    min_mb: float
    max_mb: float
    peak_mb: float
    peak_max_mb: float
    growth_mb: float
    rss_mb: float
    uss_mb: float | None
    native_mb: float | None
    python_blocks: int
    resets: int
    step_native_bytes: int
    reset_native_bytes: int
    num_workers: int
    workers_mb: float
    num_encoders: int
    encoders_mb: float
    limit_mb: float
    steps_per_second: float
    verdicts: Mapping[str, str] = field(default_factory=dict)
    uss_step: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return {**vars(self), "verdicts": dict(self.verdicts)}

    def line(self) -> str:
        """Returns the ``[MEMORY]`` line."""
        return (
            f"[MEMORY] Last {self.steps} steps: "
            f"current={self.current_mb:.2f}MB (min={self.min_mb:.2f}, max={self.max_mb:.2f}), "
            f"peak={self.peak_mb:.2f}MB (max={self.peak_max_mb:.2f}), growth={self.growth_mb:+.2f}MB"
        )

    def plus_line(self, note: str = "") -> str:
        """Returns the ``[MEMORY+]`` line: everything else worth a glance, absent parts left out.

        Args:
            note: put at the end.
        """
        return " ".join(part for part in (*(make(self) for make in _PLUS_PARTS), note) if part)


# One small function per part: tracemalloc looks up the line of each allocation, which takes long in long functions.
_PLUS_PARTS: tuple[Callable[[MemoryRecord], str], ...] = (
    lambda r: f"[MEMORY+] source={r.source}",
    lambda r: f"rss={r.rss_mb:.2f}MB",
    lambda r: "" if r.uss_mb is None else f"uss={r.uss_mb:.2f}MB{_as_of(r)}",
    lambda r: "native=unknown" if r.native_mb is None else f"native={r.native_mb:.2f}MB",
    lambda r: f"blocks={r.python_blocks}",
    lambda r: f"step={r.step_native_bytes / r.steps:+.0f}B/call",
    lambda r: f"reset={r.reset_native_bytes / r.resets:+.0f}B/call (x{r.resets})" if r.resets else "",
    lambda r: f"workers={r.workers_mb:.2f}MB (x{r.num_workers})" if r.num_workers else "",
    lambda r: f"encoders={r.encoders_mb:.2f}MB (x{r.num_encoders})" if r.num_encoders else "",
    lambda r: f"limit={r.limit_mb:.0f}MB",
    lambda r: "verdict: " + ", ".join(map(" ".join, r.verdicts.items())) if r.verdicts else "",
)


def _as_of(record: MemoryRecord) -> str:
    return "" if record.uss_step in (None, record.step) else f" (as of step {record.uss_step})"


SIGNALS = ("python", "native", "rss", "workers")
SOURCES = ("tracemalloc", "rss")
STATUSES = ("leak", "stable", "not enough data")
_NUMBERS = tuple(f.name for f in fields(MemoryRecord) if f.name not in ("source", "verdicts"))
_WHOLE = frozenset(f.name for f in fields(MemoryRecord) if str(f.type).startswith("int"))


class RecordStore:
    """The latest records in memory allocated once: a profiler that grows would report itself.

    Args:
        capacity: records kept.
    """

    def __init__(self, capacity: int) -> None:
        self._numbers = np.full((capacity, len(_NUMBERS)), -1.0)
        self._codes = np.full((capacity, 1 + len(SIGNALS)), -1, dtype=np.int8)
        self._written = 0

    def append(self, record: MemoryRecord) -> None:
        """Keeps a record, in the place of the oldest when full."""
        at = self._written % len(self._numbers)
        values = vars(record)
        self._numbers[at] = [math.nan if values[name] is None else values[name] for name in _NUMBERS]
        self._codes[at, 0] = SOURCES.index(record.source)
        for column, name in enumerate(SIGNALS, 1):
            status = record.verdicts.get(name)
            self._codes[at, column] = -1 if status is None else STATUSES.index(status)
        self._written += 1

    def latest(self) -> tuple[MemoryRecord, ...]:
        """Returns what is kept, oldest first."""
        capacity = len(self._numbers)
        first = max(0, self._written - capacity)
        return tuple(self._record(index % capacity) for index in range(first, self._written))

    def last(self) -> MemoryRecord | None:
        """Returns the latest record, None before the first."""
        return self._record((self._written - 1) % len(self._numbers)) if self._written else None

    def _record(self, at: int) -> MemoryRecord:
        values: dict[str, Any] = {
            name: None if math.isnan(value) else int(value) if name in _WHOLE else value
            for name, value in zip(_NUMBERS, self._numbers[at].tolist(), strict=True)
        }
        codes = self._codes[at].tolist()
        verdicts = {name: STATUSES[code] for name, code in zip(SIGNALS, codes[1:], strict=True) if code >= 0}
        return MemoryRecord(source=SOURCES[codes[0]], verdicts=verdicts, **values)


def mib(value: float) -> float:
    """Converts bytes to MiB."""
    return value / MIB
