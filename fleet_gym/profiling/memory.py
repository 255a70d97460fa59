"""The memory profiler itself, independent of the kind of environment: fed by the wrappers around each call."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fleet_gym.profiling import signals
from fleet_gym.profiling.intervals import MemoryRecord, Spread, mib
from fleet_gym.profiling.log import logger
from fleet_gym.profiling.tracing import TraceLease

Mode = Literal["trace", "light", "auto", "off"]
MODES: tuple[Mode, ...] = ("trace", "light", "auto", "off")
SAMPLES_PER_INTERVAL = 16
KEPT_RECORDS = 1000

_live: weakref.WeakSet[MemoryProfiler] = weakref.WeakSet()


class _TracedHeap:
    name = "tracemalloc"

    def __init__(self, nframe: int) -> None:
        self._lease = TraceLease(nframe)
        self.close = self._lease.release

    def sample(self) -> tuple[int, int] | None:
        return self._lease.sample()

    def is_lost(self) -> bool:
        return self._lease.is_lost


class _Rss:
    name = "rss"

    def __init__(self) -> None:
        self._seen_peak = signals.peak_rss_bytes()

    def sample(self) -> tuple[int, int] | None:
        rss, peak = signals.rss_bytes(), signals.peak_rss_bytes()
        if peak <= self._seen_peak:  # the kernel keeps one peak per process: an old one says nothing about now
            return rss, rss
        self._seen_peak = peak
        return rss, max(rss, peak)

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class MemorySettings:
    """Checked arguments of the memory profiling wrappers; see `MemoryProfilingWrapper` for what they mean."""

    interval: int = 100
    mode: Mode = "trace"
    nframe: int = 1

    def __post_init__(self) -> None:
        _require_count("profiling_interval", self.interval)
        _require_count("nframe", self.nframe, most=65535)
        if self.mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {self.mode!r}")


def _require_count(name: str, value: object, most: int | None = None) -> None:
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or int(value) < 1 or (most is not None and int(value) > most):  # type: ignore[call-overload]
        bound = "" if most is None else f" and at most {most}"
        raise ValueError(f"{name}: expected a whole number, at least 1{bound}, got {value!r}")


class _Phase:
    """Native growth during the calls of one method."""

    __slots__ = ("calls", "interval_bytes", "interval_calls", "native_bytes")

    def __init__(self) -> None:
        self.calls = self.native_bytes = 0
        self.interval_calls = self.interval_bytes = 0

    def add(self, native_bytes: int) -> None:
        self.interval_calls += 1
        self.interval_bytes += native_bytes

    def end_interval(self) -> None:
        self.calls += self.interval_calls
        self.native_bytes += self.interval_bytes
        self.interval_calls = self.interval_bytes = 0


class MemoryProfiler:
    """Samples memory after each step, says so once per interval, and remembers what a report needs.

    Around each call of ``step`` and ``reset``::

        before = profiler.native()
        ...
        profiler.after_step(before)

    Args:
        settings: what to measure; mode ``"off"`` is the caller's business.
        env_id: identity of the innermost environment, to notice that several share this process's figures.
        worker_pids: returns the process ids of the environment's workers.

    Attributes:
        native: reads the bytes handed out by the C allocator, those of tracemalloc's own tables excluded; RSS where
            that cannot be read.
        records: the latest 1,000 intervals.
    """

    def __init__(self, settings: MemorySettings, env_id: int, worker_pids: Callable[[], Sequence[int]]) -> None:
        self._settings = settings
        self._env_id = env_id
        self._worker_pids = worker_pids
        self.records: deque[MemoryRecord] = deque(maxlen=KEPT_RECORDS)
        self.native, self._native_is_known = _native_reader()
        self._interval = int(settings.interval)
        self._stride = max(1, self._interval // SAMPLES_PER_INTERVAL)
        self._step, self._reset = _Phase(), _Phase()
        self._count = self._total_steps = 0
        self._current, self._peak = Spread(), Spread()
        self._rss, self._blocks = Spread(), Spread()
        self._native_low = 1 << 62
        self._carried_peak = 0
        self._is_lost = self._is_closed = False
        self._slow = _SlowSignals()
        self._source: _TracedHeap | _Rss = _TracedHeap(settings.nframe) if settings.mode == "trace" else _Rss()
        self._release = weakref.finalize(self, self._source.close)
        self._source_stride = 1 if settings.mode == "trace" else self._stride
        _live.add(self)
        self._started = self._interval_started = time.perf_counter()
        self._last, self._highest = self._source.sample() or (0, 0)
        self._previous_end = self._last

    def after_step(self, before: int) -> None:
        """Takes the state after a step into account.

        Args:
            before: `native` before the step.
        """
        after = self.native()
        self._step.add(after - before)
        if after < self._native_low:
            self._native_low = after
        count = self._count = self._count + 1
        is_last = count == self._interval
        if count % self._source_stride == 0 or is_last:
            self._sample()
        if count % self._stride == 0 or is_last:
            self._rss.add(signals.rss_bytes())
            self._blocks.add(signals.python_blocks())
        if is_last:
            self._end_interval()

    def after_reset(self, before: int) -> None:
        """Takes the state after a reset into account.

        Args:
            before: `native` before the reset.
        """
        self._reset.add(self.native() - before)

    def usage(self) -> dict[str, float] | None:
        """Returns MiB now and the highest since profiling started; after `close`, as they were then; None once lost."""
        if not self._is_closed and not self._is_lost:
            reading = None if self._source.is_lost() else self._source.sample()
            if reading is None:
                self._lose()
            else:
                self._last, peak = reading
                self._carried_peak = max(self._carried_peak, peak)
                self._highest = max(self._highest, peak)
        if self._is_lost:
            return None
        return {"current_mb": mib(self._last), "peak_mb": mib(self._highest)}

    def flush(self) -> None:
        """Ends the running interval early, if it has a step."""
        if self._count and not self._is_closed:
            self._sample()
            self._rss.add(signals.rss_bytes())
            self._blocks.add(signals.python_blocks())
            self._end_interval()

    def close(self) -> None:
        """Reports the tail, keeps the last sample and lets go of tracing. A second call does nothing."""
        if self._is_closed:
            return
        self._slow.allow()
        self.flush()
        self.usage()
        self._is_closed = True
        self._release()
        _live.discard(self)

    def _sample(self) -> None:
        reading = self._source.sample()
        if reading is None:
            self._lose()
            return
        current, peak = reading
        if self._carried_peak > peak:
            peak = self._carried_peak
        self._carried_peak = 0
        self._last = current
        self._current.add(current)
        self._peak.add(peak)
        if peak > self._highest:
            self._highest = peak

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            logger.warning(
                "tracemalloc was stopped or cleared by someone else: no [MEMORY] lines and no get_memory_usage() from"
                " here on. mode='light' does not need tracemalloc."
            )

    def _end_interval(self) -> None:
        if self._source.is_lost():
            self._lose()
        self._total_steps += self._count
        now = time.perf_counter()
        self._slow.read(self._worker_pids(), now)
        if not self._is_lost:
            self._say(self._record(now))
            self._previous_end = self._last
        self._interval_started = now
        self._step.end_interval()
        self._reset.end_interval()
        for spread in (self._current, self._peak, self._rss, self._blocks):
            spread.clear()
        self._native_low = 1 << 62
        self._count = 0

    def _record(self, now: float) -> MemoryRecord:
        slow = self._slow
        return MemoryRecord(
            step=self._total_steps,
            steps=self._count,
            time_s=now - self._started,
            source=self._source.name,
            current_mb=mib(self._current.mean),
            min_mb=mib(self._current.low),
            max_mb=mib(self._current.high),
            peak_mb=mib(self._peak.mean),
            peak_max_mb=mib(self._peak.high),
            growth_mb=mib(self._last - self._previous_end),
            rss_mb=mib(signals.rss_bytes()),
            uss_mb=slow.uss_mb,
            native_mb=mib(self.native()) if self._native_is_known else None,
            python_blocks=signals.python_blocks(),
            resets=self._reset.interval_calls,
            step_native_bytes=self._step.interval_bytes,
            reset_native_bytes=self._reset.interval_bytes,
            num_workers=slow.num_workers,
            workers_mb=slow.workers_mb,
            num_encoders=slow.num_encoders,
            encoders_mb=slow.encoders_mb,
            limit_mb=mib(slow.limit),
            steps_per_second=self._count / max(now - self._interval_started, 1e-9),
        )

    def _say(self, record: MemoryRecord) -> None:
        self.records.append(record)
        sharing = len({profiler._env_id for profiler in _live})
        note = f"shared by {sharing} environments of this process" if sharing > 1 else ""
        logger.info("%s", record.line())
        logger.info("%s", record.plus_line(note))


class _SlowSignals:
    """Readings of a millisecond and more, once per interval; this process's own for at most 1 % of the time."""

    SHARE = 0.01

    def __init__(self) -> None:
        self.limit = signals.memory_limit_bytes()
        self.uss_mb: float | None = None
        self.num_workers = self.num_encoders = 0
        self.workers_mb = self.encoders_mb = 0.0
        self._encoders: list[int] = []
        self._not_before = 0.0

    def allow(self) -> None:
        self._not_before = 0.0

    def read(self, worker_pids: Sequence[int], now: float) -> None:
        self.num_workers, workers = signals.uss_bytes(worker_pids)
        self.workers_mb = mib(workers)
        if now < self._not_before:
            return
        _, own = signals.uss_bytes([signals.own_pid()])
        self.uss_mb = mib(own)
        self._encoders = [pid for pid in signals.child_pids() if pid not in worker_pids and signals.is_encoder(pid)]
        self.num_encoders, encoders = signals.uss_bytes(self._encoders)
        self.encoders_mb = mib(encoders)
        done = time.perf_counter()
        self._not_before = done + (done - now) / self.SHARE


def _native_reader() -> tuple[Callable[[], int], bool]:
    """Returns the reader of the native heap, and whether it is that and not RSS in its place."""
    heap = signals.native_heap_reader()
    if heap is None:
        logger.warning("glibc's mallinfo2 is not there or does not count this process's allocator: using RSS instead")
        return signals.rss_bytes, False
    import tracemalloc

    is_tracing, tables = tracemalloc.is_tracing, tracemalloc.get_tracemalloc_memory

    def native() -> int:
        return heap() - tables() if is_tracing() else heap()

    return native, True
