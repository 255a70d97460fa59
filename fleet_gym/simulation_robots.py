"""Robots of a simulation: who is there, spawning and removing."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral

import numpy as np

from fleet_gym._validation import finite_float, flag, positive_int
from fleet_gym.config import SimulationConfig
from fleet_gym.simulation_ground import SimulatedGround, point
from fleet_gym.simulation_world import MAX_TRIES, Occupancy, Robot, is_inside, outline, static_model
from fleet_gym.world.robots import Footprint, RobotLike, RobotModel, robot_model


class SimulatedRobots(SimulatedGround):
    """Robots and obstacles of one world; base class of `SimulatedFleet`, which moves them."""

    def __init__(self, config: SimulationConfig) -> None:
        super().__init__(config)
        self._rng = np.random.default_rng(config.seed)
        self._rows: dict[int, int] = {}

    @property
    def robot_ids(self) -> tuple[int, ...]:
        """Ids of all robots, in the order of the rows of `state`."""
        return tuple(robot.id for robot in self._robots)

    @property
    def num_robots(self) -> int:
        """How many robots there are."""
        return len(self._robots)

    # ---- Spawning and removing ----

    def spawn(
        self,
        model: RobotLike,
        position: Sequence[float] = (0.0, 0.0),
        yaw: float = 0.0,
        *,
        static: bool = False,
        collides: bool = True,
        footprint: Footprint | None = None,
    ) -> int:
        """Puts a robot into the world.

        Args:
            model: name, URDF path or `RobotModel`.
            position: x, y of the root link's origin, m.
            yaw: driving direction, rad.
            static: it never moves, but is collided with.
            collides: False: it touches nothing and is touched by nobody (kinematics only).
            footprint: ``"circle"`` or ``"box"``, as which it collides (kinematics only); None: as its model says.

        Returns:
            Its id.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: unknown model, a place outside the arena or taken, or a model that physics cannot drive.
        """
        complete = self._model(model, static, collides, footprint)
        x, y = point("position", position)
        return self._add_all([(x, y, finite_float("yaw", yaw))], complete, collides)[0]

    def spawn_grid(
        self,
        model: RobotLike,
        count: int,
        *,
        center: Sequence[float] = (0.0, 0.0),
        spacing: float | None = None,
        yaw: float = 0.0,
        static: bool = False,
        collides: bool = True,
        footprint: Footprint | None = None,
    ) -> list[int]:
        """Puts robots on a nearly square grid; all of them or, with an error, none.

        Args:
            model: see `spawn`.
            count: how many.
            center: middle of the grid, m.
            spacing: between neighbours, m; None: twice the footprint's diameter.
            yaw: driving direction of all, rad.
            static: see `spawn`.
            collides: see `spawn`.
            footprint: see `spawn`.

        Returns:
            Their ids, row by row from below.

        Raises:
            TypeError: see `spawn`.
            ValueError: see `spawn`.
        """
        count, complete = positive_int("count", count), self._model(model, static, collides, footprint)
        middle_x, middle_y = point("center", center)
        step = 4 * complete.footprint_radius
        if spacing is not None:
            step = finite_float("spacing", spacing, minimum=0.0, exclusive=True)
        columns = math.ceil(math.sqrt(count))
        rows = math.ceil(count / columns)
        heading = finite_float("yaw", yaw)
        poses = (
            (
                middle_x + (k % columns - (columns - 1) / 2) * step,
                middle_y + (k // columns - (rows - 1) / 2) * step,
                heading,
            )
            for k in range(count)
        )
        return self._add_all(poses, complete, collides)

    def spawn_random(
        self,
        model: RobotLike,
        count: int = 1,
        *,
        clearance: float = 0.1,
        static: bool = False,
        collides: bool = True,
        footprint: Footprint | None = None,
    ) -> list[int]:
        """Puts robots anywhere in the arena, touching nothing, in random directions; the seed decides where.

        Args:
            model: see `spawn`.
            count: how many; all of them are placed or, with an error, none.
            clearance: smallest gap to anything, m.
            static: see `spawn`.
            collides: see `spawn`.
            footprint: see `spawn`.

        Returns:
            Their ids.

        Raises:
            TypeError: see `spawn`.
            ValueError: see `spawn`, or when no room was found.
        """
        count, complete = positive_int("count", count), self._model(model, static, collides, footprint)
        clearance = finite_float("clearance", clearance, minimum=0.0)
        room = self.config.arena_size / 2 - complete.footprint_radius
        taken = self._fresh_occupancy()
        poses = []
        for k in range(count):
            yaw = float(self._rng.uniform(-np.pi, np.pi))
            for place in self._rng.uniform(-room, room, (MAX_TRIES, 2)) if room >= 0 else ():
                x, y = place.tolist()
                robot = outline(complete, x, y, yaw - complete.forward_yaw)
                near = taken.obstacle_gap(robot, complete.height, clearance)[0]
                if min(taken.robot_gap(robot, clearance)[0], near) >= clearance:
                    break
            else:
                raise ValueError(
                    f"count: expected room for {count} robots {complete.name!r} in an arena of "
                    f"{self.config.arena_size:g} m, got room for {k}"
                )
            taken.add(robot)
            poses.append((x, y, yaw))
        return self._add_all(poses, complete, collides)

    def remove(self, ids: int | Iterable[int]) -> None:
        """Takes robots and obstacles out of the world.

        Raises:
            TypeError: for anything but ids.
            ValueError: for an id that is not there; then nobody is removed.
        """
        self._require_open()
        several = list(ids) if isinstance(ids, Iterable) else [ids]
        if isinstance(ids, (str, bytes)) or not all(map(_is_id, several)):
            raise TypeError(f"ids: expected an id or several, got {ids!r}")
        gone = set(map(int, several))
        unknown = gone - {*self.robot_ids, *self.obstacle_ids}
        if unknown:
            raise ValueError(f"ids: expected robots or obstacles of this simulation, got {sorted(unknown)}")
        self._robots = [robot for robot in self._robots if robot.id not in gone]
        self._obstacles = [obstacle for obstacle in self._obstacles if obstacle.id not in gone]
        self._rows = {robot.id: row for row, robot in enumerate(self._robots)}
        self._is_built = False
        self._occupancy = self._around_obstacles = None
        self._forget(gone)

    # ---- Checks ----

    def _row(self, robot: int) -> int:
        if not _is_id(robot):
            raise TypeError(f"robot: expected the id of a robot of this simulation, got {robot!r}")
        if robot not in self._rows:
            raise ValueError(f"robot: expected the id of a robot of this simulation, got {robot!r}")
        return self._rows[robot]

    def _mobile(self, robot: int) -> RobotModel:
        self._require_open()
        model = self._robots[self._row(robot)].model
        if model.drive is None:
            raise ValueError(f"robot: expected one that can drive, got {robot!r} ({model.name}, arm or static)")
        return model

    def _model(self, model: RobotLike, static: bool, collides: bool, footprint: Footprint | None) -> RobotModel:
        self._require_open()
        static, collides = flag("static", static), flag("collides", collides)
        try:
            complete = robot_model(model, footprint=footprint)
        except ValueError as error:
            message = str(error)
            name = "" if message.startswith("footprint") else "model: "
            raise ValueError(f"{name}{message.removeprefix('robot: ')}") from None
        if self.config.physics:
            from fleet_gym.dynamics.physics_world import plan_slot

            if not collides:
                raise ValueError("collides: expected True on contact physics, got False")
            if footprint == "box":
                raise ValueError(
                    "footprint: expected None on contact physics, which has the robot's own shapes, got 'box'"
                )
            plan_slot(complete)
        return static_model(complete) if static else complete

    def _add_all(self, poses: Iterable[tuple[float, float, float]], model: RobotModel, collides: bool) -> list[int]:
        side = self.config.arena_size
        taken, accepted = self._fresh_occupancy(), []
        for x, y, yaw in poses:
            robot = outline(model, x, y, yaw - model.forward_yaw)
            if not is_inside(robot, side):
                raise ValueError(
                    f"position: expected a place in the arena of {side:g} m for a {model.name!r} "
                    f"({model.footprint_radius:.3g} m), got ({x:g}, {y:g})"
                )
            accepted.append((x, y, yaw))
            if not collides:
                continue
            gap, row = taken.obstacle_gap(robot, model.height)
            if gap < 0:
                raise ValueError(f"position: expected a free place, got ({x:g}, {y:g}) in obstacle {taken.name(row)}")
            gap, row = taken.robot_gap(robot)
            if gap < 0:
                raise ValueError(f"position: expected a free place, got ({x:g}, {y:g}) where another robot stands")
            taken.add(robot)
        robots = [Robot(self._next_id + k, model, *pose, collides) for k, pose in enumerate(accepted)]
        self._next_id += len(robots)
        self._rows.update({robot.id: len(self._robots) + k for k, robot in enumerate(robots)})
        self._robots += robots
        self._is_built = False
        self._occupancy = taken
        return [robot.id for robot in robots]

    def _fresh_occupancy(self) -> Occupancy:
        """Who stands where now, free to be added to."""
        if self._occupancy is None:
            poses = zip(self._robots, self._poses().tolist(), strict=True)
            standing = [outline(robot.model, *pose) for robot, pose in poses if robot.collides]
            self._occupancy = Occupancy(np.array(standing, dtype=np.float64), self._obstacles)
        return self._occupancy.copy()

    @abstractmethod
    def _forget(self, gone: Collection[int]) -> None:
        """Called with the ids of who was removed."""


def _is_id(value: object) -> bool:
    """Whether a value is a whole number, also one of NumPy's, as `contacts` returns them."""
    return isinstance(value, Integral) and not isinstance(value, bool)
