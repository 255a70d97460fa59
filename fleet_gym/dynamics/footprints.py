"""Gap and first contact of rounded rectangles that move and turn: oriented-box footprints, in the plane.

A rounded rectangle is all that lies within a radius of a rectangle; a disc is one whose rectangle is a point. The gap
of two that overlap is the depth along the axis of least overlap, negative (separating axis test); of two that do not
it is their distance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy

#: Columns of a mover: root link's origin (m) and yaw (rad) at the start of the step, displacement (m) and turn (rad)
#: wanted in it, half length and half width of its rectangle and the rectangle's centre in the root link's frame (m),
#: radius around it (m), and how far from the origin it reaches (m).
MOVER_COLUMNS = (MX, MY, YAW, MDX, MDY, TURNS, LENGTH, WIDTH, AHEAD, LEFT, ROUND, EXTENT) = tuple(range(12))
NO_CONTACT = 2.0
#: Shares of a step: contact is looked for at least this often where something turns ...
_SHORTEST = 1.0 / 128.0
#: ... more often where something is faster than it is thick, but not more often than this ...
_FINEST = 1e-5
#: ... and found to within this.
_EXACT = 1e-12
#: Gaps that differ by less are the same, m.
_SAME = 1e-12


@compiled_inner
def rectangle_gap(
    dx: float,
    dy: float,
    cos_a: float,
    sin_a: float,
    length_a: float,
    width_a: float,
    cos_b: float,
    sin_b: float,
    length_b: float,
    width_b: float,
) -> tuple[float, float, float]:
    """Gap between rectangles a and b, and its direction from a to b.

    Args:
        dx: from a's centre to b's, m.
        dy: the same.
        cos_a: of a's yaw.
        sin_a: the same.
        length_a: half length of a, m.
        width_a: half width of a, m.
        cos_b: of b's yaw.
        sin_b: the same.
        length_b: half length of b, m.
        width_b: half width of b, m.

    Returns:
        The gap, m, negative if they overlap, and the direction.
    """
    cos, sin = cos_a * cos_b + sin_a * sin_b, cos_a * sin_b - sin_a * cos_b
    abs_cos, abs_sin = abs(cos), abs(sin)
    px, py = cos_a * dx + sin_a * dy, cos_a * dy - sin_a * dx
    qx, qy = cos_b * dx + sin_b * dy, cos_b * dy - sin_b * dx
    gap = abs(px) - length_a - length_b * abs_cos - width_b * abs_sin
    side = 1.0 if px >= 0.0 else -1.0
    nx, ny = side * cos_a, side * sin_a
    other = abs(py) - width_a - length_b * abs_sin - width_b * abs_cos
    if other > gap:
        side = 1.0 if py >= 0.0 else -1.0
        gap, nx, ny = other, -side * sin_a, side * cos_a
    other = abs(qx) - length_b - length_a * abs_cos - width_a * abs_sin
    if other > gap:
        side = 1.0 if qx >= 0.0 else -1.0
        gap, nx, ny = other, side * cos_b, side * sin_b
    other = abs(qy) - width_b - length_a * abs_sin - width_a * abs_cos
    if other > gap:
        side = 1.0 if qy >= 0.0 else -1.0
        gap, nx, ny = other, -side * sin_b, side * cos_b
    if gap <= 0.0:
        return gap, nx, ny
    # Apart: the shortest way between two polygons begins or ends at a corner.
    nearest = np.inf
    for along in (-1.0, 1.0):
        for across in (-1.0, 1.0):
            # a corner of b, in a's frame
            x = px + along * length_b * cos - across * width_b * sin
            y = py + along * length_b * sin + across * width_b * cos
            away_x = x - min(max(x, -length_a), length_a)
            away_y = y - min(max(y, -width_a), width_a)
            square = away_x * away_x + away_y * away_y
            if square < nearest:
                nearest = square
                nx, ny = cos_a * away_x - sin_a * away_y, sin_a * away_x + cos_a * away_y
            # a corner of a, in b's frame
            x = along * length_a * cos + across * width_a * sin - qx
            y = across * width_a * cos - along * length_a * sin - qy
            away_x = x - min(max(x, -length_b), length_b)
            away_y = y - min(max(y, -width_b), width_b)
            square = away_x * away_x + away_y * away_y
            if square < nearest:
                nearest = square
                nx, ny = sin_b * away_y - cos_b * away_x, -sin_b * away_x - cos_b * away_y
    distance = np.sqrt(nearest)
    return distance, nx / distance, ny / distance


@compiled_like_numpy
def mover_gap(a: NDArray[np.float64], at_a: float, b: NDArray[np.float64], at_b: float) -> tuple[float, float, float]:
    """Gap between two movers, one `at_a` and one `at_b` of the way through its step, as `rectangle_gap` gives it.

    Args:
        a: (12,), see `MOVER_COLUMNS`.
        at_a: share of its motion that a has made.
        b: (12,).
        at_b: share of its motion that b has made.
    """
    yaw_a, yaw_b = a[YAW] + at_a * a[TURNS], b[YAW] + at_b * b[TURNS]
    cos_a, sin_a, cos_b, sin_b = np.cos(yaw_a), np.sin(yaw_a), np.cos(yaw_b), np.sin(yaw_b)
    dx = b[MX] + at_b * b[MDX] + cos_b * b[AHEAD] - sin_b * b[LEFT]
    dy = b[MY] + at_b * b[MDY] + sin_b * b[AHEAD] + cos_b * b[LEFT]
    dx -= a[MX] + at_a * a[MDX] + cos_a * a[AHEAD] - sin_a * a[LEFT]
    dy -= a[MY] + at_a * a[MDY] + sin_a * a[AHEAD] + cos_a * a[LEFT]
    gap, nx, ny = rectangle_gap(dx, dy, cos_a, sin_a, a[LENGTH], a[WIDTH], cos_b, sin_b, b[LENGTH], b[WIDTH])
    return gap - a[ROUND] - b[ROUND], nx, ny


@compiled_like_numpy
def mover_entry(a: NDArray[np.float64], stop_a: float, b: NDArray[np.float64], stop_b: float, limit: float) -> float:
    """First share of the step at which two movers come within `limit` of each other while they approach.

    Conservative advancement: nothing can be bridged faster than by the speed along the gap plus that of the turning
    corners.

    Args:
        a: (12,), see `MOVER_COLUMNS`.
        stop_a: share of its motion after which a stands.
        b: (12,).
        stop_b: the same for b.
        limit: m.

    Returns:
        The share, `NO_CONTACT` if there is none.
    """
    t, last = 0.0, max(stop_a, stop_b)
    thin = _thinner_half(a) + _thinner_half(b)
    gap, nx, ny = mover_gap(a, 0.0, b, 0.0)
    while t < last:
        moves_a, moves_b = t < stop_a, t < stop_b
        end = min(stop_a, stop_b) if moves_a and moves_b else last
        closing, turning, fastest = 0.0, 0.0, 0.0
        if moves_a:
            closing += nx * a[MDX] + ny * a[MDY]
            turning += abs(a[TURNS]) * a[EXTENT]
            fastest += np.sqrt(a[MDX] * a[MDX] + a[MDY] * a[MDY])
        if moves_b:
            closing -= nx * b[MDX] + ny * b[MDY]
            turning += abs(b[TURNS]) * b[EXTENT]
            fastest += np.sqrt(b[MDX] * b[MDX] + b[MDY] * b[MDY])
        inside = gap <= limit
        ahead = min(t + _look_ahead(thin, fastest + turning), end)
        if not inside and gap - limit >= (closing + turning) * (ahead - t):
            ahead = end
            if closing + turning > 0.0:
                ahead = min(t + (gap - limit) / (closing + turning), end)
        elif inside and turning == 0.0 and closing <= 0.0:
            # Without turns the gap is a convex function of time: once it does not shrink, it never does.
            ahead = end
        then, nx, ny = mover_gap(a, min(ahead, stop_a), b, min(ahead, stop_b))
        if inside and then < gap - _SAME:
            return t
        if not inside and then <= limit:
            return _bisected(a, stop_a, b, stop_b, limit, t, ahead)
        t, gap = ahead, then
    return NO_CONTACT


@compiled_inner
def _thinner_half(mover: NDArray[np.float64]) -> float:
    """Half of the least width of a mover, m."""
    return float(min(mover[LENGTH], mover[WIDTH]) + mover[ROUND])


@compiled_inner
def _look_ahead(thin: float, fastest: float) -> float:
    """Share of a step in which nothing that moves by `fastest` m gets past what is twice as thick as `thin`, m."""
    return max(min(thin / max(fastest, 1e-300), _SHORTEST), _FINEST)


@compiled_inner
def _bisected(
    a: NDArray[np.float64],
    stop_a: float,
    b: NDArray[np.float64],
    stop_b: float,
    limit: float,
    before: float,
    after: float,
) -> float:
    """The last time before two movers come within `limit`, which they have not `before` and have `after`."""
    while after - before > _EXACT:
        middle = 0.5 * (before + after)
        if mover_gap(a, min(middle, stop_a), b, min(middle, stop_b))[0] > limit:
            before = middle
        else:
            after = middle
    return before


@compiled_like_numpy
def approaches(a: NDArray[np.float64], at_a: float, b: NDArray[np.float64], at_b: float) -> bool:
    """Whether a, going on by itself, comes closer to b."""
    gap = mover_gap(a, at_a, b, at_b)[0]
    fastest = np.sqrt(a[MDX] * a[MDX] + a[MDY] * a[MDY]) + abs(a[TURNS]) * a[EXTENT]
    probe = _look_ahead(_thinner_half(a) + _thinner_half(b), fastest)
    return bool(mover_gap(a, at_a + probe, b, at_b)[0] < gap - _SAME)
