"""The kinematic step of all worlds: commands to motion, motion to contact, contact to state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy
from fleet_gym.dynamics.broad_phase import find_candidates
from fleet_gym.dynamics.collisions import SKIN, sweep_world
from fleet_gym.dynamics.footprints import (
    AHEAD,
    EXTENT,
    LEFT,
    LENGTH,
    MDX,
    MDY,
    MOVER_COLUMNS,
    MX,
    MY,
    ROUND,
    TURNS,
    WIDTH,
    YAW,
)
from fleet_gym.dynamics.obstacle_grid import Obstacles
from fleet_gym.dynamics.route_kernel import DX, DY, RATE, SAGITTA, TURN, VX, VY

STATIC, DIFFERENTIAL, OMNIDIRECTIONAL, ACKERMANN = range(4)
#: Columns of the per-robot parameter table: drive, m/s^2, rad/s^2, cosine and sine of `forward_yaw`, m, m, m, lowest
#: and highest point relative to the root link's origin (m), 1 for robots that collide, and of a box footprint (0 for
#: discs) its half length, half width and the centre's x and y in the root link's frame (m).
PARAMETERS = tuple(range(15))
(
    DRIVE,
    ACCELERATION,
    TURN_ACCELERATION,
    FORWARD_COS,
    FORWARD_SIN,
    AXLE_OFFSET,
    WHEELBASE,
    RADIUS,
    BOTTOM,
    TOP,
    COLLIDES,
    BOX_LENGTH,
    BOX_WIDTH,
    BOX_X,
    BOX_Y,
) = PARAMETERS


# Scalars in, scalars out: a view of an array costs numba more than the arithmetic done with it.
@compiled_inner
def _limit_velocity(vx: float, vy: float, last_x: float, last_y: float, limit: float) -> tuple[float, float]:
    """Moves a velocity towards its command, by at most `limit`."""
    change_x, change_y = vx - last_x, vy - last_y
    change = np.sqrt(change_x * change_x + change_y * change_y)
    if change > limit:
        return last_x + change_x * (limit / change), last_y + change_y * (limit / change)
    return vx, vy


@compiled_inner
def _heading(z: float, w: float, forward_cos: float, forward_sin: float) -> tuple[float, float]:
    """Cosine and sine of the driving direction of a robot that stands upright."""
    cos, sin = w * w - z * z, 2.0 * w * z
    return cos * forward_cos - sin * forward_sin, sin * forward_cos + cos * forward_sin


@compiled_inner
def _cos_sin(angle: float) -> tuple[float, float]:
    """Cosine and sine; those of a control step's small angles by their series, in a third of the time."""
    if abs(angle) > 0.25:
        return float(np.cos(angle)), float(np.sin(angle))
    s = angle * angle
    cos = 1.0 - s * 0.5 * (
        1.0 - s * (1 / 12) * (1.0 - s * (1 / 30) * (1.0 - s * (1 / 56) * (1.0 - s * (1 / 90) * (1.0 - s * (1 / 132)))))
    )
    sin = angle * (
        1.0 - s * (1 / 6) * (1.0 - s * (1 / 20) * (1.0 - s * (1 / 42) * (1.0 - s * (1 / 72) * (1.0 - s * (1 / 110)))))
    )
    return cos, sin


@compiled_inner
def _wanted_motion(
    vx: float, vy: float, omega: float, half_cos: float, half_sin: float, axle_offset: float, dt: float
) -> tuple[float, float, float]:
    """Displacement of the root link's origin under a constant twist, in the body frame, and its arc's sagitta, m.

    The drive's centre moves by the integral of the rotating velocity; the origin lies `axle_offset` behind it.
    `half_cos` and `half_sin` are those of half the angle the robot turns by; sin(a) = 2 sin(a/2) cos(a/2) and
    1 - cos(a) = 2 sin(a/2)^2 keep every digit of small angles.
    """
    angle = omega * dt
    sine, versine = 2.0 * half_sin * half_cos, 2.0 * half_sin * half_sin
    if abs(angle) < 1e-9:
        along, across = dt, angle * dt / 2
    else:
        along, across = sine / omega, versine / omega
    # offset * (h(heading) - h(heading + angle)) in the body frame at the start of the step
    x = vx * along - vy * across + axle_offset * versine
    y = vx * across + vy * along - axle_offset * sine
    if abs(omega) < 1e-9:
        return x, y, 0.0
    speed_y = vy - axle_offset * omega
    turn_radius = np.sqrt(vx * vx + speed_y * speed_y) / abs(omega)
    if abs(angle) >= 2 * np.pi:
        return x, y, 2 * turn_radius
    return x, y, turn_radius * (half_sin * half_sin / (1 + half_cos) if half_cos > 0 else 1 - half_cos)


