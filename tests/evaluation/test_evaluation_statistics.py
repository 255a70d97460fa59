"""The intervals hold the truth as often as they say, and agree with published examples."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from fleet_gym.evaluation.statistics import (
    bootstrap_difference,
    bootstrap_mean,
    fisher_p_value,
    mcnemar_p_value,
    paired_share_difference,
    share_difference,
    wilson_interval,
)

REPETITIONS = 250


def binomial_coverage(p: float, n: int) -> float:
    """The exact probability that Wilson's interval holds p."""
    held = 0.0
    for k in range(n + 1):
        estimate = wilson_interval(k, n)
        if estimate.low <= p <= estimate.high:
            held += math.comb(n, k) * p**k * (1 - p) ** (n - k)
    return held


def test_wilson_agrees_with_newcombes_examples() -> None:
    # R. G. Newcombe, Stat. Med. 17 (1998) 857, table I, method 3.
    for successes, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)):
        estimate = wilson_interval(successes, n)
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(29, 29).low == pytest.approx(0.8830, abs=5e-5)
    assert wilson_interval(29, 29).high == 1.0


@pytest.mark.parametrize("n", [10, 50, 200])
def test_wilson_holds_the_true_share_as_often_as_it_says(n: int) -> None:
    coverages = [binomial_coverage(p, n) for p in np.linspace(0.02, 0.98, 49)]
    assert 0.94 < np.mean(coverages) < 0.97
    assert min(coverages) > 0.83


@pytest.mark.parametrize(
    ("draw", "mean", "n", "least"),
    [
        (lambda rng, n: rng.normal(3.0, 2.0, n), 3.0, 30, 0.91),
        (lambda rng, n: rng.exponential(2.0, n), 2.0, 100, 0.90),  # skewed
        (lambda rng, n: rng.integers(1, 7, n), 3.5, 50, 0.91),  # with ties
    ],
)
def test_the_bootstrap_holds_the_true_mean_about_as_often_as_it_says(
    draw: object, mean: float, n: int, least: float
) -> None:
    rng = np.random.default_rng(1)
    estimates = [bootstrap_mean(draw(rng, n), seed=i) for i in range(REPETITIONS)]  # type: ignore[operator]
    held = np.mean([estimate.low <= mean <= estimate.high for estimate in estimates])
    assert least <= held <= 0.985
    assert all(estimate.low < estimate.value < estimate.high for estimate in estimates)


def test_the_bootstrap_is_wider_towards_the_long_tail() -> None:
    estimate = bootstrap_mean(np.random.default_rng(0).exponential(1.0, 40))
    assert estimate.high - estimate.value > 1.1 * (estimate.value - estimate.low)
    mirrored = bootstrap_mean(-np.random.default_rng(0).exponential(1.0, 40))
    assert mirrored.value - mirrored.low > 1.1 * (mirrored.high - mirrored.value)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_an_average_of_equal_values_or_of_one_is_that_value() -> None:
    for values in ([2.5], [2.5, 2.5, 2.5]):
        estimate = bootstrap_mean(values)
        assert (estimate.value, estimate.low, estimate.high, estimate.n) == (2.5, 2.5, 2.5, len(values))


def test_many_episodes_are_resampled_within_bounded_memory() -> None:
    estimate = bootstrap_mean(np.random.default_rng(0).normal(size=20_000))
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 / math.sqrt(20_000), rel=0.06)


def test_differences_agree_with_newcombes_examples() -> None:
    # R. G. Newcombe, Stat. Med. 17 (1998) 873, table II (a) and (c), method 10.
    estimate = share_difference(wilson_interval(48, 80), wilson_interval(56, 70))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    estimate = share_difference(wilson_interval(3, 10), wilson_interval(9, 10))
    assert (estimate.low, estimate.high) == pytest.approx((0.1705, 0.8090), abs=5e-5)


def test_paired_shares_cover_the_true_difference() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(REPETITIONS):
        # Both runs succeed on easy episodes; they differ on others: 0.7 and 0.8.
        easy = rng.random(60) < 0.6
        first, second = easy | (rng.random(60) < 0.25), easy | (rng.random(60) < 0.5)
        estimate = paired_share_difference(first, second)
        held += estimate.low <= 0.1 <= estimate.high
    assert 0.92 <= held / REPETITIONS <= 0.99


def test_pairing_narrows_the_interval_of_runs_that_agree() -> None:
    first = np.array([True] * 60 + [False] * 40)
    second = np.array([True] * 70 + [False] * 30)
    paired = paired_share_difference(first, second)
    unpaired = share_difference(wilson_interval(60, 100), wilson_interval(70, 100))
    assert paired.value == pytest.approx(unpaired.value) == pytest.approx(0.1)
    assert paired.high - paired.low < 0.7 * (unpaired.high - unpaired.low)
    assert paired.low > 0 > unpaired.low


def test_runs_that_always_succeed_do_not_differ() -> None:
    estimate = paired_share_difference([True] * 20, [True] * 20)
    assert estimate.value == 0
    assert estimate.low < 0 < estimate.high
    assert mcnemar_p_value([True] * 20, [True] * 20) == 1.0


def test_p_values_agree_with_worked_examples() -> None:
    first = [True] * 2 + [False] * 10  # 2 won by the first only, 10 by the second only
    second = [False] * 2 + [True] * 10
    assert mcnemar_p_value(first, second) == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    # Fisher's tea: 3 of 4 and 1 of 4.
    assert fisher_p_value(wilson_interval(3, 4), wilson_interval(1, 4)) == pytest.approx(34 / 70)
    assert fisher_p_value(wilson_interval(900, 1000), wilson_interval(900, 1000)) == pytest.approx(1.0)


def test_independent_means_cover_the_true_difference() -> None:
    rng = np.random.default_rng(3)
    estimates = [
        bootstrap_difference(rng.normal(1, 1, 40), rng.normal(1.5, 2, 60), seed=i) for i in range(REPETITIONS // 2)
    ]
    held = np.mean([estimate.low <= 0.5 <= estimate.high for estimate in estimates])
    assert 0.90 <= held <= 0.985
    assert estimates[0].n == 40


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(3, 0), "successes: expected between 0 and n >= 1, got 3 of 0"),
        (lambda: wilson_interval(-1, 5), "successes"),
        (lambda: wilson_interval(1, 5, 1.0), "confidence: expected a number above 0 and below 1, got 1.0"),
        (lambda: bootstrap_mean([]), "values: expected at least one number"),
        (lambda: bootstrap_mean([1.0, math.nan]), "values: expected finite numbers, got nan"),
        (lambda: paired_share_difference([True], [True, False]), "second: expected as many episodes"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("scale", [1e-170, 1e-60, 1.0, 1e60, 1e150])
def test_the_interval_scales_with_the_values(scale: float) -> None:
    values = np.array([0.0, 1.0, 1.0, 2.0, 9.0, 3.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled, plain = bootstrap_mean(values * scale), bootstrap_mean(values)
    assert (scaled.low / scale, scaled.high / scale) == pytest.approx((plain.low, plain.high))


def test_levels_far_out_on_a_long_tail_end_at_the_last_resample() -> None:
    for sign in (1.0, -1.0):
        outlier = bootstrap_mean([0.0] * 999 + [sign * 1e6], 1 - 1e-13)
        assert outlier.low <= outlier.value <= outlier.high
        assert max(abs(outlier.low), abs(outlier.high)) > 3e3
