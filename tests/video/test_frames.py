from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from fleet_gym.video.frames import CameraSpec, FrameFormat, to_fps, to_numpy


@pytest.mark.parametrize(
    ("fps", "expected"),
    [
        (10, Fraction(10)),
        (12.5, Fraction(25, 2)),
        (30000 / 1001, Fraction(30000, 1001)),
        (1 / 0.03, Fraction(100, 3)),
        ("30000/1001", Fraction(30000, 1001)),
        (np.float32(20), Fraction(20)),
        (np.int64(7), Fraction(7)),
    ],
)
def test_frame_rates_are_exact(fps, expected):
    assert to_fps(fps) == expected


@pytest.mark.parametrize(("fps", "error"), [(-1, ValueError), ("x", ValueError), ("1/0", ValueError), ([1], TypeError)])
def test_impossible_frame_rates(fps, error):
    with pytest.raises(error, match="fps"):
        to_fps(fps)


def test_a_rate_too_small_to_be_a_fraction_is_not_called_zero():
    with pytest.raises(ValueError, match="fps: expected at least 1e-05, got 1e-06"):
        to_fps(1e-6)
    assert to_fps(1e-5) == Fraction(1, 100_000)


def test_a_type_numpy_does_not_have_is_widened():
    class Bfloat16Tensor:
        def numpy(self):
            raise TypeError("Got unsupported ScalarType BFloat16")

        def float(self):
            return SimpleNamespace(numpy=lambda: np.array([0.5], dtype=np.float32))

    assert to_numpy(Bfloat16Tensor()) == np.array([0.5], dtype=np.float32)


def test_depth_is_drawn_from_near_to_far():
    depth = np.array([[0.0, 1.0, 5.5, 10.0, 99.0, np.inf, np.nan]], dtype=np.float32)
    spec = CameraSpec("tof", depth, FrameFormat(depth_range=(1, 10)))
    image = spec.convert(np.stack([depth, depth]))
    assert image.shape == (2, 1, 7, 3)
    assert image.dtype == np.uint8
    colors = image[0, 0].astype(int)
    assert (colors[0] == colors[1]).all()
    assert (colors[3:] == colors[3]).all()
    brightness = colors.sum(axis=1)
    assert brightness[1] > brightness[2] > brightness[3]


def test_depth_with_a_channel_axis():
    depth = np.full((4, 6, 1), 2.0)
    spec = CameraSpec("tof", depth, FrameFormat(depth_range=(1, 10)))
    assert spec.convert(depth[None]).shape == (1, 4, 6, 3)
    assert (spec.width, spec.height, spec.pixel_format) == (6, 4, "rgb24")


def test_plain_images_are_not_copied():
    images = np.zeros((2, 4, 6, 4), dtype=np.uint8)
    spec = CameraSpec("front", images[0], FrameFormat())
    assert spec.convert(images) is images
    assert spec.pixel_format == "rgba"


@pytest.mark.parametrize(
    "arguments", [{"value_range": (1, 0)}, {"depth_range": (0, np.inf)}, {"value_range": (0, 1), "depth_range": (0, 1)}]
)
def test_impossible_formats(arguments):
    with pytest.raises(ValueError, match="FrameFormat"):
        FrameFormat(**arguments)


@pytest.mark.parametrize("shape", [(4,), (4, 4, 2), (4, 4, 5), (0, 4, 3), (2, 4, 4, 3)])
def test_impossible_images(shape):
    with pytest.raises(ValueError, match="camera 'c'"):
        CameraSpec("c", np.zeros(shape, dtype=np.uint8), FrameFormat())


def test_a_changed_dtype_is_refused():
    spec = CameraSpec("c", np.zeros((4, 4), dtype=np.uint8), FrameFormat())
    assert spec.pixel_format == "gray"
    with pytest.raises(ValueError, match=r"'c'.*uint8.*float64"):
        spec.check(np.zeros((3, 4, 4)), batched=True)
