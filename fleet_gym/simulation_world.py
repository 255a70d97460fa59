"""What a simulation's world is made of, before and between engines: robots, obstacles, and where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet_gym.dynamics.footprints import (
    AHEAD,
    EXTENT,
    LEFT,
    LENGTH,
    MOVER_COLUMNS,
    MX,
    MY,
    ROUND,
    WIDTH,
    YAW,
    mover_gap,
)
from fleet_gym.world.robots import RobotModel, box_of
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import WorldSample, yaw_quaternion

#: Positions tried for a robot that may stand anywhere.
MAX_TRIES = 2000
_OBSTACLE_COLOR = (0.45, 0.47, 0.52, 1.0)


@dataclass(frozen=True)
class Robot:
    """A spawned robot.

    Attributes:
        id: number that never belongs to anything else.
        model: as in the engine: a static robot's has no drive.
        x: where it was spawned, m.
        y: the same.
        yaw: driving direction, rad.
        collides: whether it takes part in collisions.
    """

    id: int
    model: RobotModel
    x: float
    y: float
    yaw: float
    collides: bool = True


@dataclass(frozen=True)
class Obstacle:
    """Something in the way.

    Attributes:
        id: number that never belongs to anything else.
        shape: its geometry.
        x: of its centre, m.
        y: the same.
        z: the same.
        yaw: rad.
    """

    id: int
    shape: Shape
    x: float
    y: float
    z: float
    yaw: float


def static_model(model: RobotModel) -> RobotModel:
    """The model of a robot that never moves."""
    return replace(model, drive=None)


def build_scene(robots: Sequence[Robot], obstacles: Sequence[Obstacle], arena_size: float) -> Scene:
    """The scene of an engine with these robots and obstacles, in this order."""
    bodies = tuple(BodySpec(f"obstacle_{o.id}", "obstacle", o.shape, _OBSTACLE_COLOR) for o in obstacles)
    return Scene(tuple(robot.model for robot in robots), bodies, arena_size)


def placed(
    robots: Sequence[Robot], poses: NDArray[np.float64], obstacles: Sequence[Obstacle], quaternions: NDArray[np.float64]
) -> WorldSample:
    """One world's initial conditions.

    Args:
        robots: R of them.
        poses: (R, 3) root link origins, m.
        obstacles: B of them.
        quaternions: (R, 4) xyzw of the root links.
    """
    count = len(obstacles)
    body_position = np.array([(o.x, o.y, o.z) for o in obstacles], dtype=np.float64).reshape(1, count, 3)
    body_yaw = np.array([o.yaw for o in obstacles], dtype=np.float64).reshape(1, count)
    return WorldSample(
        position=poses[None],
        orientation=quaternions[None],
        active=np.ones((1, len(robots)), dtype=np.bool_),
        body_position=body_position,
        body_orientation=yaw_quaternion(body_yaw),
        body_active=np.ones((1, count), dtype=np.bool_),
    )


def spawn_poses(robots: Sequence[Robot]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(R, 3) positions and (R, 4) orientations in which robots are spawned."""
    position = np.array([(r.x, r.y, r.model.base_height) for r in robots], dtype=np.float64).reshape(-1, 3)
    yaw = np.array([r.yaw - r.model.forward_yaw for r in robots], dtype=np.float64)
    return position, yaw_quaternion(yaw)


def outline(model: RobotModel, x: float, y: float, yaw: float) -> NDArray[np.float64]:
    """A robot that stands somewhere, as a row of `fleet_gym.dynamics.footprints.MOVER_COLUMNS`.

    Args:
        model: its model.
        x: of the root link's origin, m.
        y: the same.
        yaw: of the root link, rad.
    """
    length, width, ahead, left = box_of(model)
    swollen = 0.0 if length else model.footprint_radius
    return np.array([x, y, yaw, 0.0, 0.0, 0.0, length, width, ahead, left, swollen, model.footprint_radius])


def disc(x: float, y: float, radius: float) -> NDArray[np.float64]:
    """As `outline`, of a disc (m)."""
    return np.array([x, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, radius, radius])


