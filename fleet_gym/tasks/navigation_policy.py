"""A scripted baseline for Navigation: drive to the goal, around what is in the way. No learning, no map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.tasks.navigation_kernel import NEIGHBOR_SIZE

#: Directions considered around the goal's, rad; between equals the first wins, so that all keep right.
_OFFSETS = np.radians([0, *(side * angle for angle in range(12, 181, 12) for side in (-1, 1))])
#: Distance looked ahead and gap kept to what is passed, in footprint radii.
_LOOK_AHEAD = 4.0
_GAP = 0.2
#: What a blocked direction costs, in rad of detour.
_BLOCKED_COST = 5.0
#: What turning away from the present heading costs, per rad: whoever has decided sticks to it.
_TURN_COST = 0.7
#: Others are expected where they will be in this time, s, as well as where they are.
_FORESIGHT = 0.7
#: Turn rate asked for per rad of heading error, 1/s.
_TURN_GAIN = 2.0
#: Whoever drives this much off its goal's direction, rad, makes a detour; the last slot then slows down by this share.
_DETOUR = 0.3
_YIELD = 0.5
#: Speed is reduced within this distance of the goal, m.
_SLOW_DISTANCE = 0.8


class GoToGoalPolicy:
    """Maps Navigation observations to actions by looking along rays.

    Of a fan of directions around the goal's, each robot takes the one with the least detour whose ray is free of
    neighbours and obstacles for a few footprints, turns towards it and drives as far as it looks that way. A robot at
    its goal stops.

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
        self._action_size = int(base.scene.action_size)

    def __call__(self, observation: Mapping[str, Any]) -> NDArray[np.float32]:
        """Returns actions (..., R, A) float32 in [-1, 1] for ``observation["state"]`` (..., R, D)."""
        state = np.asarray(observation["state"], dtype=np.float64)
        distance = state[..., self._columns["goal_distance"].start]
        arrived = distance <= 0.6 * self._goal_radius
        bearing, room = self._free_direction(state, distance)
        off_goal = bearing - state[..., self._columns["heading_error"].start]
        detour = np.cos(off_goal) < np.cos(_DETOUR)
        # Two who want to cross each other's way side by side would go on for ever: higher slots give way.
        yielding = 1.0 - _YIELD * detour * np.linspace(0.0, 1.0, len(self._robots))
        pace = np.clip(np.minimum(distance / _SLOW_DISTANCE, room) * yielding, 0.2, 1.0) * ~arrived
        action = np.zeros((*state.shape[:-1], self._action_size))
        for slot, robot in enumerate(self._robots):
            command = action[..., slot, :]
            turn = _TURN_GAIN * bearing[..., slot]
            ahead = np.maximum(np.cos(bearing[..., slot]), 0.0) ** 2
            if robot.drive == "omnidirectional":
                command[..., 0] = np.cos(bearing[..., slot]) * pace[..., slot]
                command[..., 1] = np.sin(bearing[..., slot]) * pace[..., slot]
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

    def _free_direction(
        self, state: NDArray[np.float64], distance: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns bearing (..., R) rad of the way to take, and the share (..., R) of the look-ahead free on it."""
        look_ahead = _LOOK_AHEAD * self._radius
        goal_bearing = state[..., self._columns["heading_error"].start]
        angle = goal_bearing[..., None] + _OFFSETS
        free = np.broadcast_to(np.minimum(look_ahead, distance)[..., None], angle.shape)
        for position, radius, present in self._discs(state):
            reach = (radius + self._radius[:, None] * (1 + _GAP))[..., None, :]
            ahead = (
                np.cos(angle)[..., None] * position[..., None, :, 0]
                + np.sin(angle)[..., None] * position[..., None, :, 1]
            )
            aside = (
                np.cos(angle)[..., None] * position[..., None, :, 1]
                - np.sin(angle)[..., None] * position[..., None, :, 0]
            )
            hit = present[..., None, :] & (ahead > 0) & (np.abs(aside) < reach)
            entry = ahead - np.sqrt(np.maximum(reach**2 - aside**2, 0.0))
            free = np.minimum(free, np.min(np.where(hit, np.maximum(entry, 0.0), np.inf), axis=-1))
        share = free / np.minimum(look_ahead, distance)[..., None]
        turn = np.abs(np.arctan2(np.sin(angle), np.cos(angle)))
        cost = np.abs(_OFFSETS) + _BLOCKED_COST * (1 - share) + _TURN_COST * turn
        best = np.argmin(cost, axis=-1)[..., None]
        bearing = np.take_along_axis(angle, best, axis=-1)[..., 0]
        return np.arctan2(np.sin(bearing), np.cos(bearing)), np.take_along_axis(share, best, axis=-1)[..., 0]

    def _discs(
        self, state: NDArray[np.float64]
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]]:
        """Position (..., k, 2), radius (..., k) and presence (..., k) of what is around, now and a moment later."""
        own = state[..., self._columns["velocity"]][..., None, :2]
        for name in ("robots", "obstacles"):
            if name in self._columns:
                block = state[..., self._columns[name]]
                near = block.reshape(*block.shape[:-1], -1, NEIGHBOR_SIZE)
                present = near[..., 5] > 0
                yield near[..., :2], near[..., 4], present
                if name == "robots":
                    yield near[..., :2] + _FORESIGHT * (near[..., 2:4] + own), near[..., 4], present
