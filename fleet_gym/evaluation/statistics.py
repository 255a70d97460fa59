"""Averages with intervals: how far the figures of n episodes may be from those of endless ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import finite_float

#: Resamples of a bootstrap: the ends of a 95 % interval then move by less than 3 % of its width from seed to seed.
RESAMPLES = 5000
_NORMAL = NormalDist()
#: Values drawn at once, to bound the memory of a bootstrap of many episodes.
_CHUNK = 2_000_000


@dataclass(frozen=True)
class Estimate:
    """An average with its confidence interval.

    Attributes:
        value: the average over the episodes.
        low: lower end of the interval.
        high: upper end of the interval.
        n: episodes (or pairs of them) it is the average of.
        confidence: share of such intervals that hold the true value, for example 0.95.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float


def checked_confidence(confidence: float) -> float:
    """Returns `confidence` if it is above 0 and below 1.

    Raises:
        TypeError: for anything but a real number.
        ValueError: when it is out of range.
    """
    number = finite_float("confidence", confidence, minimum=0.0, exclusive=True)
    if number >= 1:
        raise ValueError(f"confidence: expected a number above 0 and below 1, got {confidence!r}")
    return number


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Estimate:
    """Returns the share of successes with Wilson's score interval, which holds for shares near 0 and 1 too.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).

    Args:
        successes: how many of the episodes.
        n: episodes, at least 1.
        confidence: above 0, below 1.

    Raises:
        ValueError: when `n` is below 1, or `successes` not between 0 and `n`.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"successes: expected between 0 and n >= 1, got {successes!r} of {n!r}")
    z = _NORMAL.inv_cdf(0.5 + checked_confidence(confidence) / 2)
    share = successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == n else center + half
    return Estimate(share, low, high, n, confidence)


def bootstrap_mean(values: ArrayLike, confidence: float = 0.95, *, seed: int = 0) -> Estimate:
    """Returns the mean with a bootstrap interval, bias-corrected and accelerated (BCa) for skewed values.

    B. Efron, "Better bootstrap confidence intervals", JASA 82 (1987).

    Args:
        values: (n,) finite, one per episode; of one episode the interval is that value.
        confidence: above 0, below 1.
        seed: of the resampling; the same one gives the same interval.

    Raises:
        ValueError: when there is no value, or one that is not finite.
    """
    sample = _checked_sample("values", values)
    confidence = checked_confidence(confidence)
    mean = float(sample.mean())
    if np.ptp(sample) == 0:
        return Estimate(mean, mean, mean, len(sample), confidence)
    means = np.sort(_resampled_means(sample, np.random.default_rng(seed)))
    # Ties count half: of few episodes many resamples have the sample's mean, but for rounding.
    rounding = 8 * np.finfo(np.float64).eps * np.abs(sample).max()
    below, above = np.count_nonzero(means < mean - rounding), np.count_nonzero(means > mean + rounding)
    below = 0.5 + 0.5 * (below - above) / len(means)
    bias = _NORMAL.inv_cdf(min(max(below, 1 / len(means)), 1 - 1 / len(means)))
    deviations = sample - mean  # as the jackknife's means deviate, times -(n - 1)
    deviations /= np.abs(deviations).max()  # only their shape counts, and powers of small or large ones leave the range
    acceleration = float(np.sum(deviations**3) / (6 * np.sum(deviations**2) ** 1.5))
    low, high = (
        float(np.quantile(means, _adjusted(level, bias, acceleration)))
        for level in ((1 - confidence) / 2, (1 + confidence) / 2)
    )
    return Estimate(mean, low, high, len(sample), confidence)


def _adjusted(level: float, bias: float, acceleration: float) -> float:
    shifted = bias + _NORMAL.inv_cdf(level)
    slowed = 1 - acceleration * shifted
    if slowed <= 0:  # beyond the pole: of a level this far out on the long tail, the last resample
        return float(shifted > 0)
    return _NORMAL.cdf(bias + shifted / slowed)


def _resampled_means(sample: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    n = len(sample)
    rows = max(1, _CHUNK // n)
    means = [
        sample[rng.integers(n, size=(min(rows, RESAMPLES - start), n))].mean(axis=1)
        for start in range(0, RESAMPLES, rows)
    ]
    return np.concatenate(means)


def bootstrap_difference(first: ArrayLike, second: ArrayLike, confidence: float = 0.95, *, seed: int = 0) -> Estimate:
    """Returns mean(second) - mean(first) of two independent samples, with a percentile bootstrap interval.

    Args:
        first: (n,) finite.
        second: (m,) finite.
        confidence: above 0, below 1.
        seed: of the resampling.

    Returns:
        The estimate; its n is the size of the smaller sample.

    Raises:
        ValueError: when a sample is empty or has a value that is not finite.
    """
    one, other = _checked_sample("first", first), _checked_sample("second", second)
    confidence = checked_confidence(confidence)
    rng = np.random.default_rng(seed)
    differences = _resampled_means(other, rng) - _resampled_means(one, rng)
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    value = float(other.mean() - one.mean())
    return Estimate(value, float(low), float(high), min(len(one), len(other)), confidence)


def share_difference(first: Estimate, second: Estimate) -> Estimate:
    """Returns the difference of two independent shares, second - first, with Newcombe's score interval.

    R. G. Newcombe, "Interval estimation for the difference between independent proportions", Stat. Med. 17 (1998),
    method 10.

    Args:
        first: from `wilson_interval`.
        second: likewise, with the same confidence.
    """
    difference = second.value - first.value
    low = difference - math.hypot(second.value - second.low, first.high - first.value)
    high = difference + math.hypot(second.high - second.value, first.value - first.low)
    return Estimate(difference, low, high, min(first.n, second.n), first.confidence)


def paired_share_difference(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Returns the difference of two shares over the same episodes, second - first, with Newcombe's score interval.

    R. G. Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired
    data", Stat. Med. 17 (1998), method 10.

    Args:
        first: (n,) bool.
        second: (n,) bool, of the same episodes.
        confidence: above 0, below 1.

    Raises:
        ValueError: when they are empty or of different length.
    """
    one, other = _checked_pairs(first, second)
    n = len(one)
    a = wilson_interval(int(other.sum()), n, confidence)
    b = wilson_interval(int(one.sum()), n, confidence)
    both, only_other = int((one & other).sum()), int((other & ~one).sum())
    only_one, neither = int((one & ~other).sum()), int((~one & ~other).sum())
    margins = (both + only_other) * (only_one + neither) * (both + only_one) * (only_other + neither)
    agreement = float(both * neither - only_other * only_one)
    if agreement > 0:
        agreement = max(agreement - n / 2, 0.0)  # the method's continuity correction
    correlation = agreement / math.sqrt(margins) if margins else 0.0

    def reach(up: float, down: float) -> float:
        return math.sqrt(max(up * up - 2 * correlation * up * down + down * down, 0.0))

    value = a.value - b.value
    low = value - reach(a.value - a.low, b.high - b.value)
    high = value + reach(a.high - a.value, b.value - b.low)
    return Estimate(value, low, high, n, confidence)