class Occupancy:
    """Who stands where, for spawning.

    Args:
        robots: (R, 12) those that collide, see `outline`.
        obstacles: those in the way.
    """

    def __init__(self, robots: NDArray[np.float64], obstacles: Sequence[Obstacle]) -> None:
        # Column by column: each robot is compared with whole columns.
        self._rows = np.asfortranarray(robots.reshape(-1, len(MOVER_COLUMNS)))
        self._count = len(self._rows)
        self._obstacles = obstacles
        self._outlines = np.zeros((len(obstacles), len(MOVER_COLUMNS)))
        for row, o in zip(self._outlines, obstacles, strict=True):
            length, width, _ = o.shape.size
            row[:3], row[EXTENT] = (o.x, o.y, o.yaw), o.shape.bounding_radius
            if o.shape.kind == "box":
                row[[LENGTH, WIDTH]] = length / 2, width / 2
            else:
                row[ROUND] = length
        self._low = np.array([o.z - o.shape.height / 2 for o in obstacles], dtype=np.float64)

    def add(self, robot: NDArray[np.float64]) -> None:
        """Takes a robot (12,) into account."""
        if self._count == len(self._rows):
            rows = np.zeros((2 * self._count + 16, len(MOVER_COLUMNS)), order="F")
            rows[: self._count] = self._rows
            self._rows = rows
        self._rows[self._count] = robot
        self._count += 1

    def robot_gap(self, robot: NDArray[np.float64], within: float = 0.0) -> tuple[float, int]:
        """Smallest gap between a robot (12,) and the others, and whose row; inf and -1 without any.

        Args:
            robot: see `outline`.
            within: m, gaps up to this are exact, wider ones at least as wide as said.
        """
        return _smallest_gap(robot, self._rows[: self._count], within)

    def obstacle_gap(self, robot: NDArray[np.float64], height: float, within: float = 0.0) -> tuple[float, int]:
        """As `robot_gap`, to the obstacles that are not above the robot's height (m)."""
        beside = np.flatnonzero(self._low <= height)
        gap, row = _smallest_gap(robot, self._outlines[beside], within)
        return gap, -1 if row < 0 else int(beside[row])

    def name(self, row: int) -> int:
        """Id of an obstacle by its row."""
        return self._obstacles[row].id

    def copy(self) -> Occupancy:
        """One that can be added to without changing this one."""
        other = copy(self)
        other._rows = self._rows.copy(order="F")
        return other


def _smallest_gap(robot: NDArray[np.float64], others: NDArray[np.float64], within: float) -> tuple[float, int]:
    if not len(others):
        return np.inf, -1
    gaps = np.hypot(others[:, MX] - robot[MX], others[:, MY] - robot[MY]) - others[:, EXTENT] - robot[EXTENT]
    boxes = (others[:, LENGTH] > 0) | (robot[LENGTH] > 0)
    for row in np.flatnonzero(boxes & (gaps <= within)).tolist():
        gaps[row] = mover_gap(robot, 0.0, np.ascontiguousarray(others[row]), 0.0)[0]
    return float(gaps.min()), int(gaps.argmin())


def compile_gaps() -> None:
    """Compiles what spawning needs: under a memory profiler that starts later, compiling would take minutes."""
    mover_gap(disc(0.0, 0.0, 1.0), 0.0, disc(3.0, 0.0, 1.0), 0.0)


def is_inside(robot: NDArray[np.float64], side: float) -> bool:
    """Whether a robot (12,), see `outline`, lies in the square arena."""
    cos, sin = np.cos(robot[YAW]), np.sin(robot[YAW])
    x = robot[MX] + cos * robot[AHEAD] - sin * robot[LEFT]
    y = robot[MY] + sin * robot[AHEAD] + cos * robot[LEFT]
    reach_x = abs(cos) * robot[LENGTH] + abs(sin) * robot[WIDTH] + robot[ROUND]
    reach_y = abs(sin) * robot[LENGTH] + abs(cos) * robot[WIDTH] + robot[ROUND]
    return bool(max(abs(x) + reach_x, abs(y) + reach_y) <= side / 2)
