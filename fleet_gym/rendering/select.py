"""Which renderer draws a scene."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fleet_gym._validation import one_of, positive_int

if TYPE_CHECKING:
    from fleet_gym.rendering.base import Renderer
    from fleet_gym.world.scene import Scene

logger = logging.getLogger("fleet_gym.rendering")

#: Accepted names, in the order of an error message.
RENDERERS = ("auto", "raster", "tiny", "gl")


@dataclass(frozen=True)
class RendererOptions:
    """How the rasterizer draws.

    Attributes:
        threads: how many threads share the images of a call; the bytes drawn do not depend on it.
        lod: draw simplified meshes where the difference is below half a pixel.
        supersample: 2 averages four samples per pixel of colour images (four times the cost).
        shadows: darken what the light does not reach.

    Raises:
        TypeError: an option has the wrong type.
        ValueError: `threads` is below 1, or `supersample` neither 1 nor 2.
    """

    threads: int = 1
    lod: bool = True
    supersample: int = 1
    shadows: bool = False

    def __post_init__(self) -> None:
        positive_int("renderer_options['threads']", self.threads)
        if positive_int("renderer_options['supersample']", self.supersample) > 2:
            raise ValueError(f"renderer_options['supersample']: expected 1 or 2, got {self.supersample!r}")
        for name in ("lod", "shadows"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"renderer_options[{name!r}]: expected a bool, got {getattr(self, name)!r}")


def parse_renderer_options(renderer: str, options: Mapping[str, Any] | None) -> RendererOptions:
    """Checks the options of a renderer.

    Args:
        renderer: its name; only the rasterizer (also as ``"auto"``) has options.
        options: names and values, see `RendererOptions`.

    Raises:
        TypeError: `options` is no mapping, or an option has the wrong type.
        ValueError: the renderer has no options, there is no such option, or it cannot have this value.
    """
    if options is None:
        return RendererOptions()
    if not isinstance(options, Mapping):
        raise TypeError(f"renderer_options: expected a mapping or None, got {options!r}")
    if options and renderer not in ("auto", "raster"):
        raise ValueError(f"renderer_options: expected none for renderer={renderer!r}, got {dict(options)!r}")
    known = [field.name for field in fields(RendererOptions)]
    for name in options:
        one_of("renderer_options", name, known)
    return RendererOptions(**options)


def make_renderer(name: str, scene: Scene, options: RendererOptions | None = None) -> Renderer:
    """Makes the renderer called `name` for a scene.

    ``"auto"`` is the rasterizer where it can draw the scene, else PyBullet's renderer, with one warning that says why;
    never ``"gl"``, so that a seed gives the same pixels on every machine. An explicit choice never falls back.

    Args:
        name: ``"auto"``, ``"raster"``, ``"tiny"`` or ``"gl"``.
        scene: what will be drawn.
        options: of the rasterizer; other renderers do not look at them.

    Raises:
        TypeError: the name is not a string.
        ValueError: there is no such renderer, or a mesh of the scene is missing or broken.
        UndrawableShapeError: the renderer asked for cannot draw a shape of the scene.
        ImportError: ``"gl"`` without the packages it needs.
    """
    if not isinstance(name, str):
        raise TypeError(f"renderer: expected one of {RENDERERS}, got {name!r}")
    one_of("renderer", name, RENDERERS)
    if name == "tiny":
        return _tiny(scene)
    if name == "gl":
        from fleet_gym.rendering.gl import GLRenderer

        return GLRenderer(scene)
    from fleet_gym.rendering.raster import RasterRenderer
    from fleet_gym.rendering.shapes import UndrawableShapeError

    chosen = options or RendererOptions()
    try:
        return RasterRenderer(
            scene, threads=chosen.threads, lod=chosen.lod, supersample=chosen.supersample, shadows=chosen.shadows
        )
    except UndrawableShapeError as error:
        if name == "raster":
            raise
        lost = "" if chosen == RendererOptions() else f" (without {chosen})"
        logger.warning(
            "the rasterizer cannot draw this scene, PyBullet's slower renderer is used instead%s: %s", lost, error
        )
        return _tiny(scene)


def _tiny(scene: Scene) -> Renderer:
    from fleet_gym.rendering.tiny import TinyRenderer

    return TinyRenderer(scene)
