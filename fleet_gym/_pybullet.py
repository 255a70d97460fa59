"""PyBullet without its noise: the one place that imports it and opens clients.

PyBullet writes its build time to descriptor 2 at import and ``b3Warning`` lines to descriptor 1 while it loads a
URDF, below Python's ``sys.stdout``. Both are caught here at the descriptor level and kept in the debug log.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import NoReturn

logger = logging.getLogger("fleet_gym.pybullet")

_libc = ctypes.CDLL(None)  # once: each handle leaves a type object behind
_descriptor_lock = threading.RLock()
_module: ModuleType | None = None


def _flush_all() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A stream may be None (pythonw), closed, or replaced by an object without a working flush.
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()
    _libc.fflush(None)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def quiet_descriptors() -> Iterator[None]:
    """Sends what C code writes to descriptors 1 and 2 to the debug log while the block runs.

    Use it around import and loading only, never per step: it is process-wide, so what other threads print
    meanwhile is caught too (and is in the debug log).
    """
    caught = ""
    try:
        # A daemon may have closed some; a file opened next gets the free number, which then needs no detour.
        with _descriptor_lock:
            descriptors = [descriptor for descriptor in (1, 2) if _is_open(descriptor)]
            with tempfile.TemporaryFile() as sink:
                saved: dict[int, int] = {}
                try:
                    _flush_all()
                    for descriptor in descriptors:
                        saved[descriptor] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
                        os.dup2(sink.fileno(), descriptor)
                    yield
                finally:
                    _flush_all()
                    for descriptor, copy in saved.items():
                        os.dup2(copy, descriptor)
                        os.close(copy)
                    sink.seek(0)
                    caught = sink.read().decode(errors="replace")
    finally:
        for line in caught.splitlines():
            logger.debug("%s", line)


def pybullet() -> ModuleType:
    """Returns the ``pybullet`` module, imported silently at the first call.

    Raises:
        ImportError: when PyBullet was built without NumPy support (camera images would be tuples).
    """
    global _module
    if _module is None:
        with quiet_descriptors():
            import pybullet as module
        if not module.isNumpyEnabled():
            raise ImportError("pybullet was built without NumPy; install the wheel from PyPI: pip install pybullet")
        _module = module
    return _module


def pybullet_data_path() -> str:
    """Returns the folder of ``pybullet_data`` (URDFs, meshes and textures shipped with PyBullet)."""
    import pybullet_data

    return str(pybullet_data.getDataPath())


def _disconnect(client_id: int, owner_pid: int) -> None:
    # A forked child inherits the handle but not the right to close it.
    if os.getpid() == owner_pid and _module is not None and _module.isConnected(client_id):
        _module.disconnect(client_id)


class DirectClient:
    """One ``DIRECT`` physics client, disconnected by `close`, at garbage collection or at exit.

    An empty client costs about 29 MB of resident memory (pybullet 3.2.7).

    Attributes:
        id: pass as ``physicsClientId=`` to PyBullet's functions.
    """

    def __init__(self) -> None:
        p = pybullet()
        with quiet_descriptors():
            self.id: int = p.connect(p.DIRECT)
        if self.id < 0:
            raise RuntimeError("pybullet.connect(DIRECT) failed: a process holds at most 1024 clients")
        p.setAdditionalSearchPath(pybullet_data_path(), physicsClientId=self.id)
        self._finalizer = weakref.finalize(self, _disconnect, self.id, os.getpid())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # Two owners of one client would step the same world.
        raise TypeError("a physics client can be neither copied nor pickled; make a new environment instead")

    def close(self) -> None:
        """Disconnects; calling it again does nothing."""
        self._finalizer()

    def load_urdf(self, path: str, **kwargs: object) -> int:
        """Loads a URDF silently and returns its body id; arguments as ``pybullet.loadURDF``.

        Raises:
            ValueError: when the file is missing or PyBullet cannot read it.
        """
        p = pybullet()
        try:
            with quiet_descriptors():
                return int(p.loadURDF(path, physicsClientId=self.id, **kwargs))
        except p.error as error:
            raise ValueError(
                f"urdf path: expected a URDF file that PyBullet can load, got {path!r} ({error})"
            ) from None
