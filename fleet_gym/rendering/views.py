"""What every renderer needs first: where the cameras of the worlds to draw are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.cameras import Camera, camera_poses
from fleet_gym.world.forward_kinematics import Frames

_CHANNELS: dict[str, tuple[int, ...]] = {"rgb": (3,), "depth": (), "segmentation": ()}
_DTYPES: dict[str, type] = {"rgb": np.uint8, "depth": np.float32, "segmentation": np.int32}


@dataclass(frozen=True)
class CameraView:
    """One camera in n worlds.

    Attributes:
        camera: what it is.
        eye: (n, 3) float64, m.
        axes: (n, 3, 3) float64, rows right, up, backward.
        rgb: (n, H, W, 3) uint8 to write into, or None.
        depth: (n, H, W) float32, or None.
        segmentation: (n, H, W) int32, or None.
    """

    camera: Camera
    eye: NDArray[np.float64]
    axes: NDArray[np.float64]
    rgb: NDArray[np.uint8] | None
    depth: NDArray[np.float32] | None
    segmentation: NDArray[np.int32] | None


def allocate_images(cameras: Sequence[Camera], num_worlds: int) -> dict[str, NDArray[Any]]:
    """Returns zeroed arrays for every camera and modality, as `Renderer.render` takes them in `out`."""
    return {
        key: np.zeros((num_worlds, camera.height, camera.width, *_CHANNELS[modality]), dtype=_DTYPES[modality])
        for camera in cameras
        for key, modality in camera.keys
    }


def camera_views(
    cameras: Sequence[Camera],
    frames: Frames,
    num_worlds: int,
    num_robots: int,
    out: Mapping[str, NDArray[Any]],
) -> list[CameraView]:
    """Pairs each camera with its poses and the arrays it is drawn into.

    Args:
        cameras: to draw.
        frames: link frames of the n worlds.
        num_worlds: n.
        num_robots: R of the scene.
        out: as in `Renderer.render`.

    Raises:
        ValueError: an output is missing, misshaped or of the wrong dtype, or a mount names no robot or link.
    """
    checked = [(camera, {m: _output(camera, key, m, num_worlds, out) for key, m in camera.keys}) for camera in cameras]
    views = []
    for camera, arrays in checked:
        robot = camera.mount_robot
        if robot is not None and robot >= num_robots:
            raise ValueError(f"camera {camera.name!r}: mount: expected a robot below {num_robots}, got {robot}")
        eye, axes = camera_poses(camera, frames, num_worlds)
        views.append(CameraView(camera, eye, axes, arrays.get("rgb"), arrays.get("depth"), arrays.get("segmentation")))
    return views


def check_worlds(worlds: NDArray[np.intp], num_envs: int) -> NDArray[np.int64]:
    """Returns world indices as a one-dimensional int64 array.

    Raises:
        TypeError: not integers.
        ValueError: not one-dimensional, or an index is outside 0..num_envs - 1.
    """
    indices = np.asarray(worlds)
    if indices.size == 0:
        return np.zeros(0, dtype=np.int64)
    if not np.issubdtype(indices.dtype, np.integer):
        raise TypeError(f"worlds: expected integer indices, got dtype {indices.dtype}")
    if indices.ndim != 1 or indices.min() < 0 or indices.max() >= num_envs:
        raise ValueError(f"worlds: expected one-dimensional indices in 0..{num_envs - 1}, got {worlds!r}")
    return indices.astype(np.int64)


def _output(camera: Camera, key: str, modality: str, num_worlds: int, out: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    shape = (num_worlds, camera.height, camera.width, *_CHANNELS[modality])
    array = out.get(key)
    if array is None:
        raise ValueError(f"out: expected an array under {key!r}, got only {sorted(out)}")
    if array.shape != shape or array.dtype != _DTYPES[modality]:
        raise ValueError(
            f"out[{key!r}]: expected shape {shape} and dtype {np.dtype(_DTYPES[modality])}, "
            f"got {array.shape} and {array.dtype}"
        )
    return array
