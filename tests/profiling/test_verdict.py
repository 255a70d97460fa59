"""The leak verdict on series whose answer is known, and the bounded series behind it."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym.profiling.verdict import MinimaSeries, judge

INTERVAL, COUNT = 100, 120
STEPS = INTERVAL * np.arange(1, COUNT + 1, dtype=float)
T = STEPS / STEPS[-1]


def noise(seed: int = 0, deviation: float = 5e4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=COUNT) * deviation


HEALTHY = {
    "flat": 0 * T,
    "warm-up": 20e6 * (1 - np.exp(-T / 0.05)),
    "one step in what is looked at": 10e6 * (T > 0.7),
    "sawtooth": 30e6 * ((STEPS / 700) % 1),
    "slow warm-up": 20e6 * (1 - np.exp(-T / 0.15)),
    "full at 0.7": 30e6 * np.minimum(T / 0.7, 1),
    "falling": -5e3 * STEPS,
    "below the threshold": 100 * STEPS,
}
LEAKING = {
    "1 kB a step": 1e3 * STEPS,
    "585 kB per 500-step reset": 585e3 * (STEPS // 500),
    "2 kB a step under a sawtooth": 2e3 * STEPS + 5e6 * ((STEPS / 700) % 1),
    "5 kB a step from half-way": 5e3 * np.maximum(STEPS - STEPS[-1] / 2, 0),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("series", HEALTHY.values(), ids=HEALTHY)
def test_healthy_series_are_stable(series, seed):
    assert judge(STEPS, 1e8 + series + noise(seed)).status == "stable"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("series", LEAKING.values(), ids=LEAKING)
def test_leaks_are_leaks(series, seed):
    assert judge(STEPS, 1e8 + series + noise(seed)).status == "leak"


def test_slope_is_in_bytes_per_step():
    verdict = judge(STEPS, 1e8 + 1e3 * STEPS)
    assert verdict.bytes_per_step == pytest.approx(1000)
    assert verdict.intervals == COUNT


def test_a_perfectly_constant_series_is_stable_with_slope_zero():
    verdict = judge(STEPS, np.full(COUNT, 7e7))
    assert (verdict.status, verdict.bytes_per_step) == ("stable", 0.0)


def test_fewer_than_60_intervals_are_not_enough_but_have_a_slope():
    verdict = judge(STEPS[:59], 1e3 * STEPS[:59])
    assert verdict.status == "not enough data"
    assert verdict.bytes_per_step == pytest.approx(1000)
    assert judge(STEPS[:60], 1e3 * STEPS[:60]).status == "leak"


@pytest.mark.parametrize("count", [0, 1])
def test_no_slope_of_a_point(count):
    assert judge(STEPS[:count], STEPS[:count]).bytes_per_step == 0.0


def test_the_threshold_is_the_callers():
    assert judge(STEPS, 100 * STEPS, threshold=50).status == "leak"
    assert judge(STEPS, 1e3 * STEPS, threshold=2000).status == "stable"


def test_verdicts_read_well():
    assert str(judge(STEPS, 1e3 * STEPS)) == "leak, +1000 bytes per step over 120 intervals"


def test_series_keeps_what_it_is_given():
    series = MinimaSeries(capacity=8)
    for step in range(1, 8):
        series.append(step, 10.0 * step)
    assert len(series) == 7
    assert series.steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert series.values.tolist() == [10, 20, 30, 40, 50, 60, 70]


def test_a_full_series_merges_neighbours_into_their_minimum():
    series = MinimaSeries(capacity=8)
    values = [5, 3, 9, 9, 1, 2, 8, 7, 4, 6, 0, 5]
    for step, value in enumerate(values, 1):
        series.append(step, value)
    assert series.steps.tolist() == [2, 4, 6, 8, 10, 12]
    assert series.values.tolist() == [3, 9, 1, 7, 4, 0]
    for step in range(13, 200):
        series.append(step, step)
    assert len(series) < 8
    assert (np.diff(series.steps) > 0).all()


def test_a_leak_stays_one_through_merging():
    series = MinimaSeries(capacity=128)
    for index in range(1, 3000):
        series.append(100 * index, 1e8 + 500.0 * 100 * index)
    verdict = judge(series.steps, series.values)
    assert verdict.status == "leak"
    assert verdict.bytes_per_step == pytest.approx(500)
