"""Between root link frames, which `FleetState` holds, and centre-of-mass frames, which PyBullet's bases move in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _cross(a: Array, b: Array) -> Array:
    # np.cross spends most of its time moving axes about.
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        out[..., i] = a[..., j] * b[..., k] - a[..., k] * b[..., j]
    return out


def rotate(orientation: Array, vector: Array) -> Array:
    """Rotates vectors (..., 3) by unit quaternions xyzw (..., 4)."""
    axis, w = orientation[..., :3], orientation[..., 3:]
    return np.asarray(vector + 2.0 * (w * _cross(axis, vector) + _cross(axis, _cross(axis, vector))))


def multiply(left: Array, right: Array) -> Array:
    """Product of quaternions xyzw (..., 4): the rotation `right`, then `left`."""
    out = np.empty(np.broadcast_shapes(left.shape, right.shape))
    a, b = left[..., :3], right[..., :3]
    out[..., :3] = left[..., 3:] * b + right[..., 3:] * a + _cross(a, b)
    out[..., 3] = left[..., 3] * right[..., 3] - a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1] - a[..., 2] * b[..., 2]
    return out


def root_to_mass_centre(
    position: Array, orientation: Array, local_position: Array, local_orientation: Array
) -> tuple[Array, Array]:
    """Turns root link poses into centre-of-mass poses.

    Args:
        position: (..., 3) m, world frame.
        orientation: (..., 4) xyzw.
        local_position: (..., 3) centre of mass in the root link's frame, m (``getDynamicsInfo(...)[3]``).
        local_orientation: (..., 4) principal axes in the root link's frame (``getDynamicsInfo(...)[4]``).
    """
    return position + rotate(orientation, local_position), multiply(orientation, local_orientation)


def mass_centre_to_root(
    position: Array, orientation: Array, velocity: Array, turn: Array, local_position: Array, local_orientation: Array
) -> tuple[Array, Array, Array]:
    """Turns centre-of-mass motion into that of the root link.

    Args:
        position: (..., 3) m, world frame.
        orientation: (..., 4) xyzw.
        velocity: (..., 3) m/s, of the centre of mass.
        turn: (..., 3) rad/s, world axes.
        local_position: as for `root_to_mass_centre`.
        local_orientation: as for `root_to_mass_centre`.

    Returns:
        Position, orientation and linear velocity of the root link's origin.
    """
    conjugate = local_orientation * np.array([-1.0, -1.0, -1.0, 1.0])
    root_orientation = multiply(orientation, conjugate)
    lever = -rotate(root_orientation, local_position)
    return position + lever, root_orientation, velocity + _cross(turn, lever)
