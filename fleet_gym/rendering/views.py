"""What every renderer needs first: where the cameras of the worlds to draw are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.rendering.base import IMAGE_CHANNELS, IMAGE_DTYPES
from fleet_gym.world.cameras import Camera, camera_poses, quaternion_matrix
from fleet_gym.world.forward_kinematics import Frames
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState


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


def camera_views(
    scene: Scene,
    state: FleetState,
    worlds: NDArray[np.int64],
    frames: Frames,
    cameras: Sequence[Camera],
    out: Mapping[str, NDArray[Any]],
) -> list[CameraView]:
    """Pairs each camera with its poses, jitter included, and the arrays it is drawn into.

    Args:
        scene: whose cameras may be jittered.
        state: `camera_jitter` is read.
        worlds: (n,) indices.
        frames: link frames of the n worlds.
        cameras: to draw.
        out: as in `Renderer.render`.

    Raises:
        ValueError: an output is missing, misshaped or of the wrong dtype, or a mount names no robot or link.
    """
    count, num_robots = len(worlds), scene.num_robots
    checked = [(camera, {m: _output(camera, key, m, count, out) for key, m in camera.keys}) for camera in cameras]
    views = []
    for camera, arrays in checked:
        robot = camera.mount_robot
        if robot is not None and robot >= num_robots:
            raise ValueError(f"camera {camera.name!r}: mount: expected a robot below {num_robots}, got {robot}")
        eye, axes = camera_poses(camera, frames, count)
        if camera in scene.cameras:
            eye, axes = jittered(eye, axes, state.camera_jitter[worlds, scene.cameras.index(camera)])
        views.append(CameraView(camera, eye, axes, arrays.get("rgb"), arrays.get("depth"), arrays.get("segmentation")))
    return views


def jittered(
    eye: NDArray[np.float64], axes: NDArray[np.float64], jitter: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Moves and turns cameras in their own axes.

    Args:
        eye: (n, 3), m.
        axes: (n, 3, 3), rows right, up, backward.
        jitter: (n, 6), translation in m and rotation vector in rad along x forward, y left, z up.
    """
    if not jitter.any():
        return eye, axes
    basis = np.stack([-axes[:, 2], -axes[:, 0], axes[:, 1]], axis=1)  # rows forward, left, up
    moved = eye + (jitter[:, :3, None] * basis).sum(axis=1)
    angle = np.sqrt((jitter[:, 3:] ** 2).sum(axis=-1, keepdims=True))
    axis = jitter[:, 3:] / np.where(angle > 0, angle, 1.0)
    turn = quaternion_matrix(np.concatenate([axis * np.sin(angle / 2), np.cos(angle / 2)], axis=-1))
    turned = (turn[:, :, :, None] * basis[:, :, None, :]).sum(axis=1)  # column k of `turn` is the new axis k
    return moved, np.stack([-turned[:, 1], turned[:, 2], -turned[:, 0]], axis=1)


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


def check_finite(state: FleetState, worlds: NDArray[np.int64]) -> None:
    """Refuses poses that are not numbers, of robots and bodies that are to be drawn, and such looks of anything.

    Raises:
        ValueError: naming the array, the world and the robot, body, thing or camera.
    """
    for name, shown in (
        ("color", None),
        ("camera_jitter", None),
        ("position", state.active),
        ("orientation", state.active),
        ("joint_position", state.active),
        ("body_position", state.body_active),
        ("body_orientation", state.body_active),
    ):
        values = getattr(state, name)[worlds]
        if np.isfinite(values).all():
            continue
        bad = ~np.isfinite(values).all(axis=-1)
        if shown is not None:
            bad &= shown[worlds]
        if bad.any():
            row, index = np.argwhere(bad)[0]
            raise ValueError(f"state.{name}[{worlds[row]}, {index}]: expected finite numbers, got {values[row, index]}")


def check_textures(state: FleetState, worlds: NDArray[np.int64], num_textures: int) -> None:
    """Refuses numbers of textures a scene does not have.

    Raises:
        ValueError: naming the number.
    """
    numbers = state.texture[worlds]
    lowest, highest = numbers.min(initial=-1), numbers.max(initial=-1)
    if lowest < -1 or highest >= num_textures:
        raise ValueError(
            f"state.texture: expected -1 or an index into the scene's {num_textures} textures, "
            f"got {highest if lowest == -1 else lowest}"
        )


def _output(camera: Camera, key: str, modality: str, num_worlds: int, out: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    shape = (num_worlds, camera.height, camera.width, *IMAGE_CHANNELS[modality])
    array = out.get(key)
    if array is None:
        raise ValueError(f"out: expected an array under {key!r}, got only {sorted(out)}")
    if array.shape != shape or array.dtype != IMAGE_DTYPES[modality]:
        raise ValueError(
            f"out[{key!r}]: expected shape {shape} and dtype {np.dtype(IMAGE_DTYPES[modality])}, "
            f"got {array.shape} and {array.dtype}"
        )
    return array
