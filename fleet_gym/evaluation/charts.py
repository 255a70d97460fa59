"""Geometry of the reports' charts; the templates draw it as inline SVG.

All charts share one small view box, so that their text stays readable when a phone shows them 360 pixels wide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fleet_gym._rounding import formatted, significant

WIDTH, HEIGHT = 360.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 340.0, 10.0, 172.0
#: Height of the line of text above a histogram's bars.
_HEADROOM = 14.0
#: Series have colours of their own up to this number.
NUM_COLORS = 8
#: Points of a line beyond which neighbours are averaged: more than pixels to show them.
MAX_POINTS = 300
MAX_BINS = 24
#: Worlds shown one by one.
MAX_ROWS = 40
_ROW_HEIGHT = 15.0
#: Of a dot plot: its rows move together rather than make it much taller than the charts beside it.
MAX_HEIGHT = 330.0
#: Between two labels of rows.
_LABEL_HEIGHT = 12.5
#: Multiple of what is usual above which a peak is cut off.
_PEAK = 2.5


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: where, in view box units, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram: a rectangle with what it stands for, coloured by the index of its series."""

    x: float
    y: float
    width: float
    height: float
    title: str
    series: int = 0


@dataclass(frozen=True)
class Interval:
    """A point between the ends of its interval, in a row of a dot plot. A row without room has no label."""

    y: float
    half: float
    x: float
    low: float
    high: float
    label: str
    title: str


@dataclass(frozen=True)
class Point:
    """A point of a scatter plot, in view box units, with its tooltip."""

    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Curve:
    """A line or the edge of an area: SVG path data, coloured by the index of its series."""

    path: str
    name: str
    series: int


@dataclass(frozen=True)
class Hover:
    """A strip that tells the values under the pointer."""

    x: float
    width: float
    title: str


@dataclass(frozen=True)
class Chart:
    """What a template draws.

    Attributes:
        title: what it shows.
        x_label: under the horizontal axis.
        y_label: beside the title.
        x_ticks: of the horizontal axis.
        y_ticks: of the vertical axis.
        height: of the view box.
        legend: names of the series, by index.
        bars: of a histogram.
        intervals: of a dot plot.
        points: of a scatter plot.
        diagonal: ends (x1, y1, x2, y2) of the line on which both axes say the same.
        curves: of a line chart.
        areas: of an area chart.
        hovers: strips over curves and areas.
        mark: (x, label) of a vertical line.
    """

    title: str
    x_label: str
    y_label: str = ""
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    height: float = HEIGHT
    legend: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    intervals: tuple[Interval, ...] = ()
    points: tuple[Point, ...] = ()
    diagonal: tuple[float, float, float, float] | None = None
    curves: tuple[Curve, ...] = ()
    areas: tuple[Curve, ...] = ()
    hovers: tuple[Hover, ...] = ()
    mark: tuple[float, str] | None = None

    @property
    def right(self) -> float:
        """Where the horizontal axis ends."""
        return RIGHT

    @property
    def bottom(self) -> float:
        """Height of the horizontal axis."""
        return self.height - (HEIGHT - BOTTOM)


@dataclass(frozen=True)
class _Scale:
    """Maps values to view box units."""

    first: float
    last: float
    start: float
    end: float
    step: float = field(default=1.0)

    def __call__(self, value: float) -> float:
        span = self.last - self.first or 1.0
        return round(self.start + (value - self.first) / span * (self.end - self.start), 2)

    def ticks(self) -> tuple[Tick, ...]:
        count = round((self.last - self.first) / self.step)
        values = [self.first + k * self.step for k in range(count + 1)]
        return tuple(Tick(self(value), number(value, self.step)) for value in values)


def number(value: float, step: float) -> str:
    """Returns a tick's label with as many decimals as the step between ticks needs, and seldom more than six signs."""
    if not 1e-4 <= step < 1e9:
        return formatted(value, ".3g")
    unit, letter = (1e6, "M") if step >= 1e5 else (1.0, "")
    decimals = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    text = formatted(value / unit, f".{decimals}f")
    return text if float(text) == 0 else f"{text}{letter}"


def round_step(span: float, count: int, *, whole: bool = False) -> float:
    """Returns a step of 1, 2 or 5 times a power of ten that divides `span` into about `count` parts.

    Args:
        span: above 0.
        count: wanted number of parts, not exceeded by more than one.
        whole: at least 1.
    """
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return max(step, 1.0) if whole else step


def _rounded(low: float, high: float, count: int, start: float, end: float, *, whole: bool = False) -> _Scale:
    """Returns a scale that begins and ends at ticks."""
    if high <= low:
        pad = max(abs(low) * 0.05, 0.5)
        low, high = low - pad, high + pad
    step = round_step(high - low, count, whole=whole)
    return _Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end, step)


