"""From what an environment calls an image to what an encoder takes: uint8, checked, without needless copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PixelFormat = Literal["gray", "rgb24", "rgba"]
CHANNELS: dict[PixelFormat, int] = {"gray": 1, "rgb24": 3, "rgba": 4}
_FORMATS: dict[int, PixelFormat] = {channels: name for name, channels in CHANNELS.items()}
# Near is warm and bright, far is cold and dark; evenly spaced control points, linear in between.
_DEPTH_COLORS = np.array(
    [[250, 240, 150], [250, 170, 60], [220, 80, 60], [140, 40, 120], [70, 30, 120], [10, 10, 40]], dtype=np.float64
)


_SMALLEST_RATE = 1e-5


def to_numpy(value: Any) -> NDArray[Any]:
    """Returns an array as NumPy, copying only when it lies elsewhere (a torch tensor on a GPU, a JAX array)."""
    if isinstance(value, np.ndarray):
        return value
    for method in ("detach", "cpu"):
        if hasattr(value, method):
            value = getattr(value, method)()
    if hasattr(value, "numpy"):
        try:
            value = value.numpy()
        except TypeError:  # torch's bfloat16, which NumPy does not have
            if not hasattr(value, "float"):
                raise
            value = value.float().numpy()
    return np.asarray(value)


def to_fps(fps: Any, name: str = "fps") -> Fraction:
    """Returns a frame rate as an exact fraction; floats such as 29.97002997 become the fraction they stand for.

    Args:
        fps: frames per second: int, float, Fraction, or a string such as ``"30000/1001"``.
        name: what to call it in errors.

    Raises:
        TypeError: when it is not a number.
        ValueError: when it is not positive and finite.
    """
    if isinstance(fps, (bool, np.bool_)) or not isinstance(fps, (int, float, str, Fraction, np.integer, np.floating)):
        raise TypeError(f"{name}: expected a number of frames per second, got {fps!r}")
    if isinstance(fps, (float, np.floating)):
        if not math.isfinite(fps):
            raise ValueError(f"{name}: expected a finite number, got {fps!r}")
        if 0 < fps < _SMALLEST_RATE:
            raise ValueError(f"{name}: expected at least {_SMALLEST_RATE}, got {fps!r}")
        rate = Fraction(float(fps)).limit_denominator(100_000)
    else:
        try:
            rate = Fraction(fps if isinstance(fps, (str, Fraction)) else int(fps))
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{name}: expected a number such as '30000/1001', got {fps!r}") from None
    if rate <= 0:
        raise ValueError(f"{name}: expected more than 0, got {fps!r}")
    return rate


@dataclass(frozen=True)
class FrameFormat:
    """How to read a camera's images when they are not plain uint8 with channels last.

    Attributes:
        value_range: (low, high) that map to black and white, for colour or grey images that are not uint8.
        depth_range: (near, far) in the image's unit, for (H, W) or (H, W, 1) depth images; drawn in colours, near
            warm and far dark.
        channels_first: images are (C, H, W).
    """

    value_range: tuple[float, float] | None = None
    depth_range: tuple[float, float] | None = None
    channels_first: bool = False

    def __post_init__(self) -> None:
        if self.value_range is not None and self.depth_range is not None:
            raise ValueError(f"FrameFormat: expected value_range or depth_range, got both: {self}")
        for name in ("value_range", "depth_range"):
            pair = getattr(self, name)
            if pair is not None and not (len(pair) == 2 and math.isfinite(pair[0]) and pair[0] < pair[1] < math.inf):
                raise ValueError(f"FrameFormat.{name}: expected two finite numbers, the first smaller, got {pair!r}")


class CameraSpec:
    """What a camera's images look like, frozen at the first one.

    Attributes:
        camera: its name.
        shape: of one image as handed over.
        dtype: as handed over.
        width: pixels.
        height: pixels.
        pixel_format: of the converted frames.
    """

    def __init__(self, camera: str, image: NDArray[Any], image_format: FrameFormat) -> None:
        self.camera = camera
        self.shape: tuple[int, ...] = image.shape
        self.dtype: np.dtype[Any] = image.dtype
        self._format = image_format
        layout = "(C, H, W)" if image_format.channels_first else "(H, W, C)"
        if image.ndim not in (2, 3):
            raise self._error(f"an image {layout} or (H, W)", image)
        channels = 1 if image.ndim == 2 else image.shape[0 if image_format.channels_first else 2]
        if channels not in _FORMATS:
            raise self._error(f"an image {layout} of 1, 3 or 4 channels", image)
        spatial = image.shape[1:] if image.ndim == 3 and image_format.channels_first else image.shape[:2]
        self.height, self.width = int(spatial[0]), int(spatial[1])
        if not self.height or not self.width:
            raise self._error("an image with pixels", image)
        self.pixel_format = _FORMATS[channels]
        if image_format.depth_range is not None:
            if channels != 1:
                raise self._error("a depth image (H, W) or (H, W, 1)", image)
            self.pixel_format = "rgb24"
        elif image_format.value_range is None and image.dtype != np.uint8:
            raise self._error("uint8 (for anything else give its frame_formats a value_range or depth_range)", image)
        self._plain = (
            image_format.depth_range is None and image_format.value_range is None and not image_format.channels_first
        )
        near_to_far = np.linspace(0, len(_DEPTH_COLORS) - 1, 256)
        self._colors = np.stack(
            [np.interp(near_to_far, range(len(_DEPTH_COLORS)), channel) for channel in _DEPTH_COLORS.T], axis=-1
        ).astype(np.uint8)

    @property
    def frame_bytes(self) -> int:
        """Bytes of a converted frame."""
        return self.width * self.height * CHANNELS[self.pixel_format]

    def _error(self, expected: str, got: Any) -> ValueError:
        return ValueError(f"camera {self.camera!r}: expected {expected}, got {got.dtype} of shape {got.shape}")

    def check(self, images: NDArray[Any], batched: bool) -> None:
        """Raises ValueError when images differ from the first one in shape or dtype."""
        shape = images.shape[1:] if batched else images.shape
        if shape != self.shape or images.dtype != self.dtype:
            raise ValueError(
                f"camera {self.camera!r}: expected images of shape {self.shape} {self.dtype} as in its first frame, "
                f"got {shape} {images.dtype}"
            )

    def convert(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        """Returns uint8 images (..., H, W[, C]); the same array where nothing needs to change."""
        if self._plain:
            return images
        if self._format.depth_range is not None:
            near, far = self._format.depth_range
            depth = images.reshape(*images.shape[: images.ndim - len(self.shape)], self.height, self.width)
            return np.asarray(self._colors[self._scale(depth, near, far)])
        if self._format.value_range is not None:
            images = self._scale(images, *self._format.value_range)
        if self._format.channels_first and len(self.shape) == 3:
            images = np.moveaxis(images, -3, -1)
        return np.ascontiguousarray(images)

    @staticmethod
    def _scale(images: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
        scaled = (images.astype(np.float32) - np.float32(low)) * np.float32(255.0 / (high - low))
        # NaN marks "nothing seen" in some depth sensors; it is drawn like the far end.
        return np.asarray(np.rint(np.clip(np.nan_to_num(scaled, nan=255.0), 0, 255)).astype(np.uint8))


@dataclass(frozen=True)
class FrameBatch:
    """Images of some environments from some cameras.

    Attributes:
        images: camera -> (n, ...) array, or n single images.
        envs: (n,) environment of each row, ascending; None when row i is environment i.
    """

    images: Mapping[str, NDArray[Any] | Sequence[NDArray[Any]]]
    envs: NDArray[np.intp] | None = None

    def rows(self, envs: NDArray[np.intp]) -> NDArray[np.intp]:
        """Returns the rows of the given environments, (k,)."""
        return envs if self.envs is None else np.searchsorted(self.envs, envs)
