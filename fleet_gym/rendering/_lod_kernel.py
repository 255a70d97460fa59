"""The compiled loop of `fleet_gym.rendering.lod`: distances from points to triangles."""
# Compiled functions carry no annotations: numba derives the types, and mypy has nothing to check in them.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from fleet_gym._numba import compiled_like_numpy
from fleet_gym._numba_intrinsics import det2, dot3, maximum, minimum, number, select


@compiled_like_numpy
def farthest_distance(points, corners):
    """Largest of the distances from each point (P, 3) to the nearest triangle (F, 3, 3), both flat, m.

    Closest point on a triangle after Ericson, Real-Time Collision Detection (2005), section 5.1.5.
    """
    worst = 0.0
    for p in range(len(points) // 3):
        x, y, z = number(points, p, 3, 0), number(points, p, 3, 1), number(points, p, 3, 2)
        best = np.inf
        for f in range(len(corners) // 9):
            ax, ay, az = number(corners, f, 9, 0), number(corners, f, 9, 1), number(corners, f, 9, 2)
            bx, by, bz = number(corners, f, 9, 3) - ax, number(corners, f, 9, 4) - ay, number(corners, f, 9, 5) - az
            cx, cy, cz = number(corners, f, 9, 6) - ax, number(corners, f, 9, 7) - ay, number(corners, f, 9, 8) - az
            px, py, pz = x - ax, y - ay, z - az
            d1, d2 = dot3(bx, by, bz, px, py, pz), dot3(cx, cy, cz, px, py, pz)
            bc = dot3(bx, by, bz, cx, cy, cz)
            d3, d4 = d1 - dot3(bx, by, bz, bx, by, bz), d2 - bc
            d5, d6 = d1 - bc, d2 - dot3(cx, cy, cz, cx, cy, cz)
            va, vb, vc = det2(d3, d5, d4, d6), det2(d5, d1, d6, d2), det2(d1, d3, d2, d4)
            if d1 <= 0.0 and d2 <= 0.0:
                s, t = 0.0, 0.0
            elif d3 >= 0.0 and d4 <= d3:
                s, t = 1.0, 0.0
            elif d6 >= 0.0 and d5 <= d6:
                s, t = 0.0, 1.0
            elif vc <= 0.0 and d1 >= 0.0 and d3 <= 0.0:
                s, t = d1 / (d1 - d3), 0.0
            elif vb <= 0.0 and d2 >= 0.0 and d6 <= 0.0:
                s, t = 0.0, d2 / (d2 - d6)
            elif va <= 0.0 and d4 - d3 >= 0.0 and d5 - d6 >= 0.0:
                t = (d4 - d3) / ((d4 - d3) + (d5 - d6))
                s = 1.0 - t
            else:
                total = va + vb + vc
                s, t = vb / total, vc / total
            dx, dy, dz = px - s * bx - t * cx, py - s * by - t * cy, pz - s * bz - t * cz
            best = minimum(best, dot3(dx, dy, dz, dx, dy, dz))
            if best <= worst:  # this point will not be the farthest
                break
        worst = select(best < np.inf, maximum(worst, best), worst)
    return math.sqrt(worst)
