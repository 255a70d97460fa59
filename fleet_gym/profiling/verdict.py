"""Leak or noise: a verdict on the growth of one memory signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Status = Literal["leak", "stable", "not enough data"]

MIN_INTERVALS = 60
WARM_UP = 0.4
WINDOWS = 5
LEAK_THRESHOLD = 256.0
"""Bytes per step below which growth is not called a leak: 244 MiB in a million steps."""


@dataclass(frozen=True)
class LeakVerdict:
    """What a signal's growth means.

    Attributes:
        status: ``"leak"``, ``"stable"`` or ``"not enough data"``.
        bytes_per_step: slope of the interval minima after warm-up; 0 while there are fewer than two of them.
        intervals: how many interval minima it rests on.
        hours_to_limit: when a leak reaches the memory limit at the present pace; None without a leak.
    """

    status: Status
    bytes_per_step: float
    intervals: int
    hours_to_limit: float | None = None


class MinimaSeries:
    """Interval minima of one signal in bounded memory: past `capacity`, neighbours are merged into one minimum."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._merged = 1
        self._pending: list[tuple[int, float]] = []
        self._steps: list[int] = []
        self._values: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def append(self, step: int, value: float) -> None:
        """Adds the minimum of the interval that ended at `step`."""
        self._pending.append((step, value))
        if len(self._pending) < self._merged:
            return
        self._steps.append(self._pending[-1][0])
        self._values.append(min(value for _, value in self._pending))
        self._pending.clear()
        if len(self._values) >= self._capacity:
            self._steps = self._steps[1::2]
            self._values = [min(pair) for pair in zip(self._values[::2], self._values[1::2], strict=True)]
            self._merged *= 2

    @property
    def steps(self) -> NDArray[np.float64]:
        """(n,) the step each minimum's interval ended at."""
        return np.asarray(self._steps, dtype=np.float64)

    @property
    def values(self) -> NDArray[np.float64]:
        """(n,) the minima."""
        return np.asarray(self._values, dtype=np.float64)


def judge(steps: ArrayLike, minima: ArrayLike, threshold: float = LEAK_THRESHOLD) -> LeakVerdict:
    """Says whether interval minima grow for good.

    The first 40 % are warm-up. The rest is cut into five windows, whose lowest values are floors. It is a leak if every
    floor is above the one before, the last rise is at least half the mean rise (it is not levelling off), no rise is
    over half of all (it is not one step) and the slope exceeds `threshold`.

    Args:
        steps: (n,) step at the end of each interval, increasing.
        minima: (n,) lowest value of the signal in each interval, bytes.
        threshold: bytes per step.
    """
    steps, minima = np.asarray(steps, dtype=np.float64), np.asarray(minima, dtype=np.float64)
    count = len(minima)
    kept = slice(int(count * WARM_UP), None)
    slope = _slope(steps[kept], minima[kept])
    if count < MIN_INTERVALS:
        return LeakVerdict("not enough data", slope, count)
    floors = np.array([window.min() for window in np.array_split(minima[kept], WINDOWS)])
    rises = np.diff(floors)
    total = floors[-1] - floors[0]
    is_leak = (
        bool((rises > 0).all()) and rises[-1] >= 0.5 * rises.mean() and rises.max() <= 0.5 * total and slope > threshold
    )
    return LeakVerdict("leak" if is_leak else "stable", slope, count)


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    if len(x) < 2:
        return 0.0
    centred = x - x.mean()
    return float((centred * (y - y.mean())).sum() / (centred * centred).sum())
