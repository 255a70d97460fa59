"""The compiled loop of `fleet_gym.world.forward_kinematics` (apart, so that importing that module stays cheap)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy


@compiled_inner
def _root(position: NDArray[np.float64], q: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    x, y, z, w = q[0], q[1], q[2], q[3]
    out[0, 0] = 1.0 - 2.0 * (y * y + z * z)
    out[0, 1] = 2.0 * (x * y - z * w)
    out[0, 2] = 2.0 * (x * z + y * w)
    out[1, 0] = 2.0 * (x * y + z * w)
    out[1, 1] = 1.0 - 2.0 * (x * x + z * z)
    out[1, 2] = 2.0 * (y * z - x * w)
    out[2, 0] = 2.0 * (x * z - y * w)
    out[2, 1] = 2.0 * (y * z + x * w)
    out[2, 2] = 1.0 - 2.0 * (x * x + y * y)
    for i in range(3):
        out[i, 3] = position[i]


@compiled_inner
def _compose(left: NDArray[np.float64], right: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for i in range(3):
        for j in range(4):
            value = left[i, 0] * right[0, j] + left[i, 1] * right[1, j] + left[i, 2] * right[2, j]
            out[i, j] = value + left[i, 3] if j == 3 else value


@compiled_inner
def _rotate(axis: NDArray[np.float64], angle: float, frame: NDArray[np.float64]) -> None:
    """Turns a frame's axes by `angle` about `axis`, given in the frame (Rodrigues' formula), in place."""
    c, s = math.cos(angle), math.sin(angle)
    x, y, z = axis[0], axis[1], axis[2]
    t = 1.0 - c
    r00, r01, r02 = c + x * x * t, x * y * t - z * s, x * z * t + y * s
    r10, r11, r12 = y * x * t + z * s, c + y * y * t, y * z * t - x * s
    r20, r21, r22 = z * x * t - y * s, z * y * t + x * s, c + z * z * t
    for i in range(3):
        a, b, d = frame[i, 0], frame[i, 1], frame[i, 2]
        frame[i, 0] = a * r00 + b * r10 + d * r20
        frame[i, 1] = a * r01 + b * r11 + d * r21
        frame[i, 2] = a * r02 + b * r12 + d * r22


@compiled_like_numpy
def link_transforms(
    worlds: NDArray[np.int64],
    position: NDArray[np.float64],
    orientation: NDArray[np.float64],
    joint_position: NDArray[np.float64],
    offsets: NDArray[np.int64],
    parents: NDArray[np.int64],
    origins: NDArray[np.float64],
    axes: NDArray[np.float64],
    kinds: NDArray[np.int64],
    coordinates: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None:
    """Fills `out` (n, F, 3, 4) with link-to-world transforms; the other arguments are `FleetKinematics`'s tables."""
    for n in range(len(worlds)):
        world = worlds[n]
        for robot in range(len(offsets) - 1):
            first = offsets[robot]
            for k in range(first, offsets[robot + 1]):
                frame = out[n, k]
                if parents[k] < 0:
                    _root(position[world, robot], orientation[world, robot], frame)
                    continue
                _compose(out[n, first + parents[k]], origins[k], frame)
                if coordinates[k] < 0:
                    continue
                q = joint_position[world, robot, coordinates[k]]
                axis = axes[k]
                if kinds[k] == 1:
                    _rotate(axis, q, frame)
                else:
                    for i in range(3):
                        frame[i, 3] += q * (frame[i, 0] * axis[0] + frame[i, 1] * axis[1] + frame[i, 2] * axis[2])
