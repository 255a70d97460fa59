"""One lock file per recorder, so that nobody takes the unfinished files of a live one for left-overs.

The file names its host and lists the ``.part`` files its recorder has claimed, each before it appears. It is locked
with POSIX record locks, which end with the process whatever happened to it: byte 0 by the recorder, byte k + 1 by its
worker k, which may outlive a killed recorder by the moment it takes to finish its files. Forks do not inherit them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

_PREFIX, _SUFFIX = ".recorder-", ".lock"
_HOST = "host="
# A process never conflicts with its own POSIX locks, and would lose them by closing the file: so it remembers them.
_own: dict[Path, int] = {}


class RunLock:
    """A recorder's lock file; removed when it is closed."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.path = folder.resolve() / f"{_PREFIX}{run_id}{_SUFFIX}"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        _own[self.path] = self._descriptor
        lock_byte(self._descriptor, 0)
        os.write(self._descriptor, f"{_HOST}{socket.gethostname()}\n".encode())

    def announce(self, part_name: str) -> None:
        """Adds a ``.part`` file about to be claimed."""
        os.write(self._descriptor, os.fsencode(part_name) + b"\n")

    def close(self) -> None:
        """Removes the lock; calling it again does nothing."""
        if self._descriptor >= 0:
            self.path.unlink(missing_ok=True)
            del _own[self.path]
            os.close(self._descriptor)
            self._descriptor = -1


def lock_byte(descriptor: int, byte: int) -> None:
    """Locks one byte of a lock file; on file systems without locks does nothing, and nothing there is ever repaired."""
    with contextlib.suppress(OSError):
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)


class FoundLock:
    """Somebody's lock file, looked at from outside.

    Attributes:
        path: of the file.
        run_id: of its recorder.
        names: ``.part`` files it lists, among its other lines.
        live: its recorder or one of its workers is still there, or that cannot be told.
    """

    def __init__(self, path: Path, any_host: bool) -> None:
        self.path = path
        self.run_id = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        self.live = True
        self._descriptor = -1
        if path in _own:
            self.names = _read_lines(_own[path])
            return
        self._descriptor = os.open(path, os.O_RDWR)
        self.names = _read_lines(self._descriptor)
        # Some network file systems keep locks to one machine: those of another one say nothing there.
        ours = f"{_HOST}{socket.gethostname()}" in self.names
        if any_host or ours or not any(line.startswith(_HOST) for line in self.names):
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.live = False

    def close(self, remove: bool) -> None:
        """Lets go of it, and removes it if asked to and it is dead."""
        if remove and not self.live:
            self.path.unlink(missing_ok=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def find_locks(folder: Path, any_host: bool = False) -> list[FoundLock]:
    """Returns every lock file of a folder, those of this process included.

    Args:
        folder: of the videos.
        any_host: believe the locks of recorders of other machines too; otherwise those count as live.
    """
    found = []
    for path in sorted(folder.resolve().glob(f"{_PREFIX}*{_SUFFIX}")):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(FoundLock(path, any_host))
    return found


def _read_lines(descriptor: int) -> frozenset[str]:
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return frozenset(os.fsdecode(data).split("\n")) - {""}
