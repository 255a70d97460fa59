"""Who is near whom: shared by collisions, observations and sensors.

Few targets are compared one by one. Many are sorted into the cells of a square grid first, so that the cost grows with
their number and not with its square; the answer is the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy

#: From this many targets on a grid pays.
GRID_FROM = 48
#: Up to so many rings of cells around a robot are looked at as a whole, then one after the other.
MAX_RING = 3
#: Columns of a grid's header: x and y of its corner, cell size, columns, rows.
_X, _Y, _CELL, _COLUMNS, _ROWS = range(5)
#: Bits of the largest finite float64: of no target.
_FAR = 0x7FEFFFFFFFFFFFFF


@compiled_inner
def build_grid(
    position: NDArray[np.float64],
    active: NDArray[np.bool_],
    cell: float,
    per_cell: float,
    header: NDArray[np.float64],
    cell_of: NDArray[np.int64],
    start: NDArray[np.int64],
    order: NDArray[np.int64],
) -> None:
    """Sorts active points into square cells, by counting; within a cell they keep their order. Others are left out.

    Args:
        position: (M, >= 2) m.
        active: (M,).
        cell: smallest side of a cell, m.
        per_cell: how many points a cell should hold on average, if they spread evenly.
        header: (5,), set: corner x, y, cell side (m), columns, rows.
        cell_of: (M,), set: each point's cell, -1 for those left out.
        start: (>= M + 2,), set: where each cell's points begin in `order`.
        order: (M,), set: indices of active points, cell by cell.
    """
    low_x, low_y, high_x, high_y = np.inf, np.inf, -np.inf, -np.inf
    count = 0
    for m in range(position.shape[0]):
        cell_of[m] = -1
        x, y = position[m, 0], position[m, 1]
        if active[m] and abs(x + y) < np.inf:
            cell_of[m] = 0
            count += 1
            low_x, high_x = min(low_x, x), max(high_x, x)
            low_y, high_y = min(low_y, y), max(high_y, y)
    if count == 0:
        low_x = low_y = high_x = high_y = 0.0
    width, height = high_x - low_x, high_y - low_y
    side = max(cell, np.sqrt(width * height * per_cell / max(count, 1)), 1e-9)
    # One that is far away makes cells larger, not more.
    while (width // side + 1) * (height // side + 1) > max(count, 1):
        side *= 1.25
    columns, rows = int(width // side) + 1, int(height // side) + 1
    header[_X], header[_Y], header[_CELL], header[_COLUMNS], header[_ROWS] = low_x, low_y, side, columns, rows
    for c in range(columns * rows + 1):
        start[c] = 0
    scale = 1.0 / side
    for m in range(position.shape[0]):
        if cell_of[m] == 0:
            column = min(int((position[m, 0] - low_x) * scale), columns - 1)
            row = min(int((position[m, 1] - low_y) * scale), rows - 1)
            cell_of[m] = row * columns + column
            start[cell_of[m] + 1] += 1
    for c in range(columns * rows):
        start[c + 1] += start[c]
    for m in range(position.shape[0] - 1, -1, -1):
        if cell_of[m] >= 0:
            # Filling from the back moves each cell's end down to its beginning.
            c = cell_of[m] + 1
            start[c] -= 1
            order[start[c]] = m
    # `start` was shifted by one cell while filling.
    for c in range(columns * rows):
        start[c] = start[c + 1]
    start[columns * rows] = count


@compiled_inner
def _insert(gap: float, target: int, gaps: NDArray[np.float64], nearest: NDArray[np.int64]) -> None:
    """Keeps the nearest few sorted by gap, then by index; empty places have an infinite gap."""
    slot = nearest.shape[0] - 1
    if gap > gaps[slot] or (gap == gaps[slot] and target > nearest[slot]):
        return
    while slot > 0 and (gaps[slot - 1] > gap or (gaps[slot - 1] == gap and nearest[slot - 1] > target)):
        gaps[slot], nearest[slot] = gaps[slot - 1], nearest[slot - 1]
        slot -= 1
    gaps[slot], nearest[slot] = gap, target


# Arrays are handed on as few as possible: each costs a call seven words.
@compiled_inner
def _nearest_in_stretch(
    px: float,
    py: float,
    first: int,
    last: int,
    itself: int,
    table: NDArray[np.float64],
    gaps: NDArray[np.float64],
    nearest: NDArray[np.int64],
) -> None:
    """Looks at the columns `first` to `last` of a table of targets: x, y, radius (m), index."""
    furthest = nearest.shape[0] - 1
    for n in range(first, last):
        dx, dy = table[0, n] - px, table[1, n] - py
        gap = np.sqrt(dx * dx + dy * dy) - table[2, n]
        target = int(table[3, n])
        if gap <= gaps[furthest] and target != itself:
            _insert(gap, target, gaps, nearest)


@compiled_inner
def _nearest_in_grid(
    px: float,
    py: float,
    itself: int,
    table: NDArray[np.float64],
    widest: float,
    header: NDArray[np.float64],
    start: NDArray[np.int64],
    gaps: NDArray[np.float64],
    nearest: NDArray[np.int64],
) -> None:
    """Looks at the cells around a point, ring by ring, until no further cell can hold a nearer target."""
    columns, rows, cell = int(header[_COLUMNS]), int(header[_ROWS]), header[_CELL]
    # Not clamped: rings around a point outside the grid reach it in time.
    column, row = int(np.floor((px - header[_X]) / cell)), int(np.floor((py - header[_Y]) / cell))
    furthest = max(max(column, columns - 1 - column), max(row, rows - 1 - row))
    # Skips rings that are all outside.
    ring = max(1, max(max(-column, column - columns + 1), max(-row, row - rows + 1)))
    inside_x, inside_y = px - header[_X] - column * cell, py - header[_Y] - row * cell
    border = min(min(inside_x, cell - inside_x), min(inside_y, cell - inside_y))
    while True:
        left, right = max(column - ring, 0), min(column + ring, columns - 1)
        for r in range(max(row - ring, 0), min(row + ring, rows - 1) + 1):
            # The cells of a row lie side by side, and so do their targets. The first ring brings its middle along.
            if (ring == 1 or r == row - ring or r == row + ring) and left <= right:
                first, last = start[r * columns + left], start[r * columns + right + 1]
                _nearest_in_stretch(px, py, first, last, itself, table, gaps, nearest)
                continue
            for c in (column - ring, column + ring):
                if 0 <= c < columns:
                    first, last = start[r * columns + c], start[r * columns + c + 1]
                    _nearest_in_stretch(px, py, first, last, itself, table, gaps, nearest)
        if ring >= furthest or gaps[nearest.shape[0] - 1] < ring * cell + border - widest:
            break
        ring += 1


@compiled_like_numpy
def nearest_targets(
    position: NDArray[np.float64],
    targets: NDArray[np.float64],
    radius: NDArray[np.float64],
    active: NDArray[np.bool_],
    exclude_self: bool,
    out: NDArray[np.int64],
) -> None:
    """Finds the k targets whose edges are nearest to each robot's centre, nearest first, ties by index.

    For k <= 4, gaps that differ by less than their 2^-30th part are ties.

    Args:
        position: (E, R, 3) m, robots.
        targets: (E, >= M, 3) m; only x and y of the first M count.
        radius: (M,) m, of the targets.
        active: (E, >= M), inactive targets are passed over.
        exclude_self: the targets are the robots themselves.
        out: (E, R, k), filled with target indices, -1 where there are fewer than k.
    """
    num_envs, num_robots, k = out.shape
    num_targets = radius.shape[0]
    if k == 0:
        return
    gaps, nearest, few = np.empty(k), np.empty(k, dtype=np.int64), np.empty(4, dtype=np.int64)
    table, header = np.empty((4, num_targets)), np.empty(5)
    cell_of, order = np.empty(num_targets, dtype=np.int64), np.empty(num_targets, dtype=np.int64)
    start = np.empty(num_targets + 2, dtype=np.int64)
    # Positive floats are ordered as their bits are; the lowest bits give way to the target's index.
    scratch = np.empty(max(num_targets, 1))
    bits = scratch.view(np.int64)
    index_bits = 1
    while index_bits < num_targets:
        index_bits *= 2
    index_bits -= 1
    widest = 0.0
    for j in range(num_targets):
        widest = max(widest, radius[j])
    use_grid = num_targets >= GRID_FROM
    # Indices of those looked at: without a grid all of them, in their order.
    near = np.empty(num_targets, dtype=np.int64) if use_grid else order
    columns, rows, cell = 1, 1, np.inf
    for e in range(num_envs):
        count = 0
        if use_grid:
            build_grid(targets[e, :num_targets], active[e], 0.0, 1.25, header, cell_of, start, order)
            columns, rows, cell = int(header[_COLUMNS]), int(header[_ROWS]), header[_CELL]
            count = start[columns * rows]
        else:
            for j in range(num_targets):
                if active[e, j]:
                    order[count] = j
                    count += 1
        for n in range(count):
            j = order[n]
            table[0, n], table[1, n], table[2, n], table[3, n] = targets[e, j, 0], targets[e, j, 1], radius[j], j
        for i in range(num_robots):
            px, py = position[e, i, 0], position[e, i, 1]
            itself = i if exclude_self else -1
            if not abs(px + py) < np.inf:
                for slot in range(k):
                    out[e, i, slot] = -1
                continue
            column, row, reach = 0, 0, np.inf
            if use_grid:
                column, row = int(np.floor((px - header[_X]) / cell)), int(np.floor((py - header[_Y]) / cell))
                inside_x, inside_y = px - header[_X] - column * cell, py - header[_Y] - row * cell
                # Everything nearer than this lies in the cell or its neighbours.
                reach = cell + min(min(inside_x, cell - inside_x), min(inside_y, cell - inside_y)) - widest
            ring, is_found = 1, False
            while k <= 4 and ring <= MAX_RING and not is_found and -1 <= column <= columns and -1 <= row <= rows:
                left, right = max(column - ring, 0), min(column + ring, columns - 1)
                total = 0
                if use_grid:
                    for r in range(max(row - ring, 0), min(row + ring, rows - 1) + 1):
                        first, last = start[r * columns + left], start[r * columns + right + 1]
                        for n in range(first, last):
                            dx, dy = table[0, n] - px, table[1, n] - py
                            scratch[total + n - first] = np.sqrt(dx * dx + dy * dy) - table[2, n] + widest
                            near[total + n - first] = order[n]
                        total += last - first
                else:
                    total = count
                    for n in range(count):
                        dx, dy = table[0, n] - px, table[1, n] - py
                        scratch[n] = np.sqrt(dx * dx + dy * dy) - table[2, n] + widest
                g0, g1, g2, g3 = _FAR, _FAR, _FAR, _FAR
                for n in range(total):
                    # Minima and maxima instead of branches, which random gaps mispredict.
                    g = (bits[n] & ~index_bits) | near[n]
                    if near[n] == itself:
                        g = _FAR
                    g0, g = min(g0, g), max(g0, g)
                    g1, g = min(g1, g), max(g1, g)
                    g2, g = min(g2, g), max(g2, g)
                    g3 = min(g3, g)
                few[0], few[1], few[2], few[3] = g0, g1, g2, g3
                bits[0] = few[k - 1] & ~index_bits
                is_found = not use_grid or scratch[0] - widest < reach
                ring, reach = ring + 1, reach + cell
            if is_found:
                for slot in range(k):
                    out[e, i, slot] = few[slot] & index_bits if few[slot] < _FAR else -1
                continue
            for slot in range(k):
                gaps[slot], nearest[slot] = np.inf, -1
            if use_grid:
                _nearest_in_grid(px, py, itself, table, widest, header, start, gaps, nearest)
            else:
                _nearest_in_stretch(px, py, 0, count, itself, table, gaps, nearest)
            for slot in range(k):
                out[e, i, slot] = nearest[slot]


@compiled_like_numpy
def with_rows(pairs: NDArray[np.int64], count: int, more: int) -> NDArray[np.int64]:
    """Returns `pairs`, or a longer copy if it has no `more` rows after the first `count`."""
    if count + more <= pairs.shape[0]:
        return pairs
    grown = np.empty((2 * (count + more), 2), dtype=np.int64)
    for row in range(count):  # a slice assignment would compile numba's error messages for seconds
        grown[row, 0], grown[row, 1] = pairs[row, 0], pairs[row, 1]
    return grown


@compiled_like_numpy
def candidate_pairs(
    position: NDArray[np.float64], reach: NDArray[np.float64], active: NDArray[np.bool_], pairs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Lists the pairs of active robots of one world whose discs of radius `reach` overlap.

    Args:
        position: (R, 2) m.
        reach: (R,) m.
        active: (R,).
        pairs: (>= 1, 2), overwritten.

    Returns:
        `pairs` or a longer array, and the number of rows in use; i < j in each.
    """
    num_robots = position.shape[0]
    if num_robots >= GRID_FROM:
        return _candidate_pairs_in_grid(position, reach, active, pairs)
    count = 0
    for i in range(num_robots):
        if not active[i]:
            continue
        pairs = with_rows(pairs, count, num_robots)
        x, y, own = position[i, 0], position[i, 1], reach[i]
        for j in range(i + 1, num_robots):
            dx, dy, span = position[j, 0] - x, position[j, 1] - y, own + reach[j]
            if dx * dx + dy * dy <= span * span and active[j]:
                pairs[count, 0], pairs[count, 1] = i, j
                count += 1
    return pairs, count


