"""Triangle meshes: files, primitives and arrays, with the normals and texture coordinates PyBullet would use."""

from __future__ import annotations

import math
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.triangles import Triangles

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Mesh:
    """Triangles. Positions are shared by all triangles that touch there, normals and texture coordinates need not be.

    Attributes:
        positions: (V, 3) float32, m.
        triangles: (F, 3) int32 into `positions`, counter-clockwise seen from outside.
        normals: (N, 3) float32, unit.
        normal_indices: (F, 3) int32 into `normals`; three equal ones make a flat triangle.
        uvs: (T, 2) float32 texture coordinates, v upwards.
        uv_indices: (F, 3) int32 into `uvs`; (0, 3) without texture coordinates.
        texture: path of an image, ``""`` without.
    """

    positions: Float32
    triangles: Int32
    normals: Float32
    normal_indices: Int32
    uvs: Float32
    uv_indices: Int32
    texture: str = ""

    @property
    def num_triangles(self) -> int:
        """F."""
        return len(self.triangles)

    @property
    def has_uvs(self) -> bool:
        """Whether triangles carry texture coordinates."""
        return len(self.uv_indices) > 0

    def bounding_sphere(self) -> tuple[NDArray[np.float64], float]:
        """Centre (3,) of the bounding box and the distance to the farthest position from it, m."""
        if not len(self.positions):
            return np.zeros(3), 0.0
        points = self.positions.astype(np.float64)
        centre = (points.min(axis=0) + points.max(axis=0)) / 2
        return centre, float(np.sqrt(((points - centre) ** 2).sum(axis=1).max()))


