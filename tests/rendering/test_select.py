import logging
import sys

import numpy as np
import pytest

from fleet_gym import FleetEnv, FleetVectorEnv
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.select import make_renderer, parse_renderer_options
from fleet_gym.rendering.shapes import UndrawableShapeError
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import Scene


@pytest.fixture
def undrawable(tmp_path):
    """A robot whose mesh is of a type only PyBullet reads."""
    (tmp_path / "soft.vtk").write_text("# vtk DataFile Version 2.0\n")
    (tmp_path / "soft.urdf").write_text(
        '<robot name="soft"><link name="a"><inertial><mass value="1"/>'
        '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
        '<visual><geometry><mesh filename="soft.vtk"/></geometry></visual></link></robot>'
    )
    return Scene((RobotModel("soft", str(tmp_path / "soft.urdf")),))


@pytest.mark.parametrize(
    ("name", "kind"), [("auto", RasterRenderer), ("raster", RasterRenderer), ("tiny", TinyRenderer)]
)
def test_names(name, kind):
    renderer = make_renderer(name, Scene(()))
    assert isinstance(renderer, kind)
    renderer.close()


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=r"'raster'.*'tiny'.*'opengl'"):
        make_renderer("opengl", Scene(()))
    with pytest.raises(TypeError, match="renderer"):
        make_renderer(None, Scene(()))


def test_gl_without_its_packages_says_how_to_get_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "moderngl", None)
    with pytest.raises(ImportError, match=r"pip install 'fleet-gym\[gl\]'"):
        make_renderer("gl", Scene(()))


def test_auto_falls_back_with_one_warning_that_names_the_shape(undrawable, caplog):
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        renderer = make_renderer("auto", undrawable)
    assert isinstance(renderer, TinyRenderer)
    renderer.close()
    assert len(caplog.records) == 1
    assert "soft.vtk" in caplog.text


def test_explicit_raster_never_falls_back(undrawable):
    with pytest.raises(UndrawableShapeError, match=r"soft\.vtk"):
        make_renderer("raster", undrawable)


def test_missing_mesh_is_an_error_that_names_it_not_a_reason_to_fall_back(tmp_path):
    (tmp_path / "a.urdf").write_text(
        '<robot name="a"><link name="a"><visual><geometry><mesh filename="no.stl"/></geometry></visual></link></robot>'
    )
    with pytest.raises(ValueError, match=r"no\.stl"):
        make_renderer("auto", Scene((RobotModel("a", str(tmp_path / "a.urdf")),)))


CAMERA = {"name": "c", "width": 48, "height": 36, "position": (3, -3, 3), "target": (0, 0, 0)}


@pytest.mark.parametrize(
    ("renderer", "options", "error", "message"),
    [
        ("raster", [("threads", 2)], TypeError, "expected a mapping"),
        ("raster", {"thread": 2}, ValueError, "'threads'.*'supersample'.*'thread'"),
        ("auto", {"threads": 0}, ValueError, r"\['threads'\].*>= 1, got 0"),
        ("auto", {"threads": True}, TypeError, "threads"),
        ("raster", {"threads": 2.0}, TypeError, "threads"),
        ("raster", {"supersample": 3}, ValueError, "expected 1 or 2, got 3"),
        ("raster", {"shadows": 1}, TypeError, "expected a bool, got 1"),
        ("raster", {"lod": None}, TypeError, "expected a bool, got None"),
        ("tiny", {"threads": 2}, ValueError, "expected none for renderer='tiny'"),
        ("gl", {"supersample": 2}, ValueError, "expected none for renderer='gl'"),
    ],
)
def test_bad_options_are_refused_where_the_environment_is_made(renderer, options, error, message):
    with pytest.raises(error, match=message):
        FleetVectorEnv(1, renderer=renderer, renderer_options=options)


def test_environments_draw_with_the_options_they_are_given():
    def image(**options):
        env = FleetVectorEnv(2, robot="husky", cameras=[CAMERA], renderer_options=options)
        observation, _ = env.reset(seed=3)
        env.close()
        return observation["camera_obs"]["c"]

    plain = image()
    np.testing.assert_array_equal(image(threads=2), plain)
    smooth, shadowed = image(supersample=2), image(shadows=True)
    assert 0 < np.abs(smooth.astype(int) - plain).mean() < 20
    assert (shadowed <= plain).all()
    assert (shadowed < plain).any()


def test_a_single_environment_takes_them_too():
    env = FleetEnv(robot="husky", cameras=[CAMERA], renderer_options={"supersample": 2})
    vector_env = FleetVectorEnv(1, robot="husky", cameras=[CAMERA], renderer_options={"supersample": 2})
    one, many = env.reset(seed=1)[0], vector_env.reset(seed=1)[0]
    np.testing.assert_array_equal(one["camera_obs"]["c"], many["camera_obs"]["c"][0])
    env.close()
    vector_env.close()


def test_auto_says_which_options_it_drops(undrawable, caplog):
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        make_renderer("auto", undrawable, parse_renderer_options("auto", {"threads": 2})).close()
    assert "threads=2" in caplog.text
