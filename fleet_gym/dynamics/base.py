"""The protocol of dynamics."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.state import FleetState, WorldSample


class Dynamics(Protocol):
    """Moves the robots of E worlds. The only writer of its `state`; knows no task, camera or episode.

    Attributes:
        state: written in place; never rebound.
        command_limits: (R, A) float64, largest magnitude of each command channel of each robot, 0 for channels a
            robot does not have. SI units: m/s, rad/s, rad.
    """

    state: FleetState
    command_limits: NDArray[np.float64]

    def step(self, commands: NDArray[np.float64], active: NDArray[np.bool_]) -> None:
        """Advances the active worlds by one control step.

        Args:
            commands: (E, R, A) float64, finite, SI units, within `command_limits`.
            active: (E,) bool; the other worlds stay as they are, bit for bit.
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

    def close(self) -> None:
        """Frees what it holds; calling it again does nothing."""
        ...