def mesh_from_corners(
    corners: NDArray[np.floating],
    normals: NDArray[np.floating] | None = None,
    uvs: NDArray[np.floating] | None = None,
    texture: str = "",
) -> Mesh:
    """Makes a mesh of separate triangles: welds equal positions and drops degenerate triangles.

    Args:
        corners: (F, 3, 3) positions, m.
        normals: (F, 3, 3) at the corners; where absent, zero or not finite the triangle's own is taken.
        uvs: (F, 3, 2), v upwards.
        texture: image path.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is dropped
        corners = np.asarray(corners, dtype=np.float32).reshape(-1, 3, 3)
    face = face_normals(corners)
    keep = np.isfinite(corners).all(axis=(1, 2)) & (face != 0).any(axis=1)
    corners, face = corners[keep], face[keep]
    positions, triangles = _weld(corners)
    at_corners = np.repeat(face[:, None, :], 3, axis=1)
    if normals is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            given = np.asarray(normals, dtype=np.float64).reshape(-1, 3, 3)[keep]
            length = np.sqrt((given**2).sum(axis=-1, keepdims=True))
        usable = np.isfinite(length) & (length > 1e-6)
        at_corners = np.where(usable, given / np.where(usable, length, 1.0), at_corners)
    unique_normals, normal_indices = _weld(at_corners.astype(np.float32))
    if uvs is None:
        return Mesh(positions, triangles, unique_normals, normal_indices, *_no_uvs(), texture)
    finite = np.nan_to_num(np.asarray(uvs, dtype=np.float32).reshape(-1, 3, 2)[keep], posinf=0.0, neginf=0.0)
    unique_uvs, uv_indices = _weld(finite)
    return Mesh(positions, triangles, unique_normals, normal_indices, unique_uvs, uv_indices, texture)


def mesh_from_arrays(
    vertices: NDArray[np.floating],
    indices: NDArray[np.integer],
    normals: NDArray[np.floating] | None = None,
    uvs: NDArray[np.floating] | None = None,
    texture: str = "",
) -> Mesh:
    """Makes a mesh from indexed arrays, as ``pybullet.createVisualShape(GEOM_MESH, vertices=...)`` takes them.

    Args:
        vertices: (V, 3), m.
        indices: (F, 3) or flat, into `vertices`.
        normals: (V, 3), or None for flat triangles.
        uvs: (V, 2), v upwards.
        texture: image path.

    Raises:
        ValueError: shapes do not fit or an index is out of range.
    """
    points = np.asarray(vertices, dtype=np.float64)
    faces = np.asarray(indices)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"vertices: expected shape (V, 3), got {points.shape}")
    if faces.size % 3 or not np.issubdtype(faces.dtype, np.integer):
        raise ValueError(f"indices: expected integers, three per triangle, got {faces.size} of {faces.dtype}")
    if faces.size and (faces.min() < 0 or faces.max() >= len(points)):
        raise ValueError(f"indices: expected 0..{len(points) - 1}, got {faces.min()}..{faces.max()}")
    faces = faces.reshape(-1, 3)
    for name, values, width in (("normals", normals, 3), ("uvs", uvs, 2)):
        if values is not None and np.shape(values) != (len(points), width):
            raise ValueError(f"{name}: expected shape ({len(points)}, {width}), got {np.shape(values)}")
    return mesh_from_corners(
        points[faces],
        None if normals is None else np.asarray(normals)[faces],
        None if uvs is None else np.asarray(uvs)[faces],
        texture,
    )


def face_normals(corners: NDArray[np.floating]) -> NDArray[np.float64]:
    """(F, 3) unit normals of triangles (F, 3, 3); zero for degenerate ones."""
    with np.errstate(invalid="ignore", over="ignore"):
        points = np.asarray(corners, dtype=np.float64)
        cross = np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0])
        length = np.sqrt((cross**2).sum(axis=1, keepdims=True))
    usable = np.isfinite(length) & (length > 1e-20)
    return np.asarray(np.where(usable, cross / np.where(usable, length, 1.0), 0.0))


def _weld(values: NDArray[np.float32]) -> tuple[Float32, Int32]:
    """Unique rows of (F, 3, k) values in order of first appearance, and (F, 3) indices into them."""
    flat = np.ascontiguousarray(values.reshape(-1, values.shape[-1])) + np.float32(0.0)  # -0 and 0 are one place
    if not len(flat):
        return flat, np.zeros((0, 3), dtype=np.int32)
    rows = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return flat[first[order]], rank[inverse.ravel()].reshape(-1, 3).astype(np.int32)


def _no_uvs() -> tuple[Float32, Int32]:
    return np.zeros((0, 2), dtype=np.float32), np.zeros((0, 3), dtype=np.int32)


# --- primitives ---------------------------------------------------------------------------------------------------


#: Where TinyRenderer has the faces (-x, +x, -y, +y, -z, +z) of a box in a texture, in quarters of it: u, then v, at the
#: lowest corner of the face, and how much it grows along x, y and z.
_BOX_UVS = np.array(
    [
        [(2, 0, 1, 0), (0, 0, 0, 1)],
        [(1, 0, 0, -1), (2, 0, -1, 0)],
        [(1, 1, 0, 0), (2, 0, 0, -1)],
        [(0, 1, 0, 0), (0, 0, 0, 1)],
        [(2, -1, 0, 0), (1, 0, -1, 0)],
        [(3, 1, 0, 0), (1, 0, -1, 0)],
    ]
)


def box_mesh(size: tuple[float, ...]) -> Mesh:
    """A box of the given x, y and z lengths about the origin, each face with its part of the texture."""
    half = np.array(size) / 2
    corners, uvs = [], []
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=np.float64)
    for number, (origin, *growth) in enumerate(_BOX_UVS.swapaxes(1, 2) / 4.0):
        axis, sign = number // 2, (-1.0, 1.0)[number % 2]
        u, v = (axis + 1) % 3, (axis + 2) % 3
        face = np.zeros((4, 3))
        face[:, axis] = sign
        face[:, u], face[:, v] = square[:, 0] * sign, square[:, 1]
        for triangle in ((0, 1, 2), (0, 2, 3)):
            corner = face[list(triangle)]
            corners.append(corner * half)
            uvs.append(origin + ((corner + 1.0) / 2.0) @ np.array(growth))
    return mesh_from_corners(np.array(corners), uvs=np.array(uvs))


def unit_directions() -> NDArray[np.float64]:
    """The 42 unit vectors PyBullet probes a rounded shape with: an icosahedron's corners and edge midpoints.

    Corners: both poles and two rings of five at z = -+1/sqrt(5). TinyRenderer draws spheres and cylinders as the convex
    hull of their farthest points in these directions (btShapeHull).
    """
    ring = 2.0 / math.sqrt(5.0)
    lower = [math.radians(36.0 + 72.0 * k) for k in range(5)]
    upper = [math.radians(72.0 * k) for k in range(5)]
    corners = [(0.0, 0.0, -1.0)]
    corners += [(ring * math.cos(a), ring * math.sin(a), -1.0 / math.sqrt(5.0)) for a in lower]
    corners += [(ring * math.cos(a), ring * math.sin(a), 1.0 / math.sqrt(5.0)) for a in upper]
    corners += [(0.0, 0.0, 1.0)]
    points = np.array(corners)
    edge = math.sqrt(2.0 - 2.0 / math.sqrt(5.0))  # between neighbouring corners
    middles = [
        points[i] + points[j]
        for i in range(12)
        for j in range(i + 1, 12)
        if abs(float(np.sqrt(((points[i] - points[j]) ** 2).sum())) - edge) < 1e-6
    ]
    midpoints = np.array(middles)
    directions = np.concatenate([points, midpoints / np.sqrt((midpoints**2).sum(axis=1, keepdims=True))])
    return np.where(np.abs(directions) < 1e-12, 0.0, directions)


def _hull_mesh(points: NDArray[np.float64]) -> Mesh:
    if (
        np.ptp(points, axis=0) < 1e-9
    ).any():  # a radius or length of zero: stock files have such, and they show nothing
        return mesh_from_corners(np.zeros((0, 3, 3)))
    faces = convex_hull(points)
    normals = points / np.sqrt((points**2).sum(axis=1, keepdims=True))
    return mesh_from_corners(points[faces], normals[faces])


def sphere_mesh(radius: float, *, coarse: bool = False) -> Mesh:
    """A sphere about the origin, as coarse as TinyRenderer's, or (`coarse`) an icosahedron."""
    return _hull_mesh(unit_directions()[: 12 if coarse else 42] * radius)


