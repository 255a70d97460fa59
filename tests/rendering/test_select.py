import logging
import sys

import pytest

from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.select import make_renderer
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