@compiled_like_numpy
def step_worlds(
    commands: NDArray[np.float64],
    active_worlds: NDArray[np.bool_],
    dt: float,
    parameters: NDArray[np.float64],
    twists: NDArray[np.float64],
    position: NDArray[np.float64],
    orientation: NDArray[np.float64],
    linear_velocity: NDArray[np.float64],
    angular_velocity: NDArray[np.float64],
    active: NDArray[np.bool_],
    obstacles: Obstacles,
    respond: bool,
    contact_margin: float,
    moves: NDArray[np.float64],
    follows: NDArray[np.bool_],
    blocked: NDArray[np.bool_],
    partners: NDArray[np.int64],
    partner_start: NDArray[np.int64],
    partner_count: NDArray[np.int64],
    new_start: NDArray[np.int64],
    new_count: NDArray[np.int64],
    in_collision: NDArray[np.bool_],
    collision_starts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Advances the active worlds by one control step.

    Args:
        commands: (E, R, A) SI units.
        active_worlds: (E,).
        dt: s.
        parameters: (R, 15), see `PARAMETERS`.
        twists: (E, R, 3) the last commanded twists; changed.
        position: (E, R, 3); changed, like the four after it, as `FleetState` has them.
        orientation: (E, R, 4).
        linear_velocity: (E, R, 3).
        angular_velocity: (E, R, 3).
        active: (E, R); read only.
        obstacles: of the worlds.
        respond: whether contact ends motion.
        contact_margin: m, gaps up to this are contact.
        moves: (E, R, 8) or shorter where nobody follows, see `fleet_gym.dynamics.route_kernel.MOVE_COLUMNS`.
        follows: (E, R) who makes its move instead of obeying its command.
        blocked: (E, R) set: who was stopped by contact.
        partners: (n,) whom each robot touched in the last step: robots j > i, and R + b for obstacles.
        partner_start: (E, R) where a robot's partners begin.
        partner_count: (E, R) how many it has.
        new_start: (E, R) set: the same for the returned array.
        new_count: (E, R) set.
        in_collision: (E, R); changed.
        collision_starts: (E,); changed.

    Returns:
        The new `partners`.
    """
    num_envs, num_robots = active.shape
    displacement, plane = np.zeros((num_robots, 2)), np.empty((num_robots, 2))
    omega, sagitta, turns = np.zeros(num_robots), np.zeros(num_robots), np.zeros(num_robots)
    half_cos, half_sin = np.ones(num_robots), np.zeros(num_robots)
    reach, radius, stop = np.zeros(num_robots), np.empty(num_robots), np.ones(num_robots)
    low, high, collides = np.empty(num_robots), np.empty(num_robots), np.empty(num_robots, dtype=np.bool_)
    candidates = np.empty((max(16, 2 * num_robots), 2), dtype=np.int64)
    touching = np.zeros(candidates.shape[0], dtype=np.bool_)
    new_partners = np.empty(max(16, 2 * partners.shape[0]), dtype=np.int64)
    used, has_boxes = 0, False
    for r in range(num_robots):
        radius[r] = parameters[r, RADIUS] + contact_margin / 2
        has_boxes |= parameters[r, BOX_LENGTH] > 0.0
    movers = np.zeros((num_robots + 1 if has_boxes else 0, len(MOVER_COLUMNS)))
    for e in range(num_envs):
        if not active_worlds[e]:
            new_partners, used = _copy_partners(
                partners, partner_start[e], partner_count[e], new_start[e], new_count[e], new_partners, used
            )
            continue
        for r in range(num_robots):
            displacement[r, 0] = displacement[r, 1] = 0.0
            omega[r] = sagitta[r] = turns[r] = 0.0
            plane[r, 0], plane[r, 1] = position[e, r, 0], position[e, r, 1]
            low[r], high[r] = position[e, r, 2] + parameters[r, BOTTOM], position[e, r, 2] + parameters[r, TOP]
            collides[r] = active[e, r] and parameters[r, COLLIDES] == 1.0
            if not active[e, r] or parameters[r, DRIVE] == STATIC:
                pass
            elif follows[e, r]:
                displacement[r, 0], displacement[r, 1] = moves[e, r, DX], moves[e, r, DY]
                half_cos[r], half_sin[r] = _cos_sin(moves[e, r, TURN] / 2)
                omega[r], sagitta[r], turns[r] = moves[e, r, RATE], moves[e, r, SAGITTA], moves[e, r, TURN]
                twists[e, r, 0], twists[e, r, 1], twists[e, r, 2] = moves[e, r, VX], moves[e, r, VY], moves[e, r, RATE]
            else:
                vy, turn = 0.0, commands[e, r, 1]
                if parameters[r, DRIVE] == OMNIDIRECTIONAL:
                    vy, turn = commands[e, r, 1], commands[e, r, 2]
                vx, vy = _limit_velocity(
                    commands[e, r, 0], vy, twists[e, r, 0], twists[e, r, 1], parameters[r, ACCELERATION] * dt
                )
                limit = parameters[r, TURN_ACCELERATION] * dt
                turn = min(max(turn, twists[e, r, 2] - limit), twists[e, r, 2] + limit)
                twists[e, r, 0], twists[e, r, 1], twists[e, r, 2] = vx, vy, turn
                omega[r] = turn
                if parameters[r, DRIVE] == ACKERMANN:  # bicycle model about the rear axle
                    omega[r] = vx * np.tan(turn) / parameters[r, WHEELBASE]
                turns[r] = omega[r] * dt
                half_cos[r], half_sin[r] = _cos_sin(turns[r] / 2)
                x, y, sagitta[r] = _wanted_motion(
                    vx, vy, omega[r], half_cos[r], half_sin[r], parameters[r, AXLE_OFFSET], dt
                )
                cos, sin = _heading(
                    orientation[e, r, 2], orientation[e, r, 3], parameters[r, FORWARD_COS], parameters[r, FORWARD_SIN]
                )
                displacement[r, 0], displacement[r, 1] = cos * x - sin * y, sin * x + cos * y
            length = np.sqrt(displacement[r, 0] ** 2 + displacement[r, 1] ** 2)
            if has_boxes and follows[e, r] and length > 0.0:
                # A route turns and drives one after the other, or each with its own ramps, not in step.
                sagitta[r] += parameters[r, RADIUS] * abs(turns[r])
            reach[r] = radius[r] + sagitta[r] + length + 2 * SKIN
        if has_boxes:
            _place_movers(parameters, plane, orientation[e], displacement, turns, contact_margin / 2, movers)
        candidates, num_pairs, count = find_candidates(
            plane,
            reach,
            low,
            high,
            collides,
            obstacles.rows[e],
            obstacles.active[e],
            obstacles.header[e],
            obstacles.start[e],
            obstacles.entries[e],
            contact_margin / 2,
            candidates,
        )
        if touching.shape[0] < count:
            touching = np.zeros(candidates.shape[0], dtype=np.bool_)
        sweep_world(
            plane,
            displacement,
            sagitta,
            radius,
            movers,
            obstacles.rows[e],
            contact_margin / 2,
            candidates,
            num_pairs,
            count,
            respond,
            stop,
            touching,
        )
        for r in range(num_robots):
            blocked[e, r] = stop[r] < 1.0
            if active[e, r] and parameters[r, DRIVE] != STATIC:
                stopped = stop[r] < 1.0
                if stopped:  # what was stopped has lost its speed, but a steering angle stays
                    twists[e, r, 0] = twists[e, r, 1] = 0.0
                    if parameters[r, BOX_LENGTH] > 0.0:
                        half_cos[r], half_sin[r] = _cos_sin(stop[r] * turns[r] / 2)
                        omega[r] = 0.0
                        if parameters[r, DRIVE] != ACKERMANN:
                            twists[e, r, 2] = 0.0
                position[e, r, 0] = plane[r, 0] + stop[r] * displacement[r, 0]
                position[e, r, 1] = plane[r, 1] + stop[r] * displacement[r, 1]
                z = orientation[e, r, 2] * half_cos[r] + orientation[e, r, 3] * half_sin[r]
                w = orientation[e, r, 3] * half_cos[r] - orientation[e, r, 2] * half_sin[r]
                square = z * z + w * w
                # One step of Newton's keeps the length at 1 to the last digit, without root and division.
                norm = 1.5 - 0.5 * square if abs(square - 1.0) < 1e-8 else 1.0 / np.sqrt(square)
                z, w = z * norm, w * norm
                orientation[e, r, 0] = orientation[e, r, 1] = 0.0
                orientation[e, r, 2], orientation[e, r, 3] = z, w
                linear_velocity[e, r, 0] = linear_velocity[e, r, 1] = linear_velocity[e, r, 2] = 0.0
                if not stopped:
                    vx, vy = twists[e, r, 0], twists[e, r, 1] - parameters[r, AXLE_OFFSET] * omega[r]
                    cos, sin = _heading(z, w, parameters[r, FORWARD_COS], parameters[r, FORWARD_SIN])
                    linear_velocity[e, r, 0], linear_velocity[e, r, 1] = cos * vx - sin * vy, sin * vx + cos * vy
                angular_velocity[e, r, 2] = omega[r]
        new_partners, used, collision_starts[e] = _update_contacts(
            candidates,
            count,
            touching,
            partners,
            partner_start[e],
            partner_count[e],
            new_start[e],
            new_count[e],
            in_collision[e],
            new_partners,
            used,
        )
    return new_partners[: max(used, 1)]


@compiled_inner
def _place_movers(
    parameters: NDArray[np.float64],
    plane: NDArray[np.float64],
    orientation: NDArray[np.float64],
    displacement: NDArray[np.float64],
    turns: NDArray[np.float64],
    margin: float,
    movers: NDArray[np.float64],
) -> None:
    """Writes where the robots of a world are and what they want, for `fleet_gym.dynamics.footprints`."""
    for r in range(plane.shape[0]):
        movers[r, MX], movers[r, MY] = plane[r, 0], plane[r, 1]
        movers[r, YAW] = 2.0 * np.arctan2(orientation[r, 2], orientation[r, 3])
        movers[r, MDX], movers[r, MDY], movers[r, TURNS] = displacement[r, 0], displacement[r, 1], turns[r]
        movers[r, LENGTH], movers[r, WIDTH] = parameters[r, BOX_LENGTH], parameters[r, BOX_WIDTH]
        movers[r, AHEAD], movers[r, LEFT] = parameters[r, BOX_X], parameters[r, BOX_Y]
        movers[r, EXTENT], movers[r, ROUND] = parameters[r, RADIUS], margin
        if parameters[r, BOX_LENGTH] == 0.0:  # a disc, whatever its turn
            movers[r, ROUND] += parameters[r, RADIUS]
            movers[r, TURNS] = 0.0


@compiled_inner
def _with_room(array: NDArray[np.int64], used: int, more: int) -> NDArray[np.int64]:
    """Returns `array`, or a longer copy if it cannot take `more` entries after the first `used`."""
    if used + more <= array.shape[0]:
        return array
    grown = np.empty(2 * (used + more), dtype=np.int64)
    for n in range(used):
        grown[n] = array[n]
    return grown


@compiled_inner
def _copy_partners(
    partners: NDArray[np.int64],
    start: NDArray[np.int64],
    count: NDArray[np.int64],
    new_start: NDArray[np.int64],
    new_count: NDArray[np.int64],
    new_partners: NDArray[np.int64],
    used: int,
) -> tuple[NDArray[np.int64], int]:
    """Copies a resting world's contacts; returns the new array and how much of it is used."""
    for r in range(start.shape[0]):
        new_partners = _with_room(new_partners, used, count[r])
        for n in range(count[r]):
            new_partners[used + n] = partners[start[r] + n]
        new_start[r], new_count[r] = used, count[r]
        used += count[r]
    return new_partners, used


@compiled_inner
def _update_contacts(
    candidates: NDArray[np.int64],
    num_candidates: int,
    touching: NDArray[np.bool_],
    partners: NDArray[np.int64],
    start: NDArray[np.int64],
    count: NDArray[np.int64],
    new_start: NDArray[np.int64],
    new_count: NDArray[np.int64],
    in_collision: NDArray[np.bool_],
    new_partners: NDArray[np.int64],
    used: int,
) -> tuple[NDArray[np.int64], int, int]:
    """Replaces a world's contacts, flags the robots in them and counts the pairs that are new.

    Returns:
        The new array of partners, how much of it is used, and the number of new pairs.
    """
    num_robots = in_collision.shape[0]
    starts = 0
    for r in range(num_robots):
        in_collision[r] = False
    for n in range(num_candidates):
        if touching[n]:
            i, j = candidates[n, 0], candidates[n, 1]
            in_collision[i] = True
            if j < num_robots:
                in_collision[j] = True
            starts += 1
            for m in range(start[i], start[i] + count[i]):
                if partners[m] == j:
                    starts -= 1
                    break
    for r in range(num_robots):
        new_count[r] = 0
    total = 0
    for n in range(num_candidates):
        if touching[n]:
            new_count[candidates[n, 0]] += 1
            total += 1
    new_partners = _with_room(new_partners, used, total)
    for r in range(num_robots):
        new_start[r] = used
        used += new_count[r]
        new_count[r] = 0
    for n in range(num_candidates):
        if touching[n]:
            i = candidates[n, 0]
            new_partners[new_start[i] + new_count[i]] = candidates[n, 1]
            new_count[i] += 1
    return new_partners, used, starts
