"""Navigation: every robot drives to its own goal among obstacles and the other robots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym._validation import finite_float, non_negative_int
from fleet_gym.tasks.base import Evaluation
from fleet_gym.tasks.navigation_kernel import judge
from fleet_gym.tasks.navigation_layout import NavigationLayout
from fleet_gym.tasks.navigation_lidar import Lidar
from fleet_gym.tasks.placement import MAX_RESTARTS, TRIAL_RESTARTS, PlacementError, place_discs
from fleet_gym.world.neighbors import nearest_targets
from fleet_gym.world.robots import RobotModel, known_robots, robot_model
from fleet_gym.world.scene import BodySpec, Scene, SceneBuilder, Shape
from fleet_gym.world.state import FleetState, WorldSample, yaw_quaternion

#: Share of the default arena covered by footprints of robots and goals: enough to meet, not enough to jam.
DEFAULT_COVERAGE = 0.15
#: Lengths beyond this are typing errors, m.
MAX_LENGTH = 1e5
#: A robot tilted further than this has fallen: cos(60 degrees).
_FALLEN_COSINE = 0.5
#: Obstacle kinds and sizes, in mean footprint radii, dealt out in turn.
_OBSTACLES: tuple[tuple[Any, float, float], ...] = (
    ("cylinder", 0.5, 0.5),
    ("box", 1.2, 0.8),
    ("cylinder", 0.8, 0.8),
    ("box", 0.7, 1.8),
)
_OBSTACLE_COLOR = (0.45, 0.47, 0.52, 1.0)
_MARKER_HEIGHT = 0.01
_MARKER_COLORS = (
    (0.90, 0.35, 0.20, 1.0),
    (0.15, 0.55, 0.85, 1.0),
    (0.25, 0.70, 0.35, 1.0),
    (0.85, 0.65, 0.10, 1.0),
    (0.60, 0.35, 0.75, 1.0),
)


@dataclass(frozen=True)
class _Judgement:
    robot_reward: NDArray[np.float64]
    reward: NDArray[np.float64]
    fallen: NDArray[np.bool_]
    success: NDArray[np.bool_]
    terminated: NDArray[np.bool_]


class Navigation:
    """Drives each robot of a world to its own goal; see `Task` for the protocol.

    Starts, goals and obstacles are drawn without overlap. The episode terminates when all robots are within the goal
    radius in the same step (success), when one has fallen over (physics only), and, if asked, at the first collision.

    Args:
        arena_size: side of the square arena, m. None: grows with the footprints' area, so any number of robots fits.
        num_obstacles: cylinders and boxes; sizes are fixed at construction, poses drawn per episode.
        goal_radius: m. None: the largest footprint radius of the robots.
        clearance: smallest gap between anything at the start of an episode, m.
        nearest_robots: how many other robots each robot observes, at most.
        nearest_obstacles: how many obstacles each robot observes, at most.
        lidar_rays: rays of each robot's planar range sensor, 0 for none; they see robots and obstacles.
        lidar_range: m, what a ray says that meets nothing nearer.
        lidar_noise: standard deviation of a range, m; the episode's seed decides it.
        progress_weight: reward per metre come closer to the goal.
        goal_bonus: reward of a robot's first arrival at its goal in an episode.
        success_bonus: reward of every robot when all have arrived.
        collision_cost: per step in which a robot touches something.
        effort_cost: per step, times the mean square of the robot's action.
        terminate_on_collision: ends the episode at the first collision.

    Raises:
        TypeError: when an argument has the wrong type.
        ValueError: when it is out of range.
    """

    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        arena_size: float | None = None,
        num_obstacles: int = 4,
        goal_radius: float | None = None,
        clearance: float = 0.1,
        nearest_robots: int = 3,
        nearest_obstacles: int = 3,
        lidar_rays: int = 0,
        lidar_range: float = 5.0,
        lidar_noise: float = 0.0,
        progress_weight: float = 1.0,
        goal_bonus: float = 1.0,
        success_bonus: float = 2.0,
        collision_cost: float = 0.5,
        effort_cost: float = 0.01,
        terminate_on_collision: bool = False,
    ) -> None:
        if arena_size is not None:
            arena_size = finite_float("arena_size", arena_size, minimum=0.0, maximum=MAX_LENGTH, exclusive=True)
        if goal_radius is not None:
            goal_radius = finite_float("goal_radius", goal_radius, minimum=0.0, maximum=MAX_LENGTH, exclusive=True)
        if not isinstance(terminate_on_collision, bool):
            raise TypeError(f"terminate_on_collision: expected a bool, got {terminate_on_collision!r}")
        self._arena_size = arena_size
        self._goal_radius = goal_radius
        self.num_obstacles = non_negative_int("num_obstacles", num_obstacles)
        self.clearance = finite_float("clearance", clearance, minimum=0.0, maximum=MAX_LENGTH)
        self.nearest_robots = non_negative_int("nearest_robots", nearest_robots)
        self.nearest_obstacles = non_negative_int("nearest_obstacles", nearest_obstacles)
        self.lidar_rays = non_negative_int("lidar_rays", lidar_rays)
        self.lidar_range = finite_float("lidar_range", lidar_range, minimum=0.0, exclusive=True)
        self.lidar_noise = finite_float("lidar_noise", lidar_noise, minimum=0.0)
        self.progress_weight = finite_float("progress_weight", progress_weight)
        self.goal_bonus = finite_float("goal_bonus", goal_bonus)
        self.success_bonus = finite_float("success_bonus", success_bonus)
        self.collision_cost = finite_float("collision_cost", collision_cost)
        self.effort_cost = finite_float("effort_cost", effort_cost)
        self.terminate_on_collision = terminate_on_collision

    def build(self, builder: SceneBuilder) -> None:
        """Adds obstacles (indices 0..num_obstacles-1) and one goal marker per robot, and tries whether all fit.

        Raises:
            ValueError: for a robot without a drive, or when the robots do not fit (saying how many do).
        """
        _refuse_arms(builder.robots)
        radius = np.array([robot.footprint_radius for robot in builder.robots])
        self.goal_radius = self._goal_radius or float(radius.max())
        scale = float(radius.mean())
        height = max(robot.height for robot in builder.robots) or scale
        for index in range(self.num_obstacles):
            kind, length, width = _OBSTACLES[index % len(_OBSTACLES)]
            shape = Shape(kind, (length * scale, width * scale, height))
            builder.add_body(BodySpec(f"obstacle_{index}", "obstacle", shape, _OBSTACLE_COLOR))
        for index in range(len(builder.robots)):
            shape = Shape("cylinder", (self.goal_radius, self.goal_radius, _MARKER_HEIGHT))
            color = _MARKER_COLORS[index % len(_MARKER_COLORS)]
            builder.add_body(BodySpec(f"goal_{index}", "marker", shape, color))
        obstacle_radius = [body.shape.bounding_radius for body in builder.build().bodies[: self.num_obstacles]]
        # Obstacles first, then start and goal of each robot in turn: what fits is then a number of whole robots.
        self._disc_radius = np.concatenate([np.array(obstacle_radius), np.repeat(radius, 2)])
        area = float(np.pi * np.sum((self._disc_radius + self.clearance / 2) ** 2))
        # Never so small that the largest disc has no freedom.
        default_side = max(np.sqrt(area / DEFAULT_COVERAGE), 4 * float(self._disc_radius.max()))
        builder.set_arena_size(self._arena_size or float(default_side))
        if self.goal_radius + self.clearance >= builder.arena_size:
            raise ValueError(
                f"goal_radius: expected less than the arena's {builder.arena_size:g} m, got {self.goal_radius!r}"
            )

    def bind(self, scene: Scene, num_envs: int, control_dt: float) -> None:
        """Allocates goals and per-episode arrays, and draws trial worlds.

        Raises:
            ValueError: when the robots do not fit.
        """
        del control_dt
        self._scene = scene
        self._num_channels = np.array([len(robot.command_limits) for robot in scene.robots])
        self._robot_radius = scene.footprint_radius
        num_robots = scene.num_robots
        self._partner = np.full(len(self._disc_radius), -1, dtype=np.int64)
        goals = self.num_obstacles + 1 + 2 * np.arange(num_robots)
        self._partner[goals] = goals - 1
        self._base_height = np.array([robot.base_height for robot in scene.robots])
        self._forward_yaw = np.array([robot.forward_yaw for robot in scene.robots])
        self._obstacle_radius = np.array([body.shape.bounding_radius for body in scene.bodies[: self.num_obstacles]])
        self._obstacle_height = np.array([body.shape.height for body in scene.bodies[: self.num_obstacles]])
        self._layout = NavigationLayout(
            scene,
            self.nearest_robots,
            self.nearest_obstacles,
            self.num_obstacles,
            self._obstacle_radius,
            self.lidar_rays,
            self.lidar_range,
        )
        self._lidar = None
        if self.lidar_rays:
            obstacles = scene.bodies[: self.num_obstacles]
            self._lidar = Lidar(scene, obstacles, self.lidar_rays, self.lidar_range, self.lidar_noise)
        self._noise_key = np.zeros(num_envs, dtype=np.int64)
        self._noise_step = np.zeros(num_envs, dtype=np.int64)
        self.state_layout = self._layout.columns
        self.observation_low, self.observation_high = self._layout.low, self._layout.high
        self._goal = np.zeros((num_envs, num_robots, 2))
        self._previous_action = np.zeros((num_envs, num_robots, scene.action_size))
        # NaN until the first look at an episode, which sets it.
        self._previous_distance = np.full((num_envs, num_robots), np.nan)
        self._arrived = np.zeros((num_envs, num_robots), dtype=np.bool_)
        self._num_collisions = np.zeros(num_envs, dtype=np.int64)
        for trial in range(5):
            self._draw(np.random.default_rng(trial), TRIAL_RESTARTS)
        # Compiles the kernels; what they write is set again for the first episode.
        resting = FleetState.allocate(num_envs, scene)
        _, distance = self._observe(resting, None)
        self._judge(resting, self._previous_action, distance)

    def sample(self, rngs: Sequence[np.random.Generator], worlds: NDArray[np.intp]) -> WorldSample:
        """Draws obstacles, starts, goals and headings; see `Task.sample`."""
        n, num_robots, num_bodies = len(worlds), self._scene.num_robots, self._scene.num_bodies
        position, yaw = np.zeros((n, num_robots, 3)), np.zeros((n, num_robots))
        body_position, body_yaw = np.zeros((n, num_bodies, 3)), np.zeros((n, num_bodies))
        goal = np.zeros((n, num_robots, 2))
        for row, rng in enumerate(rngs):
            obstacles, position[row, :, :2], goal[row] = self._draw(rng)
            body_position[row, : self.num_obstacles, :2] = obstacles
            yaw[row] = rng.uniform(-np.pi, np.pi, num_robots)
            body_yaw[row, : self.num_obstacles] = rng.uniform(-np.pi, np.pi, self.num_obstacles)
            if self.lidar_noise:
                self._noise_key[worlds[row]] = rng.integers(2**62)
        position[..., 2] = self._base_height
        body_position[:, : self.num_obstacles, 2] = self._obstacle_height / 2
        body_position[:, self.num_obstacles :, :2] = goal
        body_position[:, self.num_obstacles :, 2] = _MARKER_HEIGHT / 2
        self._goal[worlds] = goal
        self._previous_action[worlds] = 0.0
        self._previous_distance[worlds] = np.nan
        self._arrived[worlds] = False
        self._num_collisions[worlds] = 0
        self._noise_step[worlds] = -1  # before the first look at the episode
        return WorldSample(
            position=position,
            orientation=yaw_quaternion(yaw - self._forward_yaw),
            active=np.ones((n, num_robots), dtype=np.bool_),
            body_position=body_position,
            body_orientation=yaw_quaternion(body_yaw),
            body_active=np.ones((n, num_bodies), dtype=np.bool_),
        )

    def observe(self, state: FleetState, worlds: NDArray[np.intp]) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Observes worlds that were just reset, see `Task.observe`."""
        rows = state.take(worlds)
        self._noise_step[worlds] = 0
        observation, distance = self._observe(rows, worlds)
        self._previous_distance[worlds] = distance
        infos = {
            "success": np.zeros(len(worlds), dtype=np.bool_),
            "goal_distance": distance,
            "num_collisions": self._num_collisions[worlds],
            "fallen": _fallen(rows),
        }
        return observation, infos

    def evaluate(self, state: FleetState, actions: NDArray[np.float64]) -> Evaluation:
        """Rewards progress, arrival and success, charges collisions and effort; see `Task.evaluate`."""
        self._previous_action[:] = actions
        self._noise_step += 1
        observation, distance = self._observe(state, None)
        result = self._judge(state, actions, distance)
        self._num_collisions += state.collision_starts
        infos = {
            "success": result.success,
            "goal_distance": distance,
            "num_collisions": self._num_collisions.copy(),
            "fallen": result.fallen,
        }
        return Evaluation(observation, result.robot_reward, result.reward, result.terminated, infos)

    def _judge(self, state: FleetState, actions: NDArray[np.float64], distance: NDArray[np.float64]) -> _Judgement:
        n, num_robots = distance.shape
        result = _Judgement(
            robot_reward=np.empty((n, num_robots)),
            reward=np.empty(n),
            fallen=np.empty((n, num_robots), dtype=np.bool_),
            success=np.empty(n, dtype=np.bool_),
            terminated=np.empty(n, dtype=np.bool_),
        )
        judge(
            actions,
            state.orientation,
            state.in_collision,
            distance,
            self._previous_distance,
            self._arrived,
            self.goal_radius,
            _FALLEN_COSINE,
            (self.progress_weight, self.goal_bonus, self.success_bonus, self.collision_cost, self.effort_cost),
            self.terminate_on_collision,
            result.robot_reward,
            result.reward,
            result.fallen,
            result.success,
            result.terminated,
        )
        return result

    def save(self, worlds: NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
        """Copies goals and per-episode arrays, see `Task.save`."""
        return tuple(array[worlds].copy() for array in self._episode_arrays())

    def restore(self, worlds: NDArray[np.intp], saved: tuple[NDArray[Any], ...]) -> None:
        """Brings back what `save` returned."""
        for array, rows in zip(self._episode_arrays(), saved, strict=True):
            array[worlds] = rows

    def _episode_arrays(self) -> tuple[NDArray[Any], ...]:
        return (
            self._goal,
            self._previous_action,
            self._previous_distance,
            self._arrived,
            self._num_collisions,
            self._noise_key,
            self._noise_step,
        )

    def _draw(
        self, rng: np.random.Generator, restarts: int = MAX_RESTARTS
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Draws centres of obstacles, starts (R, 2) and goals (R, 2)."""
        half_side = self._scene.arena_size / 2
        try:
            center = place_discs(
                rng,
                self._disc_radius,
                half_side,
                self.clearance,
                self._partner,
                self.goal_radius + self.clearance,
                restarts,
            )
        except PlacementError as error:
            fit = max(0, error.placed - self.num_obstacles) // 2
            raise ValueError(
                f"arena_size: expected room for starts and goals of {self._scene.num_robots} robots and "
                f"{self.num_obstacles} obstacles, got a side of {self._scene.arena_size:g} m, where {fit} robots fit"
            ) from None
        obstacles, rest = center[: self.num_obstacles], center[self.num_obstacles :]
        return obstacles, rest[0::2], rest[1::2]

    def _observe(
        self, state: FleetState, worlds: NDArray[np.intp] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Returns observation (n, R, D) and goal distance (n, R) of some worlds, None for all."""
        n, num_robots = state.num_envs, state.num_robots
        rows = slice(None) if worlds is None else worlds
        robots = np.empty((n, num_robots, self._layout.nearest_robots), dtype=np.int64)
        obstacles = np.empty((n, num_robots, self._layout.nearest_obstacles), dtype=np.int64)
        nearest_targets(state.position, state.position, self._robot_radius, state.active, True, robots)
        nearest_targets(state.position, state.body_position, self._obstacle_radius, state.body_active, False, obstacles)
        observation, distance = self._layout.fill(
            state, self._goal[rows], self._previous_action[rows], robots, obstacles
        )
        if self._lidar is not None:
            self._lidar.observe(state, self._noise_key[rows], self._noise_step[rows], observation)
        return observation, distance


def _refuse_arms(robots: Sequence[RobotModel]) -> None:
    for slot, robot in enumerate(robots):
        if robot.drive is None:
            driving = [name for name in known_robots() if robot_model(name).drive is not None]
            raise ValueError(
                f"robot: expected models with a drive for navigation, got {robot.name!r} in slot {slot}; "
                f"models that have one: {', '.join(driving)}"
            )


def _fallen(state: FleetState) -> NDArray[np.bool_]:
    """(n, R): the cosine of the tilt is the z component of the root link's z axis."""
    x, y = state.orientation[..., 0], state.orientation[..., 1]
    return np.asarray(1.0 - 2.0 * (x * x + y * y) < _FALLEN_COSINE)
