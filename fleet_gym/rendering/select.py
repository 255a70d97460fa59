"""Which renderer draws a scene."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet_gym.rendering.base import Renderer
    from fleet_gym.world.scene import Scene

#: Accepted names, in the order of an error message.
RENDERERS = ("auto", "raster", "tiny", "gl")


def make_renderer(name: str, scene: Scene) -> Renderer:
    """Makes the renderer called `name` for a scene.

    ``"auto"`` picks one that can draw the scene. An explicit choice never falls back to another.

    Args:
        name: ``"auto"``, ``"raster"``, ``"tiny"`` or ``"gl"``.
        scene: what will be drawn.

    Raises:
        TypeError: the name is not a string.
        ValueError: there is no such renderer.
        NotImplementedError: the renderer is not part of this version.
    """
    if not isinstance(name, str):
        raise TypeError(f"renderer: expected one of {RENDERERS}, got {name!r}")
    if name not in RENDERERS:
        raise ValueError(f"renderer: expected one of {RENDERERS}, got {name!r}")
    if name in ("raster", "gl"):
        raise NotImplementedError(f"renderer: {name!r} is not part of this version; expected 'auto' or 'tiny'")
    from fleet_gym.rendering.tiny import TinyRenderer

    return TinyRenderer(scene)
