"""Meshes and textures of a scene, packed for the rasterizer."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering.lod import array_chain, lod_chain, primitive_chain
from fleet_gym.rendering.meshes import (
    Mesh,
    box_mesh,
    capsule_mesh,
    cylinder_mesh,
    load_mesh,
    scaled,
    sphere_mesh,
)
from fleet_gym.rendering.shapes import ShapeKind, VisualShape

#: Texture of PyBullet's built-in plane (not a file).
BLUER_CHECKER = "<checker of pybullet.GEOM_PLANE>"

logger = logging.getLogger("fleet_gym.rendering")


def shape_mesh(shape: VisualShape) -> Mesh:
    """Returns the full mesh of a shape, in the shape's frame and size.

    Raises:
        ValueError: its mesh file cannot be read.
    """
    if shape.mesh is not None:
        return scaled(shape.mesh, shape.size)
    if shape.kind == "mesh":
        return scaled(load_mesh(shape.file), shape.size)
    if shape.kind == "box":
        return box_mesh(shape.size)
    if shape.kind == "sphere":
        return sphere_mesh(shape.size[0])
    if shape.kind == "cylinder":
        return cylinder_mesh(shape.size[0], shape.size[1])
    if shape.kind == "capsule":
        return capsule_mesh(shape.size[0], shape.size[1])
    # PyBullet shows its built-in plane as this mesh, in a slightly bluer checker.
    mesh = load_mesh(os.path.join(pybullet_data_path(), "plane100.obj"))
    return replace(mesh, texture=BLUER_CHECKER)


@dataclass(frozen=True)
class MeshTables:
    """Meshes with their levels of detail in flat arrays, as the kernel reads them.

    Attributes:
        positions: (3, V) float32, m.
        triangles: (F, 4) int32: three indices relative to the level's first position, and that first position.
        normals: (N, 3) float32.
        normal_indices: (F, 3) int32.
        uvs: (T, 2) float32.
        uv_indices: (F, 3) int32, -1 without texture coordinates.
        lods: (L, 4) int64: first and last position, first and last triangle of each level.
        lod_error: (L,) float64, m: how far the level is from the full mesh.
    """

    positions: NDArray[np.float32]
    triangles: NDArray[np.int32]
    normals: NDArray[np.float32]
    normal_indices: NDArray[np.int32]
    uvs: NDArray[np.float32]
    uv_indices: NDArray[np.int32]
    lods: NDArray[np.int64]
    lod_error: NDArray[np.float64]

    def astuple(self) -> tuple[NDArray[np.generic], ...]:
        """The arrays in the order the kernel unpacks them."""
        return (
            self.positions, self.triangles, self.normals, self.normal_indices,
            self.uvs, self.uv_indices, self.lods, self.lod_error,
        )  # fmt: skip


def pack_meshes(chains: Sequence[Sequence[tuple[Mesh, float]]]) -> tuple[MeshTables, NDArray[np.int64]]:
    """Packs chains of levels, full mesh first; also returns the (M, 2) first and last level of each mesh."""
    levels = [level for chain in chains for level in chain]
    ends = np.cumsum([len(chain) for chain in chains], dtype=np.int64)
    ranges = np.column_stack([ends - [len(chain) for chain in chains], ends]).astype(np.int64)
    vertices, faces, normal_count, uv_count = 0, 0, 0, 0
    lods, triangles, normal_indices, uv_indices = [], [], [], []
    for mesh, _ in levels:
        lods.append((vertices, vertices + len(mesh.positions), faces, faces + mesh.num_triangles))
        triangles.append(np.column_stack([mesh.triangles, np.full(mesh.num_triangles, vertices, dtype=np.int32)]))
        normal_indices.append(mesh.normal_indices + normal_count)
        uv_indices.append(mesh.uv_indices + uv_count if mesh.has_uvs else np.full_like(mesh.triangles, -1))
        vertices, faces = lods[-1][1], lods[-1][3]
        normal_count, uv_count = normal_count + len(mesh.normals), uv_count + len(mesh.uvs)
    tables = MeshTables(
        positions=np.ascontiguousarray(_rows([m.positions for m, _ in levels], 3, np.float32).T),
        triangles=_rows(triangles, 4, np.int32),
        normals=_rows([m.normals for m, _ in levels], 3, np.float32),
        normal_indices=_rows(normal_indices, 3, np.int32),
        uvs=_rows([m.uvs for m, _ in levels], 2, np.float32),
        uv_indices=_rows(uv_indices, 3, np.int32),
        lods=np.array(lods, dtype=np.int64).reshape(-1, 4),
        lod_error=np.array([error for _, error in levels], dtype=np.float64),
    )
    return tables, ranges.reshape(-1, 2)


def _rows(arrays: Sequence[NDArray[Any]], width: int, dtype: type) -> NDArray[Any]:
    stacked = np.concatenate([np.zeros((0, width), dtype=dtype), *arrays])
    return np.ascontiguousarray(stacked.astype(dtype, copy=False))


class TextureStore:
    """Images packed into one array of texels, each file once.

    Row 0 of a packed image is its lowest, as texture coordinates count.
    """

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._images: list[NDArray[np.uint8]] = []

    def add_file(self, path: str) -> int:
        """Returns the number of an image file; -1, with one warning, where it cannot be read.

        PyBullet, too, draws a mesh whose texture is missing without one.
        """
        if not path:
            return -1
        if path not in self._index:
            image = _bluer_checker() if path == BLUER_CHECKER else _read_image(path)
            self._index[path] = -1 if image is None else self.add_image(image)
        return self._index[path]

    def require_file(self, path: str) -> int:
        """Returns the number of an image file.

        Raises:
            ValueError: it cannot be read.
        """
        number = self.add_file(path)
        if number < 0:
            raise ValueError(f"texture: expected a readable image file, got {path!r}")
        return number

    def add_image(self, image: NDArray[np.uint8]) -> int:
        """Adds an image, (H, W, 3) uint8 with its first row on top, and returns its number.

        Raises:
            ValueError: for another shape or dtype, or an image without pixels.
        """
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise ValueError(f"texture: expected shape (H, W, 3) and uint8, got {image.shape} and {image.dtype}")
        self._images.append(np.ascontiguousarray(image[::-1]))
        return len(self._images) - 1

    def astuple(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Texels (X,) as 0x00BBGGRR and the table (number of images, 3) of first texel, width and height."""
        texels: list[NDArray[np.uint32]] = [np.zeros(1, dtype=np.uint32)]
        table, first = [], 1
        for image in self._images:
            channels = image.astype(np.uint32)
            packed = channels[..., 0] | channels[..., 1] << 8 | channels[..., 2] << 16
            texels.append(packed.astype(np.uint32).ravel())
            table.append((first, image.shape[1], image.shape[0]))
            first += image.shape[0] * image.shape[1]
        return np.concatenate(texels), np.array(table, dtype=np.int64).reshape(-1, 3)


