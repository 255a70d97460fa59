"""Swept contact of robots with robots, cylinders and boxes, in the plane.

Within a control step a robot translates along a straight chord ``position + t * displacement``, t in [0, 1], and may
end it early at its own stop fraction. Contact of a pair is the first t at which the gap is closed while it closes
further; a robot then stops if its own motion closes the gap, so motion away is always free. Discs have closed forms;
wherever a robot is a box `fleet_gym.dynamics.footprints` finds the time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy
from fleet_gym.dynamics.footprints import (
    LENGTH,
    MX,
    MY,
    NO_CONTACT,
    ROUND,
    WIDTH,
    YAW,
    approaches,
    mover_entry,
    mover_gap,
)
from fleet_gym.dynamics.obstacle_grid import (
    COS,
    CYLINDER,
    HALF_X,
    HALF_Y,
    KIND,
    SIN,
    X,
    Y,
    touches_obstacle,
)

#: Robots stop this far from what they touch, m: far below any modelled length, far above float64 rounding.
SKIN = 1e-6
#: Stops are refined this often before whoever would still touch keeps its old pose.
MAX_REFINEMENTS = 16


@compiled_like_numpy
def disc_entry(qx: float, qy: float, wx: float, wy: float, distance: float, start: float, end: float) -> float:
    """First t in [start, end] at which ``|q + t * w| <= distance`` while approaching, else `NO_CONTACT`."""
    x = qx + start * wx
    y = qy + start * wy
    closing = x * wx + y * wy
    if closing >= 0.0:
        return NO_CONTACT
    gap = x * x + y * y - distance * distance
    if gap <= 0.0:
        return start
    speed = wx * wx + wy * wy
    discriminant = closing * closing - speed * gap
    if discriminant < 0.0:
        return NO_CONTACT
    # The form without cancellation: the smaller root of speed * s^2 + 2 * closing * s + gap = 0.
    t = start + gap / (-closing + np.sqrt(discriminant))
    return t if t <= end else NO_CONTACT


@compiled_inner
def slab_entry(qx: float, qy: float, wx: float, wy: float, half_x: float, half_y: float, end: float) -> float:
    """First t in [0, end] at which a point from outside enters an axis-aligned rectangle, else `NO_CONTACT`."""
    enter, leave = -1e300, 1e300
    for q, w, half in ((qx, wx, half_x), (qy, wy, half_y)):
        if w == 0.0:
            if abs(q) > half:
                return NO_CONTACT
            continue
        first = (-half - q) / w
        second = (half - q) / w
        if first > second:
            first, second = second, first
        enter = max(enter, first)
        leave = min(leave, second)
    if enter > leave or enter < 0.0 or enter > end:
        return NO_CONTACT
    return enter


@compiled_like_numpy
def box_entry(
    qx: float, qy: float, wx: float, wy: float, half_x: float, half_y: float, distance: float, end: float
) -> float:
    """First t in [0, end] at which a moving point comes within `distance` of a rectangle while approaching.

    Args:
        qx: start, m, in the rectangle's frame.
        qy: the same.
        wx: displacement, m, in the rectangle's frame.
        wy: the same.
        half_x: half side, m.
        half_y: half side, m.
        distance: m.
        end: stop fraction.
    """
    nearest_x = min(max(qx, -half_x), half_x)
    nearest_y = min(max(qy, -half_y), half_y)
    away_x = qx - nearest_x
    away_y = qy - nearest_y
    if away_x * away_x + away_y * away_y <= distance * distance:
        if away_x == 0.0 and away_y == 0.0:  # the centre itself is inside: out is away from the middle
            away_x, away_y = qx, qy
        return 0.0 if away_x * wx + away_y * wy < 0.0 else NO_CONTACT
    first = min(
        slab_entry(qx, qy, wx, wy, half_x + distance, half_y, end),
        slab_entry(qx, qy, wx, wy, half_x, half_y + distance, end),
    )
    for corner_x in (-half_x, half_x):
        for corner_y in (-half_y, half_y):
            first = min(first, disc_entry(qx - corner_x, qy - corner_y, wx, wy, distance, 0.0, end))
    return first


@compiled_inner
def obstacle_entry(
    x: float, y: float, wx: float, wy: float, obstacle: NDArray[np.float64], distance: float, end: float
) -> float:
    """First contact of one robot with one obstacle.

    Args:
        x: position, m.
        y: the same.
        wx: displacement, m.
        wy: the same.
        obstacle: (10,), see `fleet_gym.dynamics.obstacle_grid.OBSTACLE_COLUMNS`.
        distance: footprint radius and margins, m.
        end: stop fraction of the robot.
    """
    dx, dy = x - obstacle[X], y - obstacle[Y]
    if obstacle[KIND] == CYLINDER:
        return disc_entry(dx, dy, wx, wy, distance + obstacle[HALF_X], 0.0, end)
    cos, sin = obstacle[COS], obstacle[SIN]
    return box_entry(
        cos * dx + sin * dy,
        cos * dy - sin * dx,
        cos * wx + sin * wy,
        cos * wy - sin * wx,
        obstacle[HALF_X],
        obstacle[HALF_Y],
        distance,
        end,
    )


@compiled_inner
def pair_entry(
    position: NDArray[np.float64],
    displacement: NDArray[np.float64],
    stop: NDArray[np.float64],
    i: int,
    j: int,
    distance: float,
) -> float:
    """First contact of robots i and j, of which the one with the smaller stop fraction waits for the other."""
    qx = position[j, 0] - position[i, 0]
    qy = position[j, 1] - position[i, 1]
    both = min(stop[i], stop[j])
    t = disc_entry(
        qx,
        qy,
        displacement[j, 0] - displacement[i, 0],
        displacement[j, 1] - displacement[i, 1],
        distance,
        0.0,
        both,
    )
    if t != NO_CONTACT or stop[i] == stop[j]:
        return t
    if stop[i] < stop[j]:
        return disc_entry(
            qx - both * displacement[i, 0],
            qy - both * displacement[i, 1],
            displacement[j, 0],
            displacement[j, 1],
            distance,
            both,
            stop[j],
        )
    return disc_entry(
        qx + both * displacement[j, 0],
        qy + both * displacement[j, 1],
        -displacement[i, 0],
        -displacement[i, 1],
        distance,
        both,
        stop[i],
    )


@compiled_inner
def stop_pair(
    position: NDArray[np.float64],
    displacement: NDArray[np.float64],
    stop: NDArray[np.float64],
    i: int,
    j: int,
    t: float,
    keep_old_pose: bool,
) -> None:
    """Ends the motion, at t, of those of robots i and j that close the gap between them."""
    ti, tj = min(t, stop[i]), min(t, stop[j])
    nx = position[j, 0] + tj * displacement[j, 0] - position[i, 0] - ti * displacement[i, 0]
    ny = position[j, 1] + tj * displacement[j, 1] - position[i, 1] - ti * displacement[i, 1]
    to = 0.0 if keep_old_pose else t
    if t < stop[i] and displacement[i, 0] * nx + displacement[i, 1] * ny > 0.0:
        stop[i] = to
    if t < stop[j] and displacement[j, 0] * nx + displacement[j, 1] * ny < 0.0:
        stop[j] = to


@compiled_inner
def stop_movers(
    movers: NDArray[np.float64], stop: NDArray[np.float64], i: int, j: int, t: float, keep_old_pose: bool
) -> None:
    """As `stop_pair` where one is a box."""
    at_i, at_j = min(t, stop[i]), min(t, stop[j])
    i_closes = t < stop[i] and approaches(movers[i], at_i, movers[j], at_j)
    j_closes = t < stop[j] and approaches(movers[j], at_j, movers[i], at_i)
    neither = not (i_closes or j_closes)  # alone; together they do
    to = 0.0 if keep_old_pose else t
    if t < stop[i] and (i_closes or neither):
        stop[i] = to
    if t < stop[j] and (j_closes or neither):
        stop[j] = to


@compiled_inner
def place_obstacle(obstacle: NDArray[np.float64], margin: float, mover: NDArray[np.float64]) -> None:
    """Makes a mover that stands still, see `fleet_gym.dynamics.footprints`, of an obstacle and the margin around it."""
    mover[MX], mover[MY], mover[YAW] = obstacle[X], obstacle[Y], np.arctan2(obstacle[SIN], obstacle[COS])
    if obstacle[KIND] == CYLINDER:
        mover[LENGTH] = mover[WIDTH] = 0.0
        mover[ROUND] = margin + obstacle[HALF_X]
    else:
        mover[LENGTH], mover[WIDTH], mover[ROUND] = obstacle[HALF_X], obstacle[HALF_Y], margin


@compiled_like_numpy
def sweep_world(
    position: NDArray[np.float64],
    displacement: NDArray[np.float64],
    margin: NDArray[np.float64],
    radius: NDArray[np.float64],
    movers: NDArray[np.float64],
    obstacles: NDArray[np.float64],
    obstacle_margin: float,
    candidates: NDArray[np.int64],
    num_pairs: int,
    count: int,
    respond: bool,
    stop: NDArray[np.float64],
    touching: NDArray[np.bool_],
) -> None:
    """Finds who touches whom in one world during one step and, if `respond`, where each robot has to stop.

    Args:
        position: (R, 2) m, at the start of the step.
        displacement: (R, 2) m, wanted.
        margin: (R,) m, by how much the true arc leaves its chord.
        radius: (R,) m, of discs.
        movers: (R + 1, 12), see `fleet_gym.dynamics.footprints.MOVER_COLUMNS`; the last is scratch; (0, 12) if all
            robots are discs.
        obstacles: (B, 10), see `fleet_gym.dynamics.obstacle_grid.OBSTACLE_COLUMNS`.
        obstacle_margin: m, added to obstacles.
        candidates: (>= count, 2), see `fleet_gym.dynamics.broad_phase`.
        num_pairs: rows that are pairs of robots.
        count: rows in use.
        respond: False only reports.
        stop: (R,), set to the fraction of the displacement each robot can make.
        touching: (>= count,), set: which candidates touch, where they start, on the way or where they end.
    """
    num_robots = position.shape[0]
    for i in range(num_robots):
        stop[i] = 1.0
    for n in range(count):
        touching[n] = False
    if count == 0:
        return
    has_boxes = movers.shape[0] > 0
    # The refinement in which each robot's stop last changed: a pair of two unchanged ones has nothing new to say.
    changed_in = np.zeros(num_robots, dtype=np.int64)
    changed = True
    refinement = 0
    while changed:
        changed = False
        keep_old_pose = refinement >= MAX_REFINEMENTS
        for n in range(num_pairs, count):
            if changed_in[candidates[n, 0]] < refinement - 1:
                continue
            i, obstacle = candidates[n, 0], obstacles[candidates[n, 1] - num_robots]
            if has_boxes and movers[i, LENGTH] > 0.0:
                place_obstacle(obstacle, obstacle_margin, movers[num_robots])
                t = mover_entry(movers[i], stop[i], movers[num_robots], 0.0, margin[i] + SKIN)
            else:
                t = obstacle_entry(
                    position[i, 0],
                    position[i, 1],
                    displacement[i, 0],
                    displacement[i, 1],
                    obstacle,
                    radius[i] + obstacle_margin + margin[i] + SKIN,
                    stop[i],
                )
            if t == NO_CONTACT:
                continue
            touching[n] = True
            if respond and t < stop[i]:
                stop[i] = 0.0 if keep_old_pose else t
                changed_in[i] = refinement
                changed = True
        for n in range(num_pairs):
            i, j = candidates[n, 0], candidates[n, 1]
            if max(changed_in[i], changed_in[j]) < refinement - 1:
                continue
            is_box = has_boxes and max(movers[i, LENGTH], movers[j, LENGTH]) > 0.0
            if is_box:
                t = mover_entry(movers[i], stop[i], movers[j], stop[j], margin[i] + margin[j] + SKIN)
            else:
                distance = radius[i] + radius[j] + margin[i] + margin[j] + SKIN
                t = pair_entry(position, displacement, stop, i, j, distance)
            if t == NO_CONTACT:
                continue
            touching[n] = True
            if respond:
                before_i, before_j = stop[i], stop[j]
                if is_box:
                    stop_movers(movers, stop, i, j, t, keep_old_pose)
                else:
                    stop_pair(position, displacement, stop, i, j, t, keep_old_pose)
                if stop[i] != before_i:
                    changed_in[i], changed = refinement, True
                if stop[j] != before_j:
                    changed_in[j], changed = refinement, True
        refinement += 1
    mark_touching(
        position,
        displacement,
        stop,
        radius,
        movers,
        obstacles,
        obstacle_margin,
        candidates,
        num_pairs,
        count,
        touching,
    )


@compiled_inner
def mark_touching(
    position: NDArray[np.float64],
    displacement: NDArray[np.float64],
    stop: NDArray[np.float64],
    radius: NDArray[np.float64],
    movers: NDArray[np.float64],
    obstacles: NDArray[np.float64],
    obstacle_margin: float,
    candidates: NDArray[np.int64],
    num_pairs: int,
    count: int,
    touching: NDArray[np.bool_],
) -> None:
    """Marks the candidates that overlap where they start or touch where they end, see `sweep_world`."""
    for n in range(count):
        if touching[n]:
            continue
        i, j, is_pair = candidates[n, 0], candidates[n, 1], n < num_pairs
        stop_j = stop[j] if is_pair else 0.0
        if movers.shape[0] > 0 and movers[i, LENGTH] + (movers[j, LENGTH] if is_pair else 0.0) > 0.0:
            other = movers[j if is_pair else position.shape[0]]
            if not is_pair:
                place_obstacle(obstacles[j - position.shape[0]], obstacle_margin, other)
            touching[n] = (
                mover_gap(movers[i], stop[i], other, stop_j)[0] <= 2 * SKIN
                or mover_gap(movers[i], 0.0, other, 0.0)[0] <= 0.0
            )
            continue
        x, y = position[i, 0], position[i, 1]
        end_x, end_y = x + stop[i] * displacement[i, 0], y + stop[i] * displacement[i, 1]
        if is_pair:
            span = radius[i] + radius[j]
            dx, dy = position[j, 0] - x, position[j, 1] - y
            end_dx = position[j, 0] + stop_j * displacement[j, 0] - end_x
            end_dy = position[j, 1] + stop_j * displacement[j, 1] - end_y
            touching[n] = (
                end_dx * end_dx + end_dy * end_dy <= (span + 2 * SKIN) * (span + 2 * SKIN)
                or dx * dx + dy * dy <= span * span
            )
        else:
            span, obstacle = radius[i] + obstacle_margin, obstacles[j - position.shape[0]]
            touching[n] = touches_obstacle(end_x, end_y, obstacle, span + 2 * SKIN) or touches_obstacle(
                x, y, obstacle, span
            )
