"""Shadows: one depth map per world from the light, shared by all cameras of the world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.rendering.raster_core import RasterCore, Target, WorldBatch

#: Side of a shadow map, pixels.
MAP_SIZE = 512
#: What is left of the light's diffuse and specular parts in the shadow, as in TinyRenderer.
SHADOW_STRENGTH = 0.8
# The light is drawn from so far away, in radii of what it shines on, that its rays are parallel to a thousandth.
_DISTANCE = 1000.0


class ShadowMaps:
    """Shadow maps of n worlds.

    Args:
        core: draws.
        worlds: the worlds.
        arena_size: side of the square that casts shadows, centred on the origin, m.
    """

    def __init__(self, core: RasterCore, worlds: WorldBatch, arena_size: float) -> None:
        self._core, self._worlds = core, worlds
        count = len(worlds.frames)
        radius = arena_size * np.sqrt(0.5) + 1.0
        light = np.broadcast_to(worlds.light, (count, 9))[:, :3]
        eye = light * (_DISTANCE * radius)
        lens = np.array(
            [_DISTANCE, _DISTANCE, MAP_SIZE, MAP_SIZE, 0.99 * _DISTANCE * radius, 1.01 * _DISTANCE * radius]
        )
        self._depth = np.empty((count, MAP_SIZE, MAP_SIZE), dtype=np.float32)
        self._light = Target(np.ascontiguousarray(eye), _axes_towards_origin(light), lens, depth=self._depth)
        # The light sees full meshes or simplified ones alike: a shadow map pixel is coarser than either.
        core.draw(self._light, worlds)
        # A texel covers this many m, and a slanted surface differs by about as much within it.
        self._bias = max(0.05, 3.0 * radius / MAP_SIZE)

    def draw(self, target: Target) -> None:
        """Draws a camera's images with shadows."""
        if target.rgb is None:
            self._core.draw(target, self._worlds)
            return
        from fleet_gym.rendering import _shadow_kernel

        darken: Any = _shadow_kernel.darken
        depth = target.depth if target.depth is not None else np.empty(target.shape, dtype=np.float32)
        self._core.draw(replace(target, depth=depth), self._worlds)
        dark_light = self._worlds.light.copy()
        dark_light[:, 7:9] *= SHADOW_STRENGTH
        dark = np.empty_like(target.rgb, order="C")
        self._core.draw(
            replace(target, rgb=dark, depth=None, segmentation=None), replace(self._worlds, light=dark_light)
        )
        darken(
            target.eye, target.axes, target.lens, np.ascontiguousarray(depth), self._light.eye, self._light.axes,
            self._light.lens, self._depth, self._bias, target.rgb, dark,
        )  # fmt: skip


def _axes_towards_origin(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 3, 3) rows right, up, backward of cameras that look along the light."""
    helper = np.where(np.abs(light[:, 2:3]) > 0.9, [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]])
    right = np.cross(helper, light)
    right /= np.sqrt((right**2).sum(axis=-1, keepdims=True))
    return np.stack([right, np.cross(light, right), light], axis=1)