@compiled_inner
def _candidate_pairs_in_grid(
    position: NDArray[np.float64], reach: NDArray[np.float64], active: NDArray[np.bool_], pairs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    num_robots = position.shape[0]
    widest = 0.0
    for i in range(num_robots):
        if active[i]:
            widest = max(widest, reach[i])
    header = np.empty(5)
    cell_of, order = np.empty(num_robots, dtype=np.int64), np.empty(num_robots, dtype=np.int64)
    start = np.empty(num_robots + 2, dtype=np.int64)
    build_grid(position, active, 2 * widest, 1.0, header, cell_of, start, order)
    columns, rows = int(header[_COLUMNS]), int(header[_ROWS])
    # In the order of cells: whoever is near is near in memory, too.
    x, y, reaches = np.empty(num_robots), np.empty(num_robots), np.empty(num_robots)
    for n in range(start[columns * rows]):
        i = order[n]
        x[n], y[n], reaches[n] = position[i, 0], position[i, 1], reach[i]
    count = 0
    for row in range(rows):
        for column in range(columns):
            cell = row * columns + column
            left, right = cell - min(column, 1), cell + min(columns - 1 - column, 1)
            # The cells of a row lie side by side, and so do their points: half of the nine cells are two stretches.
            end = start[right + 1]
            above, above_end = 0, 0
            if row + 1 < rows:
                above, above_end = start[left + columns], start[right + columns + 1]
            for n in range(start[cell], start[cell + 1]):
                pairs = with_rows(pairs, count, end - n + above_end - above)
                for first, last in ((n + 1, end), (above, above_end)):
                    for m in range(first, last):
                        dx, dy, span = x[m] - x[n], y[m] - y[n], reaches[n] + reaches[m]
                        if dx * dx + dy * dy <= span * span:
                            i, j = order[n], order[m]
                            pairs[count, 0], pairs[count, 1] = min(i, j), max(i, j)
                            count += 1
    return pairs, count
