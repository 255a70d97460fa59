"""Contact sheets of videos, and what is suspicious about their pictures."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

COLUMNS = 4
THUMBNAILS = 2 * COLUMNS
_HEIGHT = 90
_WIDEST = 120
_DECODE_ALL_UP_TO = 150  # frames; of longer videos only the key frames are decoded where there are enough of them
_MOST_KEPT = 45  # frames at a time, for memory
_QUALITY = 12  # quantizer of the JPEG: 2 is best, 31 worst
_GAP = 2  # pixels between pictures
_BLOCK = 8  # pixels; differences are averaged over blocks, so that codec noise does not pass for movement
_BLACK = 20.0  # mean brightness of 255, as black is 16 in most video
_MOVED = 4.0


@dataclass(frozen=True)
class ContactSheet:
    """Evenly spaced pictures of a video, the first and the last among them, in rows of four.

    Attributes:
        image: ``data:`` URI of a JPEG, empty when nothing could be decoded.
        warning: what is wrong with the pictures, empty when nothing is.
        size: width and height of the video, None when nothing could be decoded.
    """

    image: str = ""
    warning: str = ""
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Frame:
    """A decoded picture and its place in the video, in units of the stream."""

    place: int
    image: NDArray[np.uint8]


def contact_sheet(path: Path) -> ContactSheet:
    """Returns the contact sheet of a video file."""
    try:
        frames = _sample(path)
    except (av.FFmpegError, IndexError) as error:
        return ContactSheet(warning=f"cannot be decoded: {error}")
    if not frames:
        return ContactSheet(warning="has no frames")
    sheet = _jpeg(_arranged([_shrink(frame.image) for frame in _picked(frames)]))
    size = frames[0].image.shape[1], frames[0].image.shape[0]
    if max(float(frame.image.mean()) for frame in frames) < _BLACK:
        return ContactSheet(sheet, "all black", size)
    # Key frames that are alike may still be of a movement with their period, so all frames have the last word.
    if not _moves(frames) and not _moves(_decode(path)):
        return ContactSheet(sheet, "frozen: the picture never changes", size)
    return ContactSheet(sheet, size=size)


def _sample(path: Path) -> list[_Frame]:
    with av.open(str(path)) as container:
        few = container.streams.video[0].frames <= _DECODE_ALL_UP_TO
    if few:
        return _thinned(_decode(path))
    keys = [*_decode(path, key_frames=True), *_last(path)]
    is_even = len({frame.place for frame in _picked(keys)}) == THUMBNAILS
    return keys if is_even else _thinned(_decode(path))


def _last(path: Path) -> list[_Frame]:
    """Returns the last frame, which is seldom a key frame, decoding only what is behind the last one that is."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        container.seek(stream.duration or 0, stream=stream)
        return [_converted(frame) for frame in deque(container.decode(stream), maxlen=1)]


def _decode(path: Path, key_frames: bool = False) -> Iterator[_Frame]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        if key_frames:
            stream.codec_context.skip_frame = "NONKEY"
        yield from map(_converted, container.decode(stream))


def _converted(frame: av.VideoFrame) -> _Frame:
    return _Frame(frame.pts or 0, np.asarray(frame.to_ndarray(format="rgb24")))


def _thinned(frames: Iterable[_Frame]) -> list[_Frame]:
    """Returns evenly spaced frames and the last one, without ever holding many."""
    kept: list[_Frame] = []
    spacing, last = 1, None
    for index, frame in enumerate(frames):
        last = frame
        if index % spacing == 0:
            kept.append(frame)
        if len(kept) > _MOST_KEPT:
            kept, spacing = kept[::2], 2 * spacing
    return kept if last is None or last is kept[-1] else [*kept, last]


def _picked(frames: list[_Frame]) -> list[_Frame]:
    """Returns the frames nearest to evenly spaced places, in full rows."""
    count = THUMBNAILS if len(frames) >= THUMBNAILS else min(COLUMNS, len(frames))
    places = np.array([frame.place for frame in frames])
    wanted = np.linspace(places[0], places[-1], count)
    return [frames[int(np.abs(places - place).argmin())] for place in wanted]


def _arranged(pictures: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    height, width = pictures[0].shape[0] + _GAP, pictures[0].shape[1] + _GAP
    rows, columns = -(-len(pictures) // COLUMNS), min(len(pictures), COLUMNS)
    sheet = np.full((rows * height - _GAP, columns * width - _GAP, 3), 128, dtype=np.uint8)  # on light pages and dark
    for k, picture in enumerate(pictures):
        top, left = k // COLUMNS * height, k % COLUMNS * width
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return sheet


def _moves(frames: Iterable[_Frame]) -> bool:
    rest = iter(frames)
    first = next(rest, None)
    second = None if first is None else next(rest, None)
    if first is None or second is None:
        return True  # one picture cannot be expected to move
    return any(_difference(first.image, frame.image) >= _MOVED for frame in chain([second], rest))


def _shrink(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    scale = min(_HEIGHT / height, _WIDEST / width)
    size = {"height": max(1, round(height * scale)), "width": max(1, round(width * scale))}
    # Averages of areas: single pixels of a fine pattern would make another one.
    shrunk = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24").reformat(
        **size, interpolation="AREA"
    )
    return np.asarray(shrunk.to_ndarray(format="rgb24"))


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
    context.options = {"qmin": str(_QUALITY), "qmax": str(_QUALITY)}
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24").reformat(format="yuvj420p")
    packets = [*context.encode(frame), *context.encode(None)]
    return "data:image/jpeg;base64," + base64.b64encode(b"".join(bytes(packet) for packet in packets)).decode()
