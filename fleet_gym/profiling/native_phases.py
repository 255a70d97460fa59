"""Native growth by what the program was doing: in ``step``, in ``reset``, or outside."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from fleet_gym.profiling.report import PhaseMemory

SHARE = 0.005
CHEAP_S = 20e-6
CHEAP_AT_INTERVAL_END_S = CHEAP_AT_RESET_S = 2e-3


class NativeSampler:
    """Decides at which steps the native heap is read, so that readings take about half a percent of the time.

    The distances between sampled steps are random, so that no period of the environment can hide between them. One
    reading costs a few microseconds, but glibc walks its free chunks for it (0.2 us each): in a fragmented heap it can
    take milliseconds, and is then taken so rarely that it stays within its share.

    Args:
        read: reads the bytes of the native heap.
        stride: mean distance between sampled steps at first.
        longest: largest mean distance.

    Attributes:
        read: as given.
        last: latest reading.
        readings: how many there were.
    """

    def __init__(self, read: Callable[[], int], stride: int, longest: int) -> None:
        self.read = read
        self._stride, self._longest = stride, longest
        self._wait = 1
        self._random = 1
        self._not_before = 0.0
        self.readings = 0
        self._cost = self._sample_cost = 2e-6
        self.last = self.timed_read()

    def before_step(self) -> int:
        """Returns the bytes before a step that is sampled, -1 before others."""
        self._wait -= 1
        if self._wait:
            return -1
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        self._wait = 1 + (self._random >> 8) % (2 * self._stride - 1)
        return self.read_if_cheap()

    def before_reset(self) -> int:
        """Returns the bytes before a reset, -1 if that takes longer than a reset is worth; samples the next step."""
        self._wait = 1
        return self.read_if_cheap(CHEAP_AT_RESET_S)

    def at_interval_end(self) -> None:
        """Reads unless that takes milliseconds: a verdict needs a reading per interval."""
        self.read_if_cheap(CHEAP_AT_INTERVAL_END_S)

    def read_if_cheap(self, limit_s: float = CHEAP_S) -> int:
        """Returns the bytes now, or -1 when a reading takes longer than `limit_s` and would exceed its share."""
        if self._cost > limit_s and time.perf_counter() < self._not_before:
            return -1
        return self.timed_read()

    def timed_read(self) -> int:
        """Reads in any case, and takes note of what it cost."""
        start = time.perf_counter()
        self.last = self.read()
        end = time.perf_counter()
        self._cost = min(end - start, 2 * self._cost + 1e-6)  # one interrupted by another process is not dear
        self._not_before = end + self._cost / SHARE
        self.readings += 1
        return self.last

    def adapt(self, sample_s: float, step_s: float) -> None:
        """Chooses the distance for samples of `sample_s` seconds every `step_s` seconds."""
        self._sample_cost = min(sample_s, 2 * self._sample_cost + 1e-6)
        self._stride = min(max(1, math.ceil(self._sample_cost / (SHARE * max(step_s, 1e-9)))), self._longest)


class _Growth:
    """Growth of the sampled ones among a method's calls."""

    __slots__ = ("sampled", "sampled_bytes")

    def __init__(self) -> None:
        self.sampled = self.sampled_bytes = 0

    def clear(self) -> None:
        self.sampled = self.sampled_bytes = 0

    def add(self, native_bytes: int) -> None:
        self.sampled += 1
        self.sampled_bytes += native_bytes

    def merge(self, other: _Growth) -> None:
        self.sampled += other.sampled
        self.sampled_bytes += other.sampled_bytes

    def total(self, calls: int) -> float:
        """Scales up to all calls."""
        return self.sampled_bytes / self.sampled * calls if self.sampled else 0.0


class _Book:
    """Growth of a stretch of the run. First steps after a reset, unlike the others, are sampled one and all."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.steps = self.resets = 0
        self.first, self.later, self.reset = _Growth(), _Growth(), _Growth()

    def restart(self, start: int) -> None:
        self.start = start
        self.steps = self.resets = 0
        for growth in (self.first, self.later, self.reset):
            growth.clear()

    def merge(self, other: _Book) -> None:
        self.steps += other.steps
        self.resets += other.resets
        self.first.merge(other.first)
        self.later.merge(other.later)
        self.reset.merge(other.reset)

    def outside(self, now: int) -> float:
        """What neither steps nor resets account for; negative when what calls returned was freed outside."""
        return now - self.start - self._step_total() - self.reset.total(self.resets)

    def phases(self, now: int) -> Mapping[str, PhaseMemory]:
        """What a call returns is born in it and freed outside: what outside lost on balance is shared by the calls.

        A call cannot have returned more than it allocated: the rest is something older that was freed.
        """
        returned = max(0.0, -self.outside(now)) / max(self.steps + self.resets, 1)
        return {
            "step": _phase(self.steps, self._step_total(), returned),
            "reset": _phase(self.resets, self.reset.total(self.resets), returned),
        }

    def _step_total(self) -> float:
        return self.first.sampled_bytes + self.later.total(self.steps - self.first.sampled)


def _phase(calls: int, total: float, returned: float) -> PhaseMemory:
    mean = total / calls if calls else 0.0
    return PhaseMemory(calls, mean - min(returned, max(mean, 0.0)))


class NativePhases:
    """Keeps the books of one profiler. Readings are bytes of the C heap.

    Args:
        now: reading at the start.
    """

    def __init__(self, now: int) -> None:
        self._interval, self._total = _Book(now), _Book(now)
        self._is_first = False

    def add_step(self, before: int, after: int) -> None:
        """Books a sampled call of ``step``."""
        growth = self._interval.first if self._is_first else self._interval.later
        growth.add(after - before)
        self._is_first = False

    def count_reset(self) -> None:
        """Counts a call of ``reset``, sampled or not."""
        self._interval.resets += 1
        self._is_first = True

    def add_reset(self, before: int, after: int) -> None:
        """Books a sampled call of ``reset``."""
        self._interval.reset.add(after - before)

    def exclude(self, native_bytes: int) -> None:
        """Leaves growth between the calls out of the books."""
        self._interval.start += native_bytes
        self._total.start += native_bytes

    def end_interval(self, steps: int, now: int) -> Mapping[str, PhaseMemory]:
        """Returns the interval's growth by phase, adds it to the total and starts another.

        Args:
            steps: calls of ``step``, sampled or not.
            now: latest reading.
        """
        interval = self._interval
        interval.steps = steps
        self._total.merge(interval)
        phases = interval.phases(now)
        interval.restart(now)
        return phases

    def so_far(self, steps: int, now: int) -> tuple[Mapping[str, PhaseMemory], int]:
        """Returns growth by phase since the start, and what grew outside them, at least 0 bytes.

        Args:
            steps: calls of ``step`` in the running interval.
            now: latest reading.
        """
        both = _Book(self._total.start)
        both.merge(self._total)
        both.merge(self._interval)
        both.steps += steps
        return both.phases(now), max(0, round(both.outside(now)))

    @property
    def resets(self) -> int:
        """Calls of ``reset`` so far."""
        return self._total.resets + self._interval.resets
