"""The encoder worker: a process that holds the encoders of many streams and knows nothing of the user's program."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import socket
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.video import pool_protocol as protocol
from fleet_gym.video.episode_files import claim, part_path, publish
from fleet_gym.video.frames import CHANNELS
from fleet_gym.video.mp4 import count_frames
from fleet_gym.video.priority import give_way
from fleet_gym.video.pyav_encoder import PyavEncoder
from fleet_gym.video.run_lock import lock_byte
from fleet_gym.video.writers import EncoderSettings, StreamRequest

_PARENT_LOOKED_AFTER = 2.0  # seconds
# A worker whose frames have waited so long is behind and encodes in two threads. One that keeps up leaves the other
# cores to the simulation, which a second thread would only interrupt.
_BEHIND = 0.1  # seconds
_LONGEST_WORDS = 4000


class _Stream:
    """One video: claimed and opened at its second frame or its end, failed at most once."""

    def __init__(self, request: StreamRequest, folder: Path, settings: EncoderSettings, announce: Any) -> None:
        self.request = request
        self.failed = False
        self._folder = folder
        self._settings = settings
        self._announce = announce
        self._first: NDArray[np.uint8] | None = None
        self._encoder: PyavEncoder | None = None
        self._shape = (request.height, request.width, CHANNELS[request.pixel_format])

    def encode(self, data: NDArray[np.uint8]) -> None:
        """Takes the next frame; nothing of `data` is kept."""
        image = data.reshape(self._shape)
        if self._encoder is not None:
            self._encoder.encode(image)
        elif self._first is None:
            self._first = image.copy()
        else:
            self._open(self._first).encode(image)

    def _open(self, first: NDArray[np.uint8]) -> PyavEncoder:
        name = claim(self._folder, self.request.name, self._settings.overwrite, self._announce)
        self.request = replace(self.request, name=name)
        part = part_path(self._folder, name)
        try:
            self._encoder = PyavEncoder(part, self.request, self._settings)
        except Exception:
            part.unlink()
            raise
        self._first = None
        self._encoder.encode(first)
        return self._encoder

    def finish(self, outcome: str) -> dict[str, Any]:
        """Settles the file and returns what to tell about it."""
        encoder = self._encoder
        if encoder is None and self._first is not None and outcome != "discard":
            encoder = self._open(self._first)
        if encoder is None:
            return {"frames": 0}
        part = part_path(self._folder, self.request.name)
        frames = encoder.frames
        if outcome == "discard":
            part.unlink(missing_ok=True)
            return {"frames": frames}
        encoder.close()
        counted = count_frames(part) or 0
        if counted != frames:
            raise OSError(f"the file {part.name} holds {counted} of {frames} frames")
        size = part.stat().st_size
        name = replace(self.request.name, partial=outcome == "partial")
        path = publish(part, name, self._settings.overwrite)
        return {"frames": frames, "file": path.name, "bytes": size}

    def leave(self) -> None:
        """Finishes the file without giving it its name."""
        if self._encoder is not None and not self.failed:
            self._encoder.close()


class Worker:
    """Reads messages until it is told to stop or its recorder is gone."""

    def __init__(self, connection: socket.socket, ring: NDArray[np.uint8], setup: dict[str, Any]) -> None:
        self._connection = connection
        self._ring = ring
        self._parent = setup["parent"]
        self._folder = Path(setup["folder"])
        self._settings = EncoderSettings(**setup["settings"])
        self._streams: dict[int, _Stream] = {}
        self._helper = ThreadPoolExecutor(1) if setup["threads"] > 1 else None
        self._lock = os.open(setup["lock"], os.O_RDWR | os.O_APPEND)
        lock_byte(self._lock, setup["index"] + 1)

    def run(self) -> None:
        """Serves until the end; then every file still open is finished under its ``.part`` name."""
        try:
            while self._serve_one():
                pass
        finally:
            for stream in self._streams.values():
                with contextlib.suppress(Exception):  # nobody is left to be told
                    stream.leave()

    def _serve_one(self) -> bool:
        message = self._receive()
        kind = message[:1]
        if kind == protocol.FRAMES:
            self._encode(message)
        elif kind == protocol.OPEN:
            for item in json.loads(message[1:]):
                stream, request = protocol.unpack_request(item)
                self._streams[stream] = _Stream(request, self._folder, self._settings, self._announce)
        elif kind == protocol.FINISH:
            self._finish(json.loads(message[1:]))
        return kind not in (protocol.STOP, b"")

    def _receive(self) -> bytes:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while not poll.poll(_PARENT_LOOKED_AFTER * 1000):
            if os.getppid() != self._parent:  # killed, while a process it started keeps the connection open
                return b""
        try:
            return self._connection.recv(protocol.LARGEST_MESSAGE)
        except ConnectionResetError:
            return b""

    def _send(self, message: bytes) -> None:
        # A recorder that is gone is noticed at the next receive, after what it sent before has been encoded.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    def _announce(self, part_name: str) -> None:
        os.write(self._lock, os.fsencode(part_name) + b"\n")

    def _encode(self, message: bytes) -> None:
        waited, end, frames = protocol.unpack_frames(message)
        if self._helper is not None and waited > _BEHIND and len(frames) > 1:
            half = self._helper.submit(self._encode_some, frames[::2])
            failures = self._encode_some(frames[1::2]) + half.result()
        else:
            failures = self._encode_some(frames)
        if failures:
            self._tell(failures)
        self._send(protocol.pack_ack(end))

    def _encode_some(self, frames: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
        failures = []
        for number, offset, frame_bytes in frames:
            stream = self._streams[number]
            if not stream.failed:
                try:
                    stream.encode(self._ring[offset : offset + frame_bytes])
                except Exception as error:  # PyAV's have no base of their own; whatever it is, the others go on
                    stream.failed = True
                    failures.append({"stream": number, "error": _words(error), "ended": False})
        return failures

    def _finish(self, endings: list[tuple[int, str]]) -> None:
        results = []
        for number, outcome in endings:
            stream = self._streams.pop(number)
            result: dict[str, Any] = {"stream": number}
            if not stream.failed or outcome == "discard":
                try:
                    result |= stream.finish(outcome)
                except Exception as error:  # as in _encode_some
                    result |= {"error": _words(error)}
            results.append(result)
        self._tell(results)

    def _tell(self, results: list[dict[str, Any]]) -> None:
        for message in protocol.pack_results(results):
            self._send(message)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_WORDS]


def main(setup: dict[str, Any]) -> None:
    """Runs a worker; called by the bootstrap lines of `pool`."""
    give_way()
    connection = socket.socket(fileno=setup["connection"])
    memory = mmap.mmap(setup["memory"], setup["size"], flags=mmap.MAP_SHARED)
    os.close(setup["memory"])
    try:
        Worker(connection, np.frombuffer(memory, dtype=np.uint8), setup).run()
    except Exception:
        # The recorder raises it with the names of the streams; standard error goes nowhere.
        with contextlib.suppress(OSError):
            connection.send(protocol.FATAL + traceback.format_exc(limit=-3).encode()[-_LONGEST_WORDS:])
        sys.exit(1)