def histogram(
    title: str, x_label: str, samples: Mapping[str, Sequence[float]], *, whole: bool = False, mean: bool = True
) -> Chart:
    """Returns how often each value came, one series per sample, side by side within common bins.

    Args:
        title: of the chart.
        x_label: what the values are.
        samples: name -> at least one finite value.
        whole: the values are whole numbers.
        mean: mark the mean of a single sample.
    """
    everything = np.concatenate([np.asarray(values, dtype=np.float64) for values in samples.values()])
    low, high = float(everything.min()), float(everything.max())
    first, width, count = _bins(low, high, len(everything), whole)
    edges = first + width * np.arange(count + 1)
    counts = [_counted(values, first, width, count) for values in samples.values()]
    x = _Scale(float(edges[0]), float(edges[-1]), LEFT, RIGHT)
    y = _rounded(0.0, float(max(part.max() for part in counts)), 4, BOTTOM, TOP + _HEADROOM, whole=True)
    bars = []
    slot = (x(float(edges[1])) - x(float(edges[0]))) / len(counts)
    for series, part in enumerate(counts):
        for k, amount in enumerate(part):
            if amount:
                span = _bin_text(float(edges[k]), float(edges[k + 1]), width, whole)
                left = x(float(edges[k])) + series * slot
                top = y(float(amount))
                bars.append(
                    Bar(round(left + 0.5, 2), top, round(max(slot - 1, 0.5), 2), round(BOTTOM - top, 2),
                        f"{span}: {amount} episode{'s' if amount > 1 else ''}", series)
                )  # fmt: skip
    average = float(everything.mean())
    return Chart(
        title,
        x_label,
        "episodes",
        x_ticks=_inner_ticks(x, whole),
        y_ticks=y.ticks(),
        bars=tuple(bars),
        legend=tuple(samples) if len(samples) > 1 else (),
        mark=(x(average), f"mean {significant(average)}") if mean and len(samples) == 1 else None,
    )


def _bins(low: float, high: float, n: int, whole: bool) -> tuple[float, float, int]:
    """Returns where the first bin begins, the width of each, and how many there are."""
    if high > low:
        width = round_step(high - low + whole, min(MAX_BINS, max(6, round(2 * math.sqrt(n)))), whole=whole)
    else:
        width = 1.0 if whole else round_step(abs(low) or 1.0, 10)
    # A bin of whole numbers is centred on them where it holds one.
    shift = -0.5 if whole and width == 1 else 0.0
    first = math.floor((low - shift) / width + 1e-9) * width + shift
    if high <= low:  # one bar in the middle
        return first - 2 * width, width, 5
    return first, width, max(1, math.floor((high - first) / width + 1e-9) + 1)