def cylinder_mesh(radius: float, length: float, *, sides: int = 0) -> Mesh:
    """A cylinder along z about the origin, as coarse as TinyRenderer's, or a prism with so many sides."""
    return _hull_mesh(_cylinder_points(radius, length, sides))


def capsule_mesh(radius: float, length: float, *, sides: int = 0) -> Mesh:
    """A capsule along z about the origin (`length` between the centres of its caps), as coarse as TinyRenderer's.

    That is a cylinder with pointed ends; `sides` as for `cylinder_mesh`.
    """
    tips = [[0.0, 0.0, -length / 2 - radius], [0.0, 0.0, length / 2 + radius]]
    return _hull_mesh(np.concatenate([_cylinder_points(radius, length, sides), tips]))


def _cylinder_points(radius: float, length: float, sides: int) -> NDArray[np.float64]:
    if sides:
        angles = 2.0 * math.pi * np.arange(sides) / sides
        ring = np.column_stack([np.cos(angles), np.sin(angles)]) * radius
        return np.concatenate([np.column_stack([ring, np.full(sides, z)]) for z in (-length / 2, length / 2)])
    directions = unit_directions()
    across = np.sqrt((directions[:, :2] ** 2).sum(axis=1, keepdims=True))
    rim = np.where(across > 1e-9, directions[:, :2] / np.where(across > 1e-9, across, 1.0), [[1.0, 0.0]])
    height = np.where(directions[:, 2] < 0, -length / 2, length / 2)
    return _distinct(np.column_stack([rim * radius, height]))


def _distinct(points: NDArray[np.float64]) -> NDArray[np.float64]:
    _, first = np.unique(np.round(points, 9), axis=0, return_index=True)
    return points[np.sort(first)]


def convex_hull(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """Triangles (F, 3) of the convex hull of a few dozen points, counter-clockwise seen from outside.

    Points are added one by one: faces that see the new point go, its horizon is joined to it.

    Raises:
        ValueError: the points lie in one plane.
    """
    scale = float(np.abs(points - points.mean(axis=0)).max())
    tolerance = 1e-9 * scale
    start = _simplex(points, tolerance)
    centre = points[start].mean(axis=0)
    faces = [_outward(points, (start[i], start[j], start[k]), centre) for i, j, k in _TETRAHEDRON]
    for p in range(len(points)):
        seen = [f for f in faces if _height(points, f, points[p]) > tolerance]
        if not seen:
            continue
        edges = {(f[i], f[(i + 1) % 3]) for f in seen for i in range(3)}
        faces = [f for f in faces if f not in seen]
        faces += [(a, b, p) for a, b in sorted(edges) if (b, a) not in edges]
    return np.array(faces, dtype=np.int64)


_TETRAHEDRON = ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))
_Face = tuple[int, int, int]


