"""What a recorder and its encoder workers say to each other, and the ring of shared memory the frames cross in.

Messages go over a ``SOCK_SEQPACKET`` pair, which keeps them apart. The first byte says what a message is.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.video.episode_files import EpisodeVideoName
from fleet_gym.video.writers import StreamRequest

# To the worker.
OPEN = b"O"  # JSON list, see `pack_request`
FRAMES = b"F"  # see `pack_frames`
FINISH = b"E"  # JSON list of (stream, outcome)
STOP = b"S"
# From the worker.
ACK = b"A"  # uint64: everything in the ring before this position may be overwritten
RESULTS = b"R"  # JSON list of StreamResult fields by name, without those that have their default
FATAL = b"X"  # text: why the worker ends

LARGEST_MESSAGE = 1 << 17
ITEMS_PER_MESSAGE = 64
FRAMES_PER_MESSAGE = LARGEST_MESSAGE // 16
_FRAME_HEADER = struct.Struct("<dQQI")
_POSITION = struct.Struct("<Q")


def pack_request(stream: int, request: StreamRequest) -> list[Any]:
    """Returns what OPEN says of a stream; short, as hundreds may be opened in one step."""
    name = request.name
    return [
        *(stream, name.prefix, name.env, name.camera, name.episode, name.start_step),
        *(request.width, request.height, request.pixel_format, str(request.fps), request.run_id),
    ]


def unpack_request(item: list[Any]) -> tuple[int, StreamRequest]:
    """Returns what was given to `pack_request`."""
    width, height, pixel_format, fps, run_id = item[6:]
    return item[0], StreamRequest(EpisodeVideoName(*item[1:6]), width, height, pixel_format, Fraction(fps), run_id)


def pack_frames(offset: int, end: int, groups: Sequence[tuple[int, NDArray[np.int64]]]) -> bytes:
    """Returns the message about frames that lie one after another in the ring.

    Args:
        offset: of the first, in the ring.
        end: position to be acknowledged.
        groups: (bytes of each frame, the streams they are for), one for every size.
    """
    counts = np.array([(frame_bytes, len(streams)) for frame_bytes, streams in groups], dtype="<u4")
    numbers = [streams.astype("<u4").tobytes() for _, streams in groups]
    header = _FRAME_HEADER.pack(time.monotonic(), offset, end, len(groups))
    return b"".join([FRAMES, header, counts.tobytes(), *numbers])


def unpack_frames(message: bytes) -> tuple[float, int, list[tuple[int, int, int]]]:
    """Returns (seconds since it was packed, position to acknowledge, [(stream, offset, bytes) per frame])."""
    packed, offset, end, groups = _FRAME_HEADER.unpack_from(message, 1)
    words = np.frombuffer(message, dtype="<u4", offset=1 + _FRAME_HEADER.size).tolist()
    numbers = iter(words[2 * groups :])
    frames = []
    for group in range(groups):
        frame_bytes, count = words[2 * group : 2 * group + 2]
        for stream in itertools.islice(numbers, count):
            frames.append((stream, offset, frame_bytes))
            offset += frame_bytes
    return time.monotonic() - packed, end, frames


def pack_results(results: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yields the messages about results; many streams that fail at once, with a long path each, are more than one."""
    texts: list[str] = []
    size = 0
    for text in map(json.dumps, results):
        if texts and size + len(text) > LARGEST_MESSAGE - 2:
            yield RESULTS + f"[{','.join(texts)}]".encode()
            texts, size = [], 0
        texts.append(text)
        size += len(text) + 1
    if texts:
        yield RESULTS + f"[{','.join(texts)}]".encode()


def pack_ack(position: int) -> bytes:
    """Returns the message that everything before `position` was read."""
    return ACK + _POSITION.pack(position)


def unpack_ack(message: bytes) -> int:
    """Returns the position."""
    position: int = _POSITION.unpack_from(message, 1)[0]
    return position


def above_standard(descriptor: int) -> int:
    """Moves a descriptor above 2, where the standard streams of a child do not replace it."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


class FrameRing:
    """A ring of shared memory: blocks are contiguous, are freed in the order they were made, and never move.

    Attributes:
        size: bytes.
        memory: (size,) uint8.
        descriptor: of the memory, until `handed_over`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = above_standard(os.memfd_create("fleet-gym-frames", os.MFD_CLOEXEC))
        try:
            os.ftruncate(self.descriptor, size)
            # Populated now: a page fault per 4 kB would double the cost of the first frames.
            self._map = mmap.mmap(self.descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError:
            os.close(self.descriptor)
            raise
        self.memory: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self._head = 0  # positions count bytes ever used; the place in the memory is the position modulo the size
        self._tail = 0

    def handed_over(self) -> None:
        """Closes the descriptor; the memory stays."""
        os.close(self.descriptor)

    def reserve(self, count: int) -> tuple[int, int] | None:
        """Returns (offset, end position) of a block of `count` bytes, or None when there is no room now."""
        offset = self._head % self.size
        start = self._head if offset + count <= self.size else self._head + self.size - offset
        if start + count - self._tail > self.size:
            return None
        self._head = start + count
        return start % self.size, self._head

    def free(self, position: int) -> None:
        """Frees everything before a position."""
        self._tail = position