def _counted(
    values: Sequence[float], first: float, width: float, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    places = np.floor((np.asarray(values, dtype=np.float64) - first) / width + 1e-9).astype(np.int64)
    return np.bincount(places.clip(0, count - 1), minlength=count).astype(np.int64)


def _bin_text(low: float, high: float, width: float, whole: bool) -> str:
    if whole and width == 1:
        return f"{low + 0.5:.0f}"
    if whole:
        return f"{low:.0f} to {high - 1:.0f}"
    return f"{number(low, width)} to {number(high, width)}"


def _inner_ticks(scale: _Scale, whole: bool) -> tuple[Tick, ...]:
    step = round_step(scale.last - scale.first, 5, whole=whole)
    start, end = math.ceil(scale.first / step - 1e-9), math.floor(scale.last / step + 1e-9)
    return tuple(Tick(scale(k * step), number(k * step, step)) for k in range(start, end + 1))


def shares(title: str, x_label: str, rows: Sequence[tuple[str, float, float, float, str]]) -> Chart:
    """Returns a dot plot of shares with their intervals.

    Args:
        title: of the chart.
        x_label: what the shares are.
        rows: (label, value, low, high, tooltip), shares in 0..1; the first `MAX_ROWS` are shown.
    """
    shown = rows[:MAX_ROWS]
    height = min(max(HEIGHT, TOP + _ROW_HEIGHT * len(shown) + HEIGHT - BOTTOM), MAX_HEIGHT)
    x = _Scale(0.0, 1.0, LEFT, RIGHT, 0.25)
    spacing = (height - TOP - (HEIGHT - BOTTOM)) / len(shown)
    every = math.ceil(_LABEL_HEIGHT / spacing)
    half = round(min(spacing, _ROW_HEIGHT) / 2, 2)
    intervals = tuple(
        Interval(round(TOP + (k + 0.5) * spacing, 2), half, x(value), x(low), x(high), "" if k % every else label, text)
        for k, (label, value, low, high, text) in enumerate(shown)
    )
    ticks = tuple(Tick(x(k / 4), f"{25 * k} %") for k in range(5))
    return Chart(title, x_label, x_ticks=ticks, intervals=intervals, height=round(height, 1))


def scatter(title: str, x_label: str, y_label: str, points: Sequence[tuple[float, float, str]]) -> Chart:
    """Returns pairs of values on axes of the same range, with the line of equal values.

    Args:
        title: of the chart.
        x_label: what the first value is.
        y_label: what the second value is.
        points: (x, y, tooltip), at least one; more than `MAX_POINTS` are thinned out evenly.
    """
    values = [value for point in points for value in point[:2]]
    x = _rounded(min(values), max(values), 5, LEFT, RIGHT)
    y = _Scale(x.first, x.last, BOTTOM, TOP, x.step)
    shown = [points[k] for k in np.linspace(0, len(points) - 1, min(len(points), MAX_POINTS)).astype(int)]
    return Chart(
        title,
        x_label,
        y_label,
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        points=tuple(Point(x(a), y(b), text) for a, b, text in shown),
        diagonal=(LEFT, BOTTOM, RIGHT, TOP),
    )


def lines(
    title: str, x_label: str, y_label: str, x: Sequence[float], series: Mapping[str, Sequence[float | None]]
) -> Chart:
    """Returns a line for each series, straight between the values that are known.

    Args:
        title: of the chart.
        x_label: what `x` is.
        y_label: unit of the values.
        x: (n,) ascending, at least one.
        series: name -> n values, at least 0, not all None.
    """
    columns = np.array([[math.nan if v is None else v for v in values] for values in series.values()], dtype=float)
    steps, columns = _thinned(np.asarray(x, dtype=float), columns)
    x_scale = _x_scale(steps)
    y_scale = _rounded(0.0, float(np.nanmax(columns)), 4, BOTTOM, TOP)
    names = tuple(series)
    curves = tuple(
        Curve(_path(steps, values, x_scale, y_scale), name, index % NUM_COLORS)
        for index, (name, values) in enumerate(zip(names, columns, strict=True))
    )
    return Chart(
        title, x_label, y_label, x_ticks=_inner_ticks(x_scale, True), y_ticks=y_scale.ticks(), legend=names,
        curves=curves, hovers=_hovers(steps, columns, names, x_scale, x_label, y_label),
    )  # fmt: skip


def stacked(title: str, x_label: str, y_label: str, x: Sequence[float], series: Mapping[str, Sequence[float]]) -> Chart:
    """Returns areas on top of each other, the first at the bottom; arguments as of `lines`.

    Rare peaks, such as of first steps that compile, are cut off, so that the others can be seen.
    """
    columns = np.array(list(series.values()), dtype=float)
    steps, columns = _thinned(np.asarray(x, dtype=float), columns)
    tops = np.cumsum(columns, axis=0)
    x_scale = _x_scale(steps)
    usual, highest = float(np.quantile(tops[-1], 0.9)), float(tops[-1].max())
    is_cut = highest > _PEAK * usual > 0
    y_scale = _rounded(0.0, 1.2 * usual if is_cut else highest, 4, BOTTOM, TOP)
    tops = np.minimum(tops, y_scale.last)
    y_label, unit = f"{y_label}, peaks cut off" if is_cut else y_label, y_label
    names = tuple(series)
    areas = []
    lower = np.zeros_like(tops[0])
    for index, (name, upper) in enumerate(zip(names, tops, strict=True)):
        forth = _path(steps, upper, x_scale, y_scale)
        back = _path(steps[::-1], lower[::-1], x_scale, y_scale).replace("M", "L", 1)
        areas.append(Curve(f"{forth}{back}Z", name, index % NUM_COLORS))
        lower = upper
    return Chart(
        title, x_label, y_label, x_ticks=_inner_ticks(x_scale, True), y_ticks=y_scale.ticks(), legend=names,
        areas=tuple(areas), hovers=_hovers(steps, columns, names, x_scale, x_label, unit),
    )  # fmt: skip


Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _thinned(x: Floats, columns: Floats) -> tuple[Floats, Floats]:
    """Averages neighbours until there are few enough, and doubles a single point, so that there is a line to see."""
    if len(x) == 1:
        return np.array([0.0, x[0]]), np.repeat(columns, 2, axis=1)
    groups = np.array_split(np.arange(len(x)), min(len(x), MAX_POINTS))
    if len(groups) == len(x):
        return x, columns
    rows = [[float(np.nanmean(row[g])) if np.isfinite(row[g]).any() else math.nan for g in groups] for row in columns]
    return np.array([x[g[-1]] for g in groups]), np.array(rows)


def _x_scale(steps: Floats) -> _Scale:
    return _Scale(float(steps[0]), float(steps[-1]), LEFT, RIGHT)


def _path(steps: Floats, values: Floats, x: _Scale, y: _Scale) -> str:
    known = [(x(float(step)), y(float(value))) for step, value in zip(steps, values, strict=True) if value == value]
    # A single known value is drawn as a dot by the round ends of the line.
    points = known * 2 if len(known) == 1 else known
    return "M" + "L".join(f"{across:g},{up:g}" for across, up in points)


def _hovers(
    steps: Floats, columns: Floats, names: Sequence[str], x: _Scale, x_label: str, unit: str
) -> tuple[Hover, ...]:
    places = [x(float(step)) for step in steps]
    borders = [LEFT, *((a + b) / 2 for a, b in itertools.pairwise(places)), RIGHT]
    strips = []
    for k, step in enumerate(steps):
        values = [
            f"{name} {significant(v)} {unit}" for name, v in zip(names, columns[:, k], strict=True) if not math.isnan(v)
        ]
        strips.append(
            Hover(
                round(borders[k], 2),
                round(borders[k + 1] - borders[k], 2),
                "\n".join([f"{x_label} {step:.0f}", *values]),
            )
        )
    return tuple(strips)