def _simplex(points: NDArray[np.float64], tolerance: float) -> list[int]:
    first = int(np.argmin(points[:, 0]))
    chosen = [first, int(np.argmax(((points - points[first]) ** 2).sum(axis=1)))]
    axis = points[chosen[1]] - points[first]
    chosen.append(int(np.argmax((np.cross(points - points[first], axis) ** 2).sum(axis=1))))
    normal = np.cross(axis, points[chosen[2]] - points[first])
    heights = np.abs(((points - points[first]) * normal).sum(axis=1)) / max(float(np.sqrt((normal**2).sum())), 1e-300)
    chosen.append(int(np.argmax(heights)))
    if heights[chosen[3]] <= tolerance:
        raise ValueError(f"convex hull: expected points that are not all in one plane, got {len(points)} that are")
    return chosen


def _height(points: NDArray[np.float64], face: _Face, point: NDArray[np.float64]) -> float:
    a, b, c = points[list(face)]
    normal = np.cross(b - a, c - a)
    return float(((point - a) * normal).sum() / max(float(np.sqrt((normal**2).sum())), 1e-300))


def _outward(points: NDArray[np.float64], face: _Face, inside: NDArray[np.float64]) -> _Face:
    return (face[0], face[2], face[1]) if _height(points, face, inside) > 0 else face


def heightfield_mesh(heights: NDArray[np.floating], cell: tuple[float, float]) -> Mesh:
    """A terrain, see `Triangles.terrain`."""
    terrain = Triangles.terrain(heights, cell)
    return mesh_from_arrays(terrain.vertices, terrain.indices)


# --- files --------------------------------------------------------------------------------------------------------


def load_mesh(path: str) -> Mesh:
    """Reads an OBJ, STL or DAE file, unscaled.

    Raises:
        ValueError: the file is missing, is of another type, or holds no triangle that can be drawn.
    """
    readers = {".obj": _read_obj, ".stl": _read_stl, ".dae": _read_dae}
    reader = readers.get(os.path.splitext(path)[1].lower())
    if reader is None:
        raise ValueError(f"mesh: expected a file ending in one of {sorted(readers)}, got {path!r}")
    try:
        mesh = reader(path)
    except (OSError, IndexError, UnicodeError) as error:
        raise ValueError(f"mesh: expected a readable mesh file, got {path!r} ({error})") from None
    if mesh.num_triangles == 0:
        raise ValueError(f"mesh: expected triangles, got none in {path!r}")
    return mesh


def scaled(mesh: Mesh, scale: tuple[float, ...]) -> Mesh:
    """Stretches positions and, as TinyRenderer does, leaves the normals alone."""
    factor = np.array(scale, dtype=np.float32)
    triangles = mesh.triangles
    return Mesh(
        mesh.positions * factor, triangles, mesh.normals, mesh.normal_indices, mesh.uvs, mesh.uv_indices, mesh.texture
    )


