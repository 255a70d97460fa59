"""The compiled loop of `fleet_gym.world.forward_kinematics` (apart, so that importing that module stays cheap)."""
# Compiled functions carry no annotations: numba derives the types, and mypy has nothing to check in them.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

from fleet_gym._numba import compiled_inner, compiled_like_numpy
from fleet_gym._numba_intrinsics import along, det2, dot3, dot_at, number, store, whole


@compiled_inner
def _root(position, orientation, row, out, frame):
    """Writes the frame of a root link."""
    x, y, z = number(orientation, row, 4, 0), number(orientation, row, 4, 1), number(orientation, row, 4, 2)
    w = number(orientation, row, 4, 3)
    store(out, frame, 12, 0, 1.0 - 2.0 * along(y * y, z, z))
    store(out, frame, 12, 1, 2.0 * det2(x, z, w, y))
    store(out, frame, 12, 2, 2.0 * along(x * z, y, w))
    store(out, frame, 12, 4, 2.0 * along(x * y, z, w))
    store(out, frame, 12, 5, 1.0 - 2.0 * along(x * x, z, z))
    store(out, frame, 12, 6, 2.0 * det2(y, x, w, z))
    store(out, frame, 12, 8, 2.0 * det2(x, y, w, z))
    store(out, frame, 12, 9, 2.0 * along(y * z, x, w))
    store(out, frame, 12, 10, 1.0 - 2.0 * along(x * x, y, y))
    for i in range(3):
        store(out, frame, 12, 4 * i + 3, number(position, row, 3, i))


@compiled_inner
def _rotate(axes, k, angle, out, frame):
    """Turns a frame's axes by `angle` about axis k, given in the frame (Rodrigues' formula), in place."""
    c, s = math.cos(angle), math.sin(angle)
    x, y, z = number(axes, k, 3, 0), number(axes, k, 3, 1), number(axes, k, 3, 2)
    t = 1.0 - c
    xy, xz, yz = x * y, x * z, y * z
    r00, r01, r02 = along(c, x * x, t), det2(xy, z, s, t), along(y * s, xz, t)
    r10, r11, r12 = along(z * s, xy, t), along(c, y * y, t), det2(yz, x, s, t)
    r20, r21, r22 = det2(xz, y, s, t), along(x * s, yz, t), along(c, z * z, t)
    for i in range(3):
        row = 3 * frame + i
        a, b, d = number(out, row, 4, 0), number(out, row, 4, 1), number(out, row, 4, 2)
        store(out, row, 4, 0, dot3(a, b, d, r00, r10, r20))
        store(out, row, 4, 1, dot3(a, b, d, r01, r11, r21))
        store(out, row, 4, 2, dot3(a, b, d, r02, r12, r22))


@compiled_like_numpy
def link_transforms(
    worlds, position, orientation, joint_position, offsets, parents, origins, axes, kinds, coordinates, num_joints, out
):
    """Fills `out` (n, F, 3, 4) with link-to-world transforms.

    The other arguments are the state's arrays and `FleetKinematics`'s tables; all but `worlds` and `offsets` are flat.
    """
    robots, frames = len(offsets) - 1, whole(offsets, 0, 0, len(offsets) - 1)
    for n in range(len(worlds)):
        for robot in range(robots):
            row = whole(worlds, 0, 0, n) * robots + robot
            first = whole(offsets, 0, 0, robot)
            for k in range(first, whole(offsets, 0, 1, robot + 1)):
                frame = n * frames + k
                parent = whole(parents, 0, 0, k)
                if parent < 0:
                    _root(position, orientation, row, out, frame)
                    continue
                above = 3 * (n * frames + first + parent)
                for i in range(3):
                    for j in range(4):
                        x, y, z = (
                            number(origins, k, 12, j),
                            number(origins, k, 12, j + 4),
                            number(origins, k, 12, j + 8),
                        )
                        store(out, frame, 12, 4 * i + j, dot_at(out, above, 4, 4 * i, x, y, z))
                    moved = number(out, frame, 12, 4 * i + 3) + number(out, above, 4, 4 * i + 3)
                    store(out, frame, 12, 4 * i + 3, moved)
                coordinate = whole(coordinates, 0, 0, k)
                if coordinate < 0:
                    continue
                q = number(joint_position, row, num_joints, coordinate)
                if whole(kinds, 0, 0, k) == 1:
                    _rotate(axes, k, q, out, frame)
                    continue
                x, y, z = number(axes, k, 3, 0), number(axes, k, 3, 1), number(axes, k, 3, 2)
                for i in range(3):
                    r = 3 * frame + i
                    slid = dot_at(out, r, 4, 0, x, y, z)
                    store(out, r, 4, 3, along(number(out, r, 4, 3), q, slid))
