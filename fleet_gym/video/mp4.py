"""Just enough of the MP4 container to count the frames of a file without opening a decoder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def _boxes(stream: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    # ISO/IEC 14496-12, section 4.2: size (32 bits), type (4 characters), then 64 bits of size when size is 1.
    while start + 8 <= end:
        stream.seek(start)
        header = stream.read(16)
        size, kind, body = int.from_bytes(header[:4], "big"), header[4:8], start + 8
        if size == 1:
            size, body = int.from_bytes(header[8:16], "big"), start + 16
        elif size == 0:
            size = end - start
        if size < body - start:
            return
        yield kind, body, min(start + size, end)
        start += size


def _samples(stream: BinaryIO, start: int, end: int) -> int | None:
    for kind, body, stop in _boxes(stream, start, end):
        if kind in _CONTAINERS:
            found = _samples(stream, body, stop)
            if found is not None:
                return found
        elif kind == b"stsz" and stop - body >= 12:
            stream.seek(body + 8)  # version and flags, sample size, sample count (section 8.7.3)
            return int.from_bytes(stream.read(4), "big")
    return None


def count_frames(path: str | os.PathLike[str]) -> int | None:
    """Returns the number of frames in the index of an mp4 with one video track, None when it has no index.

    A file whose writer was killed has no index, or one that counts no frames.
    """
    with open(path, "rb") as stream:
        return _samples(stream, 0, os.fstat(stream.fileno()).st_size)
