import itertools
import logging
import os
from dataclasses import replace

import numpy as np
import pytest

from fleet_gym._pybullet import pybullet, pybullet_data_path
from fleet_gym.rendering import attach, lod
from fleet_gym.rendering.lod import array_chain, build_chain, lod_chain, mesh_distance, smooth_normals
from fleet_gym.rendering.meshes import load_mesh, mesh_from_arrays, sphere_mesh

FINGER = f"{pybullet_data_path()}/l_finger.stl"
TEXTURED = f"{pybullet_data_path()}/soccerball.obj"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEET_GYM_CACHE_DIR", str(tmp_path / "cache"))
    lod._unscaled_chain.cache_clear()
    yield tmp_path / "cache"
    lod._unscaled_chain.cache_clear()


@pytest.mark.parametrize("path", [FINGER, TEXTURED])
def test_levels_get_simpler_and_say_how_far_off_they_are(path):
    chain = build_chain(load_mesh(path))
    triangles = [mesh.num_triangles for mesh, _ in chain]
    errors = [error for _, error in chain]
    assert len(chain) > 3
    assert all(b <= 0.75 * a for a, b in itertools.pairwise(triangles))
    assert errors == sorted(errors)
    assert errors[0] == 0.0
    full = chain[0][0]
    size = full.bounding_sphere()[1]
    assert errors[1] < 0.05 * size
    for mesh, _ in chain:
        assert mesh.has_uvs == full.has_uvs
        assert mesh.texture == full.texture


def test_distance_of_nested_spheres():
    inner, outer = (mesh.positions[mesh.triangles].astype(np.float64) for mesh in (sphere_mesh(1.0), sphere_mesh(1.5)))
    assert mesh_distance(inner, outer) == pytest.approx(0.5, rel=0.15)
    assert mesh_distance(inner, inner) == pytest.approx(0.0, abs=1e-9)
    assert mesh_distance(inner, inner[:0]) == np.inf


def test_normals_are_smooth_on_a_ball_and_sharp_on_a_box():
    ball = sphere_mesh(1.0)
    normals = smooth_normals(ball.positions, ball.triangles)
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
    assert (normals * ball.positions[ball.triangles]).sum(axis=-1).min() > 0.97
    square = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]], dtype=float)
    corner = smooth_normals(square, np.array([[0, 1, 2], [0, 2, 3], [0, 4, 5], [0, 5, 1]]))
    assert (corner[:2, :, 2] > 0).all()
    assert (corner[:2, :, :2] == 0).all()


def test_chain_is_scaled_and_read_back_the_same(cache):
    built = lod_chain(FINGER, (1.0, 1.0, 1.0))
    assert len(os.listdir(cache)) == 1
    lod._unscaled_chain.cache_clear()
    read = lod_chain(FINGER, (2.0, 2.0, 2.0))
    assert [m.num_triangles for m, _ in read] == [m.num_triangles for m, _ in built]
    for (a, error_a), (b, error_b) in zip(built, read, strict=True):
        assert (2 * a.positions == b.positions).all()
        assert (a.normals[a.normal_indices] == b.normals[b.normal_indices]).all()
        assert error_b == pytest.approx(2 * error_a)


def test_texture_is_looked_up_beside_the_mesh_not_in_the_cache(cache):
    first = lod_chain(TEXTURED, (1.0, 1.0, 1.0))[0][0].texture
    lod._unscaled_chain.cache_clear()
    assert lod_chain(TEXTURED, (1.0, 1.0, 1.0))[0][0].texture == first
    assert os.path.isfile(first)


def test_broken_cache_file_is_built_again(cache, caplog):
    built = lod_chain(FINGER, (1.0, 1.0, 1.0))
    (file,) = cache.iterdir()
    file.write_bytes(b"not a zip file")
    lod._unscaled_chain.cache_clear()
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        again = lod_chain(FINGER, (1.0, 1.0, 1.0))
    assert len(caplog.records) == 1
    assert [m.num_triangles for m, _ in again] == [m.num_triangles for m, _ in built]
    lod._unscaled_chain.cache_clear()
    caplog.clear()
    lod_chain(FINGER, (1.0, 1.0, 1.0))
    assert not caplog.records


def test_folder_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLEET_GYM_CACHE_DIR", str(tmp_path / "file" / "below"))
    lod._unscaled_chain.cache_clear()
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        assert len(lod_chain(FINGER, (1.0, 1.0, 1.0))) > 3
    assert "could not be cached" in caplog.text
    lod._unscaled_chain.cache_clear()


def test_missing_file_is_named():
    with pytest.raises(ValueError, match=r"gone\.stl"):
        lod_chain("/nowhere/gone.stl", (1.0, 1.0, 1.0))


def test_meshes_from_arrays_are_kept_on_disk_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEET_GYM_CACHE_DIR", str(tmp_path))
    mesh = replace(load_mesh(TEXTURED), texture="here.png")
    built = array_chain(mesh)
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr("fleet_gym.rendering.lod.build_chain", None)
    loaded = array_chain(mesh)
    assert [error for _, error in loaded] == [error for _, error in built]
    for (first, _), (second, _) in zip(built, loaded, strict=True):
        np.testing.assert_array_equal(first.positions, second.positions)
        np.testing.assert_array_equal(first.uv_indices, second.uv_indices)
        assert second.texture == "here.png"
    with pytest.raises(TypeError):  # other arrays have another file
        array_chain(replace(mesh, positions=mesh.positions * np.float32(2.0)))
    assert file.exists()


def test_a_mesh_of_degenerate_triangles_only_has_one_level_and_is_drawn_as_nothing(cache):
    client = pybullet().connect(pybullet().DIRECT)
    corners, faces = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]], [0, 1, 2]
    shape = pybullet().createVisualShape(
        pybullet().GEOM_MESH, vertices=corners, indices=faces, normals=[[0, 0, 1]] * 3, physicsClientId=client
    )
    body = pybullet().createMultiBody(0, -1, shape, physicsClientId=client)
    ((mesh, error),) = array_chain(mesh_from_arrays(np.array(corners), np.array(faces)))
    assert (mesh.num_triangles, error) == (0, 0.0)
    camera = attach(client)
    camera.describe_mesh(body, corners, faces)
    view = pybullet().computeViewMatrix([3, 0, 2], [0, 0, 0], [0, 0, 1])
    segmentation = camera.getCameraImage(32, 24, view, pybullet().computeProjectionMatrixFOV(60, 4 / 3, 0.1, 9))[4]
    pybullet().disconnect(client)
    assert np.unique(segmentation).tolist() == [-1]
