"""Occupancy grids: occupied cells become as few boxes as a simple sweep finds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rectangles(occupied: ArrayLike) -> list[tuple[int, int, int, int]]:
    """Covers the True cells of a grid with disjoint rectangles.

    Runs of cells in a row that repeat in the rows after it become one rectangle.

    Args:
        occupied: (rows, columns) bool.

    Returns:
        (first row, first column, rows, columns) each.

    Raises:
        TypeError: when it is not bool.
        ValueError: when it is not two-dimensional.
    """
    grid = np.asarray(occupied)
    if grid.dtype != np.bool_:
        raise TypeError(f"occupied: expected a bool array, got {grid.dtype}")
    if grid.ndim != 2:
        raise ValueError(f"occupied: expected rows and columns, got shape {grid.shape}")
    done: list[tuple[int, int, int, int]] = []
    growing: dict[tuple[int, int], int] = {}
    for row in range(len(grid) + 1):
        runs = _runs(grid[row]) if row < len(grid) else []
        for run in [run for run in growing if run not in runs]:
            first = growing.pop(run)
            done.append((first, run[0], row - first, run[1] - run[0]))
        for run in runs:
            growing.setdefault(run, row)
    return sorted(done)


def _runs(cells: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], cells, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def occupied_pixels(path: str | os.PathLike[str], threshold: int) -> NDArray[np.bool_]:
    """Reads an image; pixels darker than `threshold` (0 to 255) are occupied, row 0 becomes the last row (+y).

    Images of 16 bits are brought to the same scale; what is transparent is free.

    Raises:
        ValueError: when it cannot be read, or its pixels are not whole numbers.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(Path(path)) as image:
            mode = image.mode
            if mode.startswith("I"):  # 16 bits; Pillow's own conversion cuts off what is above 255
                grey = np.asarray(image) / 257.0
            else:
                over = image.convert("RGBA")
                white = Image.new("RGBA", over.size, (255, 255, 255, 255))
                grey = np.asarray(Image.alpha_composite(white, over).convert("L"))
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError(f"image: expected a readable image file, got {os.fspath(path)!r} ({error})") from None
    if mode == "F":
        raise ValueError(f"image: expected whole grey values, got floats in {os.fspath(path)!r}")
    return np.asarray(grey[::-1] < threshold)
