"""An ffmpeg child that is fed frames: it cannot block its parent for ever, fail unseen, or be held by a fork."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fleet_gym.video.forks import close_in_forks, forget
from fleet_gym.video.priority import give_way

_LARGEST_PIPE = 1 << 20  # /proc/sys/fs/pipe-max-size of an unprivileged process
_SMALLEST_PIPE = 1 << 16
_FRAMES_IN_PIPE = 4
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032  # fcntl has these names from Python 3.10 on Linux only
_FIONREAD = 0x541B
# What ffmpeg returns after it finished its file because of SIGTERM, which a job's end sends to the children too. Some
# codecs that fail end it with the same code: whoever waits counts the frames.
_TERMINATED = 255


def _reap(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner and process.poll() is None:
        process.kill()
        process.wait()


@contextlib.contextmanager
def interrupts_kept_off() -> Iterator[None]:
    """Makes processes started within ignore SIGINT: a Ctrl-C is for the program, which then ends its encoders."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # children inherit what is blocked
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class FfmpegProcess:
    """Feeds raw frames to an ffmpeg through its standard input."""

    def __init__(self, process: subprocess.Popen[bytes], timeout: float, frame_bytes: int) -> None:
        """Takes a running ffmpeg over.

        Args:
            process: with pipes as stdin and stderr.
            timeout: seconds without progress after which it counts as stuck.
            frame_bytes: of one frame.
        """
        import fcntl

        self._frame_bytes = frame_bytes
        if process.stdin is None:
            raise ValueError("process: expected one started with stdin=PIPE, got none")
        self._process = process
        self._timeout = timeout
        self._frame: memoryview | bytes = b""  # the one being written, or the last
        self._due = 0  # bytes of all frames, that one included
        self._written: list[int] = []  # sums up to the bytes ffmpeg was given
        self._full: tuple[float, int] | None = None  # since when there is no room, and how much was in the pipe then
        self._stdin = process.stdin.fileno()
        give_way(process.pid)
        # Room for whole frames lets them be handed over at once, but what is in the pipe is lost when everything is
        # killed. Without the right to a larger pipe the default is kept.
        wanted = min(max(_FRAMES_IN_PIPE * frame_bytes, _SMALLEST_PIPE), _LARGEST_PIPE)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._stdin, _F_SETPIPE_SZ, wanted)
        self._capacity = fcntl.fcntl(self._stdin, _F_GETPIPE_SZ)
        os.set_blocking(self._stdin, False)
        close_in_forks(self._stdin)
        self._poll = select.poll()
        self._poll.register(self._stdin, select.POLLOUT)
        self._finalizer = weakref.finalize(self, _reap, process, os.getpid())
        self._finalizer.atexit = False  # by then the recorder has ended it, or wants to

    @property
    def frames(self) -> int:
        """Whole frames ffmpeg was given."""
        return sum(self._written) // self._frame_bytes

    def write(self, frame: NDArray[np.uint8], drop: bool) -> bool:
        """Writes a frame.

        Args:
            frame: made contiguous when it is not.
            drop: leave the frame out when there is no room for it now.

        Returns:
            Whether it was written.

        Raises:
            OSError: when ffmpeg died.
            TimeoutError: when ffmpeg took nothing for the time-out.
        """
        data = memoryview(np.ascontiguousarray(frame).data).cast("B")
        self._write_rest()
        if drop and (pending := self._pending()) > max(0, self._capacity - len(data)):
            self._expect_less_than(pending)
            return False
        self._full = None
        try:
            self._frame = data
            self._due += len(data)
            self._write_rest()
        except BaseException:
            self._frame = bytes(data)  # the caller may paint over it before its rest is written
            raise
        return True

    def _write_rest(self) -> None:
        while missing := self._due - sum(self._written):
            rest = self._frame[len(self._frame) - missing :]
            try:
                # One call, so that no signal handler that raises (a Ctrl-C) comes between the writing and the noting.
                self._written.extend(map(os.write, (self._stdin,), (rest,)))
            except BlockingIOError:
                if not self._poll.poll(self._timeout * 1000):
                    self._give_up()
            except BrokenPipeError:
                raise OSError(self._death()) from None
        self._written[:] = [self._due]

    def _expect_less_than(self, pending: int) -> None:
        now = time.monotonic()
        if self._full is None or pending < self._full[1]:
            self._full = (now, pending)
        elif now - self._full[0] > self._timeout:
            self._give_up()

    def _give_up(self) -> NoReturn:
        self.kill()
        raise TimeoutError(f"ffmpeg took no data for {self._timeout:g} s; it was killed") from None

    def end_input(self) -> None:
        """Writes what is left of a frame and closes ffmpeg's standard input; calling it again does nothing.

        Raises:
            OSError: when ffmpeg died before it had the rest.
            TimeoutError: when it took nothing for the time-out.
        """
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._write_rest()
            self._close_input()

    def _close_input(self) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            forget(self._stdin)
            stdin.close()

    def wait(self) -> str:
        """Waits until ffmpeg has finished its file.

        Returns:
            What it said.

        Raises:
            OSError: when it failed.
            TimeoutError: when it was not done within the time-out.
        """
        self.end_input()
        try:
            code = self._process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"ffmpeg did not finish its file within {self._timeout:g} s; it was killed") from None
        if code not in (0, _TERMINATED):
            raise OSError(self._death())
        said = self._said()
        self._release()
        return said

    def kill(self) -> None:
        """Ends ffmpeg at once; calling it again does nothing."""
        self._close_input()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._release()

    def _pending(self) -> int:
        import array
        import fcntl

        count = array.array("i", [0])
        fcntl.ioctl(self._stdin, _FIONREAD, count)
        return count[0]

    def _death(self) -> str:
        # A broken pipe may be seen a moment before the child can be waited for.
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        code = self._process.poll()
        said = self._said()
        self.kill()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return f"ffmpeg {how}" + (f": {said}" if said else "")

    def _said(self) -> str:
        stderr: Any = self._process.stderr
        if stderr is None or stderr.closed:
            return ""
        os.set_blocking(stderr.fileno(), False)
        return (stderr.read(4096) or b"").decode(errors="replace").strip()

    def _release(self) -> None:
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._finalizer.detach()
