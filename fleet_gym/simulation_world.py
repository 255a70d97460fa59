"""What a simulation's world is made of, before and between engines: robots, obstacles, and where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.robots import RobotModel
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


class Occupancy:
    """Who stands where, as discs and outlines, for spawning.

    Args:
        position: (R, 2) m, of robots that collide.
        radius: (R,) m.
        obstacles: those in the way.
    """

    def __init__(
        self, position: NDArray[np.float64], radius: NDArray[np.float64], obstacles: Sequence[Obstacle]
    ) -> None:
        self._position, self._radius = position.reshape(-1, 2), radius
        self._obstacles = obstacles
        table = [
            (o.x, o.y, np.cos(o.yaw), np.sin(o.yaw), o.shape.size[0], o.shape.size[1], o.shape.kind == "box", o.z)
            for o in obstacles
        ]
        self._table = np.array(table, dtype=np.float64).reshape(-1, 8)
        self._low = np.array([o.z - o.shape.height / 2 for o in obstacles], dtype=np.float64)

    def add(self, x: float, y: float, radius: float) -> None:
        """Takes a robot into account."""
        self._position = np.concatenate([self._position, [[x, y]]])
        self._radius = np.append(self._radius, radius)

    def robot_gap(self, x: float, y: float, radius: float) -> tuple[float, int]:
        """Smallest gap between a disc and the robots, m, and the robot's row; inf and -1 without any."""
        gaps = np.hypot(self._position[:, 0] - x, self._position[:, 1] - y) - self._radius - radius
        return (np.inf, -1) if not len(gaps) else (float(gaps.min()), int(gaps.argmin()))

    def obstacle_gap(self, x: float, y: float, radius: float, height: float) -> tuple[float, int]:
        """Smallest gap between a disc of some height and the obstacles that are not above it, m, and which one."""
        if not len(self._table):
            return np.inf, -1
        dx, dy = x - self._table[:, 0], y - self._table[:, 1]
        cos, sin, size_x, size_y, is_box = self._table[:, 2:7].T
        along = np.maximum(np.abs(cos * dx + sin * dy) - size_x / 2, 0.0)
        across = np.maximum(np.abs(cos * dy - sin * dx) - size_y / 2, 0.0)
        gaps = np.where(is_box == 1.0, np.hypot(along, across), np.hypot(dx, dy) - size_x) - radius
        gaps = np.where(self._low > height, np.inf, gaps)
        return float(gaps.min()), int(gaps.argmin())

    def name(self, row: int) -> int:
        """Id of an obstacle by its row."""
        return self._obstacles[row].id

    def copy(self) -> Occupancy:
        """One that can be added to without changing this one."""
        return copy(self)


def outline_is_inside(x: float, y: float, radius: float, side: float) -> bool:
    """Whether a disc lies in the square arena."""
    return bool(max(abs(x), abs(y)) + radius <= side / 2)
