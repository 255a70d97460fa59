"""Closed-form motion along way points: where every robot that follows a route is after the next control step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy

#: Columns of a move: displacement x, y (m), turn (rad), body velocity at its end vx, vy (m/s), turn rate (rad/s), by
#: how much the way leaves its chord (m), and 1 while the robot moves.
MOVE_COLUMNS = DX, DY, TURN, VX, VY, RATE, SAGITTA, MOVING = tuple(range(8))
#: Columns of a leg: start x, y (m) of the drive's centre, heading (rad), time since the start (s) and the way made
#: since then (m).
LEG_COLUMNS = LEG_X, LEG_Y, LEG_HEADING, ELAPSED, LEG_WAY = tuple(range(5))
#: Columns of the robot table: speed (m/s), acceleration (m/s^2), turn rate (rad/s), turn acceleration (rad/s^2), axle
#: offset (m), 1 for omnidirectional bases.
ROBOT_COLUMNS = SPEED, ACCELERATION, TURN_RATE, TURN_ACCELERATION, OFFSET, OMNIDIRECTIONAL = tuple(range(6))
#: What a robot does: nothing, follow its route, hold the end of it.
IDLE, FOLLOWING, ARRIVED = range(3)
_NEGLIGIBLE = 1e-12


@compiled_like_numpy
def profile_time(distance: float, speed: float, acceleration: float) -> float:
    """Time a trapezoid (or triangle) of speed takes over a distance from rest to rest, s."""
    distance = abs(distance)
    if distance <= _NEGLIGIBLE:
        return 0.0
    if distance * acceleration <= speed * speed:
        return float(2.0 * np.sqrt(distance / acceleration))
    return float(distance / speed + speed / acceleration)


@compiled_like_numpy
def profile(distance: float, speed: float, acceleration: float, t: float) -> tuple[float, float]:
    """Position (m) and speed (m/s) after t seconds on the way from 0 to `distance`, from rest to rest."""
    total = profile_time(distance, speed, acceleration)
    if t >= total:
        return distance, 0.0
    sign = 1.0 if distance >= 0.0 else -1.0
    distance = abs(distance)
    ramp = min(speed / acceleration, total / 2.0)
    if t < ramp:
        return sign * acceleration * t * t / 2.0, sign * acceleration * t
    left = total - t
    if left < ramp:
        return sign * (distance - acceleration * left * left / 2.0), sign * acceleration * left
    return sign * acceleration * ramp * (t - ramp / 2.0), sign * acceleration * ramp


@compiled_inner
def _wrap(angle: float) -> float:
    return float(angle - 2.0 * np.pi * np.floor((angle + np.pi) / (2.0 * np.pi)))


@compiled_inner
def _leg_pose(
    leg: NDArray[np.float64],
    robot: NDArray[np.float64],
    goal: NDArray[np.float64],
    t: float,
    pose: NDArray[np.float64],
) -> float:
    """Writes where a leg has brought a robot after t seconds; returns how long the whole leg takes, s.

    A differential base turns towards the goal, drives there and turns to the final heading; an omnidirectional one
    slides and turns at the same time.

    Args:
        leg: (5,), see `LEG_COLUMNS`.
        robot: (6,), see `ROBOT_COLUMNS`.
        goal: (3,) x, y (m) of the root link's origin and heading (rad), NaN for any.
        t: s.
        pose: (7,), set: x, y of the drive's centre, heading, vx, vy (body), turn rate, length of way.
    """
    offset, has_heading = robot[OFFSET], not np.isnan(goal[2])
    x, y = goal[0], goal[1]
    if robot[OMNIDIRECTIONAL] == 1.0:
        end = goal[2] if has_heading else leg[LEG_HEADING]
        x, y = x + offset * np.cos(end), y + offset * np.sin(end)
        dx, dy = x - leg[LEG_X], y - leg[LEG_Y]
        distance, turn = np.sqrt(dx * dx + dy * dy), _wrap(end - leg[LEG_HEADING])
        way, v = profile(distance, robot[SPEED], robot[ACCELERATION], t)
        turned, rate = profile(turn, robot[TURN_RATE], robot[TURN_ACCELERATION], t)
        heading = leg[LEG_HEADING] + turned
        share = way / distance if distance > _NEGLIGIBLE else 1.0
        bearing = np.arctan2(dy, dx) - heading
        pose[0], pose[1], pose[2] = leg[LEG_X] + share * dx, leg[LEG_Y] + share * dy, heading
        pose[3], pose[4], pose[5], pose[6] = v * np.cos(bearing), v * np.sin(bearing), rate, way
        return max(
            profile_time(distance, robot[SPEED], robot[ACCELERATION]),
            profile_time(turn, robot[TURN_RATE], robot[TURN_ACCELERATION]),
        )
    if has_heading:
        x, y = x + offset * np.cos(goal[2]), y + offset * np.sin(goal[2])
    dx, dy = x - leg[LEG_X], y - leg[LEG_Y]
    distance = np.sqrt(dx * dx + dy * dy)
    bearing = leg[LEG_HEADING]
    if distance > 1e-9:
        bearing = np.arctan2(dy, dx)
    if not has_heading:  # the origin, not the drive's centre, is to arrive
        if distance <= abs(offset) + 1e-9 and abs(_wrap(bearing - leg[LEG_HEADING])) > np.pi / 2.0:
            # The goal lies between origin and centre, or near: no need to turn round for it.
            bearing += np.pi
            distance = -distance
        distance += offset
    first = _wrap(bearing - leg[LEG_HEADING])
    last = _wrap(goal[2] - bearing) if has_heading else 0.0
    first_time = profile_time(first, robot[TURN_RATE], robot[TURN_ACCELERATION])
    drive_time = profile_time(distance, robot[SPEED], robot[ACCELERATION])
    last_time = profile_time(last, robot[TURN_RATE], robot[TURN_ACCELERATION])
    turned, rate = profile(first, robot[TURN_RATE], robot[TURN_ACCELERATION], t)
    way, v = profile(distance, robot[SPEED], robot[ACCELERATION], max(t - first_time, 0.0))
    turned_last, rate_last = profile(
        last, robot[TURN_RATE], robot[TURN_ACCELERATION], max(t - first_time - drive_time, 0.0)
    )
    pose[0] = leg[LEG_X] + way * np.cos(bearing)
    pose[1] = leg[LEG_Y] + way * np.sin(bearing)
    pose[2] = leg[LEG_HEADING] + turned + turned_last
    pose[3], pose[4], pose[5] = v, 0.0, rate + rate_last
    pose[6] = abs(way) + abs(offset) * (abs(turned) + abs(turned_last))
    return first_time + drive_time + last_time


@compiled_like_numpy
def plan_moves(
    dt: float,
    robots: NDArray[np.float64],
    forward_yaw: NDArray[np.float64],
    position: NDArray[np.float64],
    orientation: NDArray[np.float64],
    waypoints: NDArray[np.float64],
    first: NDArray[np.int64],
    length: NDArray[np.int64],
    repeats: NDArray[np.bool_],
    cursor: NDArray[np.int64],
    status: NDArray[np.int64],
    legs: NDArray[np.float64],
    moves: NDArray[np.float64],
) -> None:
    """Plans the next `dt` seconds of all routes of N robots.

    Legs are functions of time and what is left of a step after a way point goes into the next leg, so that motion does
    not depend on the step's size.

    Args:
        dt: s.
        robots: (N, 6), see `ROBOT_COLUMNS`.
        forward_yaw: (N,) rad.
        position: (N, 3) m, root link origins.
        orientation: (N, 4) xyzw, upright.
        waypoints: (W, 3) x, y (m) and heading (rad, NaN for any) of all routes.
        first: (N,) where a robot's way points begin.
        length: (N,) how many it has.
        repeats: (N,) whether the first follows the last.
        cursor: (N,) the way point it is heading for; changed.
        status: (N,) see `IDLE`; changed.
        legs: (N, 5), see `LEG_COLUMNS`; ELAPSED < 0 begins the leg at the present pose; changed.
        moves: (N, 8), set, see `MOVE_COLUMNS`.
    """
    pose = np.zeros(7)
    for n in range(status.shape[0]):
        for c in range(8):
            moves[n, c] = 0.0
        if status[n] != FOLLOWING:
            continue
        offset = robots[n, OFFSET]
        z, w = orientation[n, 2], orientation[n, 3]
        heading = 2.0 * np.arctan2(z, w) + forward_yaw[n]
        if legs[n, ELAPSED] < 0.0:
            legs[n, LEG_X] = position[n, 0] + offset * np.cos(heading)
            legs[n, LEG_Y] = position[n, 1] + offset * np.sin(heading)
            legs[n, LEG_HEADING], legs[n, ELAPSED], legs[n, LEG_WAY] = heading, 0.0, 0.0
        t = legs[n, ELAPSED] + dt
        total = _leg_pose(legs[n], robots[n], waypoints[first[n] + cursor[n]], t, pose)
        way = pose[6] - legs[n, LEG_WAY]
        instant = 0
        while t >= total - 1e-12:
            is_last = cursor[n] + 1 >= length[n]
            instant = instant + 1 if total <= _NEGLIGIBLE else 0
            if (is_last and not repeats[n]) or instant > length[n]:  # a round without any length would never end
                status[n] = ARRIVED
                break
            cursor[n] = 0 if is_last else cursor[n] + 1
            legs[n, LEG_X], legs[n, LEG_Y], legs[n, LEG_HEADING] = pose[0], pose[1], pose[2]
            t = max(t - total, 0.0)
            total = _leg_pose(legs[n], robots[n], waypoints[first[n] + cursor[n]], t, pose)
            way += pose[6]
        legs[n, ELAPSED], legs[n, LEG_WAY] = t, pose[6]
        moves[n, DX] = pose[0] - offset * np.cos(pose[2]) - position[n, 0]
        moves[n, DY] = pose[1] - offset * np.sin(pose[2]) - position[n, 1]
        moves[n, TURN] = _wrap(pose[2] - heading)
        moves[n, VX], moves[n, VY], moves[n, RATE] = pose[3], pose[4], pose[5]
        chord = moves[n, DX] * moves[n, DX] + moves[n, DY] * moves[n, DY]
        moves[n, SAGITTA] = 0.5 * np.sqrt(max(way * way - chord, 0.0))
        moves[n, MOVING] = 1.0
