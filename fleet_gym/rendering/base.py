"""The protocol of renderers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.cameras import Camera
from fleet_gym.world.state import FleetState

#: Last axis and dtype of an image of each modality.
IMAGE_CHANNELS: dict[str, tuple[int, ...]] = {"rgb": (3,), "depth": (), "segmentation": ()}
IMAGE_DTYPES: dict[str, type] = {"rgb": np.uint8, "depth": np.float32, "segmentation": np.int32}


def allocate_images(cameras: Sequence[Camera], num_worlds: int) -> dict[str, NDArray[Any]]:
    """Returns zeroed arrays for every camera and modality, as `Renderer.render` takes them in `out`."""
    return {
        key: np.zeros(
            (num_worlds, camera.height, camera.width, *IMAGE_CHANNELS[modality]), dtype=IMAGE_DTYPES[modality]
        )
        for camera in cameras
        for key, modality in camera.keys
    }


class Renderer(Protocol):
    """Draws worlds: a function of its arguments. Made for one `Scene`, lazily, in the process that uses it."""

    def render(
        self,
        state: FleetState,
        worlds: NDArray[np.intp],
        cameras: Sequence[Camera],
        out: Mapping[str, NDArray[Any]],
    ) -> None:
        """Draws the given worlds through the given cameras into `out`.

        Args:
            state: what to draw.
            worlds: (n,) indices into `state`; row k of every output is world ``worlds[k]``.
            cameras: need not be the scene's own.
            out: for each camera and modality, under `Camera.keys`, an array the image is written into, which may be
                shared memory: ``name`` (n, H, W, 3) uint8; ``name_depth`` (n, H, W) float32, m along the view axis,
                `far` where nothing was hit; ``name_segmentation`` (n, H, W) int32, body + ((link + 1) << 24), -1 where
                nothing was hit.
        """
        ...

    def close(self) -> None:
        """Frees what it holds; calling it again does nothing."""
        ...
