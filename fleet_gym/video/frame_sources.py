"""Where a recorder's images come from: the observations, `render()`, or the environment's own cameras on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet_gym.video.frames import FrameBatch, to_numpy

KeyPath = tuple[str, ...]


class FrameSource(Protocol):
    """Gets the images that belong to a reset's or step's observation."""

    def current(self, observation: Any, envs: NDArray[np.intp]) -> FrameBatch:
        """Returns the images after a reset or step; at least the rows of `envs` are there."""
        ...

    def final(self, infos: Mapping[str, Any], envs: NDArray[np.intp]) -> FrameBatch:
        """Returns the last images of the episodes that just ended in `envs` (SAME_STEP), in that order."""
        ...

    def final_available(self, infos: Mapping[str, Any], num_envs: int) -> NDArray[np.bool_] | None:
        """Returns (E,) where `final` has something, or None for nowhere."""
        ...


def key_path(key: str | Sequence[str]) -> KeyPath:
    """Returns `camera_obs_key` as a tuple of keys.

    Raises:
        TypeError: when it is neither a str nor a sequence of them.
    """
    path = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else None
    if path is None or not all(isinstance(part, str) for part in path):
        raise TypeError(f"camera_obs_key: expected a str or a tuple of str, got {key!r}")
    return path


def follow(observation: Any, path: KeyPath) -> Any:
    """Returns what lies at `path` in nested dicts.

    Raises:
        ValueError: when it is not there, naming what is.
    """
    for depth, key in enumerate(path):
        if not isinstance(observation, Mapping) or key not in observation:
            there = sorted(map(str, observation)) if isinstance(observation, Mapping) else type(observation).__name__
            raise ValueError(
                f"camera_obs_key={path!r}: expected a dict with {key!r} at {path[:depth]!r} of the observation, got "
                f"{there}; set camera_obs_key to where the images are, or frame_source to 'env' or 'render'"
            )
        observation = observation[key]
    return observation


def _is_color(images: Any) -> bool:
    if not hasattr(images, "dtype") or not hasattr(images, "shape"):
        images = to_numpy(images)
    dtype = str(images.dtype)  # "uint8", or "torch.uint8"
    return dtype.rsplit(".", 1)[-1] == "uint8" and len(images.shape) == 4 and images.shape[-1] in (3, 4)


def select_cameras(available: Mapping[str, Any], cameras: Sequence[str] | None, where: str) -> list[str]:
    """Returns the names to record: `cameras`, or every uint8 colour image (n, H, W, 3 or 4).

    Raises:
        ValueError: when a named camera is missing or there is nothing to record.
    """
    if cameras is not None:
        missing = [camera for camera in cameras if camera not in available]
        if missing:
            raise ValueError(f"cameras: expected names among {sorted(available)} of {where}, got {missing}")
        return list(cameras)
    found = [name for name, images in available.items() if _is_color(images)]
    if not found:
        raise ValueError(f"cameras=None: expected uint8 colour images (n, H, W, 3) in {where}, got {sorted(available)}")
    return found


def _pick(images: Mapping[str, Any], cameras: Sequence[str], where: str) -> dict[str, Any]:
    missing = [camera for camera in cameras if camera not in images]
    if missing:
        raise ValueError(f"camera {missing[0]!r}: expected images in {where} as in its first frame, got {list(images)}")
    return {camera: images[camera] for camera in cameras}


class ObservationSource:
    """Images in the observations, at a key path: a dict of cameras, or one camera's images."""

    def __init__(self, path: KeyPath, cameras: Sequence[str] | None) -> None:
        self._path = path
        self._where = f"the observation at {path!r}" if path else "the observation"
        self._cameras = cameras
        self._selected: list[str] | None = None

    def _images(self, observation: Any) -> Mapping[str, Any]:
        images = follow(observation, self._path)
        return images if isinstance(images, Mapping) else {self._path[-1] if self._path else "obs": images}

    def _select(self, images: Mapping[str, Any]) -> dict[str, Any]:
        if self._selected is None:
            self._selected = select_cameras(images, self._cameras, self._where)
        return _pick(images, self._selected, self._where)

    def current(self, observation: Any, envs: NDArray[np.intp]) -> FrameBatch:
        """Returns every environment's images, without copying what is NumPy already."""
        found = self._select(self._images(observation))
        return FrameBatch({camera: to_numpy(images) for camera, images in found.items()})

    def final(self, infos: Mapping[str, Any], envs: NDArray[np.intp]) -> FrameBatch:
        """Returns the images of ``infos["final_obs"]``: an array of observations, or one batched observation."""
        final = infos["final_obs"]
        if isinstance(final, Mapping):
            found = self._select(self._images(final))
            return FrameBatch({camera: to_numpy(images)[envs] for camera, images in found.items()}, envs)
        singles = [self._images(final[env]) for env in envs]
        self._select({camera: to_numpy(image)[None] for camera, image in singles[0].items()})
        picked = [self._select(single) for single in singles]
        return FrameBatch({camera: [to_numpy(single[camera]) for single in picked] for camera in picked[0]}, envs)

    def final_available(self, infos: Mapping[str, Any], num_envs: int) -> NDArray[np.bool_] | None:
        """Returns where ``infos["final_obs"]`` has an observation."""
        final = infos.get("final_obs")
        if final is None:
            return None
        mask = infos.get("_final_obs")
        if mask is not None:
            return np.asarray(to_numpy(mask), dtype=np.bool_)
        if isinstance(final, Mapping):
            return np.ones(num_envs, dtype=np.bool_)
        return np.array([observation is not None for observation in final], dtype=np.bool_)


