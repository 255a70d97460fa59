"""Which renderer draws a scene."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet_gym.rendering.base import Renderer
    from fleet_gym.world.scene import Scene

logger = logging.getLogger("fleet_gym.rendering")

#: Accepted names, in the order of an error message.
RENDERERS = ("auto", "raster", "tiny", "gl")


def make_renderer(name: str, scene: Scene) -> Renderer:
    """Makes the renderer called `name` for a scene.

    ``"auto"`` is the rasterizer where it can draw the scene, else PyBullet's renderer, with one warning that says why;
    never ``"gl"``, so that a seed gives the same pixels on every machine. An explicit choice never falls back.

    Args:
        name: ``"auto"``, ``"raster"``, ``"tiny"`` or ``"gl"``.
        scene: what will be drawn.

    Raises:
        TypeError: the name is not a string.
        ValueError: there is no such renderer, or a mesh of the scene is missing or broken.
        UndrawableShapeError: the renderer asked for cannot draw a shape of the scene.
        ImportError: ``"gl"`` without the packages it needs.
    """
    if not isinstance(name, str):
        raise TypeError(f"renderer: expected one of {RENDERERS}, got {name!r}")
    if name not in RENDERERS:
        raise ValueError(f"renderer: expected one of {RENDERERS}, got {name!r}")
    if name == "tiny":
        return _tiny(scene)
    if name == "gl":
        from fleet_gym.rendering.gl import GLRenderer

        return GLRenderer(scene)
    from fleet_gym.rendering.raster import RasterRenderer
    from fleet_gym.rendering.shapes import UndrawableShapeError

    try:
        return RasterRenderer(scene)
    except UndrawableShapeError as error:
        if name == "raster":
            raise
        logger.warning("the rasterizer cannot draw this scene, PyBullet's slower renderer is used instead: %s", error)
        return _tiny(scene)


def _tiny(scene: Scene) -> Renderer:
    from fleet_gym.rendering.tiny import TinyRenderer

    return TinyRenderer(scene)