def _bluer_checker() -> NDArray[np.uint8] | None:
    image = _read_image(os.path.join(pybullet_data_path(), "checker_blue.png"))
    if image is not None:
        image = image[:, ::-1].copy()  # and with the colours of neighbouring squares exchanged
        image[..., 2] = 255
    return image


def _read_image(path: str) -> NDArray[np.uint8] | None:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow's readers raise what a broken file makes of them, ZeroDivisionError among it
        logger.warning("texture %s cannot be read and is drawn plain white: %s", os.path.abspath(path), error)
        return None


def mesh_chain(shape: VisualShape, with_lod: bool) -> Sequence[tuple[Mesh, float]]:
    """Returns the levels of detail of a shape's mesh with their errors in m, full mesh first."""
    if not with_lod or shape.kind in ("box", "plane"):
        return [(shape_mesh(shape), 0.0)]
    if shape.mesh is not None:
        return array_chain(shape_mesh(shape))
    if shape.kind == "mesh":
        return lod_chain(shape.file, shape.size)
    return _rounded_chain(shape.kind, shape.size)


@lru_cache(maxsize=1024)
def _rounded_chain(kind: ShapeKind, size: tuple[float, ...]) -> Sequence[tuple[Mesh, float]]:
    if kind == "sphere":
        return primitive_chain([sphere_mesh(size[0], coarse=coarse) for coarse in (False, True)])
    if kind == "cylinder":
        return primitive_chain([cylinder_mesh(size[0], size[1], sides=sides) for sides in (0, 10, 6, 4)])
    return primitive_chain([capsule_mesh(size[0], size[1], sides=sides) for sides in (0, 10, 6, 4)])
