"""Routes of the robots of one world: exact where motion is kinematic, steered by feedback on contact physics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fleet_gym.dynamics.base import Moves
from fleet_gym.dynamics.route_kernel import (
    ACCELERATION,
    ARRIVED,
    ELAPSED,
    FOLLOWING,
    IDLE,
    LEG_COLUMNS,
    MOVE_COLUMNS,
    OFFSET,
    OMNIDIRECTIONAL,
    ROBOT_COLUMNS,
    SPEED,
    TURN_ACCELERATION,
    TURN_RATE,
    plan_moves,
)
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.state import FleetState

#: Way points a random walk knows ahead of time.
_WALK_AHEAD = 16
#: A random walk gives up a point after being blocked this long, s.
_PATIENCE = 1.0
#: On contact physics a robot has arrived within this distance (m) and angle (rad).
ARRIVAL_DISTANCE, ARRIVAL_ANGLE = 0.1, 0.1
# It turns on the spot while its goal is further to the side than this, rad.
_TURN_FIRST = 0.3


class Routes:
    """Way points of R robots and how far each has come.

    Args:
        robots: their models.
        draw: draws a random way point for the robot in a row.
    """

    def __init__(self, robots: Sequence[RobotModel], draw: Callable[[int, np.random.Generator], NDArray[np.float64]]):
        count = len(robots)
        self._draw = draw
        self._table = np.zeros((count, len(ROBOT_COLUMNS)))
        for row, robot in zip(self._table, robots, strict=True):
            row[[SPEED, ACCELERATION]] = robot.max_speed, robot.max_acceleration
            row[[TURN_RATE, TURN_ACCELERATION]] = robot.max_turn_rate, robot.max_turn_acceleration
            row[[OFFSET, OMNIDIRECTIONAL]] = robot.axle_offset, robot.drive == "omnidirectional"
        self._forward_yaw = np.array([robot.forward_yaw for robot in robots], dtype=np.float64)
        self._paths: list[NDArray[np.float64]] = [np.zeros((0, 3))] * count
        self._walkers: dict[int, tuple[Sequence[int], np.random.Generator]] = {}
        self._repeats = np.zeros(count, dtype=np.bool_)
        self._cursor = np.zeros(count, dtype=np.int64)
        self.status = np.full(count, IDLE, dtype=np.int64)
        self._legs = np.zeros((count, len(LEG_COLUMNS)))
        self._blocked_for = np.zeros(count)
        self._moves = Moves(
            np.zeros((1, count, len(MOVE_COLUMNS))),
            np.zeros((1, count), dtype=np.bool_),
            np.zeros((1, count), dtype=np.bool_),
        )
        self._flatten()

    def follow(self, row: int, waypoints: NDArray[np.float64], *, repeats: bool = False) -> None:
        """Sends a robot along way points (k, 3): x, y in m, driving direction in rad or NaN for any."""
        self._walkers.pop(row, None)
        self._begin(row, waypoints, repeats)

    def walk(self, row: int, seed: Sequence[int]) -> None:
        """Sends a robot to random points, always the same ones for the same seed."""
        rng = np.random.default_rng(list(seed))
        self._walkers[row] = (seed, rng)
        self._begin(row, np.array([self._draw(row, rng) for _ in range(_WALK_AHEAD)]), False)

    def clear(self, row: int) -> None:
        """Ends a robot's route; it obeys its velocity command."""
        self._walkers.pop(row, None)
        self._begin(row, np.zeros((0, 3)), False)

    def restart(self) -> None:
        """Begins every route anew."""
        for row, path in enumerate(self._paths):
            if row in self._walkers:
                self.walk(row, self._walkers[row][0])
            else:
                self._begin(row, path, bool(self._repeats[row]))

    def adopt(self, old: Routes, robots: NDArray[np.intp]) -> None:
        """Takes over the routes of robots that were in rows `robots` (-1: nowhere) of `old`."""
        for row, before in enumerate(robots.tolist()):
            if before < 0:
                continue
            self._paths[row] = old._paths[before]
            if before in old._walkers:
                self._walkers[row] = old._walkers[before]
            for name in ("_repeats", "_cursor", "status", "_legs", "_blocked_for"):
                getattr(self, name)[row] = getattr(old, name)[before]
        self._flatten()

    def target(self, row: int) -> NDArray[np.float64] | None:
        """The way point a robot is heading for, (3,), or None."""
        return None if self.status[row] != FOLLOWING else self._paths[row][self._cursor[row]].copy()

    def plan(self, dt: float, state: FleetState) -> Moves | None:
        """Plans the next step of kinematic robots; None where nobody has a route."""
        if not self._any:
            return None
        plan_moves(
            dt,
            self._table,
            self._forward_yaw,
            state.position[0],
            state.orientation[0],
            self._waypoints,
            self._first,
            self._length,
            self._repeats,
            self._cursor,
            self.status,
            self._legs,
            self._moves.moves[0],
        )
        return self._moves

    def after_step(self, dt: float) -> None:
        """Begins the legs of those who were blocked anew, from where they are, and draws new random points."""
        if not self._any:
            return
        blocked = self._moves.blocked[0] & self._moves.follows[0]
        if blocked.any():
            self._legs[blocked, ELAPSED] = -1.0
            # Who was to arrive in this step did not.
            self.status[blocked & (self.status == ARRIVED)] = FOLLOWING
        self._blocked_for = np.where(blocked, self._blocked_for + dt, 0.0)
        self._walk_on()

    def steer(self, state: FleetState, commands: NDArray[np.float64]) -> None:
        """Writes the commands (R, A) of robots on contact physics that follow a route."""
        if not self._any:
            return
        yaw = state.yaw()[0] + self._forward_yaw
        for row in np.flatnonzero(self.status != IDLE).tolist():
            commands[row] = 0.0
            if self.status[row] == FOLLOWING:
                robot, here = self._table[row], state.position[0, row, :2]
                v, omega, arrived = _steered(robot, self._paths[row][self._cursor[row]], here, float(yaw[row]))
                commands[row, :2] = v, omega
                if arrived:
                    self._next(row)
        self._walk_on()

    def _next(self, row: int) -> None:
        self._cursor[row] += 1
        if self._cursor[row] == len(self._paths[row]):
            self._cursor[row] = 0
            if not self._repeats[row]:
                self.status[row] = ARRIVED

    def _begin(self, row: int, path: NDArray[np.float64], repeats: bool) -> None:
        self._paths[row], self._repeats[row] = path, repeats
        self._cursor[row], self._blocked_for[row] = 0, 0.0
        self._legs[row, ELAPSED] = -1.0
        self.status[row] = FOLLOWING if len(path) else IDLE
        self._is_flat = False

    def _walk_on(self) -> None:
        if not self._is_flat:
            self._flatten()
        if not self._walkers:
            return
        due = (self._blocked_for > _PATIENCE) | (self._cursor > _WALK_AHEAD // 2)
        for row in np.flatnonzero(due).tolist():
            if row in self._walkers:
                self._walk_on_alone(row, self._walkers[row][1])

    def _walk_on_alone(self, row: int, rng: np.random.Generator) -> None:
        if self._blocked_for[row] > _PATIENCE:
            self._blocked_for[row] = 0.0
            self._cursor[row] += 1
        passed = int(self._cursor[row])
        if passed > _WALK_AHEAD // 2:
            path = self._paths[row]
            path[: len(path) - passed] = path[passed:].copy()
            for ahead in range(len(path) - passed, len(path)):
                path[ahead] = self._draw(row, rng)
            self._waypoints[self._first[row] : self._first[row] + len(path)] = path
            self._cursor[row] = 0

    def prepare(self) -> None:
        """Makes changed routes ready for the kernel; to be called before `plan` and `steer`."""
        if not self._is_flat:
            self._flatten()

    def _flatten(self) -> None:
        self._length = np.array([len(path) for path in self._paths], dtype=np.int64)
        self._first = np.cumsum(self._length) - self._length
        self._waypoints = np.concatenate([*self._paths, np.zeros((1, 3))])
        self._moves.follows[0] = self.status != IDLE
        self._any = bool(self._moves.follows.any())
        self._is_flat = True


def _steered(
    robot: NDArray[np.float64], goal: NDArray[np.float64], here: NDArray[np.float64], heading: float
) -> tuple[float, float, bool]:
    """Command (v, omega) towards a goal, and whether it is reached."""
    dx, dy = goal[:2] - here
    distance = float(np.hypot(dx, dy))
    if distance <= ARRIVAL_DISTANCE:
        error = 0.0 if np.isnan(goal[2]) else _wrapped(goal[2] - heading)
        return 0.0, _turn_command(robot, error), abs(error) <= ARRIVAL_ANGLE
    error = _wrapped(float(np.arctan2(dy, dx)) - heading)
    if abs(error) > _TURN_FIRST:
        return 0.0, _turn_command(robot, error), False
    # Half the acceleration limit: a skidding robot brakes later than it should.
    speed = min(robot[SPEED], np.sqrt(robot[ACCELERATION] * distance)) * np.cos(error)
    return float(speed), _turn_command(robot, error), False


def _turn_command(robot: NDArray[np.float64], error: float) -> float:
    return float(np.clip(1.5 * error, -robot[TURN_RATE], robot[TURN_RATE]))


def _wrapped(angle: float) -> float:
    return float((angle + np.pi) % (2 * np.pi) - np.pi)


def compile_routes() -> None:
    """Compiles the kernel for no robot: under a memory profiler that starts later, compiling would take minutes."""
    plan_moves(
        0.1,
        np.zeros((0, len(ROBOT_COLUMNS))),
        np.zeros(0),
        np.zeros((0, 3)),
        np.zeros((0, 4)),
        np.zeros((1, 3)),
        np.zeros(0, dtype=np.int64),
        np.zeros(0, dtype=np.int64),
        np.zeros(0, dtype=np.bool_),
        np.zeros(0, dtype=np.int64),
        np.zeros(0, dtype=np.int64),
        np.zeros((0, len(LEG_COLUMNS))),
        np.zeros((0, len(MOVE_COLUMNS))),
    )
