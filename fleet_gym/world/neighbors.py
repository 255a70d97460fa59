"""Who is near whom: shared by collisions, observations and sensors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled


@compiled
def nearest_targets(
    position: NDArray[np.float64],
    targets: NDArray[np.float64],
    radius: NDArray[np.float64],
    active: NDArray[np.bool_],
    exclude_self: bool,
    out: NDArray[np.int64],
) -> None:
    """Finds the k targets whose edges are nearest to each robot's centre, nearest first, ties by index.

    Args:
        position: (E, R, 3) m, robots.
        targets: (E, M, 3) m; only x and y count.
        radius: (M,) m, of the targets.
        active: (E, M), inactive targets are passed over.
        exclude_self: the targets are the robots themselves.
        out: (E, R, k), filled with target indices, -1 where there are fewer than k.
    """
    num_envs, num_robots, k = out.shape
    num_targets = targets.shape[1]
    if k == 0:
        return
    gaps = np.empty(k)
    for e in range(num_envs):
        for i in range(num_robots):
            found = 0
            for j in range(num_targets):
                if not active[e, j] or (exclude_self and i == j):
                    continue
                dx = targets[e, j, 0] - position[e, i, 0]
                dy = targets[e, j, 1] - position[e, i, 1]
                gap = np.sqrt(dx * dx + dy * dy) - radius[j]
                if found == k and gap >= gaps[k - 1]:
                    continue
                slot = found if found < k else k - 1
                while slot > 0 and gaps[slot - 1] > gap:
                    gaps[slot] = gaps[slot - 1]
                    out[e, i, slot] = out[e, i, slot - 1]
                    slot -= 1
                gaps[slot] = gap
                out[e, i, slot] = j
                if found < k:
                    found += 1
            for slot in range(found, k):
                out[e, i, slot] = -1


@compiled
def candidate_pairs(
    position: NDArray[np.float64], reach: NDArray[np.float64], active: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Lists the pairs of active robots of one world whose discs of radius `reach` overlap, in order of (i, j).

    Args:
        position: (R, 2) m.
        reach: (R,) m.
        active: (R,).

    Returns:
        (n, 2) int64 with i < j in each row.
    """
    num_robots = position.shape[0]
    pairs = np.empty((max(16, 4 * num_robots), 2), dtype=np.int64)
    count = 0
    for i in range(num_robots):
        if not active[i]:
            continue
        for j in range(i + 1, num_robots):
            if not active[j]:
                continue
            dx = position[j, 0] - position[i, 0]
            dy = position[j, 1] - position[i, 1]
            span = reach[i] + reach[j]
            if dx * dx + dy * dy > span * span:
                continue
            if count == pairs.shape[0]:
                grown = np.empty((2 * count, 2), dtype=np.int64)
                for row in range(count):  # a slice assignment would compile numba's error messages for seconds
                    grown[row, 0], grown[row, 1] = pairs[row, 0], pairs[row, 1]
                pairs = grown
            pairs[count, 0] = i
            pairs[count, 1] = j
            count += 1
    return pairs[:count]
