"""Camera images of an observation: who is drawn when, and arrays nobody else holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fleet_gym.engine import FrameRequest
from fleet_gym.rendering.base import allocate_images
from fleet_gym.world.cameras import Camera

Images = dict[str, NDArray[Any]]


def camera_space(cameras: Sequence[Camera]) -> spaces.Dict:
    """Observation space of one world's cameras."""
    boxes: dict[str, spaces.Space[Any]] = {}
    for camera in cameras:
        for key, modality in camera.keys:
            shape = (camera.height, camera.width)
            if modality == "rgb":
                boxes[key] = spaces.Box(0, 255, (*shape, 3), np.uint8)
            elif modality == "depth":
                boxes[key] = spaces.Box(0.0, camera.far, shape, np.float32)
            else:
                boxes[key] = spaces.Box(-1, np.iinfo(np.int32).max, shape, np.int32)
    return spaces.Dict(boxes)


class CameraFrames:
    """Requests the images of each step and assembles the observation.

    Cameras with ``render_every`` above 1 are drawn in the first and last step of an episode and every so many steps
    between; the last image is repeated otherwise. Every observation consists of new arrays.

    Args:
        cameras: of every world.
        num_envs: E.
        keep_all: keep a copy of every camera's last images, so that a masked reset draws only the worlds it resets;
            without it, it draws all worlds again.
    """

    def __init__(self, cameras: Sequence[Camera], num_envs: int, *, keep_all: bool) -> None:
        self._cameras = tuple(cameras)
        self._sparse = tuple(camera for camera in cameras if camera.render_every > 1)
        self._dense = tuple(camera for camera in cameras if camera.render_every == 1)
        self._kept = allocate_images(self._cameras if keep_all else self._sparse, num_envs)
        self._all = np.arange(num_envs)

    def request_step(self, steps: NDArray[np.int64]) -> list[FrameRequest]:
        """Requests the images of all worlds that are due.

        Args:
            steps: (E,) control steps since each episode's start.
        """
        requests = [self._request(self._all, self._dense)]
        for camera in self._sparse:
            requests.append(self._request(np.flatnonzero(steps % camera.render_every == 0), (camera,)))
        return requests

    def request_reset(self, worlds: NDArray[np.intp]) -> list[FrameRequest]:
        """Requests the first images of some worlds, and those of the others that are not kept."""
        kept = tuple(camera for camera in self._cameras if camera.keys[0][0] in self._kept)
        forgotten = tuple(camera for camera in self._cameras if camera not in kept)
        return [self._request(worlds, kept), self._request(self._all, forgotten)]

    def request_worlds(self, worlds: NDArray[np.intp]) -> FrameRequest:
        """Requests all images of some worlds."""
        return self._request(worlds, self._cameras)

    def request_last(self, ended: NDArray[np.intp], steps: NDArray[np.int64]) -> list[FrameRequest]:
        """Requests last images of episodes that sparse cameras would have missed."""
        requests = []
        for camera in self._sparse:
            requests.append(self._request(ended[steps[ended] % camera.render_every != 0], (camera,)))
        return requests

    def assemble(self, requests: Sequence[FrameRequest]) -> Images:
        """Returns the observation's images once the requests of `request_step` or `request_reset` are drawn."""
        self._keep(requests)
        images = {}
        for request in requests:
            whole = len(request.worlds) == len(self._all)
            for key, rows in request.out.items():
                images[key] = rows if whole else self._kept[key].copy()
        return images

    def overwrite(self, images: Images, requests: Sequence[FrameRequest]) -> None:
        """Puts drawn rows into an observation's images."""
        self._keep(requests)
        for request in requests:
            for key, rows in request.out.items():
                images[key][request.worlds] = rows

    def _request(self, worlds: NDArray[np.intp], cameras: Sequence[Camera]) -> FrameRequest:
        return FrameRequest(worlds, cameras, allocate_images(cameras, len(worlds)))

    def _keep(self, requests: Sequence[FrameRequest]) -> None:
        for request in requests:
            for key, rows in request.out.items():
                if key in self._kept:
                    self._kept[key][request.worlds] = rows


def rows_of(observation: Mapping[str, Any], world: int) -> dict[str, Any]:
    """Returns a copy of one world's part of a batched observation."""
    return {
        key: rows_of(value, world) if isinstance(value, Mapping) else value[world].copy()
        for key, value in observation.items()
    }
