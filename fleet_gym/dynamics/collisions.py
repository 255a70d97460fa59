"""Swept contact of discs with discs, cylinders and boxes, in the plane.

Within a control step a robot translates along a straight chord ``position + t * displacement``, t in [0, 1], and may
end it early at its own stop fraction. Contact of a pair is the first t at which the gap is closed while it closes
further; a robot then stops if its own motion closes the gap, so motion away is always free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled
from fleet_gym.world.neighbors import candidate_pairs

#: Robots stop this far from what they touch, m: far below any modelled length, far above float64 rounding.
SKIN = 1e-6
#: Stops are refined this often before whoever would still touch keeps its old pose.
MAX_REFINEMENTS = 16
NO_CONTACT = 2.0
CYLINDER, BOX = 0, 1


@compiled
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


@compiled
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


@compiled
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


@compiled
def obstacle_entry(
    position: NDArray[np.float64],
    displacement: NDArray[np.float64],
    obstacle: NDArray[np.float64],
    distance: float,
    end: float,
) -> float:
    """First contact of one robot with one obstacle.

    Args:
        position: (2,) m.
        displacement: (2,) m.
        obstacle: (6,): kind (`CYLINDER` or `BOX`), x, y, yaw, half length or radius, half width; m, rad.
        distance: footprint radius and margins, m.
        end: stop fraction of the robot.
    """
    dx = position[0] - obstacle[1]
    dy = position[1] - obstacle[2]
    if obstacle[0] == CYLINDER:
        return disc_entry(dx, dy, displacement[0], displacement[1], distance + obstacle[4], 0.0, end)
    cos, sin = np.cos(obstacle[3]), np.sin(obstacle[3])
    return box_entry(
        cos * dx + sin * dy,
        cos * dy - sin * dx,
        cos * displacement[0] + sin * displacement[1],
        cos * displacement[1] - sin * displacement[0],
        obstacle[4],
        obstacle[5],
        distance,
        end,
    )


@compiled
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


@compiled
def stop_pair(
    position: NDArray[np.float64],
    displacement: NDArray[np.float64],
    stop: NDArray[np.float64],
    i: int,
    j: int,
    t: float,
    keep_old_pose: bool,
) -> bool:
    """Ends the motion, at t, of those of robots i and j that close the gap between them. True if that was news."""
    ti, tj = min(t, stop[i]), min(t, stop[j])
    nx = position[j, 0] + tj * displacement[j, 0] - position[i, 0] - ti * displacement[i, 0]
    ny = position[j, 1] + tj * displacement[j, 1] - position[i, 1] - ti * displacement[i, 1]
    to = 0.0 if keep_old_pose else t
    changed = False
    if t < stop[i] and displacement[i, 0] * nx + displacement[i, 1] * ny > 0.0:
        stop[i] = to
        changed = True
    if t < stop[j] and displacement[j, 0] * nx + displacement[j, 1] * ny < 0.0:
        stop[j] = to
        changed = True
    return changed


@compiled
def sweep_world(
    position: NDArray[np.float64],
    displacement: NDArray[np.float64],
    margin: NDArray[np.float64],
    radius: NDArray[np.float64],
    active: NDArray[np.bool_],
    obstacles: NDArray[np.float64],
    obstacle_active: NDArray[np.bool_],
    respond: bool,
    stop: NDArray[np.float64],
    contact: NDArray[np.bool_],
) -> None:
    """Finds who touches whom in one world during one step and, if `respond`, where each robot has to stop.

    Args:
        position: (R, 2) m, at the start of the step.
        displacement: (R, 2) m, wanted.
        margin: (R,) m, by how much the true arc leaves its chord.
        radius: (R,) m.
        active: (R,).
        obstacles: (B, 6), see `obstacle_entry`.
        obstacle_active: (B,).
        respond: False only reports.
        stop: (R,), set to the fraction of the displacement each robot can make.
        contact: (R, R + B), set True for pairs that touch (robots i < j; obstacle b in column R + b).
    """
    num_robots, num_obstacles = position.shape[0], obstacles.shape[0]
    stop[:] = 1.0
    reach = np.empty(num_robots)
    for i in range(num_robots):
        length = np.sqrt(displacement[i, 0] ** 2 + displacement[i, 1] ** 2)
        reach[i] = radius[i] + margin[i] + length + SKIN
    pairs = candidate_pairs(position, reach, active)
    changed = True
    refinement = 0
    while changed:
        changed = False
        keep_old_pose = refinement >= MAX_REFINEMENTS
        for i in range(num_robots):
            if not active[i]:
                continue
            for b in range(num_obstacles):
                if not obstacle_active[b]:
                    continue
                t = obstacle_entry(position[i], displacement[i], obstacles[b], radius[i] + margin[i] + SKIN, stop[i])
                if t == NO_CONTACT:
                    continue
                contact[i, num_robots + b] = True
                if respond and t < stop[i]:
                    stop[i] = 0.0 if keep_old_pose else t
                    changed = True
        for n in range(pairs.shape[0]):
            i, j = pairs[n, 0], pairs[n, 1]
            distance = radius[i] + radius[j] + margin[i] + margin[j] + SKIN
            t = pair_entry(position, displacement, stop, i, j, distance)
            if t == NO_CONTACT:
                continue
            contact[i, j] = True
            if respond and stop_pair(position, displacement, stop, i, j, t, keep_old_pose):
                changed = True
        refinement += 1


@compiled
def mark_touching(
    position: NDArray[np.float64],
    radius: NDArray[np.float64],
    active: NDArray[np.bool_],
    obstacles: NDArray[np.float64],
    obstacle_active: NDArray[np.bool_],
    contact: NDArray[np.bool_],
) -> None:
    """Marks the pairs of one world that touch or overlap where they stand, in `contact` (see `sweep_world`)."""
    num_robots = position.shape[0]
    reach = np.empty(num_robots)
    for i in range(num_robots):
        reach[i] = radius[i] + SKIN
    pairs = candidate_pairs(position, reach, active)
    for n in range(pairs.shape[0]):
        contact[pairs[n, 0], pairs[n, 1]] = True
    for i in range(num_robots):
        if not active[i]:
            continue
        for b in range(obstacles.shape[0]):
            if not obstacle_active[b]:
                continue
            dx = position[i, 0] - obstacles[b, 1]
            dy = position[i, 1] - obstacles[b, 2]
            limit = radius[i] + 2 * SKIN
            if obstacles[b, 0] == CYLINDER:
                limit += obstacles[b, 4]
            else:
                cos, sin = np.cos(obstacles[b, 3]), np.sin(obstacles[b, 3])
                x = abs(cos * dx + sin * dy) - obstacles[b, 4]
                y = abs(cos * dy - sin * dx) - obstacles[b, 5]
                dx, dy = max(x, 0.0), max(y, 0.0)
            if dx * dx + dy * dy <= limit * limit:
                contact[i, num_robots + b] = True
