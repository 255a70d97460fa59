"""What a recorder and its encoder workers say to each other, and the ring of shared memory the frames cross in.

Messages go over a ``SOCK_SEQPACKET`` pair, which keeps them apart. The first byte says what a message is.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

import numpy as np
from numpy.typing import NDArray

# To the worker.
OPEN = b"O"  # JSON list of streams
FRAMES = b"F"  # FrameHeader, then the streams' numbers as uint32: their frames lie one after another in the ring
FINISH = b"E"  # JSON list of (stream, outcome)
STOP = b"S"
# From the worker.
ACK = b"A"  # uint64: everything in the ring before this position may be overwritten
RESULTS = b"R"  # JSON list of results
FATAL = b"X"  # text: why the worker ends

LARGEST_MESSAGE = 1 << 17
ITEMS_PER_MESSAGE = 64
_FRAME_HEADER = struct.Struct("<dQQII")
_POSITION = struct.Struct("<Q")


def pack_frames(offset: int, end: int, frame_bytes: int, streams: NDArray[np.int64]) -> bytes:
    """Returns the message about frames of `frame_bytes` each at `offset` in the ring; `end` is to be acknowledged."""
    numbers = streams.astype("<u4").tobytes()
    return FRAMES + _FRAME_HEADER.pack(time.monotonic(), offset, end, frame_bytes, len(streams)) + numbers


def unpack_frames(message: bytes) -> tuple[float, int, int, int, list[int]]:
    """Returns (seconds since it was packed, offset, end, frame bytes, streams)."""
    packed, offset, end, frame_bytes, count = _FRAME_HEADER.unpack_from(message, 1)
    numbers = np.frombuffer(message, dtype="<u4", count=count, offset=1 + _FRAME_HEADER.size)
    return time.monotonic() - packed, offset, end, frame_bytes, numbers.tolist()


def pack_ack(position: int) -> bytes:
    """Returns the message that everything before `position` was read."""
    return ACK + _POSITION.pack(position)


def unpack_ack(message: bytes) -> int:
    """Returns the position."""
    position: int = _POSITION.unpack_from(message, 1)[0]
    return position


class FrameRing:
    """A ring of shared memory: blocks are contiguous, are freed in the order they were made, and never move.

    Attributes:
        size: bytes.
        memory: (size,) uint8.
        descriptor: of the memory, until `handed_over`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = os.memfd_create("fleet-gym-frames", os.MFD_CLOEXEC)
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
