"""Contact sheets of videos, and what is suspicious about their pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

THUMBNAILS = 8
_HEIGHT = 54
_WIDEST = 96
_DECODE_ALL_UP_TO = 45  # frames; of longer videos only the key frames are decoded where that will do
_BLOCK = 8  # pixels; differences are averaged over blocks, so that codec noise does not pass for movement
_BLACK = 20.0  # mean brightness of 255, as black is 16 in most video
_MOVED = 4.0


@dataclass(frozen=True)
class ContactSheet:
    """Evenly spaced pictures of a video in one row.

    Attributes:
        image: ``data:`` URI of a JPEG, empty when nothing could be decoded.
        warning: what is wrong with the pictures, empty when nothing is.
    """

    image: str = ""
    warning: str = ""


def contact_sheet(path: Path) -> ContactSheet:
    """Returns the contact sheet of a video file."""
    try:
        frames = _sample(path)
    except (av.FFmpegError, IndexError) as error:
        return ContactSheet(warning=f"cannot be decoded: {error}")
    if not frames:
        return ContactSheet(warning="has no frames")
    picked = [frames[i] for i in np.unique(np.linspace(0, len(frames) - 1, THUMBNAILS).round().astype(int))]
    image = _jpeg(np.concatenate([_shrink(frame) for frame in picked], axis=1))
    if max(float(frame.mean()) for frame in frames) < _BLACK:
        return ContactSheet(image, "all black")
    # Key frames that are alike may still be of a movement with their period, so all frames have the last word.
    if not _moves(frames) and not _moves(_decode(path, key_frames=False)):
        return ContactSheet(image, "frozen: the picture never changes")
    return ContactSheet(image)


def _sample(path: Path) -> list[NDArray[np.uint8]]:
    with av.open(str(path)) as container:
        few = container.streams.video[0].frames <= _DECODE_ALL_UP_TO
    return list(_decode(path, key_frames=not few))


def _decode(path: Path, key_frames: bool) -> Iterator[NDArray[np.uint8]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        if key_frames:
            stream.codec_context.skip_frame = "NONKEY"
        for frame in container.decode(stream):
            yield np.asarray(frame.to_ndarray(format="rgb24"))


def _moves(frames: Iterable[NDArray[np.uint8]]) -> bool:
    rest = iter(frames)
    first = next(rest, None)
    second = None if first is None else next(rest, None)
    if first is None or second is None:
        return True  # one picture cannot be expected to move
    return any(_difference(first, frame) >= _MOVED for frame in chain([second], rest))


def _shrink(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    scale = min(_HEIGHT / height, _WIDEST / width)
    rows = (np.arange(max(1, round(height * scale))) / scale).astype(int).clip(0, height - 1)
    columns = (np.arange(max(1, round(width * scale))) / scale).astype(int).clip(0, width - 1)
    return np.asarray(image[rows][:, columns])


def _difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    difference = np.abs(one.astype(np.int16) - other.astype(np.int16)).mean(axis=-1)
    height, width = (size // _BLOCK for size in difference.shape)
    if not height or not width:
        return float(difference.max())
    blocks = difference[: height * _BLOCK, : width * _BLOCK].reshape(height, _BLOCK, width, _BLOCK)
    return float(blocks.mean(axis=(1, 3)).max())


def _jpeg(image: NDArray[np.uint8]) -> str:
    image = image[: image.shape[0] // 2 * 2 or 1, : image.shape[1] // 2 * 2 or 1]
    context: Any = av.CodecContext.create("mjpeg", "w")
    context.width, context.height = image.shape[1], image.shape[0]
    context.pix_fmt = "yuvj420p"
    context.time_base = Fraction(1)
    context.options = {"q:v": "6"}
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24").reformat(format="yuvj420p")
    packets = [*context.encode(frame), *context.encode(None)]
    return "data:image/jpeg;base64," + base64.b64encode(b"".join(bytes(packet) for packet in packets)).decode()
