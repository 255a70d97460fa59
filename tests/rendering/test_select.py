import pytest

from fleet_gym.rendering.select import make_renderer
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.scene import Scene


def test_auto_and_tiny_draw_with_tiny():
    for name in ("auto", "tiny"):
        renderer = make_renderer(name, Scene(()))
        assert isinstance(renderer, TinyRenderer)
        renderer.close()


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=r"'raster'.*'tiny'.*'opengl'"):
        make_renderer("opengl", Scene(()))
    with pytest.raises(TypeError, match="renderer"):
        make_renderer(None, Scene(()))


@pytest.mark.parametrize("name", ["raster", "gl"])
def test_explicit_choice_never_falls_back(name):
    with pytest.raises(NotImplementedError, match=name):
        make_renderer(name, Scene(()))
