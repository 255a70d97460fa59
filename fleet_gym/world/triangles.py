"""Geometry given as arrays: meshes and terrains that are in no file."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import finite_floats

#: PyBullet takes no more from an array.
MAX_VERTICES, MAX_TRIANGLES = 131_072, 174_762
#: Farthest that a vertex may be from the origin along an axis, m: float32, which is drawn from, has 6 cm there.
MAX_COORDINATE = 1e6
#: Least length of the cross product of two sides, m^2, for a triangle to have an area.
_FLAT = 1e-20


class Triangles:
    """Immutable triangles; equal ones compare and hash equal.

    Args:
        vertices: (V, 3) m.
        indices: (F, 3) integers into `vertices`, counter-clockwise seen from outside.

    Attributes:
        vertices: (V, 3) float64, m.
        indices: (F, 3) int32.

    Raises:
        TypeError: `indices` are not integers.
        ValueError: a shape does not fit, a vertex is not finite or farther than 1,000 km from the origin, an index is
            out of range, no triangle has an area in float32, or there are more than PyBullet takes (131,072 vertices,
            174,762 triangles).
    """

    def __init__(self, vertices: ArrayLike, indices: ArrayLike) -> None:
        points, faces = _array("vertices", vertices, "iuf"), _array("indices", indices, "iu")
        for name, array, most in (("vertices", points, MAX_VERTICES), ("indices", faces, MAX_TRIANGLES)):
            if array.ndim != 2 or array.shape[1] != 3 or not 1 <= len(array) <= most:
                raise ValueError(f"{name}: expected shape (n, 3) with n in 1..{most}, got {array.shape}")
        if not np.isfinite(points).all():
            row = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
            raise ValueError(f"vertices: expected finite numbers, got {points[row].tolist()} in row {row}")
        low, high = points.min(), points.max()
        if low < -MAX_COORDINATE or high > MAX_COORDINATE:
            raise ValueError(f"vertices: expected m within +-{MAX_COORDINATE:g}, got {low}..{high}")
        if faces.min() < 0 or faces.max() >= len(points):
            raise ValueError(f"indices: expected 0..{len(points) - 1}, got {faces.min()}..{faces.max()}")
        self.vertices: NDArray[np.float64] = points.astype(np.float64)
        self.indices: NDArray[np.int32] = faces.astype(np.int32)
        drawn = self.vertices.astype(np.float32).astype(np.float64)
        a, b, c = (drawn[self.indices[:, k]] for k in range(3))
        if not (np.cross(b - a, c - a) ** 2).sum(axis=1).max() > _FLAT**2:
            raise ValueError(f"indices: expected at least one triangle with an area, got none in {len(faces)}")
        self.vertices.setflags(write=False)
        self.indices.setflags(write=False)

    @classmethod
    def terrain(cls, heights: ArrayLike, cell: tuple[float, float]) -> Triangles:
        """Makes a surface over a grid, centred on the origin in x and y.

        Args:
            heights: (rows, columns) z at the grid points, m; rows along y, columns along x.
            cell: distances between grid points along x and y, m.

        Raises:
            TypeError: the heights or distances are not real numbers.
            ValueError: fewer than two rows or columns, heights that are not finite, or distances that are not positive.
        """
        z = _array("heights", heights, "iuf").astype(np.float64)
        if z.ndim != 2 or min(z.shape) < 2:
            raise ValueError(f"heights: expected at least 2 x 2 grid points, got shape {z.shape}")
        if not np.isfinite(z).all():
            raise ValueError(f"heights: expected finite numbers, got {z[~np.isfinite(z)][0]}")
        step_x, step_y = finite_floats("cell", cell, 2, minimum=0.0, exclusive=True)
        rows, columns = z.shape
        x = (np.arange(columns) - (columns - 1) / 2) * step_x
        y = (np.arange(rows) - (rows - 1) / 2) * step_y
        number = np.arange(rows * columns).reshape(rows, columns)
        a, b, c, d = (part.ravel() for part in (number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]))
        return cls(
            np.stack([*np.meshgrid(x, y), z], axis=-1).reshape(-1, 3),
            np.concatenate([np.column_stack([a, b, c]), np.column_stack([a, c, d])]),
        )

    @cached_property
    def normals(self) -> NDArray[np.float64]:
        """(V, 3) unit normals: means over the triangles at a vertex, weighted by area; +z where there are none."""
        a, b, c = (self.vertices[self.indices[:, k]] for k in range(3))
        weighted = np.cross(b - a, c - a)
        total = np.zeros_like(self.vertices)
        for k in range(3):
            np.add.at(total, self.indices[:, k], weighted)
        length = np.sqrt((total**2).sum(axis=1, keepdims=True))
        return np.where(length > 0.0, total / np.where(length > 0.0, length, 1.0), [[0.0, 0.0, 1.0]])

    @cached_property
    def _key(self) -> tuple[bytes, bytes]:
        return self.vertices.tobytes(), self.indices.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Triangles) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[type[Triangles], tuple[NDArray[np.float64], NDArray[np.int32]]]:
        return Triangles, (self.vertices, self.indices)

    def __repr__(self) -> str:
        return f"Triangles({len(self.vertices)} vertices, {len(self.indices)} triangles)"


def _array(name: str, values: ArrayLike, kinds: str) -> NDArray[np.generic]:
    try:
        array = np.asarray(values)
    except ValueError as error:  # nested lists of different lengths
        raise ValueError(f"{name}: expected a rectangular array, got {type(values).__name__} ({error})") from None
    if array.dtype.kind not in kinds:
        wanted = "integers" if kinds == "iu" else "real numbers"
        raise TypeError(f"{name}: expected {wanted}, got dtype {array.dtype}")
    return array
