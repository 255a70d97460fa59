"""The compiled loop of `fleet_gym.rendering.lod`: distances from points to triangles."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_like_numpy


@compiled_like_numpy
def farthest_distance(points: NDArray[np.float64], corners: NDArray[np.float64]) -> float:
    """Largest of the distances from each point (P, 3) to the nearest triangle (F, 3, 3), m.

    Closest point on a triangle after Ericson, Real-Time Collision Detection (2005), section 5.1.5.
    """
    worst = 0.0
    for p in range(len(points)):
        x, y, z = points[p, 0], points[p, 1], points[p, 2]
        best = np.inf
        for f in range(len(corners)):
            ax, ay, az = corners[f, 0, 0], corners[f, 0, 1], corners[f, 0, 2]
            bx, by, bz = corners[f, 1, 0] - ax, corners[f, 1, 1] - ay, corners[f, 1, 2] - az
            cx, cy, cz = corners[f, 2, 0] - ax, corners[f, 2, 1] - ay, corners[f, 2, 2] - az
            px, py, pz = x - ax, y - ay, z - az
            d1, d2 = bx * px + by * py + bz * pz, cx * px + cy * py + cz * pz
            bb, bc, cc = bx * bx + by * by + bz * bz, bx * cx + by * cy + bz * cz, cx * cx + cy * cy + cz * cz
            d3, d4, d5, d6 = d1 - bb, d2 - bc, d1 - bc, d2 - cc
            va, vb, vc = d3 * d6 - d5 * d4, d5 * d2 - d1 * d6, d1 * d4 - d3 * d2
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
            distance = dx * dx + dy * dy + dz * dz
            if distance < best:
                best = distance
        if best > worst and best < np.inf:
            worst = best
    return math.sqrt(worst)
