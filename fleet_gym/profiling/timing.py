"""The time profiler itself, independent of the kind of environment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fleet_gym.profiling.log import logger
from fleet_gym.profiling.phases import PhaseClock

#: Parts of a step, in the order of the line; a part nobody marked is left out.
STEP_PHASES = ("dynamics", "task", "render", "record")
RESET = "reset"
RESERVED = ("step", "total")


class TimeProfiler:
    """Collects step durations and phases, and says their averages once per interval.

    Args:
        interval: steps per line.

    Attributes:
        clock: charges time to phases.
        last: the latest record, None before the first; see `TimeProfilingWrapper.last_profiling`.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._durations: list[float] = []
        self._total_steps = 0
        self.clock = PhaseClock()
        self.last: Mapping[str, Any] | None = None

    def end_step(self) -> None:
        """Takes a step into account that `clock.begin_step` began."""
        durations = self._durations
        durations.append(self.clock.end_step())
        if len(durations) >= self._interval:
            self.flush()

    def flush(self) -> None:
        """Ends the running interval, if it has a step."""
        if not self._durations:
            return
        self._total_steps += len(self._durations)
        self.last = time_record(self._total_steps, self._durations, self.clock.take())
        self._durations.clear()
        logger.info("%s", time_line(self.last))


def time_record(step: int, durations: list[float], seconds: Mapping[str, float]) -> Mapping[str, Any]:
    """Makes a read-only record of an interval.

    Args:
        step: steps so far.
        durations: of the interval's steps, s.
        seconds: by phase, everything between the steps included.
    """
    steps = len(durations)
    ordered = sorted(durations)
    total = sum(seconds.values())
    return MappingProxyType(
        {
            "step": step,
            "steps": steps,
            "step_ms": 1e3 * sum(durations) / steps,
            "total_ms": 1e3 * total / steps,
            "phases_ms": MappingProxyType({name: 1e3 * value / steps for name, value in seconds.items()}),
            "p50_ms": 1e3 * _percentile(ordered, 0.50),
            "p95_ms": 1e3 * _percentile(ordered, 0.95),
            "p99_ms": 1e3 * _percentile(ordered, 0.99),
            "steps_per_second": steps / total,
        }
    )


def _percentile(ordered: list[float], share: float) -> float:
    """Linear interpolation between the closest ranks."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def time_line(record: Mapping[str, Any]) -> str:
    """Returns the ``[PROFILING]`` line: shares are of the whole time, what happened between the steps included."""
    phases: Mapping[str, float] = record["phases_ms"]
    named = [name for name in STEP_PHASES if name in phases]
    around = (RESET, PhaseClock.OUTSIDE)
    own = sorted(set(phases) - {*named, PhaseClock.OTHER, *around})
    order = [*named, *own, PhaseClock.OTHER, *(name for name in around if name in phases)]
    total = record["total_ms"]

    def part(name: str, value: float) -> str:
        return f"{name}={value:.2f}ms ({100 * value / total:.1f}%)"

    parts = [part("step", record["step_ms"]), *(part(name, phases[name]) for name in order)]
    parts += [f"{name}={record[f'{name}_ms']:.2f}ms" for name in ("p50", "p95", "p99")]
    parts.append(f"{record['steps_per_second']:.1f} steps/s")
    return f"[PROFILING] Last {record['steps']} steps average: {', '.join(parts)}"
