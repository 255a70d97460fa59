"""Broad phase of collisions: who could touch whom during a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy
from fleet_gym.dynamics.obstacle_grid import (
    BOUND,
    GRID_COLUMNS,
    HIGH,
    LOW,
    X,
    Y,
    entries_beside,
    rows_beside,
    touches_obstacle,
)
from fleet_gym.world.neighbors import candidate_pairs, with_rows


@compiled_like_numpy
def find_candidates(
    position: NDArray[np.float64],
    reach: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    active: NDArray[np.bool_],
    obstacles: NDArray[np.float64],
    obstacle_active: NDArray[np.bool_],
    grid: NDArray[np.float64],
    cell_start: NDArray[np.int64],
    cell_entries: NDArray[np.int64],
    obstacle_margin: float,
    candidates: NDArray[np.int64],
) -> tuple[NDArray[np.int64], int, int]:
    """Lists who could touch whom during a step: pairs of robots (i, j), then of robots and obstacles (i, R + b).

    Args:
        position: (R, 2) m.
        reach: (R,) m, footprint, margin and length of way.
        low: (R,) m, each robot's lowest point.
        high: (R,) m, its highest one: who passes above somebody does not touch.
        active: (R,) who takes part.
        obstacles: (B, 10), as one world's in `fleet_gym.dynamics.obstacle_grid.Obstacles`, like the next four.
        obstacle_active: (B,).
        grid: (5,).
        cell_start: (B + 2,).
        cell_entries: (n,).
        obstacle_margin: m, added to obstacles.
        candidates: (>= 1, 2), overwritten.

    Returns:
        `candidates` or a longer array, the number of pairs of robots, and the number of all rows in use.
    """
    num_robots = position.shape[0]
    candidates, found = candidate_pairs(position, reach, active, candidates)
    num_pairs = 0
    for n in range(found):
        i, j = candidates[n, 0], candidates[n, 1]
        if low[i] <= high[j] and low[j] <= high[i]:
            candidates[num_pairs, 0], candidates[num_pairs, 1] = i, j
            num_pairs += 1
    count = num_pairs
    if obstacles.shape[0] == 0:
        return candidates, num_pairs, count
    if grid[GRID_COLUMNS] > 0.0:
        for i in range(num_robots):
            if active[i]:
                own = reach[i] + obstacle_margin
                candidates, count = _candidates_in_cells(
                    position[i, 0],
                    position[i, 1],
                    own,
                    low[i],
                    high[i],
                    obstacles,
                    grid,
                    cell_start,
                    cell_entries,
                    i,
                    num_robots,
                    candidates,
                    count,
                )
        return candidates, num_pairs, count
    for i in range(num_robots):
        if not active[i]:
            continue
        candidates = with_rows(candidates, count, obstacles.shape[0])
        x, y, own = position[i, 0], position[i, 1], reach[i] + obstacle_margin
        for b in range(obstacles.shape[0]):
            dx, dy, span = x - obstacles[b, X], y - obstacles[b, Y], own + obstacles[b, BOUND]
            if (
                dx * dx + dy * dy <= span * span
                and obstacle_active[b]
                and low[i] <= obstacles[b, HIGH]
                and obstacles[b, LOW] <= high[i]
            ):
                candidates[count, 0], candidates[count, 1] = i, num_robots + b
                count += 1
    return candidates, num_pairs, count


@compiled_inner
def _candidates_in_cells(
    x: float,
    y: float,
    reach: float,
    low: float,
    high: float,
    obstacles: NDArray[np.float64],
    grid: NDArray[np.float64],
    cell_start: NDArray[np.int64],
    cell_entries: NDArray[np.int64],
    robot: int,
    num_robots: int,
    candidates: NDArray[np.int64],
    count: int,
) -> tuple[NDArray[np.int64], int]:
    """Adds the obstacles that one robot may touch, as `find_candidates` does."""
    before = count
    lowest, highest = rows_beside(grid, y, reach)
    for row in range(lowest, highest + 1):
        first, last = entries_beside(grid, cell_start, row, x, reach)
        candidates = with_rows(candidates, count, last - first)
        for n in range(first, last):
            b = cell_entries[n]
            obstacle = obstacles[b]
            if low > obstacle[HIGH] or obstacle[LOW] > high or not touches_obstacle(x, y, obstacle, reach):
                continue
            is_new = True  # one that reaches into several cells is met in each
            for m in range(before, count):
                is_new &= candidates[m, 1] != num_robots + b
            if is_new:
                candidates[count, 0], candidates[count, 1] = robot, num_robots + b
                count += 1
    return candidates, count
