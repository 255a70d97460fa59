"""The fleet of a simulation: what robots are told to do, and the engine that carries it out."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import finite_float, flag
from fleet_gym.config import SimulationConfig
from fleet_gym.dynamics.route_kernel import ARRIVED
from fleet_gym.engine import Engine, Placement
from fleet_gym.profiling.phases import phase
from fleet_gym.simulation_ground import items
from fleet_gym.simulation_robots import SimulatedRobots
from fleet_gym.simulation_routes import Routes, compile_routes
from fleet_gym.simulation_world import (
    MAX_TRIES,
    Occupancy,
    build_scene,
    compile_gaps,
    disc,
    placed,
    spawn_poses,
)
from fleet_gym.world.state import FleetState

_WORLD = np.zeros(1, dtype=np.intp)
_EVERYWHERE = np.ones(1, dtype=np.bool_)


@dataclass(frozen=True)
class _Motion:
    """What a robot was told since the engine last looked: a command, or way points, or to walk at random."""

    command: NDArray[np.float64] | None = None
    waypoints: NDArray[np.float64] | None = None
    repeats: bool = False
    walks: bool = False


class SimulatedFleet(SimulatedRobots):
    """Robots and obstacles of one world and what they do; base class of `MultiRobotSimulationCore`.

    Robots and obstacles are known by ids that are never used again. Spawning and removing take effect with the next
    step or look at `state`: a new engine is built, and everybody else goes on as he was.
    """

    def __init__(self, config: SimulationConfig) -> None:
        super().__init__(config)
        self._motions: dict[int, _Motion] = {}
        self._engine: Engine | None = None
        self._in_engine: tuple[list[int], list[int]] = ([], [])
        self._commands = np.zeros((1, 0, 0))
        self._routes = Routes([], self._draw_point)
        compile_gaps()
        if not config.physics:
            compile_routes()

    # ---- What is there ----

    @property
    def state(self) -> FleetState:
        """The state of the one world, (1, R, ...) arrays: read it, do not write it, and get it anew after spawning."""
        return self._built().state

    def pose(self, robot: int) -> tuple[float, float, float]:
        """Returns a robot's x, y (m) and driving direction (rad, in [-pi, pi])."""
        row = self._row(robot)
        state, model = self.state, self._robots[row].model
        yaw = float(state.yaw()[0, row]) + model.forward_yaw
        return float(state.position[0, row, 0]), float(state.position[0, row, 1]), math.remainder(yaw, 2 * math.pi)

    def has_arrived(self, robot: int) -> bool:
        """Whether a robot stands at the end of its route; a patrol or random walk never does."""
        self._built()
        return bool(self._routes.status[self._row(robot)] == ARRIVED)

    def contacts(self) -> NDArray[np.int64]:
        """Returns who touched whom in the last step: (n, 2) ids, the second may be an obstacle's."""
        pairs = self._built().contacts(0)
        return np.array([*self.robot_ids, *self.obstacle_ids, 0], dtype=np.int64)[pairs]

    # ---- Telling robots what to do ----

    def set_velocity(self, robot: int, command: Sequence[float]) -> None:
        """Sets a robot's velocity command until another order comes; ends its route.

        Args:
            robot: id.
            command: (v, omega), (vx, vy, omega) or (v, steering angle), as its drive has it; m/s, rad/s, rad. Values
                beyond the model's limits are clipped.

        Raises:
            TypeError: no list of numbers.
            ValueError: unknown id, wrong number of values, or one that is not finite.
        """
        model = self._mobile(robot)
        values = [finite_float("command", value) for value in items("command", command, "a list of numbers")]
        if len(values) != len(model.command_limits):
            raise ValueError(f"command: expected {len(model.command_limits)} values ({model.drive}), got {command!r}")
        limits = np.array(model.command_limits)
        self._motions[robot] = _Motion(command=np.clip(values, -limits, limits))

    def set_velocities(self, commands: ArrayLike) -> None:
        """Sets all robots' velocity commands at once and ends all routes.

        Args:
            commands: (R, A) in the order of `robot_ids`, as for `set_velocity`; columns a drive lacks are not used.

        Raises:
            TypeError: no numbers.
            ValueError: another shape, or values that are not finite.
        """
        self._built()
        try:
            values = np.asarray(commands, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"commands: expected numbers of shape {self._commands.shape[1:]}, got {commands!r}"
            ) from None
        if values.shape != self._commands.shape[1:]:
            raise ValueError(f"commands: expected shape {self._commands.shape[1:]}, got {values.shape}")
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
            raise ValueError(f"commands[{row}]: expected finite values, got {values[row]}")
        limits = self._engine.command_limits if self._engine is not None else 0.0
        self._commands[0] = np.clip(values, -limits, limits)
        for row in np.flatnonzero(self._routes.status).tolist():
            self._routes.clear(row)

    def set_goal(self, robot: int, goal: Sequence[float]) -> None:
        """Sends a robot to x, y (m) and, if given, a driving direction (rad), from rest to rest.

        In kinematics it follows a trapezoid of its speed and acceleration limits and arrives exactly: a differential
        base turns, drives and turns again, an omnidirectional one goes straight. On contact physics it is steered, and
        has arrived within 0.1 m and 0.1 rad.

        Raises:
            ValueError: unknown id, a goal outside the arena or not finite, or a robot without a turning circle of zero.
        """
        self._motions[robot] = _Motion(waypoints=self._waypoints(robot, [goal]))

    def set_path(self, robot: int, path: Sequence[Sequence[float]], *, patrol: bool = False) -> None:
        """Sends a robot along way points, each like a goal of `set_goal`; it stops at each.

        Args:
            robot: id.
            path: at least one way point.
            patrol: go back to the first after the last, for ever.

        Raises:
            ValueError: see `set_goal`, or an empty path.
        """
        path, repeats = items("path", path, "a list of way points"), flag("patrol", patrol)
        if not path:
            raise ValueError("path: expected at least one way point, got none")
        names = [f"path[{k}]" for k in range(len(path))]
        self._motions[robot] = _Motion(waypoints=self._waypoints(robot, path, names), repeats=repeats)

    def random_walk(self, robot: int) -> None:
        """Sends a robot to random points of the arena for ever; seed and id decide which. Blocked for 1 s it goes on.

        Raises:
            ValueError: see `set_goal`.
        """
        self._waypoints(robot, [(0.0, 0.0)])
        self._motions[robot] = _Motion(walks=True)

    def halt(self, robot: int) -> None:
        """Ends a robot's route and brings it to rest."""
        self.set_velocity(robot, [0.0] * len(self._mobile(robot).command_limits))

    # ---- The engine ----

    def close(self) -> None:
        """Frees the engine; calling it again does nothing."""
        self._is_closed = True
        if self._engine is not None:
            self._engine.close()

    def _built(self) -> Engine:
        """Brings the engine up to date and returns it."""
        if self._is_built and self._engine is not None:
            if self._motions:
                self._apply_motions()
            return self._engine
        self._require_open()
        old, (robots, obstacles) = self._engine, self._in_engine
        scene = build_scene(self._robots, self._obstacles, self.config.arena_size)
        engine = Engine(
            scene,
            1,
            control_dt=self.config.control_dt,
            dynamics="physics" if self.config.physics else "kinematic",
            collision_response=self.config.collision_response,
            contact_margin=self.config.collision_margin,
            ignored_robots=[row for row, robot in enumerate(self._robots) if not robot.collides],
        )
        was = _former_rows(robots, self.robot_ids)
        position, orientation = spawn_poses(self._robots)
        if old is not None:
            known = was >= 0
            position[known], orientation[known] = (
                old.state.position[0, was[known]],
                old.state.orientation[0, was[known]],
            )
        engine.reset(Placement(_WORLD, placed(self._robots, position, self._obstacles, orientation)))
        routes = Routes([robot.model for robot in self._robots], self._draw_point)
        commands = np.zeros((1, scene.num_robots, scene.action_size))
        if old is not None:
            engine.adopt(old, was, _former_rows(obstacles, self.obstacle_ids))
            routes.adopt(self._routes, was)
            width = min(commands.shape[2], self._commands.shape[2])
            commands[0, known, :width] = self._commands[0, was[known], :width]
            old.close()
        self._engine, self._routes, self._commands = engine, routes, commands
        self._in_engine = (list(self.robot_ids), list(self.obstacle_ids))
        self._is_built = True
        self._apply_motions()
        return engine

    def _apply_motions(self) -> None:
        for robot, motion in self._motions.items():
            row = self._rows[robot]
            if motion.walks:
                self._routes.walk(row, (self.config.seed, robot))
            elif motion.waypoints is not None:
                self._routes.follow(row, motion.waypoints, repeats=motion.repeats)
            elif motion.command is not None:
                self._routes.clear(row)
                self._commands[0, row, : len(motion.command)] = motion.command
        self._motions.clear()

    def _advance(self, engine: Engine) -> None:
        """One control step of the world."""
        dt, routes = self.config.control_dt, self._routes
        self._occupancy = None
        with phase("routes"):
            routes.prepare()
            if self.config.physics:
                routes.steer(engine.state, self._commands[0])
            moves = None if self.config.physics else routes.plan(dt, engine.state)
        engine.advance(self._commands, _EVERYWHERE, moves=moves)
        if moves is not None:
            with phase("routes"):
                routes.after_step(dt)

    def _place_at_spawn(self) -> None:
        engine = self._built()
        position, orientation = spawn_poses(self._robots)
        engine.reset(Placement(_WORLD, placed(self._robots, position, self._obstacles, orientation)))
        self._routes.restart()
        self._occupancy = None

    def _forget(self, gone: Collection[int]) -> None:
        for robot in gone:
            self._motions.pop(robot, None)

    # ---- Checks ----

    def _waypoints(
        self, robot: int, path: Sequence[Sequence[float]], names: Sequence[str] = ("goal",)
    ) -> NDArray[np.float64]:
        model = self._mobile(robot)
        if model.drive == "ackermann":
            raise ValueError(
                f"robot: expected one that turns on the spot, got {robot!r} ({model.name}, ackermann): "
                "drive it with set_velocity"
            )
        half = self.config.arena_size / 2
        rows = []
        for name, way_point in zip(names, path, strict=True):
            entries = items(name, way_point, "x, y or x, y, yaw")
            if len(entries) not in (2, 3):
                raise ValueError(f"{name}: expected x, y or x, y, yaw, got {way_point!r}")
            values = [finite_float(name, value) for value in entries]
            if max(abs(values[0]), abs(values[1])) > half:
                raise ValueError(f"{name}: expected a point in the arena, |x| and |y| <= {half:g} m, got {way_point!r}")
            rows.append([*values[:2], values[2] if len(values) == 3 else math.nan])
        return np.array(rows)

    def _poses(self) -> NDArray[np.float64]:
        """(R, 3) where all robots are, those included that the engine does not know yet; m, rad."""
        poses = np.array([(r.x, r.y, r.yaw - r.model.forward_yaw) for r in self._robots], dtype=np.float64).reshape(
            -1, 3
        )
        if self._engine is not None:
            was = _former_rows(self._in_engine[0], self.robot_ids)
            known = was >= 0
            poses[known, :2] = self._engine.state.position[0, was[known], :2]
            poses[known, 2] = self._engine.state.yaw()[0, was[known]]
        return poses

    def _draw_point(self, row: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """A random point of the arena where the robot of a row fits between the obstacles, and NaN."""
        if self._around_obstacles is None:
            self._around_obstacles = Occupancy(np.zeros(0), self._obstacles)
        model = self._robots[row].model
        room = max(self.config.arena_size / 2 - model.footprint_radius, 0.0)
        for _ in range(MAX_TRIES):
            x, y = rng.uniform(-room, room, 2).tolist()
            # Whichever way it will be turned.
            if (
                not self._obstacles
                or self._around_obstacles.obstacle_gap(disc(x, y, model.footprint_radius), model.height)[0] >= 0
            ):
                break
        return np.array([x, y, math.nan])


def _former_rows(before: Sequence[int], now: Sequence[int]) -> NDArray[np.intp]:
    """Rows in `before` of the ids in `now`, -1 for new ones."""
    rows = {identity: row for row, identity in enumerate(before)}
    return np.array([rows.get(identity, -1) for identity in now], dtype=np.intp)
