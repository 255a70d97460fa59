"""Statistics of one interval of steps, the record they become, and the lines that say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_gym.profiling.signals import MIB


class Spread:
    """Mean, lowest and highest of what was added since the last `clear`."""

    __slots__ = ("count", "high", "low", "total")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.count = 0
        self.total = 0
        self.low = 1 << 62
        self.high = -1

    def add(self, value: int) -> None:
        """Takes one value into account."""
        self.count += 1
        self.total += value
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    @property
    def mean(self) -> float:
        """The mean; 0 when nothing was added."""
        return self.total / self.count if self.count else 0.0


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
        uss_mb: unique set size, None until it was read (it is read for at most 1 % of the time).
        native_mb: bytes handed out by the C allocator at the end, None where it cannot be read.
        python_blocks: live blocks of the Python allocator at the end.
        resets: calls of ``reset`` in the interval.
        step_native_bytes: native growth during the interval's calls of ``step`` together.
        reset_native_bytes: and of ``reset``.
        num_workers: worker processes of the environment.
        workers_mb: their USS together.
        num_encoders: ffmpeg processes among this process's children.
        encoders_mb: their USS together.
        limit_mb: memory this process may use (its cgroup's limit, else the machine's memory).
        steps_per_second: over the interval, whatever happened between the steps included.
        verdicts: signal -> ``"leak"``, ``"stable"`` or ``"not enough data"``, as of the latest look.
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
        parts = [f"[MEMORY+] source={self.source} rss={self.rss_mb:.2f}MB"]
        if self.uss_mb is not None:
            parts.append(f"uss={self.uss_mb:.2f}MB")
        parts.append("native=unknown" if self.native_mb is None else f"native={self.native_mb:.2f}MB")
        parts.append(f"blocks={self.python_blocks}")
        parts.append(f"step={self.step_native_bytes / self.steps:+.0f}B/call")
        if self.resets:
            parts.append(f"reset={self.reset_native_bytes / self.resets:+.0f}B/call (x{self.resets})")
        if self.num_workers:
            parts.append(f"workers={self.workers_mb:.2f}MB (x{self.num_workers})")
        if self.num_encoders:
            parts.append(f"encoders={self.encoders_mb:.2f}MB (x{self.num_encoders})")
        parts.append(f"limit={self.limit_mb:.0f}MB")
        if self.verdicts:
            parts.append("verdict: " + ", ".join(f"{name} {status}" for name, status in self.verdicts.items()))
        if note:
            parts.append(note)
        return " ".join(parts)


def mib(value: float) -> float:
    """Converts bytes to MiB."""
    return value / MIB
