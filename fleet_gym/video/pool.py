"""The backend for many streams: a few worker processes encode, frames reach them through shared memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import select
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

import fleet_gym
from fleet_gym.video import pool_protocol as protocol
from fleet_gym.video.forks import close_in_forks, forget
from fleet_gym.video.pool_protocol import FrameRing
from fleet_gym.video.run_lock import RunLock
from fleet_gym.video.writers import (
    EncoderSettings,
    FrameGroup,
    Images,
    Outcome,
    StreamRequest,
    StreamResult,
    refuse_taken_names,
)

# What waits in the ring is lost when everything is killed, so there is room for a few frames per stream, in memory
# that stays small beside the encoders; with 192 streams of 128x128 for the second in which a worker starts and opens
# them. At least for two steps, so that handing one over need not wait for its encoding.
_FRAMES_IN_RING = 16
_RING_BYTES = 72 << 20
_LARGEST_RING = 160 << 20
_TOOK_NO_FRAMES = "took no frames"
# The worker gets this process's import path, so that it finds the same packages, and never sees the user's script. It
# takes the package without running its __init__: that imports Gymnasium, a third of the start and 10 MB, for nothing.
_BOOTSTRAP = """
import json, socket, sys, types
setup = json.loads(sys.argv[1])
sys.path[:] = setup["path"]
sys.modules["fleet_gym"] = types.ModuleType("fleet_gym")
sys.modules["fleet_gym"].__path__ = setup["package"]
try:
    from fleet_gym.video.pool_worker import main
except BaseException as error:
    socket.socket(fileno=setup["connection"]).send(b"X" + f"{type(error).__name__}: {error}".encode())
    raise
