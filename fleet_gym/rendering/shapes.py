"""What is to be drawn, as PyBullet would: the visual shapes of URDF files and of PyBullet bodies."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fleet_gym.rendering.meshes import Mesh
from fleet_gym.world.forward_kinematics import load_tree, numbers, origin_matrix, parse_urdf

ShapeKind = Literal["mesh", "box", "cylinder", "capsule", "sphere", "plane"]
RGBA = tuple[float, float, float, float]
_MESH_SUFFIXES = (".obj", ".stl", ".dae")
WHITE: RGBA = (1.0, 1.0, 1.0, 1.0)


class UndrawableShapeError(ValueError):
    """A shape that only PyBullet's own renderer can draw; the message names it."""


@dataclass(frozen=True)
class VisualShape:
    """One coloured piece of geometry, fixed to a link.

    Attributes:
        kind: what `size` means.
        size: box: x, y, z lengths; sphere: radius; cylinder and capsule: radius and length (of a capsule, without its
            caps), along z; mesh: scale along x, y, z; m.
        file: absolute path of the mesh, ``""`` for primitives.
        link: index of its link, root 0 (PyBullet's link number plus one).
        local: (3, 4) shape to link frame, as nested tuples, m.
        rgba: 0..1, multiplies the texture.
        mesh: the geometry itself, for a mesh that is in no file.
    """

    kind: ShapeKind
    size: tuple[float, ...]
    file: str
    link: int
    local: tuple[tuple[float, ...], ...]
    rgba: RGBA = WHITE
    mesh: Mesh | None = None


def as_rows(matrix: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """Returns a (3, 4) matrix as nested tuples: hashable, for `VisualShape.local`."""
    return tuple(tuple(float(v) for v in row) for row in matrix)


def urdf_shapes(urdf: str) -> tuple[VisualShape, ...]:
    """Returns the visual shapes of a URDF in PyBullet's order, parsed once per file and modification time.

    As PyBullet does, a link without visual elements shows its collision shapes.

    Raises:
        ValueError: the file cannot be read, or a mesh it names is missing.
        UndrawableShapeError: a geometry is of a kind that is not supported.
    """
    load_tree(urdf)  # checks that the file can be read, with a message of its own
    return _urdf_shapes(os.path.abspath(urdf), os.stat(urdf).st_mtime_ns)


@lru_cache(maxsize=256)
def _urdf_shapes(urdf: str, _modified: int) -> tuple[VisualShape, ...]:
    root = parse_urdf(urdf)
    # PyBullet registers a coloured material wherever it stands; a name defined twice keeps its first colour.
    materials: dict[str, RGBA | None] = {}
    for material in (*root.findall("material"), *root.iterfind("link/visual/material")):
        if _material_color(material) is not None:
            materials.setdefault(material.get("name", ""), _material_color(material))
    links = {link.get("name", ""): link for link in root.findall("link")}
    shapes = []
    for index, name in enumerate(load_tree(urdf).link_names):
        elements = links[name].findall("visual") or links[name].findall("collision")
        shapes += [_shape(urdf, element, index, materials) for element in elements]
    return tuple(shapes)


def _material_color(material: ElementTree.Element | None) -> RGBA | None:
    color = None if material is None else material.find("color")
    if color is None:
        return None
    r, g, b, a = numbers(color.get("rgba"), WHITE)[:4]
    return (r, g, b, a)


def _shape(urdf: str, element: ElementTree.Element, link: int, materials: dict[str, RGBA | None]) -> VisualShape:
    material = element.find("material")
    color = _material_color(material)
    if color is None and material is not None:
        color = materials.get(material.get("name", ""))
    geometry = element.find("geometry")
    children = [] if geometry is None else list(geometry)
    if not children:
        raise ValueError(f"urdf: expected a geometry in every visual of {urdf!r}, got none in link {link - 1}")
    kind, size, file = _geometry(urdf, children[0], link)
    return VisualShape(kind, size, file, link, as_rows(origin_matrix(element)), color or WHITE)


def _geometry(urdf: str, geometry: ElementTree.Element, link: int) -> tuple[ShapeKind, tuple[float, ...], str]:
    if geometry.tag == "box":
        return "box", numbers(geometry.get("size"), (1.0, 1.0, 1.0))[:3], ""
    if geometry.tag == "sphere":
        return "sphere", numbers(geometry.get("radius"), (1.0,))[:1], ""
    if geometry.tag == "cylinder" or geometry.tag == "capsule":
        radius, length = (numbers(geometry.get(key), (1.0,))[0] for key in ("radius", "length"))
        return ("cylinder" if geometry.tag == "cylinder" else "capsule"), (radius, length), ""
    if geometry.tag == "plane":
        return "plane", (), ""
    if geometry.tag == "mesh":
        scale = numbers(geometry.get("scale"), (1.0,))
        return "mesh", (scale[0],) * 3 if len(scale) < 3 else scale[:3], find_mesh(urdf, geometry.get("filename", ""))
    raise UndrawableShapeError(f"shape: cannot draw a <{geometry.tag}> (link {link - 1} of {urdf!r})")


def find_mesh(urdf: str, name: str) -> str:
    """Returns the absolute path of a mesh named in a URDF.

    Looks, as PyBullet does, next to the URDF and in the folders above it; ``package://`` and ``model://`` are dropped.

    Raises:
        ValueError: there is no such file.
        UndrawableShapeError: the file type is none of OBJ, STL, DAE.
    """
    relative = name
    for prefix in ("package://", "model://", "file://"):
        relative = relative.removeprefix(prefix)
    if not relative.lower().endswith(_MESH_SUFFIXES):
        raise UndrawableShapeError(f"mesh: cannot draw {name!r} of {urdf!r}: expected one of {_MESH_SUFFIXES}")
    folder = os.path.dirname(os.path.abspath(urdf))
    for _ in range(8):
        candidate = os.path.join(folder, relative)
        if os.path.isfile(candidate):
            return os.path.abspath(candidate)
        folder = os.path.dirname(folder)
    raise ValueError(f"mesh: expected a file, got {name!r}, which is neither beside {urdf!r} nor above it")
