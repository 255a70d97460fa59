"""The profiler's readings that keep state between samples."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence

from fleet_gym.profiling import signals
from fleet_gym.profiling.intervals import mib
from fleet_gym.profiling.log import logger
from fleet_gym.profiling.tracing import TraceLease


class TracedHeap(TraceLease):
    """The Python heap as tracemalloc knows it."""

    name = "tracemalloc"


class Rss:
    """The resident set of this process.

    Attributes:
        current: bytes at the latest sample.
        peak: the highest since the sample before, if that was a new record of the process, of which the kernel keeps
            only one; else `current`.
    """

    name = "rss"
    is_lost = False

    def __init__(self) -> None:
        self._seen_peak = signals.peak_rss_bytes()
        self.current = self.peak = 0

    def sample(self) -> bool:
        """Reads `current` and `peak`."""
        self.current = self.peak = signals.rss_bytes()
        peak = signals.peak_rss_bytes()
        if peak > self._seen_peak:
            self._seen_peak = peak
            self.peak = max(self.current, peak)
        return True

    def release(self) -> None:
        """Holds nothing."""


class SlowSignals:
    """Readings of a millisecond and more, once per interval; this process's own for at most 0.2 % of the time.

    Args:
        limit_mb: memory this process may use; None finds out.
    """

    SHARE = 0.002

    def __init__(self, limit_mb: float | None) -> None:
        self.limit_mb = mib(signals.memory_limit_bytes()) if limit_mb is None else limit_mb
        self.uss_mb: float | None = None
        self.is_fresh = False  # whether the latest `read` read everything
        self.num_workers = self.num_encoders = 0
        self.workers_bytes = 0
        self.encoders_mb = 0.0
        self._not_before = 0.0

    def allow(self) -> None:
        """Lets the next `read` read everything."""
        self._not_before = 0.0

    def read(self, worker_pids: Sequence[int]) -> None:
        """Reads the workers, and the rest if its share of the time allows."""
        if worker_pids:
            self.num_workers, self.workers_bytes = signals.uss_bytes(worker_pids)
        start = time.perf_counter()
        self.is_fresh = start >= self._not_before
        if not self.is_fresh:
            return
        _, own = signals.uss_bytes([signals.own_pid()])
        self.uss_mb = mib(own)
        encoders = [pid for pid in signals.child_pids() if pid not in worker_pids and signals.is_encoder(pid)]
        self.num_encoders, encoder_bytes = signals.uss_bytes(encoders)
        self.encoders_mb = mib(encoder_bytes)
        done = time.perf_counter()
        self._not_before = done + (done - start) / self.SHARE

    def used_mb(self) -> float:
        """Returns what counts against the limit: this process, its workers and encoders."""
        return mib(signals.rss_bytes() + self.workers_bytes) + self.encoders_mb


def native_reader() -> tuple[Callable[[], int], bool]:
    """Returns a reader of the native heap without tracemalloc's own tables, and whether it is not RSS in its place."""
    heap = signals.native_heap_reader()
    if heap is None:
        logger.warning("glibc's mallinfo2 is not there or does not count this process's allocator: using RSS instead")
        return signals.rss_bytes, False
    is_tracing, tables = tracemalloc.is_tracing, tracemalloc.get_tracemalloc_memory

    def native() -> int:
        return heap() - tables() if is_tracing() else heap()

    return native, True
