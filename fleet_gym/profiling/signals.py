"""What can be read about a process's memory, and what each reading costs.

| signal | sees | cost |
|---|---|---|
| native heap (``mallinfo2``) | every ``malloc``: PyBullet, NumPy, Python objects over 512 bytes | 1 us |
| RSS | all pages held, freed or not | 2 us |
| Python blocks | live Python objects | 1 us |
| USS | pages nobody else shares: the one figure that adds up over processes | 0.3-8 ms |
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

MIB = 1024 * 1024
POOL_WORKER = "fleet_gym.video.pool_worker"
CGROUP_FILE = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_statm: int | None = None


def _reopen_statm() -> None:
    """In a forked child: the descriptor still describes the parent."""
    global _statm
    if _statm is not None:
        os.close(_statm)
        _statm = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reopen_statm)


def rss_bytes() -> int:
    """Returns the resident set size of this process."""
    global _statm
    if _statm is None:
        try:
            _statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux
            return int(psutil.Process().memory_info().rss)
    return int(os.pread(_statm, 64, 0).split(None, 2)[1]) * _PAGE


def peak_rss_bytes() -> int:
    """Returns the highest RSS this process ever had, as the kernel keeps it."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def python_blocks() -> int:
    """Returns the number of memory blocks held by live Python objects."""
    return sys.getallocatedblocks()


def empty_free_lists() -> None:
    """Gives back the memory blocks that CPython keeps for its next tuples, lists, floats...: thousands, and no garbage.

    A full collection does that besides; of frozen objects it has nothing to look at. Does nothing where somebody else
    froze some: thawing would undo that.
    """
    if gc.get_freeze_count():
        return
    gc.freeze()
    try:
        gc.collect()
    finally:
        gc.unfreeze()


def _mallinfo() -> int:
    info = psutil.heap_info()
    return int(info.heap_used + info.mmap_used)


@functools.cache
def native_heap_reader() -> Callable[[], int] | None:
    """Returns a function that reads the bytes handed out by the C allocator, or None where none can be trusted.

    None on musl, macOS, and under a preloaded allocator (jemalloc, mimalloc), which glibc's counters do not see: a
    block is allocated to find out.
    """
    if not hasattr(psutil, "heap_info") or not sys.platform.startswith("linux"):
        return None
    try:
        before = _mallinfo()
        probe = bytearray(4 * MIB)
        grown = _mallinfo() - before
    except (OSError, RuntimeError, NotImplementedError):
        return None
    return _mallinfo if grown >= len(probe) // 2 else None


def uss_bytes(pids: Iterable[int]) -> tuple[int, int]:
    """Sums the unique set size of processes; those that are gone, or not ours to look at, count as absent.

    Returns:
        Number of processes read, and their bytes.
    """
    count = total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_full_info().uss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        count += 1
    return count, total


def child_pids() -> list[int]:
    """Returns the process ids of this process's direct children."""
    try:
        found: list[int] = []
        for thread in os.listdir("/proc/self/task"):
            found += map(int, Path(f"/proc/self/task/{thread}/children").read_text().split())
        return found
    except OSError:  # no such file in this kernel, or a thread that just ended
        return [child.pid for child in psutil.Process().children()]


def own_pid() -> int:
    """Returns this process's id."""
    return os.getpid()


def is_encoder(pid: int) -> bool:
    """Whether the process encodes video: an ffmpeg, or a worker of the recorder's pool."""
    try:
        process = psutil.Process(pid)
        return process.name().startswith("ffmpeg") or any(POOL_WORKER in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def memory_limit_bytes() -> int:
    """Returns the memory this process may use: its cgroup's limit where there is one, else what the machine has."""
    total = int(psutil.virtual_memory().total)
    return min([total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Returns the limits of this process's cgroup and of those above it, versions 1 and 2."""
    try:
        lines = CGROUP_FILE.read_text().splitlines()
    except OSError:
        return []
    limits: list[int] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            root, name = CGROUP_ROOT, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUP_ROOT / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = root / group.lstrip("/")
        for folder in (own, *own.parents):
            if root not in (folder, *folder.parents):
                break
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # version 2 says "max" for none
                limits.append(int(text))
    return limits
