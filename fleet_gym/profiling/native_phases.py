"""Native growth by what the program was doing: in ``step``, in ``reset``, or outside."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_gym.profiling.report import PhaseMemory


class _Growth:
    """Bytes gained in step, in reset and between calls, and the number of calls."""

    __slots__ = ("outside", "reset", "resets", "step", "steps")

    def __init__(self) -> None:
        self.step = self.reset = self.outside = 0
        self.steps = self.resets = 0

    def clear(self) -> None:
        self.step = self.reset = self.outside = 0
        self.steps = self.resets = 0

    def add(self, other: _Growth) -> None:
        self.step += other.step
        self.reset += other.reset
        self.outside += other.outside
        self.steps += other.steps
        self.resets += other.resets

    def phases(self) -> Mapping[str, PhaseMemory]:
        """What a call returns is born in it and freed outside: what outside lost on balance is shared by the calls."""
        returned = max(0, -self.outside) / max(self.steps + self.resets, 1)
        return {
            "step": PhaseMemory(self.steps, self.step / self.steps - returned if self.steps else 0.0),
            "reset": PhaseMemory(self.resets, self.reset / self.resets - returned if self.resets else 0.0),
        }


class NativePhases:
    """Keeps the books of one profiler. Readings are bytes of the C heap."""

    def __init__(self) -> None:
        self._interval, self._total = _Growth(), _Growth()
        self._last = 0

    def start(self, now: int) -> None:
        """Counts from here on."""
        self._last = now

    def add_step(self, before: int, after: int) -> None:
        """Books a call of ``step`` and what came before it."""
        interval = self._interval
        interval.outside += before - self._last
        interval.step += after - before
        interval.steps += 1
        self._last = after

    def add_reset(self, before: int, after: int) -> None:
        """Books a call of ``reset`` and what came before it."""
        interval = self._interval
        interval.outside += before - self._last
        interval.reset += after - before
        interval.resets += 1
        self._last = after

    def end_interval(self) -> None:
        """Adds the interval to the total and starts another."""
        self._total.add(self._interval)
        self._interval.clear()

    def in_interval(self) -> Mapping[str, PhaseMemory]:
        """Returns growth by phase in the running interval."""
        return self._interval.phases()

    def so_far(self) -> Mapping[str, PhaseMemory]:
        """Returns growth by phase since the start."""
        return self._sum().phases()

    def outside_bytes(self) -> int:
        """Returns what was gained outside on balance since the start, at least 0."""
        return max(0, self._sum().outside)

    @property
    def resets(self) -> int:
        """Calls of ``reset`` so far."""
        return self._total.resets + self._interval.resets

    def _sum(self) -> _Growth:
        both = _Growth()
        both.add(self._total)
        both.add(self._interval)
        return both
