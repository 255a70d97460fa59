"""Levels of detail: simplified meshes with a measured error, built once per file and kept on disk."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.rendering.meshes import Mesh, face_normals, load_mesh, mesh_from_corners, obj_texture, scaled

logger = logging.getLogger("fleet_gym.rendering")

#: Part of every cache key: change it whenever what is built from a file changes.
_FORMAT = b"fleet_gym lod 5"
_SMALLEST = 12  # triangles: simplifying further saves nothing beside the cost of the shape itself
_STEP = 0.75  # a level is kept when it has at most this part of the triangles of the level before
_GRIDS = (192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4)  # cells along the diagonal of the bounding box
_COMPARISONS = 1_000_000  # points times triangles looked at for one distance between two levels, about 10 ms
_SMOOTH_DEGREES = 40.0
_FIELDS = ("positions", "triangles", "normals", "normal_indices", "uvs", "uv_indices")


def cache_folder() -> str:
    """Folder of cached meshes: ``$FLEET_GYM_CACHE_DIR``, else ``fleet_gym`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("FLEET_GYM_CACHE_DIR") or os.path.join(base, "fleet_gym")


def lod_chain(path: str, scale: tuple[float, ...]) -> list[tuple[Mesh, float]]:
    """Returns a mesh file's levels of detail, full mesh first, each with its distance from the full mesh in m.

    Args:
        path: OBJ, STL or DAE file.
        scale: along x, y and z.

    Raises:
        ValueError: the file is missing or not a mesh.
    """
    try:
        modified = os.stat(path).st_mtime_ns
    except OSError as error:
        raise ValueError(f"mesh: expected a readable mesh file, got {path!r} ({error})") from None
    largest = max(abs(s) for s in scale)
    return [(scaled(mesh, scale), error * largest) for mesh, error in _unscaled_chain(os.path.abspath(path), modified)]


@lru_cache(maxsize=256)
def _unscaled_chain(path: str, _modified: int) -> tuple[tuple[Mesh, float], ...]:
    with open(path, "rb") as file:
        digest = hashlib.sha256(_FORMAT + os.path.splitext(path)[1].encode() + file.read()).hexdigest()
    # A textured OBJ names its image in another file, so that what is cached is geometry only.
    cached = os.path.join(cache_folder(), f"{digest}.npz")
    chain = _load(cached)
    if chain is None:
        full = load_mesh(path)
        chain = build_chain(full)
        _save(cached, chain)
        return chain
    texture = obj_texture(path) if chain[0][0].has_uvs else ""
    return tuple(
        (Mesh(m.positions, m.triangles, m.normals, m.normal_indices, m.uvs, m.uv_indices, texture), error)
        for m, error in chain
    )


def array_chain(full: Mesh) -> tuple[tuple[Mesh, float], ...]:
    """As `build_chain`, for a mesh that is in no file: kept on disk under the hash of its arrays."""
    digest = hashlib.sha256(_FORMAT + b"arrays")
    for name in _FIELDS:
        array = getattr(full, name)
        digest.update(str(array.shape).encode() + array.tobytes())
    cached = os.path.join(cache_folder(), f"{digest.hexdigest()}.npz")
    chain = _load(cached)
    if chain is None:
        chain = build_chain(full)
        _save(cached, chain)
    return tuple((replace(mesh, texture=full.texture), error) for mesh, error in chain)


def build_chain(full: Mesh) -> tuple[tuple[Mesh, float], ...]:
    """Simplifies a mesh; returns (mesh, distance from the full mesh in m) with ever fewer triangles, full mesh first.

    Two simplifiers compete at every size: quadric edge collapse, best on smooth surfaces, and vertex clustering, best
    on thin and many-piece ones; clustering alone keeps texture coordinates.
    """
    if not full.num_triangles:  # all of them degenerate
        return ((full, 0.0),)
    corners = full.positions[full.triangles].astype(np.float64)
    candidates = [*_clustered(full), *([] if full.has_uvs else _collapsed(full))]
    measured = [
        (mesh, mesh_distance(corners, mesh.positions[mesh.triangles].astype(np.float64))) for mesh in candidates
    ]
    return _staircase(full, measured)


def primitive_chain(meshes: Sequence[Mesh]) -> tuple[tuple[Mesh, float], ...]:
    """Measures coarser forms of a primitive, full mesh first."""
    corners = [mesh.positions[mesh.triangles].astype(np.float64) for mesh in meshes]
    return _staircase(
        meshes[0], [(m, mesh_distance(corners[0], c)) for m, c in zip(meshes[1:], corners[1:], strict=True)]
    )


def _staircase(full: Mesh, measured: list[tuple[Mesh, float]]) -> tuple[tuple[Mesh, float], ...]:
    """Keeps the levels that no other beats in both triangles and error, with steps worth taking."""
    chain = [(full, 0.0)]
    for mesh, error in sorted(measured, key=lambda level: (level[1], level[0].num_triangles)):
        if 0 < mesh.num_triangles <= _STEP * chain[-1][0].num_triangles:
            chain.append((mesh, error))
    return tuple(chain)


def _collapsed(full: Mesh) -> list[Mesh]:
    import fast_simplification

    smooth = bool((full.normal_indices != full.normal_indices[:, :1]).any(axis=1).mean() > 0.5)
    levels: list[Mesh] = []
    points, faces = full.positions, full.triangles
    while len(faces) > _SMALLEST:
        before = len(faces)
        points, faces = fast_simplification.simplify(points, faces, target_reduction=0.4)
        if not 0 < len(faces) < 0.9 * before:
            break
        corner_normals = smooth_normals(points, faces) if smooth else None
        levels.append(mesh_from_corners(points[faces], corner_normals))
    return levels


def _clustered(full: Mesh) -> list[Mesh]:
    """Merges the positions in each cell of a grid; triangles keep their normals and texture coordinates."""
    low = full.positions.min(axis=0)
    diagonal = float(np.sqrt(((full.positions.max(axis=0) - low) ** 2).sum()))
    levels = []
    for divisions in _GRIDS:
        cells = np.floor((full.positions - low) / (diagonal / divisions)).astype(np.int64)
        _, cluster = np.unique(cells, axis=0, return_inverse=True)
        cluster = cluster.ravel()
        sizes = np.bincount(cluster)
        means = np.stack([np.bincount(cluster, full.positions[:, axis]) / sizes for axis in range(3)], axis=1)
        triangles = cluster[full.triangles]
        a, b, c = triangles.T
        kept = np.flatnonzero((a != b) & (b != c) & (c != a))
        # Sheets that fall together leave several triangles with the same corners, often facing both ways.
        turn = triangles[kept].argmin(axis=1)[:, None]
        turned = np.take_along_axis(triangles[kept], (turn + np.arange(3)) % 3, axis=1)
        _, first = np.unique(turned, axis=0, return_index=True)
        kept = kept[np.sort(first)]
        if not 0 < len(kept) < 0.9 * full.num_triangles:
            continue
        normals = full.normals[full.normal_indices[kept]]
        uvs = full.uvs[full.uv_indices[kept]] if full.has_uvs else None
        levels.append(mesh_from_corners(means[triangles[kept]], normals, uvs, full.texture))
    return levels


def mesh_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Largest distance found between two triangle sets (F, 3, 3), both ways, from samples of corners and centres."""
    from fleet_gym.rendering._lod_kernel import farthest_distance

    if not len(a) or not len(b):
        return float("inf")
    kernel: Any = farthest_distance
    return float(max(kernel(_samples(p, len(q)), np.ascontiguousarray(q).reshape(-1)) for p, q in ((a, b), (b, a))))


def _samples(corners: NDArray[np.float64], other_triangles: int) -> NDArray[np.float64]:
    """Corners and centres spread over a mesh (flat), fewer where each is compared with very many triangles."""
    points = np.concatenate([corners.reshape(-1, 3), corners.mean(axis=1)])
    count = min(max(_COMPARISONS // other_triangles, 50), 300)
    return np.ascontiguousarray(points[:: max(1, len(points) // count)]).reshape(-1)


def smooth_normals(positions: NDArray[np.floating], triangles: NDArray[np.integer]) -> NDArray[np.float64]:
    """(F, 3, 3) corner normals: area-weighted mean of the faces at a corner within 40 degrees of its own."""
    corners = np.asarray(positions, dtype=np.float64)[triangles]
    unit = face_normals(corners)
    weighted = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    vertex = triangles.ravel()
    face = np.repeat(np.arange(len(triangles)), 3)
    order = np.argsort(vertex, kind="stable")
    counts = np.bincount(vertex, minlength=int(vertex.max(initial=0)) + 1)
    starts = np.cumsum(counts) - counts
    # Every corner meets every face around its vertex.
    repeats = counts[vertex]
    corner = np.repeat(np.arange(len(vertex)), repeats)
    within = np.arange(len(corner)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    other = face[order[starts[vertex[corner]] + within]]
    close = (unit[face[corner]] * unit[other]).sum(axis=1) >= np.cos(np.radians(_SMOOTH_DEGREES))
    total = np.zeros((len(vertex), 3))
    np.add.at(total, corner[close], weighted[other[close]])
    return total.reshape(-1, 3, 3)


def _load(path: str) -> tuple[tuple[Mesh, float], ...] | None:
    try:
        with np.load(path, allow_pickle=False) as data:
            errors = data["errors"]
            fields = [np.split(data[name], data[f"{name}_ends"][:-1]) for name in _FIELDS]
            meshes = [Mesh(*parts) for parts in zip(*fields, strict=True)]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("cached mesh %s cannot be read and is built again: %s", path, error)
        return None
    return tuple(zip(meshes, (float(e) for e in errors), strict=True))


def _save(path: str, chain: tuple[tuple[Mesh, float], ...]) -> None:
    # The levels of a field in one array: opening an entry of the file costs more than reading it.
    arrays: dict[str, Any] = {}
    for name in _FIELDS:
        levels = [getattr(mesh, name) for mesh, _ in chain]
        arrays[name] = np.concatenate(levels)
        arrays[f"{name}_ends"] = np.cumsum([len(level) for level in levels])
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Written beside and renamed: another process never sees half a file.
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), suffix=".tmp", delete=False) as file:
            try:
                np.savez(file, errors=np.array([error for _, error in chain]), **arrays)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        logger.warning("meshes could not be cached in %s, the next process builds them again: %s", path, error)