main(setup)
"""


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def default_workers() -> int:
    """Returns half of the cores this process may use, at least 1 and at most 4."""
    return max(1, min(4, _cores() // 2))


class WorkerLostError(Exception):
    """A worker died, or was killed because it did not move on."""


class _WorkerProcess:
    """This process's end of a worker."""

    def __init__(self, index: int, ring_size: int, setup: dict[str, Any], timeout: float) -> None:
        self._timeout = timeout
        self._ring = FrameRing(ring_size)
        self._results: list[bytes] = []
        self._full_since: float | None = None  # when frames were first left out, and nothing was heard since
        self._fatal = ""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs = socket.socket(fileno=protocol.above_standard(theirs.detach()))
        setup = {
            **setup,
            "index": index,
            "connection": theirs.fileno(),
            "memory": self._ring.descriptor,
            "size": ring_size,
            "parent": os.getpid(),
            "package": list(fleet_gym.__path__),
            "path": [os.path.abspath(entry) for entry in sys.path],
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(setup)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._ring.descriptor),
                start_new_session=True,  # a Ctrl-C is for the training loop; the worker is told about its files
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            self._ring.handed_over()
        self._socket = ours
        self._socket.setblocking(False)
        close_in_forks(ours.fileno())
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._finalizer = weakref.finalize(self, _end_process, self._process, ours, os.getpid(), timeout)
        self._finalizer.atexit = False  # by then the recorder has ended it, or wants to

    def reserve(self, count: int, wait: bool) -> tuple[int, int] | None:
        """Returns (offset, end) of a block in the ring, or None when there is no room and `wait` is False.

        Raises:
            WorkerLostError: when the worker died or freed nothing for the time-out.
        """
        block = self._ring.reserve(count)
        if block is None:
            self.drain()
            block = self._ring.reserve(count)
        while block is None and wait:
            self._wait(_TOOK_NO_FRAMES)
            block = self._ring.reserve(count)
        if block is not None:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = time.monotonic()
        elif time.monotonic() - self._full_since > self._timeout:
            self._kill(_TOOK_NO_FRAMES)
        return block

    def memory(self, offset: int, count: int) -> NDArray[np.uint8]:
        """Returns `count` bytes of the ring."""
        return self._ring.memory[offset : offset + count]

    @property
    def largest_block(self) -> int:
        """Bytes of frames to hand over at a time, so that the worker encodes one while the next is being filled."""
        return self._ring.size // 2

    def send(self, message: bytes) -> None:
        """Sends a message, taking in answers while there is no room for it.

        Raises:
            WorkerLostError: when the worker died or took nothing for the time-out.
        """
        while True:
            try:
                self._socket.send(message)
            except BlockingIOError:
                self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
                try:
                    self._wait("took no messages")
                finally:
                    self._poll.modify(self._socket, select.POLLIN)
            except OSError:
                self.drain()  # raises, with its last words if it had any
                self._die()
            else:
                return

    def drain(self) -> None:
        """Takes in what the worker said.

        Raises:
            WorkerLostError: when it died; what it said before is in `results`.
        """
        while True:
            try:
                message = self._socket.recv(protocol.LARGEST_MESSAGE)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # Told once when the worker ended with messages unread; what it said before is still to be had.
                continue
            kind = message[:1]
            self._full_since = None
            if kind == protocol.ACK:
                self._ring.free(protocol.unpack_ack(message))
            elif kind == protocol.RESULTS:
                self._results.append(message)
            elif kind == protocol.FATAL:
                self._fatal = message[1:].decode(errors="replace").strip()
            else:
                self._die()

    def results(self) -> list[bytes]:
        """Returns the messages about streams that came since the last call."""
        results, self._results = self._results, []
        return results

    def wait(self) -> None:
        """Waits until the worker says something.

        Raises:
            WorkerLostError: when it died or said nothing for the time-out.
        """
        self._wait("finished no file")

    def tell_stop(self) -> None:
        """Asks the worker to end, without waiting for it."""
        with contextlib.suppress(OSError):
            self._socket.send(protocol.STOP)

    def join(self) -> None:
        """Waits for the worker's end; calling it again does nothing."""
        if self._finalizer.detach() is not None:
            _end_process(self._process, self._socket, os.getpid(), self._timeout)

    def _wait(self, complaint: str) -> None:
        if not self._poll.poll(self._timeout * 1000):
            self._kill(complaint)
        self.drain()

    def _kill(self, complaint: str) -> NoReturn:
        self._process.kill()
        self._process.wait()
        raise WorkerLostError(f"the encoder worker {complaint} for {self._timeout:g} s; it was killed")

    def _die(self) -> None:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise WorkerLostError(f"the encoder worker {how}" + (f": {self._fatal}" if self._fatal else ""))


