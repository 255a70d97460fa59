"""Leak or noise: a verdict on the growth of one memory signal."""

from __future__ import annotations

import math
from array import array
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

BLOCK_BYTES = 64
"""What a Python block counts where nobody traced its size: the median block of a program is about that large."""
BLOCKS_THRESHOLD = 0.5 * BLOCK_BYTES
"""Bytes per step below which growth of the blocks is not called a leak: a small object kept every other step."""


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

    def __str__(self) -> str:
        of_needed = f" of the {MIN_INTERVALS} needed" if self.intervals < MIN_INTERVALS else ""
        text = f"{self.status}, {self.bytes_per_step:+.0f} bytes per step over {self.intervals} intervals{of_needed}"
        return text if self.hours_to_limit is None else f"{text}, reaches the limit in {self.hours_to_limit:.1f} h"


class MinimaSeries:
    """Interval minima of one signal in memory allocated once: when full, neighbours are merged into one minimum.

    Args:
        capacity: an even number of minima.
    """

    def __init__(self, capacity: int = 4096) -> None:
        # Zeros are written now, so that no page is first touched in mid-run.
        self._steps, self._values = array("d", bytes(8 * capacity)), array("d", bytes(8 * capacity))
        self._count = 0
        self._merged = 1
        self._pending = 0
        self._low = math.inf

    def __len__(self) -> int:
        return self._count

    def append(self, step: int, value: float) -> None:
        """Adds the minimum of the interval that ended at `step`."""
        self._low = min(self._low, value)
        self._pending += 1
        if self._pending < self._merged:
            return
        self._steps[self._count], self._values[self._count] = step, self._low
        self._count += 1
        self._pending, self._low = 0, math.inf
        if self._count == len(self._steps):
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        pairs = self.values.reshape(-1, 2)
        ends = self.steps[1::2]
        self._count //= 2
        np.frombuffer(self._steps)[: self._count] = ends
        np.frombuffer(self._values)[: self._count] = pairs.min(axis=1)
        self._merged *= 2

    @property
    def steps(self) -> NDArray[np.float64]:
        """(n,) the step each minimum's interval ended at."""
        return np.array(np.frombuffer(self._steps)[: self._count])

    @property
    def values(self) -> NDArray[np.float64]:
        """(n,) the minima."""
        return np.array(np.frombuffer(self._values)[: self._count])


def judge(steps: ArrayLike, minima: ArrayLike, threshold: float = LEAK_THRESHOLD) -> LeakVerdict:
    """Says whether interval minima grow for good.

    The first 40 % are warm-up. What remains is a leak if its slope exceeds `threshold`, if it is not levelling off (a
    parabola through it is, within its standard error, still as steep at the end), and if its floors, the lowest values
    of consecutive windows, keep rising: either those of five windows, the last rise at least half the mean one and none
    over half of all; or those of four, the smallest rise at least 0.4 of the largest, where a line also fits better
    than one jump does. The four windows are for teeth longer than a fifth of the series.

    ``benchmarks/leak_detector.py`` measures how often it errs.

    Args:
        steps: (n,) step at the end of each interval, increasing.
        minima: (n,) lowest value of the signal in each interval, bytes.
        threshold: bytes per step.
    """
    steps, minima = np.asarray(steps, dtype=np.float64), np.asarray(minima, dtype=np.float64)
    count = len(minima)
    kept = slice(int(count * WARM_UP), None)
    x, y = steps[kept], minima[kept]
    slope = float(_line(x, y)[0]) if len(x) > 1 else 0.0
    if count < MIN_INTERVALS:
        return LeakVerdict("not enough data", slope, count)
    is_leak = slope > threshold and (_five_floors_rise(y) or _four_floors_rise(y)) and _relative_end_slope(x, y) >= 0.85
    return LeakVerdict("leak" if is_leak else "stable", slope, count)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Least squares: slope and residuals."""
    centred = x - x.mean()
    slope = float((centred * (y - y.mean())).sum() / (centred * centred).sum())
    return slope, y - y.mean() - slope * centred


def _rises(y: NDArray[np.float64], windows: int) -> NDArray[np.float64]:
    return np.diff([window.min() for window in np.array_split(y, windows)])


def _five_floors_rise(y: NDArray[np.float64]) -> bool:
    rises = _rises(y, 5)
    return bool((rises > 0).all() and rises[-1] >= 0.5 * rises.mean() and rises.max() <= 0.5 * rises.sum())


def _four_floors_rise(y: NDArray[np.float64]) -> bool:
    rises = _rises(y, 4)
    return bool((rises > 0).all() and rises.min() >= 0.4 * rises.max()) and _line_beats_jump(y)


def _line_beats_jump(y: NDArray[np.float64], bins: int = 60) -> bool:
    """Whether a line leaves less than the best pair of constants does, on the minima of at most `bins` bins."""
    y = np.array([window.min() for window in np.array_split(y, min(len(y), bins))])
    _, residual = _line(np.arange(len(y), dtype=np.float64), y)
    jump = min(y[:at].var() * at + y[at:].var() * (len(y) - at) for at in range(1, len(y)))
    return bool(residual @ residual <= jump)


def _relative_end_slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Slope of a fitted parabola at its end, over the mean slope; one standard error is given to the leak.

    The error allows for residuals that follow each other (their lag-1 correlation), as those of a sawtooth do.
    """
    scaled = (x - x.mean()) / (x[-1] - x[0])
    terms = np.stack([np.ones_like(scaled), scaled, scaled * scaled], axis=1)
    inverse = np.linalg.inv(terms.T @ terms)
    parabola = inverse @ (terms.T @ y)
    residual = y - terms @ parabola
    power = residual @ residual
    follow = min(max(float(residual[1:] @ residual[:-1]) / power, 0.0), 0.95) if power > 0 else 0.0
    variance = power / (len(y) - 3) * (1 + follow) / (1 - follow)
    end = np.array([0.0, 1.0, 1.0])
    return float((end @ parabola + np.sqrt(end @ inverse @ end * variance)) / parabola[1])
