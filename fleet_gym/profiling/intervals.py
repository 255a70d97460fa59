"""Statistics of one interval of steps, the record they become, and the lines that say it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np

from fleet_gym.profiling.signals import MIB

NEVER = 1 << 62
"""A lowest value of nothing."""


class Samples:
    """Levels and the peaks of the stretches before them since the last `clear`: means, lowest, highest, bytes.

    `add` runs between allocations that are being traced, and allocates next to nothing: its sums are floats (exact up
    to 9 PB), of which Python keeps some in stock.

    Attributes:
        low: the lowest level; `NEVER` when nothing was added.
        high: the highest level; -1 when nothing was added.
        peak_high: the highest peak; -1 when nothing was added.
    """

    __slots__ = ("_count", "_peak_total", "_total", "high", "low", "peak_high")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._count = self._total = self._peak_total = 0.0
        self.low, self.high, self.peak_high = NEVER, -1, -1

    def add(self, level: int, peak: int) -> None:
        """Takes one sample into account."""
        self._count += 1.0
        self._total += level
        self._peak_total += peak
        if level < self.low:
            self.low = level
        if level > self.high:
            self.high = level
        if peak > self.peak_high:
            self.peak_high = peak

    @property
    def mean(self) -> float:
        """The mean level; 0 when nothing was added."""
        return self._total / self._count if self._count else 0.0

    @property
    def peak_mean(self) -> float:
        """The mean peak; 0 when nothing was added."""
        return self._peak_total / self._count if self._count else 0.0


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

    @classmethod
    def of(cls, values: dict[str, Any]) -> MemoryRecord:
        """Returns a record of all its fields' values by name, in a tenth of the time that setting one by one takes.

        Args:
            values: none missing; not to be changed afterwards.
        """
        record = object.__new__(cls)
        object.__setattr__(record, "__dict__", values)
        return record

    @property
    def step_native_bytes_per_call(self) -> float:
        """Native growth per call of ``step``."""
        return self.step_native_bytes / self.steps

    @property
    def reset_native_bytes_per_call(self) -> float:
        """Native growth per call of ``reset``; 0 without one."""
        return self.reset_native_bytes / self.resets if self.resets else 0.0

    @property
    def verdict(self) -> str:
        """The verdicts in words."""
        return ", ".join(map(" ".join, self.verdicts.items()))

    def line(self) -> str:
        """Returns the ``[MEMORY]`` line."""
        return _LINE % _values_of_line(self)

    def plus_line(self, note: str = "") -> str:
        """Returns the ``[MEMORY+]`` line: everything else worth a glance, absent parts left out.

        Args:
            note: put at the end.
        """
        template, values = _plus_template(
            self.uss_mb is not None,
            self.uss_step not in (None, self.step),
            self.native_mb is not None,
            self.resets > 0,
            self.num_workers > 0,
            self.num_encoders > 0,
            bool(self.verdicts),
        )
        line = template % values(self)
        return f"{line} {note}" if note else line


# Formatted at one go: every piece of text made on the way to a line would be traced.
_LINE = (
    "[MEMORY] Last %d steps: current=%.2fMB (min=%.2f, max=%.2f), peak=%.2fMB (max=%.2f), growth=%+.2fMB"
)  # fmt: skip
_values_of_line = attrgetter("steps", "current_mb", "min_mb", "max_mb", "peak_mb", "peak_max_mb", "growth_mb")


@functools.lru_cache(maxsize=128)
def _plus_template(
    uss: bool, old_uss: bool, native: bool, resets: bool, workers: bool, encoders: bool, verdicts: bool
) -> tuple[str, Callable[[MemoryRecord], Any]]:
    """Returns the ``[MEMORY+]`` line with places for its values, and what gets these from a record."""
    parts: list[tuple[bool, str, tuple[str, ...]]] = [
        (True, "[MEMORY+] source=%s rss=%.2fMB", ("source", "rss_mb")),
        (uss, "uss=%.2fMB", ("uss_mb",)),
        (uss and old_uss, "(as of step %d)", ("uss_step",)),
        (native, "native=%.2fMB", ("native_mb",)),
        (not native, "native=unknown", ()),
        (True, "blocks=%d step=%+.0fB/call", ("python_blocks", "step_native_bytes_per_call")),
        (resets, "reset=%+.0fB/call (x%d)", ("reset_native_bytes_per_call", "resets")),
        (workers, "workers=%.2fMB (x%d)", ("workers_mb", "num_workers")),
        (encoders, "encoders=%.2fMB (x%d)", ("encoders_mb", "num_encoders")),
        (True, "limit=%.0fMB", ("limit_mb",)),
        (verdicts, "verdict: %s", ("verdict",)),
    ]
    names = [name for is_there, _, names in parts if is_there for name in names]
    return " ".join(text for is_there, text, _ in parts if is_there), attrgetter(*names)


SIGNALS = ("python", "native", "rss", "workers")
SOURCES = ("tracemalloc", "rss")
STATUSES = ("leak", "stable", "not enough data")
_NUMBERS = tuple(f.name for f in fields(MemoryRecord) if f.name not in ("source", "verdicts"))
_numbers_of = attrgetter(*_NUMBERS)
_CODES: dict[Any, int] = {None: -1, **{status: code for code, status in enumerate(STATUSES)}}
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
        self._numbers[at] = _numbers_of(record)  # None becomes NaN
        self._codes[at] = (SOURCES.index(record.source), *map(_CODES.__getitem__, map(record.verdicts.get, SIGNALS)))
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
