"""Columns of Navigation's observation, and how they are filled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState

#: Per neighbour: relative position x, y; relative velocity x, y; radius; presence.
NEIGHBOR_SIZE = 6
#: Bounds beyond which values are clipped, in arena sides and in top speeds.
_POSITION_RANGE = 4.0
_VELOCITY_RANGE = 10.0


class NavigationLayout:
    """Observation of one robot, all in its body frame (x along the driving direction, y to the left).

    Columns, in this order:

    - ``goal`` (2): goal position relative to the robot, m.
    - ``goal_distance`` (1): m.
    - ``heading_error`` (1): direction of the goal, rad in [-pi, pi].
    - ``velocity`` (3): vx, vy in m/s, yaw rate in rad/s.
    - ``previous_action`` (A): in [-1, 1], zeros at the start of an episode.
    - ``robots`` (6 each): the nearest other robots, nearest edge first: relative position x, y (m), relative velocity
      x, y (m/s), footprint radius (m), 1 if present; all zero if absent.
    - ``obstacles`` (6 each): the same for obstacles, with their bounding circle.

    Attributes:
        columns: name -> slice.
        low: (D,) float32.
        high: (D,) float32.
        nearest_robots: neighbours observed.
        nearest_obstacles: obstacles observed.
    """

    def __init__(
        self,
        scene: Scene,
        nearest_robots: int,
        nearest_obstacles: int,
        num_obstacles: int,
        obstacle_radius: NDArray[np.float64],
    ) -> None:
        self.nearest_robots = min(nearest_robots, scene.num_robots - 1)
        self.nearest_obstacles = min(nearest_obstacles, num_obstacles)
        self._robot_radius = scene.footprint_radius
        self._obstacle_radius = obstacle_radius
        place = _POSITION_RANGE * scene.arena_size
        speed = _VELOCITY_RANGE * max(robot.max_speed for robot in scene.robots)
        turn = _VELOCITY_RANGE * max(robot.max_turn_rate for robot in scene.robots)
        widest = max([*self._robot_radius, *obstacle_radius])
        neighbor_high = [place, place, 2 * speed, 2 * speed, widest, 1.0]
        neighbor_low = [-place, -place, -2 * speed, -2 * speed, 0.0, 0.0]
        parts: list[tuple[str, list[float], list[float]]] = [
            ("goal", [-place] * 2, [place] * 2),
            ("goal_distance", [0.0], [2 * place]),
            ("heading_error", [-np.pi], [np.pi]),
            ("velocity", [-speed, -speed, -turn], [speed, speed, turn]),
            ("previous_action", [-1.0] * scene.action_size, [1.0] * scene.action_size),
            ("robots", neighbor_low * self.nearest_robots, neighbor_high * self.nearest_robots),
            ("obstacles", neighbor_low * self.nearest_obstacles, neighbor_high * self.nearest_obstacles),
        ]
        self.columns: dict[str, slice] = {}
        start = 0
        for name, low, _ in parts:
            if low:
                self.columns[name] = slice(start, start + len(low))
                start += len(low)
        self.low = np.array([value for _, low, _ in parts for value in low], dtype=np.float32)
        self.high = np.array([value for _, _, high in parts for value in high], dtype=np.float32)

    def fill(
        self,
        state: FleetState,
        heading: NDArray[np.float64],
        goal: NDArray[np.float64],
        previous_action: NDArray[np.float64],
        robots: NDArray[np.int64],
        obstacles: NDArray[np.int64],
        obstacle_position: NDArray[np.float64],
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Returns observation (n, R, D) float32, clipped to the bounds, and goal distance (n, R) m.

        Args:
            state: n worlds.
            heading: (n, R) rad, of the driving direction.
            goal: (n, R, 2) m, world frame.
            previous_action: (n, R, A).
            robots: (n, R, k) indices of neighbours, -1 for none.
            obstacles: (n, R, k) the same.
            obstacle_position: (n, num_obstacles, 3) m.
        """
        cos, sin = np.cos(heading), np.sin(heading)
        to_goal = goal - state.position[..., :2]
        distance = np.hypot(to_goal[..., 0], to_goal[..., 1])
        velocity = state.linear_velocity[..., :2]
        observation = np.zeros((*heading.shape, len(self.low)))
        goal_x, goal_y = _rotate(to_goal, cos, sin)
        columns = self.columns
        observation[..., columns["goal"]] = np.stack((goal_x, goal_y), axis=-1)
        observation[..., columns["goal_distance"]] = distance[..., None]
        observation[..., columns["heading_error"]] = np.arctan2(goal_y, goal_x)[..., None]
        observation[..., columns["velocity"]] = np.stack(
            (*_rotate(velocity, cos, sin), state.angular_velocity[..., 2]), axis=-1
        )
        observation[..., columns["previous_action"]] = previous_action
        if "robots" in columns:
            observation[..., columns["robots"]] = _neighbor_columns(
                state.position[..., :2], velocity, cos, sin, robots, state.position, velocity, self._robot_radius
            )
        if "obstacles" in columns:
            still = np.zeros((*obstacle_position.shape[:2], 2))
            observation[..., columns["obstacles"]] = _neighbor_columns(
                state.position[..., :2], velocity, cos, sin, obstacles, obstacle_position, still, self._obstacle_radius
            )
        # Clipping after the cast: a float64 just inside a bound may round to a float32 just outside.
        return np.clip(observation.astype(np.float32), self.low, self.high), distance


def _rotate(
    vector: NDArray[np.float64], cos: NDArray[np.float64], sin: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """World to body frame, elementwise: a matmul's grouping of sums could depend on the batch."""
    x, y = vector[..., 0], vector[..., 1]
    return cos * x + sin * y, cos * y - sin * x


def _neighbor_columns(
    position: NDArray[np.float64],
    velocity: NDArray[np.float64],
    cos: NDArray[np.float64],
    sin: NDArray[np.float64],
    index: NDArray[np.int64],
    target_position: NDArray[np.float64],
    target_velocity: NDArray[np.float64],
    target_radius: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns (n, R, k * 6) for neighbours `index` (n, R, k) among targets (n, M, ...)."""
    n, num_robots, k = index.shape
    world = np.arange(n)[:, None, None]
    present = index >= 0
    cos, sin = cos[..., None], sin[..., None]
    columns = np.zeros((n, num_robots, k, NEIGHBOR_SIZE))
    offset = target_position[world, index, :2] - position[:, :, None]
    speed = target_velocity[world, index] - velocity[:, :, None]
    columns[..., 0], columns[..., 1] = _rotate(offset, cos, sin)
    columns[..., 2], columns[..., 3] = _rotate(speed, cos, sin)
    columns[..., 4] = target_radius[index]
    columns[..., 5] = 1.0
    columns *= present[..., None]
    return columns.reshape(n, num_robots, k * NEIGHBOR_SIZE)
