"""Obstacles sorted into square cells, so that what a robot costs does not depend on how many there are elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy

#: From this many obstacles on a grid pays.
GRID_FROM = 32
CYLINDER, BOX = 0, 1
#: What the kernels know of an obstacle: kind, centre (m), cosine and sine of its yaw, half length or radius and half
#: width (m), radius of the circle around it (m), its lowest and highest point (m).
OBSTACLE_COLUMNS = KIND, X, Y, COS, SIN, HALF_X, HALF_Y, BOUND, LOW, HIGH = tuple(range(10))
#: Columns of a grid's header: x and y of its corner, cell size (m), columns, rows.
_CORNER_X, _CORNER_Y, _CELL, GRID_COLUMNS, _ROWS = range(5)


class Obstacles(NamedTuple):
    """Obstacles of E worlds and the cells they reach into.

    Attributes:
        rows: (E, B, 10), see `OBSTACLE_COLUMNS`.
        active: (E, B) bool.
        header: (E, 5) corner (m), cell side (m), columns and rows; no columns: no grid.
        start: (E, B + 2), where each cell's obstacles begin in `entries`.
        entries: (E, n), the obstacles of one cell after the other.
    """

    rows: NDArray[np.float64]
    active: NDArray[np.bool_]
    header: NDArray[np.float64]
    start: NDArray[np.int64]
    entries: NDArray[np.int64]

    @classmethod
    def allocate(cls, num_envs: int, count: int) -> Obstacles:
        """Room for `count` obstacles in each world, none of them active."""
        return cls(
            rows=np.zeros((num_envs, count, len(OBSTACLE_COLUMNS))),
            active=np.zeros((num_envs, count), dtype=np.bool_),
            header=np.zeros((num_envs, 5)),
            start=np.zeros((num_envs, count + 2), dtype=np.int64),
            entries=np.zeros((num_envs, 4 * count if count >= GRID_FROM else 0), dtype=np.int64),
        )

    def indexed(self, worlds: NDArray[np.intp]) -> Obstacles:
        """Sorts the obstacles of some worlds into cells, in place where there is room; returns what to use from now."""
        table = self
        if table.rows.shape[1] >= GRID_FROM:
            while (needed := index_worlds(table, worlds)) > table.entries.shape[1]:
                grown = np.zeros((len(table.rows), 2 * needed), dtype=np.int64)
                grown[:, : table.entries.shape[1]] = table.entries
                table = table._replace(entries=grown)
        return table


@compiled_inner
def _extent(obstacle: NDArray[np.float64]) -> tuple[float, float]:
    """Half sides of the upright rectangle around an obstacle, m."""
    if obstacle[KIND] == CYLINDER:
        return obstacle[HALF_X], obstacle[HALF_X]
    cos, sin = abs(obstacle[COS]), abs(obstacle[SIN])
    return cos * obstacle[HALF_X] + sin * obstacle[HALF_Y], sin * obstacle[HALF_X] + cos * obstacle[HALF_Y]


@compiled_inner
def touches_obstacle(x: float, y: float, obstacle: NDArray[np.float64], distance: float) -> bool:
    """Whether a point is within `distance` of an obstacle, m."""
    dx, dy = x - obstacle[X], y - obstacle[Y]
    if obstacle[KIND] == CYLINDER:
        distance += obstacle[HALF_X]
    else:
        cos, sin = obstacle[COS], obstacle[SIN]
        along, across = abs(cos * dx + sin * dy), abs(cos * dy - sin * dx)
        dx, dy = max(along - obstacle[HALF_X], 0.0), max(across - obstacle[HALF_Y], 0.0)
    return bool(dx * dx + dy * dy <= distance * distance)


@compiled_inner
def _lay_grid(obstacles: Obstacles, e: int) -> None:
    """Lays a grid with at most as many cells as there are obstacles over those of a world."""
    rows, header = obstacles.rows[e], obstacles.header[e]
    low_x, low_y, high_x, high_y = np.inf, np.inf, -np.inf, -np.inf
    count = 0
    for b in range(rows.shape[0]):
        if obstacles.active[e, b]:
            half_x, half_y = _extent(rows[b])
            low_x, high_x = min(low_x, rows[b, X] - half_x), max(high_x, rows[b, X] + half_x)
            low_y, high_y = min(low_y, rows[b, Y] - half_y), max(high_y, rows[b, Y] + half_y)
            count += 1
    if count == 0:
        low_x = low_y = high_x = high_y = 0.0
    width, height = high_x - low_x, high_y - low_y
    side = max(np.sqrt(width * height / max(count, 1)), max(width, height) / max(count, 1), 1e-6)
    while (width // side + 1) * (height // side + 1) > max(count, 1):
        side *= 1.25
    header[_CORNER_X], header[_CORNER_Y], header[_CELL] = low_x, low_y, side
    header[GRID_COLUMNS], header[_ROWS] = width // side + 1, height // side + 1


@compiled_like_numpy
def index_worlds(obstacles: Obstacles, worlds: NDArray[np.intp]) -> int:
    """Sorts the obstacles of some worlds into the cells they reach into.

    Args:
        obstacles: `header`, `start` and `entries` of the worlds are set.
        worlds: (n,).

    Returns:
        How many entries a world needs at most; with less room than that `entries` are incomplete.
    """
    needed = 0
    for e in worlds:
        _lay_grid(obstacles, e)
        rows, header, start, entries = obstacles.rows[e], obstacles.header[e], obstacles.start[e], obstacles.entries[e]
        columns, num_rows, side = int(header[GRID_COLUMNS]), int(header[_ROWS]), header[_CELL]
        for c in range(columns * num_rows + 1):
            start[c] = 0
        # Counts what each cell holds, then fills from the back, which moves each cell's end down to its beginning.
        for fill in (False, True):
            for b in range(rows.shape[0]):
                if not obstacles.active[e, b]:
                    continue
                half_x, half_y = _extent(rows[b])
                left = max(int((rows[b, X] - half_x - header[_CORNER_X]) / side), 0)
                right = min(int((rows[b, X] + half_x - header[_CORNER_X]) / side), columns - 1)
                low = max(int((rows[b, Y] - half_y - header[_CORNER_Y]) / side), 0)
                high = min(int((rows[b, Y] + half_y - header[_CORNER_Y]) / side), num_rows - 1)
                for row in range(low, high + 1):
                    for column in range(left, right + 1):
                        # Half a cell's diagonal, and something for rounding.
                        x = header[_CORNER_X] + (column + 0.5) * side
                        y = header[_CORNER_Y] + (row + 0.5) * side
                        if not touches_obstacle(x, y, rows[b], 0.7072 * side):
                            continue
                        cell = row * columns + column
                        if not fill:
                            start[cell] += 1
                        else:
                            start[cell] -= 1
                            if start[cell] < entries.shape[0]:
                                entries[start[cell]] = b
            if not fill:
                for c in range(columns * num_rows):
                    start[c + 1] += start[c]
        needed = max(needed, start[columns * num_rows])
    return needed


@compiled_inner
def rows_beside(header: NDArray[np.float64], y: float, reach: float) -> tuple[int, int]:
    """First and last row of the grid that a disc about a point with this y reaches into."""
    low = np.floor((y - reach - header[_CORNER_Y]) / header[_CELL])
    high = np.floor((y + reach - header[_CORNER_Y]) / header[_CELL])
    return int(min(max(low, 0.0), header[_ROWS])), int(max(min(high, header[_ROWS] - 1), -1.0))


@compiled_inner
def entries_beside(
    header: NDArray[np.float64], start: NDArray[np.int64], row: int, x: float, reach: float
) -> tuple[int, int]:
    """Where in `entries` the obstacles begin and end that a disc about a point with this x reaches in a row."""
    columns = header[GRID_COLUMNS]
    left = np.floor((x - reach - header[_CORNER_X]) / header[_CELL])
    right = np.floor((x + reach - header[_CORNER_X]) / header[_CELL])
    first = int(row * columns + min(max(left, 0.0), columns))
    last = int(row * columns + max(min(right, columns - 1.0), -1.0))
    # The cells of a row lie side by side, and so do their entries.
    return (start[first], start[last + 1]) if first <= last else (0, 0)
