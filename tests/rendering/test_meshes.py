from pathlib import Path

import numpy as np
import pytest

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering import meshes
from fleet_gym.rendering.meshes import (
    Mesh,
    box_mesh,
    capsule_mesh,
    convex_hull,
    cylinder_mesh,
    heightfield_mesh,
    load_mesh,
    mesh_from_arrays,
    mesh_from_corners,
    sphere_mesh,
    unit_directions,
)


def volume(mesh: Mesh) -> float:
    """Signed: positive when triangles are counter-clockwise seen from outside."""
    a, b, c = np.moveaxis(mesh.positions[mesh.triangles].astype(np.float64), 1, 0)
    return float((a * np.cross(b, c)).sum() / 6)


def closed(mesh: Mesh) -> bool:
    edges = np.concatenate([mesh.triangles[:, [i, (i + 1) % 3]] for i in range(3)])
    pairs = {(int(a), int(b)) for a, b in edges}
    return len(pairs) == len(edges) and all((b, a) in pairs for a, b in pairs)


@pytest.mark.parametrize(
    ("mesh", "exact"),
    [
        (box_mesh((1.0, 2.0, 3.0)), 6.0),
        (sphere_mesh(0.5), np.pi / 6),
        (cylinder_mesh(0.5, 2.0), np.pi / 2),
        (cylinder_mesh(0.5, 2.0, sides=10), np.pi / 2),
        (capsule_mesh(0.5, 1.0), np.pi / 4 + np.pi / 12),  # its caps are cones
    ],
)
def test_primitives_are_closed_and_face_outwards(mesh, exact):
    assert closed(mesh)
    assert 0.8 * exact < volume(mesh) <= exact * (1 + 1e-6)
    outward = (mesh.normals[mesh.normal_indices] * mesh.positions[mesh.triangles]).sum(axis=-1)
    assert (outward > 0).all()


def test_shapes_without_extent_have_no_triangles():
    assert sphere_mesh(0.0).num_triangles == 0
    assert cylinder_mesh(0.5, 0.0).num_triangles == 0


def test_directions_are_an_icosahedrons_corners_and_edges():
    directions = unit_directions()
    assert directions.shape == (42, 3)
    np.testing.assert_allclose((directions**2).sum(axis=1), 1.0)
    assert len(np.unique(directions.round(9), axis=0)) == 42


def test_hull_holds_all_points():
    points = np.random.default_rng(0).normal(size=(60, 3))
    faces = convex_hull(points)
    a, b, c = np.moveaxis(points[faces], 1, 0)
    normals = np.cross(b - a, c - a)
    heights = ((points[None] - a[:, None]) * normals[:, None]).sum(axis=-1)
    assert heights.max() < 1e-9
    with pytest.raises(ValueError, match="one plane"):
        convex_hull(np.column_stack([points[:, :2], np.zeros(60)]))


