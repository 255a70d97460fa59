"""Columns of Navigation's observation, and how they are filled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym.tasks.navigation_kernel import fill_observation
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState

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
    - ``lidar`` (one per ray, if asked for): ranges, m, counterclockwise from the driving direction.

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
        lidar_rays: int = 0,
        lidar_range: float = 0.0,
    ) -> None:
        self.nearest_robots = min(nearest_robots, scene.num_robots - 1)
        self.nearest_obstacles = min(nearest_obstacles, num_obstacles)
        self._robot_radius = scene.footprint_radius
        self._obstacle_radius = obstacle_radius
        forward_yaw = np.array([robot.forward_yaw for robot in scene.robots])
        self._forward = np.stack([np.cos(forward_yaw), np.sin(forward_yaw)], axis=-1)
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
            ("lidar", [0.0] * lidar_rays, [lidar_range] * lidar_rays),
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
        goal: NDArray[np.float64],
        previous_action: NDArray[np.float64],
        robots: NDArray[np.int64],
        obstacles: NDArray[np.int64],
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Returns observation (n, R, D) float32, clipped to the bounds, and goal distance (n, R) m.

        The ``lidar`` columns are left to `Lidar`.

        Args:
            state: n worlds, whose first bodies are the obstacles.
            goal: (n, R, 2) m, world frame.
            previous_action: (n, R, A).
            robots: (n, R, k) indices of neighbours, -1 for none.
            obstacles: (n, R, k) the same.
        """
        observation = np.empty((*goal.shape[:2], len(self.low)), dtype=np.float32)
        distance = np.empty(goal.shape[:2])
        fill_observation(
            state.position,
            state.orientation,
            state.linear_velocity,
            state.angular_velocity,
            self._forward,
            goal,
            previous_action,
            robots,
            self._robot_radius,
            obstacles,
            state.body_position,
            self._obstacle_radius,
            self.low,
            self.high,
            observation,
            distance,
        )
        return observation, distance
