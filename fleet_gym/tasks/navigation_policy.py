"""A scripted baseline for Navigation: drive to the goal, steer around what is in the way. No learning, no map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.tasks.navigation_layout import NEIGHBOR_SIZE

#: Range in which an edge-to-edge gap repels, m, and how strong repulsion and swirl are against the goal's pull of 1.
_AVOIDANCE_RANGE = 1.2
_REPULSION = 1.0
_SWIRL = 1.4
#: Turn rate asked for per rad of heading error, 1/s.
_TURN_GAIN = 2.0
#: Speed is reduced within this distance of the goal, m.
_SLOW_DISTANCE = 0.8


class GoToGoalPolicy:
    """Maps Navigation observations to actions by an artificial potential field.

    The goal pulls with unit strength; each neighbour and obstacle within range pushes away and sideways (to the
    right, so that two robots meeting head-on pass each other). A robot at its goal stops.

    Args:
        env: an environment with Navigation, wrapped or not.

    Raises:
        TypeError: when the env does not describe its observation (no ``state_layout``) or its robots.
    """

    def __init__(self, env: Any) -> None:
        base = env.unwrapped
        if not hasattr(base, "state_layout") or not hasattr(base, "scene"):
            raise TypeError(f"env: expected a fleet_gym environment with Navigation, got {type(base).__name__}")
        self._columns: Mapping[str, slice] = base.state_layout
        self._robots = base.scene.robots
        self._radius = base.scene.footprint_radius
        self._goal_radius = float(base.task.goal_radius)
        self._action_size = int(base.single_action_space.shape[-1])

    def __call__(self, observation: Mapping[str, Any]) -> NDArray[np.float32]:
        """Returns actions (..., R, A) float32 in [-1, 1] for ``observation["state"]`` (..., R, D)."""
        state = np.asarray(observation["state"], dtype=np.float64)
        direction = self._direction(state)
        distance = state[..., self._columns["goal_distance"].start]
        arrived = distance <= 0.6 * self._goal_radius
        pace = np.clip(distance / _SLOW_DISTANCE, 0.25, 1.0) * ~arrived
        bearing = np.arctan2(direction[..., 1], direction[..., 0])
        action = np.zeros((*state.shape[:-1], self._action_size))
        for slot, robot in enumerate(self._robots):
            command = action[..., slot, :]
            turn = _TURN_GAIN * bearing[..., slot]
            ahead = np.maximum(np.cos(bearing[..., slot]), 0.0) ** 2
            if robot.drive == "omnidirectional":
                norm = np.maximum(np.linalg.norm(direction[..., slot, :], axis=-1), 1e-9)
                command[..., :2] = direction[..., slot, :] / norm[..., None] * pace[..., slot, None]
            elif robot.drive == "ackermann":
                behind = np.cos(bearing[..., slot]) < -0.2
                # A car cannot turn in place: it backs up with the wheels turned the other way.
                command[..., 0] = np.where(behind, -0.6, np.maximum(ahead, 0.3)) * pace[..., slot]
                steer = np.clip(turn / robot.max_steering, -1.0, 1.0)
                command[..., 1] = np.where(behind, -steer, steer) * ~arrived[..., slot]
            else:
                command[..., 0] = ahead * pace[..., slot]
                command[..., 1] = turn / robot.max_turn_rate * ~arrived[..., slot]
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def _direction(self, state: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of pulls and pushes, (..., R, 2), body frame."""
        goal = state[..., self._columns["goal"]]
        distance = np.maximum(np.linalg.norm(goal, axis=-1, keepdims=True), 1e-9)
        direction = goal / distance
        for name in ("robots", "obstacles"):
            if name not in self._columns:
                continue
            block = state[..., self._columns[name]]
            near = block.reshape(*block.shape[:-1], -1, NEIGHBOR_SIZE)
            away = np.linalg.norm(near[..., :2], axis=-1)
            gap = np.maximum(away - near[..., 4] - self._radius[:, None], 0.02)
            # What lies beyond the goal is nobody's way.
            matters = (near[..., 5] > 0) & (gap < _AVOIDANCE_RANGE) & (gap < distance)
            strength = np.where(matters, np.square(1.0 - gap / _AVOIDANCE_RANGE) / np.maximum(gap, 0.1) * 0.3, 0.0)
            unit = -near[..., :2] / np.maximum(away, 1e-9)[..., None]
            closing = np.maximum(np.sum(-unit * direction[..., None, :], axis=-1), 0.0)
            sideways = np.stack((-unit[..., 1], unit[..., 0]), axis=-1)
            push = _REPULSION * unit + _SWIRL * closing[..., None] * sideways
            direction = direction + np.sum(strength[..., None] * push, axis=-2)
        return np.asarray(direction)