def mcnemar_p_value(first: ArrayLike, second: ArrayLike) -> float:
    """Returns the two-sided p-value of McNemar's exact test: of the episodes that only one run won, is it a coin toss?

    Args:
        first: (n,) bool.
        second: (n,) bool, of the same episodes.

    Raises:
        ValueError: when they are empty or of different length.
    """
    one, other = _checked_pairs(first, second)
    wins, losses = int((other & ~one).sum()), int((one & ~other).sum())
    discordant = wins + losses
    tail = sum(math.comb(discordant, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**discordant) if discordant else 1.0


def fisher_p_value(first: Estimate, second: Estimate) -> float:
    """Returns the two-sided p-value of Fisher's exact test for two independent shares.

    Args:
        first: from `wilson_interval`.
        second: likewise.
    """
    wins = round(first.value * first.n), round(second.value * second.n)
    total = sum(wins)
    logs = {
        k: _log_comb(first.n, k) + _log_comb(second.n, total - k)
        for k in range(max(0, total - second.n), min(first.n, total) + 1)
    }
    whole = _log_comb(first.n + second.n, total)
    # Tables as improbable as this one count, whatever rounding says.
    return min(1.0, math.fsum(math.exp(log - whole) for log in logs.values() if log <= logs[wins[0]] + 1e-9))


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _checked_sample(name: str, values: ArrayLike) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"{name}: expected at least one number in a row, got an array of shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError(f"{name}: expected finite numbers, got {sample[~np.isfinite(sample)][0]}")
    return sample


def _checked_pairs(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    one, other = np.asarray(first, dtype=np.bool_), np.asarray(second, dtype=np.bool_)
    if one.ndim != 1 or not len(one) or one.shape != other.shape:
        raise ValueError(f"second: expected as many episodes as the first, at least 1, got {one.shape}, {other.shape}")
    return one, other