def _end_process(process: subprocess.Popen[bytes], connection: socket.socket, owner: int, timeout: float) -> None:
    if os.getpid() != owner:
        return
    forget(connection.fileno())
    connection.close()  # a worker that was not told to stop finishes what it has under the .part names
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class PoolBackend:
    """Spreads streams over workers, those of one environment on the same where there are enough environments.

    Stream numbers are ``count * workers + worker``, so that arrays of them are split without looking anything up.
    """

    def __init__(
        self,
        folder: Path,
        settings: EncoderSettings,
        run_id: str,
        envs: Sequence[int],
        num_streams: int,
        num_workers: int,
    ) -> None:
        """Makes a backend; a worker is started when an episode of its environments that is recorded begins.

        Args:
            folder: of the videos.
            settings: of the encoders.
            run_id: of the recorder, for its lock file.
            envs: the environments that are recorded.
            num_streams: that will be open at a time.
            num_workers: at most.
        """
        self._folder = folder
        self._settings = settings
        self._lock = RunLock(folder, run_id)
        self._setup: dict[str, Any] = {
            "folder": str(folder),
            "settings": asdict(settings),
            "lock": str(self._lock.path),
        }
        self._count = min(num_workers, num_streams)
        self._setup["threads"] = min(2, max(1, _cores() // self._count))
        self._streams_per_worker = -(-num_streams // self._count)
        self._position = {env: position for position, env in enumerate(envs)}
        self._numbers = itertools.count()
        self._workers: list[_WorkerProcess | None] = [None] * self._count
        self._open: list[set[int]] = [set() for _ in range(self._count)]  # not told to finish yet
        self._ending: list[set[int]] = [set() for _ in range(self._count)]
        self._skip: set[int] = set()  # failed: frames for them are left out
        self._orphans: set[int] = set()  # those of them whose worker is gone
        self._dropped: dict[int, int] = {}
        self._results: list[StreamResult] = []

    def open(self, requests: Sequence[StreamRequest]) -> list[int]:
        """See `VideoBackend`."""
        refuse_taken_names(self._folder, requests, self._settings)
        for worker in range(self._count):
            self._notice_loss(worker)  # another is started for these streams
        numbers = []
        items: dict[int, list[list[Any]]] = {}
        for request in requests:
            worker = self._assign(request.name.env)
            number = next(self._numbers) * self._count + worker
            numbers.append(number)
            self._open[worker].add(number)
            items.setdefault(worker, []).append(protocol.pack_request(number, request))
        sizes = [request.frame_bytes for request in requests]
        for worker, theirs in items.items():
            if self._workers[worker] is None:
                with self._losing(worker):
                    self._workers[worker] = self._start(worker, sizes)
            self._send(worker, protocol.OPEN, theirs)
        return numbers

    def write(self, groups: Sequence[FrameGroup]) -> None:
        """See `VideoBackend`."""
        if self._skip:
            groups = [_choose(group, ~np.isin(group[2], list(self._skip))) for group in groups]
        if self._count == 1:
            self._write_to(0, groups)
            return
        for worker in range(self._count):
            self._write_to(worker, [_choose(group, group[2] % self._count == worker) for group in groups])

    def finish(self, endings: Sequence[tuple[int, Outcome]]) -> None:
        """See `VideoBackend`."""
        items: dict[int, list[tuple[int, Outcome]]] = {}
        for stream, outcome in endings:
            worker = stream % self._count
            self._open[worker].discard(stream)
            self._skip.discard(stream)
            if stream in self._orphans:
                self._orphans.discard(stream)
                self._add(StreamResult(stream))
            else:
                self._ending[worker].add(stream)
                items.setdefault(worker, []).append((stream, outcome))
        for worker, theirs in items.items():
            self._send(worker, protocol.FINISH, theirs)

    def collect(self, wait: bool) -> list[StreamResult]:
        """See `VideoBackend`."""
        for worker, process in enumerate(self._workers):
            if process is not None:
                self._notice_loss(worker)
                self._take(process)
                while wait and self._ending[worker]:
                    with self._losing(worker):
                        process.wait()
                    self._take(process)
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        """See `VideoBackend`."""
        processes = [process for process in self._workers if process is not None]
        self._workers = [None] * self._count
        for process in processes:
            process.tell_stop()
        for process in processes:
            process.join()
        self._lock.close()

    def _notice_loss(self, worker: int) -> None:
        process = self._workers[worker]
        if process is not None:
            with self._losing(worker):
                process.drain()

    def _assign(self, env: int) -> int:
        if len(self._position) >= self._count:
            return self._position[env] * self._count // len(self._position)
        return min(range(self._count), key=lambda worker: len(self._open[worker]))

    def _start(self, worker: int, sizes: Sequence[int]) -> _WorkerProcess:
        step = self._streams_per_worker * sum(sizes) // len(sizes)
        size = min(_FRAMES_IN_RING * step, max(_RING_BYTES, 2 * step), _LARGEST_RING)
        size = max(size, 4 * max(sizes))
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            return _WorkerProcess(worker, size, self._setup, self._settings.timeout)
        except OSError as error:  # no more descriptors, processes or memory
            raise WorkerLostError(f"the encoder worker could not be started: {error}") from error

    def _send(self, worker: int, kind: bytes, items: Sequence[Any]) -> None:
        process = self._workers[worker]
        if process is None:
            return  # lost a moment ago, and said so
        with self._losing(worker):
            for start in range(0, len(items), protocol.ITEMS_PER_MESSAGE):
                process.send(kind + json.dumps(items[start : start + protocol.ITEMS_PER_MESSAGE]).encode())

    def _write_to(self, worker: int, groups: Sequence[FrameGroup]) -> None:
        process = self._workers[worker]
        if process is None:
            return
        with self._losing(worker):
            for block in _blocks(groups, process.largest_block):
                wanted = sum(size * len(rows) for size, _, rows, _ in block)
                place = process.reserve(wanted, wait=not self._settings.drop)
                if place is None:
                    for *_, streams in block:
                        for stream in streams.tolist():
                            self._dropped[stream] = self._dropped.get(stream, 0) + 1
                    continue
                offset, end = place
                start = offset
                for size, images, rows, _ in block:
                    memory = process.memory(start, size * len(rows))
                    _gather(images, rows, memory.reshape(len(rows), *images[rows[0]].shape))
                    start += size * len(rows)
                process.send(protocol.pack_frames(offset, end, [(size, streams) for size, _, _, streams in block]))

    @contextlib.contextmanager
    def _losing(self, worker: int) -> Iterator[None]:
        """Turns the loss of a worker into a failure of each of its streams."""
        try:
            yield
        except WorkerLostError as error:
            process = self._workers[worker]
            self._workers[worker] = None  # the next stream to be opened starts another
            if process is not None:
                self._take(process)
                process.join()
            reason = str(error)
            lost, self._open[worker] = self._open[worker] - self._orphans, set()
            for stream in sorted(lost):
                self._skip.add(stream)
                self._orphans.add(stream)
                self._add(StreamResult(stream, error=reason, ended=False))
            ending, self._ending[worker] = self._ending[worker], set()
            for stream in sorted(ending):
                self._add(StreamResult(stream, error=reason))

    def _take(self, process: _WorkerProcess) -> None:
        for message in process.results():
            for item in json.loads(message[1:]):
                result = StreamResult(**item)
                worker = result.stream % self._count
                if result.ended:
                    self._ending[worker].discard(result.stream)
                elif result.stream in self._open[worker]:
                    self._skip.add(result.stream)
                self._add(result)

    def _add(self, result: StreamResult) -> None:
        if result.ended and (dropped := self._dropped.pop(result.stream, 0)):
            result = result._replace(dropped=dropped)
        self._results.append(result)


def _choose(group: FrameGroup, chosen: NDArray[np.bool_]) -> FrameGroup:
    images, rows, streams = group
    return images, rows[chosen], streams[chosen]


_Sized = tuple[int, Images, NDArray[np.intp], NDArray[np.int64]]  # bytes of a frame, then a FrameGroup


def _blocks(groups: Sequence[FrameGroup], limit: int) -> Iterator[list[_Sized]]:
    """Yields the frames in blocks of at most `limit` bytes, or of one frame, that one message can tell of."""
    block: list[_Sized] = []
    room, places = limit, protocol.FRAMES_PER_MESSAGE
    for images, rows, streams in groups:
        start = 0
        while start < len(rows):
            size = images[rows[start]].nbytes
            count = min(max(0, room) // size, places, len(rows) - start)
            if count == 0 and block:
                yield block
                block, room, places = [], limit, protocol.FRAMES_PER_MESSAGE
                continue
            count = max(count, 1)
            block.append((size, images, rows[start : start + count], streams[start : start + count]))
            room -= size * count
            places -= count
            start += count
    if block:
        yield block


def _gather(images: Images, rows: NDArray[np.intp], out: NDArray[np.uint8]) -> None:
    if not isinstance(images, np.ndarray):
        for target, row in zip(out, rows.tolist(), strict=True):
            target[...] = images[row]
    elif rows[-1] - rows[0] + 1 == len(rows):  # ascending, so this is all between
        out[...] = images[rows[0] : rows[-1] + 1]
    else:
        np.take(images, rows, axis=0, out=out, mode="clip")  # any other mode goes through a buffer
