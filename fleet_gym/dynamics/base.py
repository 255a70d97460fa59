"""The protocol of dynamics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.state import FleetState, WorldSample


@dataclass(frozen=True)
class Moves:
    """Motion of robots that follow routes, planned for one control step.

    Attributes:
        moves: (E, R, 8), see `fleet_gym.dynamics.route_kernel.MOVE_COLUMNS`.
        follows: (E, R) bool, whose command is not looked at.
        blocked: (E, R) bool, written: who was stopped by contact in the step.
    """

    moves: NDArray[np.float64]
    follows: NDArray[np.bool_]
    blocked: NDArray[np.bool_]


class Dynamics(Protocol):
    """Moves the robots of E worlds. The only writer of its `state`; knows no task, camera or episode.

    Attributes:
        state: written in place; never rebound.
        command_limits: (R, A) float64, largest magnitude of each command channel of each robot, 0 for channels a
            robot does not have. SI units: m/s, rad/s, rad.
    """

    state: FleetState
    command_limits: NDArray[np.float64]

    def step(self, commands: NDArray[np.float64], active: NDArray[np.bool_], moves: Moves | None = None) -> None:
        """Advances the active worlds by one control step.

        Args:
            commands: (E, R, A) float64, finite, SI units, within `command_limits`.
            active: (E,) bool; the other worlds stay as they are, bit for bit.
            moves: planned motion of robots that follow routes; kinematic dynamics only.
        """
        ...

    def reset(self, worlds: NDArray[np.intp], sample: WorldSample) -> None:
        """Places the given worlds as `sample` says: at rest, no contacts, no memory of what was before.

        Args:
            worlds: (n,) indices.
            sample: n rows, in the order of `worlds`.
        """
        ...

    def save(self, worlds: NDArray[np.intp]) -> Any:
        """Returns an opaque copy of the given worlds, for `restore`."""
        ...

    def restore(self, worlds: NDArray[np.intp], saved: Any) -> None:
        """Brings the given worlds back to what `save` returned."""
        ...

    def contacts(self, world: int) -> NDArray[np.int64]:
        """Returns who touched whom in the last step: (n, 2) robots (i, j), i < j, and robots and bodies (i, R + b)."""
        ...

    def adopt(self, old: Any, robots: NDArray[np.intp], bodies: NDArray[np.intp]) -> None:
        """Takes over velocities and contacts of the one world of other dynamics of the same kind.

        Poses have been placed by `reset` before.

        Args:
            old: the other dynamics.
            robots: (R,) which of its robots each robot was, -1 for new ones.
            bodies: (B,) the same for bodies.
        """
        ...

    def close(self) -> None:
        """Frees what it holds; calling it again does nothing."""
        ...