def test_degenerate_and_broken_triangles_are_dropped():
    corners = np.zeros((4, 3, 3))
    corners[0] = [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    corners[1] = [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    corners[2, 0, 0] = np.nan
    mesh = mesh_from_corners(corners, normals=np.full((4, 3, 3), np.nan))
    assert mesh.num_triangles == 1
    assert mesh.normals.tolist() == [[0.0, 0.0, 1.0]]


def test_arrays_are_checked():
    square = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    mesh = mesh_from_arrays(square, np.array([0, 1, 2, 0, 2, 3]), uvs=square[:, :2])
    assert mesh.num_triangles == 2
    assert len(mesh.positions) == 4
    assert mesh.has_uvs
    for vertices, indices, words in (
        (square[:, :2], [0, 1, 2], "vertices"),
        (square, [0, 1], "indices"),
        (square, [0, 1, 4], "indices"),
        (square, [0.0, 1.0, 2.0], "indices"),
    ):
        with pytest.raises(ValueError, match=words):
            mesh_from_arrays(vertices, np.array(indices))
    with pytest.raises(ValueError, match="normals"):
        mesh_from_arrays(square, np.array([0, 1, 2]), normals=square[:2])


def test_height_field():
    mesh = heightfield_mesh(np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), (0.5, 2.0))
    assert mesh.num_triangles == 4
    assert mesh.positions.min(axis=0).tolist() == [-0.5, -1.0, 0.0]
    assert mesh.positions.max(axis=0).tolist() == [0.5, 1.0, 1.0]
    assert (mesh.normals[:, 2] > 0).all()
    with pytest.raises(ValueError, match="heights"):
        heightfield_mesh(np.zeros((1, 5)), (1.0, 1.0))


def test_obj_polygons_negative_indices_and_missing_normals(tmp_path):
    path = tmp_path / "a.obj"
    path.write_text("# a square\nv 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nvn 0 0 -1\nf -4 -3 -2 -1\nf 1//1 2//1 3//1\n")
    mesh = load_mesh(str(path))
    assert mesh.num_triangles == 3
    first, last = mesh.normals[mesh.normal_indices[0, 0]], mesh.normals[mesh.normal_indices[2, 0]]
    assert first.tolist() == [0, 0, 1]  # its own
    assert last.tolist() == [0, 0, -1]  # as given


def test_stl_text_and_binary_are_the_same(tmp_path):
    binary = load_mesh(f"{pybullet_data_path()}/husky/meshes/bumper.stl")
    corners = binary.positions[binary.triangles]
    lines = ["solid a"]
    for triangle in corners:
        lines += ["facet normal 0 0 0", "outer loop"]
        lines += [f"vertex {x!r} {y!r} {z!r}" for x, y, z in triangle.astype(float).tolist()]
        lines += ["endloop", "endfacet"]
    path = tmp_path / "a.stl"
    path.write_text("\n".join([*lines, "endsolid a"]))
    text = load_mesh(str(path))
    assert (text.positions[text.triangles] == corners).all()


def test_dae_is_read_upright_and_in_metres(tmp_path):
    path = tmp_path / "a.dae"
    path.write_text(
        """<?xml version="1.0"?>
<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
<asset><unit name="centimeter" meter="0.01"/><up_axis>Y_UP</up_axis></asset>
<library_geometries><geometry id="g"><mesh>
<source id="p"><float_array id="pa" count="9">0 0 0 100 0 0 0 100 0</float_array>
<technique_common><accessor source="#pa" count="3" stride="3"><param name="X" type="float"/>
<param name="Y" type="float"/><param name="Z" type="float"/></accessor></technique_common></source>
<vertices id="v"><input semantic="POSITION" source="#p"/></vertices>
<triangles count="1"><input semantic="VERTEX" source="#v" offset="0"/><p>0 1 2</p></triangles>
</mesh></geometry></library_geometries>
<library_visual_scenes><visual_scene id="s"><node id="n"><instance_geometry url="#g"/></node></visual_scene>
</library_visual_scenes><scene><instance_visual_scene url="#s"/></scene></COLLADA>"""
    )
    mesh = load_mesh(str(path))
    np.testing.assert_allclose(mesh.positions[mesh.triangles[0]], [[0, 0, 0], [1, 0, 0], [0, 0, 1]], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.obj", "v 0 0\n", "3 numbers"),
        ("a.obj", "v 0 0 x\n", "3 numbers"),
        ("a.obj", "v 0 0 0\nf 1 2 3\n", "'2'"),
        ("a.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 a 3\n", "'a'"),
        ("a.obj", "v 0 0 0\n", "triangles"),
        ("a.stl", "solid a\nendsolid a\n", "triangles"),
        ("a.dae", "<COLLADA", "COLLADA"),
        ("b.dae", "<COLLADA/>", "triangles"),
        ("a.ply", "", "ending in"),
    ],
)
def test_broken_files_are_named(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        load_mesh(str(path))
    assert name in str(error.value)


def test_random_bytes_never_crash(tmp_path):
    rng = np.random.default_rng(3)
    for suffix in (".obj", ".stl", ".dae"):
        for size in (0, 1, 83, 84, 134, 500):
            path = tmp_path / f"{size}{suffix}"
            path.write_bytes(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
            with pytest.raises(ValueError, match=str(size)):
                load_mesh(str(path))


SQUARE = b"v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nvn 0 0 1\nf 1//1 2//1 3//1 4//1\nf -1//1 -2//1 -3//1\n"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".obj", ".stl"])
def test_files_broken_here_and_there_are_meshes_or_errors_that_name_them(tmp_path, suffix):
    stl = Path(pybullet_data_path(), "husky/meshes/bumper.stl").read_bytes()
    good = SQUARE if suffix == ".obj" else stl[:80] + (40).to_bytes(4, "little") + stl[84 : 84 + 50 * 40]
    rng = np.random.default_rng(6)
    path, drawn = tmp_path / f"broken{suffix}", 0
    for _ in range(150):
        broken = bytearray(good)
        for place in rng.integers(0, len(good), 3):
            broken[place : place + rng.integers(0, 3)] = rng.choice(
                [b"nan", b"1e300", b"-", b"/", b"99", b"\0", b"\xff"]
            )
        path.write_bytes(broken)
        try:
            mesh = load_mesh(str(path))
        except ValueError as error:
            assert path.name in str(error)  # noqa: PT017 - most are no error
            continue
        drawn += 1
        assert np.isfinite(mesh.positions).all()
        assert np.isfinite(mesh.normals).all()
        assert 0 <= mesh.triangles.min() <= mesh.triangles.max() < len(mesh.positions)
        assert 0 <= mesh.normal_indices.min() <= mesh.normal_indices.max() < len(mesh.normals)
    assert 0 < drawn < 150


def test_missing_file_is_named():
    with pytest.raises(ValueError, match=r"gone\.obj"):
        load_mesh("/nowhere/gone.obj")
    assert meshes.load_mesh is load_mesh
