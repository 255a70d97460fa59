"""One stream encoded with PyAV in this process, without holding a descriptor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from fleet_gym.video.writers import EncoderSettings, StreamRequest


class DetachedFile:
    """A file that is open only while it is written to. What the muxer writes waits in memory until `flush`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._size = 0
        self._pending: list[tuple[int, bytes]] = []

    def write(self, data: bytes) -> int:
        """Takes data for the current position."""
        self._pending.append((self._position, bytes(data)))
        self._position += len(data)
        self._size = max(self._size, self._position)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the current position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Returns the current position."""
        return self._position

    def flush(self) -> None:
        """Brings what waits to the disk."""
        if not self._pending:
            return
        with open(self._path, "r+b", buffering=0) as file:
            for position, data in self._pending:
                file.seek(position)
                rest = memoryview(data)
                while len(rest):
                    rest = rest[file.write(rest) :]
        self._pending.clear()


class PyavEncoder:
    """Encodes frames into a ``.part`` file; each finished group of pictures is on the disk and can be decoded.

    Attributes:
        frames: encoded so far.
    """

    def __init__(self, part: Path, request: StreamRequest, settings: EncoderSettings) -> None:
        """Opens the encoder.

        Raises:
            OSError: when the file cannot be written.
            ValueError: when the codec cannot be put into the file.
        """
        self.frames = 0
        self._request = request
        self._file = DetachedFile(part)
        options = {"movflags": "+hybrid_fragmented+frag_keyframe", "flush_packets": "1"}
        self._container: Any = av.open(self._file, "w", format="mp4", options=options)
        self._container.metadata["comment"] = request.comment
        codec_options = settings.codec_options()
        bitrate = codec_options.pop("b", None)
        stream: Any = self._container.add_stream(settings.codec, rate=request.fps, options=codec_options)
        stream.width, stream.height = request.coded_size
        stream.pix_fmt = "yuv420p"
        stream.time_base = 1 / request.fps
        stream.codec_context.time_base = 1 / request.fps
        stream.codec_context.thread_count = 1
        if bitrate is not None:
            stream.codec_context.bit_rate = parse_bitrate(bitrate)
        self._stream = stream
        self._reformatter = av.video.reformatter.VideoReformatter()

    def encode(self, image: NDArray[np.uint8]) -> None:
        """Encodes an image (H, W[, C]) in the request's size and pixel format; nothing of it is kept."""
        width, height = self._request.coded_size
        if image.shape[:2] != (height, width):
            padded = np.zeros((height, width, *image.shape[2:]), dtype=np.uint8)
            padded[: image.shape[0], : image.shape[1]] = image
            image = padded
        if image.ndim == 3 and image.shape[2] == 1:
            image = image[..., 0]
        source = av.VideoFrame.from_numpy_buffer(image, format=self._request.pixel_format)
        # One thread: pools of threads per stream would run into the limits of the user's processes.
        frame = self._reformatter.reformat(source, format="yuv420p", threads=1)
        frame.pts = self.frames
        frame.time_base = 1 / self._request.fps
        self._mux(self._stream.encode(frame))
        self.frames += 1

    def close(self) -> None:
        """Finishes the file."""
        self._mux(self._stream.encode(None))
        self._container.close()
        self._file.flush()

    def _mux(self, packets: Any) -> None:
        for packet in packets:
            self._container.mux(packet)
        self._file.flush()


def parse_bitrate(text: str) -> int:
    """Returns bits per second for what ffmpeg takes as a bit rate: a number, with ``k`` or ``M`` after it or not."""
    scale = {"k": 1_000, "K": 1_000, "M": 1_000_000, "m": 1_000_000}.get(text[-1:], 1)
    return int(float(text[:-1] if scale > 1 else text) * scale)