def _read_stl(path: str) -> Mesh:
    with open(path, "rb") as file:
        data = file.read()
    count = int.from_bytes(data[80:84], "little") if len(data) >= 84 else -1
    if count >= 0 and len(data) >= 84 + 50 * count and not (data[:5] == b"solid" and b"facet" in data[:400]):
        record = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
        records = np.frombuffer(data, dtype=record, count=count, offset=84)
        return mesh_from_corners(records["corners"], np.repeat(records["normal"][:, None, :], 3, axis=1))
    words = data.decode("ascii", errors="replace").split()
    values = [_floats(words[i + 1 : i + 4], 3, path) for i, word in enumerate(words) if word == "vertex"]
    return mesh_from_corners(np.array(values[: len(values) // 3 * 3]).reshape(-1, 3, 3))


def _floats(words: list[str], count: int, path: str) -> list[float]:
    try:
        values = [float(word) for word in words[:count]]
    except ValueError:
        raise ValueError(f"mesh: expected {count} numbers, got {words[:count]} in {path!r}") from None
    if len(values) < count:
        raise ValueError(f"mesh: expected {count} numbers, got {words} in {path!r}")
    return values


def _read_obj(path: str) -> Mesh:
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.split() for line in file if line.strip() and line.lstrip()[0] != "#"]
    points, normals, uvs = (
        np.array([_floats(words[1:], n, path) for words in lines if words[0] == key]).reshape(-1, n)
        for key, n in (("v", 3), ("vn", 3), ("vt", 2))
    )
    sizes = (len(points), len(uvs), len(normals))
    corners = [
        triangle
        for words in lines
        if words[0] == "f"
        for triangle in _fan([_corner(w, sizes, path) for w in words[1:]])
    ]
    index = np.array(corners, dtype=np.int64).reshape(-1, 3, 3)
    texture = _texture_of(path, lines)
    # A corner without a texture coordinate or normal has index -1: a spare last row stands for it.
    uv_rows = np.vstack([uvs, np.zeros((1, 2))])
    normal_rows = np.vstack([normals, np.zeros((1, 3))])
    has_uvs = len(uvs) > 0 and bool(texture)
    return mesh_from_corners(
        points[index[..., 0]], normal_rows[index[..., 2]], uv_rows[index[..., 1]] if has_uvs else None, texture
    )


def _corner(word: str, sizes: tuple[int, int, int], path: str) -> tuple[int, int, int]:
    parts = [*word.split("/"), "", ""][:3]
    indices = []
    for part, size in zip(parts, sizes, strict=True):
        try:
            number = int(part) if part else 0
        except ValueError:
            raise ValueError(f"mesh: expected a face corner like 1/2/3, got {word!r} in {path!r}") from None
        index = number - 1 if number >= 0 else size + number  # OBJ counts from 1; negative numbers from the end
        if not -1 <= index < size:
            raise ValueError(f"mesh: expected a corner within {size} entries, got {word!r} in {path!r}")
        indices.append(index)
    if indices[0] < 0:
        raise ValueError(f"mesh: expected a vertex number, got {word!r} in {path!r}")
    return indices[0], indices[1], indices[2]


def _fan(corners: list[tuple[int, int, int]]) -> Iterator[tuple[tuple[int, int, int], ...]]:
    for k in range(1, len(corners) - 1):
        yield corners[0], corners[k], corners[k + 1]


def obj_texture(path: str) -> str:
    """Returns the texture of an OBJ file: the first ``map_Kd`` among the materials its faces use, "" without one."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.split() for line in file if line.startswith(("mtllib", "usemtl"))]
    return _texture_of(path, lines)


def _texture_of(path: str, lines: list[list[str]]) -> str:
    folder = os.path.dirname(path)
    textures: dict[str, str] = {}
    for words in lines:
        if words[0] == "mtllib" and len(words) > 1:
            textures.update(_mtl_textures(os.path.join(folder, " ".join(words[1:]))))
    for words in lines:
        if words[0] == "usemtl" and textures.get(" ".join(words[1:])):
            return textures[" ".join(words[1:])]
    return ""


def _mtl_textures(path: str) -> dict[str, str]:
    if not os.path.isfile(path):
        return {}
    textures, material = {}, ""
    with open(path, encoding="utf-8", errors="replace") as file:
        for words in (line.split() for line in file):
            if words[:1] == ["newmtl"]:
                material = " ".join(words[1:])
            elif words[:1] == ["map_Kd"] and len(words) > 1:
                textures[material] = os.path.join(os.path.dirname(path), words[-1])
    return textures


def _read_dae(path: str) -> Mesh:
    import collada
    from collada.common import DaeBrokenRefError, DaeError, DaeUnsupportedError

    try:
        document = collada.Collada(path, ignore=[DaeUnsupportedError, DaeBrokenRefError])
    except (DaeError, ElementTree.ParseError) as error:
        raise ValueError(f"mesh: expected a COLLADA file, got {path!r} ({error})") from None
    corners, normals = [], []
    for geometry in document.scene.objects("geometry") if document.scene is not None else ():
        for primitive in geometry.primitives():
            triangles = primitive.triangleset() if hasattr(primitive, "triangleset") else primitive
            if triangles.vertex is None or triangles.vertex_index is None:
                continue
            corners.append(triangles.vertex[triangles.vertex_index].reshape(-1, 3, 3))
            has_normals = triangles.normal is not None and triangles.normal_index is not None
            given = triangles.normal[triangles.normal_index] if has_normals else np.zeros_like(corners[-1])
            normals.append(given.reshape(-1, 3, 3))
    if not corners:
        return mesh_from_corners(np.zeros((0, 3, 3)))
    unit = float(document.assetInfo.unitmeter or 1.0)
    turn = {"Y_UP": [[1, 0, 0], [0, 0, -1], [0, 1, 0]], "X_UP": [[0, -1, 0], [1, 0, 0], [0, 0, 1]]}
    up = np.array(turn.get(document.assetInfo.upaxis, np.eye(3)), dtype=np.float64)
    return mesh_from_corners(np.concatenate(corners) @ up.T * unit, np.concatenate(normals) @ up.T)