class RenderSource:
    """Images from ``env.render()``: one per environment, as one camera ``render``. Knows no last frame in SAME_STEP."""

    def __init__(self, env: Any, cameras: Sequence[str] | None) -> None:
        if cameras is not None and list(cameras) != ["render"]:
            raise ValueError(f"cameras: frame_source='render' has the one camera 'render', got {list(cameras)}")
        self._env = env

    def current(self, observation: Any, envs: NDArray[np.intp]) -> FrameBatch:
        """Renders and returns every environment's image."""
        images = self._env.render()
        if images is None or isinstance(images, Mapping) or not hasattr(images, "__len__"):
            raise ValueError(
                "frame_source='render': expected render() to return one image per environment, got "
                f"{type(images).__name__}; make the environments with render_mode='rgb_array'"
            )
        if not isinstance(images, np.ndarray):
            images = [to_numpy(image) for image in images]
        return FrameBatch({"render": images})

    def final(self, infos: Mapping[str, Any], envs: NDArray[np.intp]) -> FrameBatch:
        """Never called: there is no last frame to be had."""
        raise AssertionError("render() has no frame of an episode that is already over")

    def final_available(self, infos: Mapping[str, Any], num_envs: int) -> None:
        """Returns None: by the time render() can be called, SAME_STEP has reset the environment."""
        return


class EnvCameraSource:
    """Images drawn on demand by ``env.unwrapped.render_cameras``, only of the environments being recorded."""

    def __init__(self, env: Any, cameras: Sequence[str] | None) -> None:
        self._env = env
        self._cameras = cameras
        self._selected: list[str] | None = None

    def _render(self, envs: NDArray[np.intp], final: bool) -> FrameBatch:
        render_cameras = getattr(self._env.unwrapped, "render_cameras", None)
        if render_cameras is None:
            raise ValueError(
                "frame_source='env': expected an environment with a method render_cameras(env_indices, cameras, "
                f"final), got {type(self._env.unwrapped).__name__}; use 'obs' or 'render'"
            )
        if not len(envs):
            return FrameBatch({}, envs)
        if self._env.unwrapped.num_envs != self._env.num_envs:
            raise ValueError(
                f"frame_source='env': expected render_cameras of the {self._env.num_envs} environments recorded, got "
                f"that of {self._env.unwrapped.num_envs}; put the recorder inside of the wrapper that changes num_envs"
            )
        images = render_cameras(env_indices=[int(env) for env in envs], cameras=self._request(), final=final)
        if self._selected is None:
            self._selected = select_cameras(images, self._cameras, "render_cameras()")
        found = _pick(images, self._selected, "render_cameras()")
        return FrameBatch({camera: to_numpy(drawn) for camera, drawn in found.items()}, envs)

    def _request(self) -> list[str] | None:
        return list(self._cameras) if self._cameras is not None else self._selected

    def current(self, observation: Any, envs: NDArray[np.intp]) -> FrameBatch:
        """Draws `envs`."""
        return self._render(envs, final=False)

    def final(self, infos: Mapping[str, Any], envs: NDArray[np.intp]) -> FrameBatch:
        """Draws `envs` as their episodes ended."""
        return self._render(envs, final=True)

    def final_available(self, infos: Mapping[str, Any], num_envs: int) -> NDArray[np.bool_]:
        """Returns all True: what ended in this step can still be drawn."""
        return np.ones(num_envs, dtype=np.bool_)
