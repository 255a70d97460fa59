"""The time profiler itself, independent of the kind of environment."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fleet_gym.profiling.log import say
from fleet_gym.profiling.phases import PhaseClock

#: Parts of a step, in the order of the line; a part nobody marked is left out.
STEP_PHASES = ("dynamics", "task", "render", "record")
RESET = "reset"


class TimeProfiler:
    """Collects step durations and phases, and says their averages once per interval.

    Args:
        interval: steps per line.

    Attributes:
        clock: charges time to phases.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._durations = array("d")  # no objects that pile up until the interval's end
        self._total_steps = 0
        self._last: tuple[int, int, dict[str, float], dict[str, float]] | None = None
        self.clock = PhaseClock()

    def timed(self, env: Any) -> Callable[[Any], Any]:
        """Returns ``env.step`` taken into account; when it raises, the interval ends with it."""
        return self.clock.timed(env, self._durations, self._interval, self.flush)

    def end_step(self) -> None:
        """Takes a step into account that `clock.begin_step` began."""
        self._durations.append(self.clock.end_step())
        if len(self._durations) >= self._interval:
            self.flush()

    def flush(self) -> None:
        """Ends the running interval, if it has a step."""
        durations = self._durations
        steps = len(durations)
        if not steps:
            return
        self._total_steps += steps
        seconds = self.clock.take()
        summary = summarize(sorted(durations), sum(seconds.values()))
        del durations[:]
        self._last = (self._total_steps, steps, summary, seconds)
        say(time_line(steps, summary, seconds))

    @property
    def last(self) -> Mapping[str, Any] | None:
        """The latest record, read-only, None before the first; see `TimeProfilingWrapper.last_profiling`."""
        if self._last is None:
            return None
        step, steps, summary, seconds = self._last
        phases_ms = MappingProxyType({name: 1e3 * value / steps for name, value in seconds.items()})
        return MappingProxyType({"step": step, "steps": steps, **summary, "phases_ms": phases_ms})


def summarize(durations: list[float], total: float) -> dict[str, float]:
    """Returns the figures of an interval by name.

    Args:
        durations: of the interval's steps, sorted, s.
        total: length of the interval, s.
    """
    steps = len(durations)
    return {
        "step_ms": 1e3 * sum(durations) / steps,
        "total_ms": 1e3 * total / steps,
        "p50_ms": 1e3 * _percentile(durations, 0.50),
        "p95_ms": 1e3 * _percentile(durations, 0.95),
        "p99_ms": 1e3 * _percentile(durations, 0.99),
        "steps_per_second": steps / max(total, 1e-9),
    }


def _percentile(ordered: list[float], share: float) -> float:
    """Linear interpolation between the closest ranks."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def time_line(steps: int, summary: Mapping[str, float], seconds: Mapping[str, float]) -> str:
    """Returns the ``[PROFILING]`` line: shares are of the whole time, what happened between the steps included.

    Args:
        steps: in the interval.
        summary: what `summarize` returned.
        seconds: by phase.
    """
    order, template = _template(tuple(seconds))
    step, percent = summary["step_ms"], 100 / max(summary["total_ms"], 1e-9)
    values: list[float] = [steps, step, step * percent]
    for name in order:
        value = 1e3 * seconds[name] / steps
        values += (value, value * percent)
    values += (summary["p50_ms"], summary["p95_ms"], summary["p99_ms"], summary["steps_per_second"])
    return template % tuple(values)


@functools.lru_cache(maxsize=16)
def _template(names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Returns the phases in the order of the line, and the line with places for the figures.

    Made once: an interval's end runs so rarely that every instruction of it misses the processor's caches.
    """
    around = (RESET, PhaseClock.OUTSIDE)
    named = [name for name in STEP_PHASES if name in names]
    own = sorted(set(names) - {*named, PhaseClock.OTHER, *around})
    order = (*named, *own, PhaseClock.OTHER, *(name for name in around if name in names))
    parts = [f"{name.replace('%', '%%')}=%.2fms (%.1f%%)" for name in ("step", *order)]
    parts += ["p50=%.2fms", "p95=%.2fms", "p99=%.2fms", "%.1f steps/s"]
    return order, f"[PROFILING] Last %d steps average: {', '.join(parts)}"
