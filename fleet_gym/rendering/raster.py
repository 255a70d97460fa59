"""The rasterizer: TinyRenderer's picture from compiled loops, with no physics client and no system library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from fleet_gym.rendering.raster_core import RasterCore
from fleet_gym.rendering.scene_batch import SceneBatcher
from fleet_gym.world.cameras import Camera
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState


class RasterRenderer:
    """Draws with compiled loops on the CPU: TinyRenderer's picture, many times faster.

    Args:
        scene: what to draw.
        threads: how many threads share the images of a call; the bytes drawn do not depend on it.
        lod: draw simplified meshes where the difference is below half a pixel.
        supersample: 2 averages four samples per pixel of colour images (four times the cost).
        shadows: darken what the light does not reach, from one shadow map per world; off in TinyRenderer, too.

    Raises:
        ValueError: an argument is out of range, or a mesh or texture of the scene cannot be read.
        UndrawableShapeError: the scene has a shape only PyBullet can draw.
    """

    def __init__(
        self, scene: Scene, *, threads: int = 1, lod: bool = True, supersample: int = 1, shadows: bool = False
    ) -> None:
        self._scene = scene
        self._batcher = SceneBatcher(scene, lod=lod)
        self._core = RasterCore(self._batcher.tables, threads=threads, lod=lod, supersample=supersample)
        self._shadows = shadows
        self._closed = False

    def render(
        self,
        state: FleetState,
        worlds: NDArray[np.intp],
        cameras: Sequence[Camera],
        out: Mapping[str, NDArray[Any]],
    ) -> None:
        """Draws the given worlds through the given cameras into `out`; see `fleet_gym.rendering.base.Renderer`.

        Raises:
            ValueError: an output does not fit, a mount does not exist, a pose to draw is not finite, or a light or
                texture number makes no sense.
            ClosedEnvironmentError: after `close`.
        """
        if self._closed:
            raise ClosedEnvironmentError("RasterRenderer.render was called after close()")
        batch, targets = self._batcher.prepare(state, worlds, cameras, out)
        if not len(batch.frames):
            return
        if not self._shadows:
            for target in targets:
                self._core.draw(target, batch)
            return
        from fleet_gym.rendering.shadows import ShadowMaps

        maps = ShadowMaps(self._core, batch, self._scene.arena_size)
        for target in targets:
            maps.draw(target)

    def close(self) -> None:
        """Frees its buffers and threads; calling it again does nothing."""
        self._closed = True
        self._core.close()
