"""The charts' geometry says the numbers it was given."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from fleet_gym.evaluation.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_HEIGHT,
    MAX_POINTS,
    MAX_ROWS,
    RIGHT,
    TOP,
    histogram,
    lines,
    round_step,
    scatter,
    shares,
    stacked,
)


def count_of(title: str) -> int:
    found = re.search(r": (\d+) episode", title)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("n", [1, 2, 17, 500])
@pytest.mark.parametrize("whole", [False, True])
def test_every_value_is_in_exactly_one_bar(n: int, whole: bool) -> None:
    rng = np.random.default_rng(n)
    values = rng.integers(3, 90, n).astype(float) if whole else rng.normal(-2.0, 5.0, n)
    chart = histogram("t", "x", {"": values.tolist()}, whole=whole)
    assert sum(count_of(bar.title) for bar in chart.bars) == n
    for bar in chart.bars:
        assert LEFT - 0.1 <= bar.x <= bar.x + bar.width <= RIGHT + 0.1
        assert TOP - 0.1 <= bar.y <= bar.y + bar.height == pytest.approx(BOTTOM)
    heights = [bar.height / count_of(bar.title) for bar in chart.bars]
    assert max(heights) == pytest.approx(min(heights), rel=0.05)  # the height is the count
    assert chart.mark is not None
    assert LEFT <= chart.mark[0] <= RIGHT


def test_a_bar_says_which_values_it_holds() -> None:
    chart = histogram("t", "x", {"": [1.0, 1.0, 2.0, 4.0]}, whole=True)
    assert [bar.title for bar in chart.bars] == ["1: 2 episodes", "2: 1 episode", "4: 1 episode"]
    chart = histogram("t", "x", {"": list(np.arange(0.0, 200.0))}, whole=True)
    for bar in chart.bars:
        low, high = map(int, re.findall(r"\d+", bar.title)[:2])
        assert count_of(bar.title) == min(high, 199) - low + 1


def test_two_samples_share_their_bins_and_stand_side_by_side() -> None:
    chart = histogram("t", "x", {"A": [1.0, 1.0, 2.0], "B": [2.0, 2.0, 5.0]}, whole=True)
    assert chart.legend == ("A", "B")
    first, second = ([bar for bar in chart.bars if bar.series == k] for k in (0, 1))
    assert [bar.title for bar in first] == ["1: 2 episodes", "2: 1 episode"]
    assert [bar.title for bar in second] == ["2: 2 episodes", "5: 1 episode"]
    spans = sorted((bar.x, bar.x + bar.width) for bar in chart.bars)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    assert chart.mark is None


def test_ticks_are_round_numbers_at_their_places() -> None:
    chart = histogram("t", "x", {"": [-1.2, 0.0, 7.9]})
    for tick in chart.x_ticks:
        assert float(tick.label) * 10 == pytest.approx(round(float(tick.label) * 10))
    assert "-0" not in [tick.label for tick in chart.x_ticks]
    gaps = np.diff([tick.at for tick in chart.x_ticks])
    assert np.allclose(gaps, gaps[0], atol=0.02)
    assert round_step(10, 5) == 2
    assert round_step(0.7, 4) == pytest.approx(0.2)
    assert round_step(3, 10, whole=True) == 1


def test_worlds_have_a_row_each_until_there_are_too_many() -> None:
    rows = [(str(k), 0.5, 0.25, 1.0, f"world {k}") for k in range(MAX_ROWS + 5)]
    chart = shares("t", "x", rows)
    assert len(chart.intervals) == MAX_ROWS
    row = chart.intervals[0]
    assert (row.low, row.x, row.high) == (LEFT + (RIGHT - LEFT) / 4, (LEFT + RIGHT) / 2, RIGHT)
    heights = [interval.y for interval in chart.intervals]
    assert heights[-1] < chart.bottom
    assert chart.height <= MAX_HEIGHT < 1.6 * HEIGHT  # a phone shows it and the next one's title
    assert np.diff([interval.y for interval in chart.intervals if interval.label]).min() >= 12
    assert [interval.label for interval in chart.intervals[:3]] == ["0", "", "2"]
    strips = [(interval.y - interval.half, interval.y + interval.half) for interval in chart.intervals]
    assert all(one[1] <= other[0] + 0.02 for one, other in itertools.pairwise(strips))  # each tells its own tooltip
    assert all(interval.label for interval in shares("t", "x", rows[:15]).intervals)


def test_a_line_goes_straight_between_the_values_that_are_known() -> None:
    samples = {"a": [1.0, None, 3.0, 4.0], "b": [2.0, 2.0, 2.0, 2.0], "c": [None, 2.0, None, None]}
    chart = lines("t", "step", "MiB", [1, 2, 3, 4], samples)
    points = [re.findall(r"[ML]([\d.]+),([\d.]+)", curve.path) for curve in chart.curves]
    assert [len(found) for found in points] == [3, 4, 2]
    assert points[2][0] == points[2][1] == points[1][1]  # a dot
    assert [float(x) for x, _ in points[1]] == pytest.approx(np.linspace(LEFT, RIGHT, 4), abs=0.01)
    assert chart.legend == ("a", "b", "c")
    assert chart.hovers[0].title == "step 1\na 1 MiB\nb 2 MiB"
    assert sum(strip.width for strip in chart.hovers) == pytest.approx(RIGHT - LEFT, abs=0.1)


def test_a_long_run_is_thinned_and_a_single_record_is_still_a_line() -> None:
    steps = list(range(1, 5001))
    chart = lines("t", "step", "MiB", steps, {"a": [float(step) for step in steps]})
    assert len(re.findall("[ML]", chart.curves[0].path)) == MAX_POINTS
    chart = lines("t", "step", "MiB", [50], {"a": [3.0]})
    assert len(re.findall("[ML]", chart.curves[0].path)) == 2


def test_areas_stand_on_each_other() -> None:
    chart = stacked("t", "step", "ms", [1, 2], {"a": [1.0, 2.0], "b": [3.0, 2.0]})
    edges = [[float(y) for _, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", area.path)] for area in chart.areas]
    assert edges[0][2:] == [BOTTOM, BOTTOM]  # the lowest begins at zero
    assert edges[1][2:] == edges[0][:2][::-1]
    assert edges[1][0] == edges[1][1]  # the sums are equal


def test_rare_peaks_do_not_flatten_the_rest() -> None:
    chart = stacked("t", "step", "ms", list(range(1, 31)), {"a": [900.0] + [5.0] * 29, "b": [100.0] + [4.0] * 29})
    assert chart.y_label == "ms, peaks cut off"
    heights = [float(y) for _, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", chart.areas[1].path)[:30]]
    assert heights[0] == TOP
    assert heights[1] < BOTTOM - 0.5 * (BOTTOM - TOP)
    assert chart.hovers[0].title == "step 1\na 900 ms\nb 100 ms"


def test_points_above_the_diagonal_are_better_in_the_second_run() -> None:
    chart = scatter("t", "A", "B", [(1.0, 3.0, "p"), (3.0, 3.0, "q")])
    above, on = chart.points
    assert chart.diagonal == (LEFT, BOTTOM, RIGHT, TOP)

    def diagonal_y(x: float) -> float:
        return BOTTOM + (x - LEFT) / (RIGHT - LEFT) * (TOP - BOTTOM)

    assert above.y < diagonal_y(above.x) - 1
    assert on.y == pytest.approx(diagonal_y(on.x), abs=0.05)
    assert not any(math.isnan(value) for value in (above.x, above.y))
    assert scatter("t", "A", "B", [(2.0, 2.0, "only")]).points[0].x > LEFT


def test_labels_of_large_and_small_numbers_have_room() -> None:
    for low, high in ((-9e6, 1e6), (0.0, 3e-7), (-1e300, 1e300), (0.0, 250_000.0), (-4e-4, 4e-4), (12_000.0, 47_000.0)):
        chart = scatter("t", "A", "B", [(low, high, "p"), (high, low, "q")])
        labels = [tick.label for tick in chart.y_ticks]
        assert len(set(labels)) == len(labels)
        assert max(map(len, labels)) <= 8, labels
    labels = [tick.label for tick in scatter("t", "A", "B", [(-1e6, 2e6, "")]).y_ticks]
    assert labels == ["-1M", "0", "1M", "2M"]
    assert lines("t", "step", "MiB", [1, 2], {"a": [23456.7, 24000.0]}).hovers[0].title == "step 1\na 23457 MiB"


@pytest.mark.parametrize("value", [0.0, 5.0, -3.2e-7, 4e6])
@pytest.mark.parametrize("whole", [False, True])
def test_equal_values_are_one_bar_in_the_middle(value: float, whole: bool) -> None:
    chart = histogram("t", "x", {"": [round(value) if whole else value] * 3}, whole=whole)
    (bar,) = chart.bars
    assert bar.x + bar.width / 2 == pytest.approx((LEFT + RIGHT) / 2, abs=1)
    assert bar.title.endswith(": 3 episodes")
    assert chart.mark is not None
    assert bar.x - 1 <= chart.mark[0] <= bar.x + bar.width + 1


def test_the_mean_is_written_above_the_bars() -> None:
    chart = histogram("t", "x", {"": [1.0, 2.0, 2.0]})
    assert min(bar.y for bar in chart.bars) >= TOP + 10
