"""What stands in the way in a simulation: boxes, cylinders, walls and occupancy grids."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import finite_float
from fleet_gym.config import SimulationConfig
from fleet_gym.simulation_map import rectangles
from fleet_gym.simulation_world import Obstacle, Occupancy, Robot, outline
from fleet_gym.world.scene import Shape


class SimulatedGround(ABC):
    """Obstacles of one world; base class of `SimulatedFleet`, which says where robots are."""

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        self._robots: list[Robot] = []
        self._obstacles: list[Obstacle] = []
        self._next_id = 0
        self._is_built = False
        self._is_closed = False
        self._occupancy: Occupancy | None = None
        self._around_obstacles: Occupancy | None = None

    @property
    def obstacle_ids(self) -> tuple[int, ...]:
        """Ids of all obstacles, in the order of the bodies of `state`."""
        return tuple(obstacle.id for obstacle in self._obstacles)

    def add_box(
        self, position: Sequence[float], size: Sequence[float], yaw: float = 0.0, *, elevation: float = 0.0
    ) -> int:
        """Puts a box into the way.

        Args:
            position: x, y of its centre, m.
            size: length, width, height, m.
            yaw: rad.
            elevation: of its lowest point above the ground, m: robots that fit pass below it.

        Returns:
            Its id.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a bad number, or a place where a robot stands.
        """
        x, y = point("position", position)
        lengths = _lengths("size", size, 3)
        return self._add_obstacle(Shape("box", (lengths[0], lengths[1], lengths[2])), x, y, yaw, elevation)

    def add_cylinder(
        self, position: Sequence[float], radius: float, height: float = 1.0, *, elevation: float = 0.0
    ) -> int:
        """Puts an upright cylinder into the way; see `add_box`."""
        x, y = point("position", position)
        r, h = _lengths("radius, height", (radius, height), 2)
        return self._add_obstacle(Shape("cylinder", (r, r, h)), x, y, 0.0, elevation)

    def add_wall(
        self,
        start: Sequence[float],
        end: Sequence[float],
        *,
        thickness: float = 0.1,
        height: float = 1.0,
        elevation: float = 0.0,
    ) -> int:
        """Puts a wall from `start` to `end` (x, y in m) into the way; see `add_box`."""
        (x0, y0), (x1, y1) = point("start", start), point("end", end)
        length = math.hypot(x1 - x0, y1 - y0)
        if length == 0.0:
            raise ValueError(f"end: expected another point than start, got {tuple(end)!r}")
        t, h = _lengths("thickness, height", (thickness, height), 2)
        yaw = math.atan2(y1 - y0, x1 - x0)
        return self._add_obstacle(Shape("box", (length, t, h)), (x0 + x1) / 2, (y0 + y1) / 2, yaw, elevation)

    def add_occupancy_grid(
        self,
        occupied: ArrayLike,
        resolution: float,
        *,
        origin: Sequence[float] | None = None,
        height: float = 1.0,
    ) -> list[int]:
        """Makes boxes of the occupied cells of a grid; neighbours share boxes.

        Args:
            occupied: (rows, columns) bool; row 0 lies at the lowest y, column 0 at the lowest x.
            resolution: side of a cell, m.
            origin: x, y of the outer corner of cell (0, 0), m; None: the grid is centred.
            height: of the boxes, m.

        Returns:
            The boxes' ids.

        Raises:
            TypeError: an array that is not bool.
            ValueError: a bad number, or a place where a robot stands.
        """
        side, tall = _lengths("resolution, height", (resolution, height), 2)
        rows, columns = np.asarray(occupied).shape if np.asarray(occupied).ndim == 2 else (0, 0)
        x0, y0 = (-columns * side / 2, -rows * side / 2) if origin is None else point("origin", origin)
        boxes = [
            (
                Shape("box", (wide * side, high * side, tall)),
                x0 + (column + wide / 2) * side,
                y0 + (row + high / 2) * side,
            )
            for row, column, high, wide in rectangles(occupied)
        ]
        return self._add_obstacles([(shape, x, y, 0.0, 0.0) for shape, x, y in boxes])

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedEnvironmentError("this MultiRobotSimulationCore is closed; make a new one")

    def _add_obstacle(self, shape: Shape, x: float, y: float, yaw: float, elevation: float) -> int:
        return self._add_obstacles([(shape, x, y, yaw, elevation)])[0]

    def _add_obstacles(self, places: Sequence[tuple[Shape, float, float, float, float]]) -> list[int]:
        """Adds obstacles of a shape at x, y (m) with a yaw (rad) and an elevation (m): all of them, or none."""
        self._require_open()
        new = []
        for number, (shape, x, y, yaw, elevation) in enumerate(places, start=self._next_id):
            z = finite_float("elevation", elevation, minimum=0.0) + shape.height / 2
            new.append(Obstacle(number, shape, x, y, z, finite_float("yaw", yaw)))
        taken = Occupancy(np.zeros(0), new)
        for robot, pose in zip(self._robots, self._poses().tolist(), strict=True):
            if not robot.collides:
                continue
            gap, row = taken.obstacle_gap(outline(robot.model, *pose), robot.model.height)
            if gap < 0:
                raise ValueError(
                    f"position: expected a free place, got ({new[row].x:g}, {new[row].y:g}) where robot "
                    f"{robot.id} stands"
                )
        self._next_id += len(new)
        self._obstacles += new
        self._is_built = False
        self._occupancy = self._around_obstacles = None
        return [obstacle.id for obstacle in new]

    @abstractmethod
    def _poses(self) -> NDArray[np.float64]:
        """(R, 3) where all robots are: x, y (m) and yaw (rad) of their root links."""


def items(name: str, value: Any, what: str) -> list[Any]:
    """Returns the entries of a list, tuple or array.

    Raises:
        TypeError: for anything else.
    """
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_list and not (isinstance(value, np.ndarray) and value.ndim > 0):
        raise TypeError(f"{name}: expected {what}, got {value!r}")
    return list(value)


def point(name: str, value: Sequence[float]) -> tuple[float, float]:
    """Checks x and y, m."""
    entries = items(name, value, "x and y in m")
    if len(entries) != 2:
        raise ValueError(f"{name}: expected x and y in m, got {value!r}")
    return finite_float(name, entries[0]), finite_float(name, entries[1])


def _lengths(name: str, values: Sequence[float], count: int) -> list[float]:
    entries = items(name, values, f"{count} lengths in m")
    if len(entries) != count:
        raise ValueError(f"{name}: expected {count} lengths in m, got {values!r}")
    return [finite_float(name, value, minimum=0.0, exclusive=True) for value in entries]
