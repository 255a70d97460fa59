"""The memory profiler itself, independent of the kind of environment: fed by the wrappers around each call."""

from __future__ import annotations

import contextlib
import gc
import time
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fleet_gym.profiling import signals
from fleet_gym.profiling.growth import Location, TracingWindow, growing_lines, relevant_lines, traced_lines
from fleet_gym.profiling.intervals import NEVER, SIGNALS, MemoryRecord, RecordStore, Samples, mib
from fleet_gym.profiling.log import logger, say
from fleet_gym.profiling.native_phases import NativePhases, NativeSampler
from fleet_gym.profiling.report import MemoryReport, PhaseMemory, TopLine, hints
from fleet_gym.profiling.settings import MemorySettings
from fleet_gym.profiling.signals import empty_free_lists
from fleet_gym.profiling.sinks import Sink, open_sinks
from fleet_gym.profiling.sources import Rss, SlowSignals, TracedHeap, native_reader
from fleet_gym.profiling.verdict import (
    BLOCK_BYTES,
    BLOCKS_THRESHOLD,
    MIN_INTERVALS,
    WARM_UP,
    LeakVerdict,
    MinimaSeries,
    judge,
)

KEPT_RECORDS = 1000
FIRST_SNAPSHOT = 10
COLD = 4
WINDOW_STEPS = (200, 2000)

_profiled: Counter[int] = Counter()
"""Running profilers by the identity of their environment."""


class _OwnWork:
    """A ``with`` block whose effect on the signals is handed on. Not made by `contextlib`, whose lines would be named.

    Args:
        levels: reads the signals, bytes by name.
        book: takes what changed.

    Attributes:
        changes: what changed, once over.
    """

    __slots__ = ("_before", "_book", "_levels", "changes")

    def __init__(self, levels: Callable[[], dict[str, int]], book: Callable[[Mapping[str, int]], None]) -> None:
        self._levels, self._book = levels, book

    def __enter__(self) -> _OwnWork:
        self._before = self._levels()
        return self

    def __exit__(self, *raised: object) -> None:
        before = self._before
        self.changes = {name: level - before[name] for name, level in self._levels().items() if name in before}
        self._book(self.changes)


class MemoryProfiler:
    """Samples memory after each step, says so once per interval, and remembers what a report needs.

    Around each call of ``step`` (``reset`` alike)::

        before = profiler.before_step()
        ...
        profiler.after_step(before)

    Args:
        settings: what to measure; mode ``"off"`` is the caller's business.
        env_id: identity of the innermost environment, to notice that several share this process's figures.
        worker_pids: returns the process ids of the environment's workers.

    Attributes:
        before_step: to be called before each step; its result is for `after_step`.
        records: the latest intervals.
    """

    def __init__(self, settings: MemorySettings, env_id: int, worker_pids: Callable[[], Sequence[int]]) -> None:
        self._settings = settings
        self._worker_pids = worker_pids
        self.records = RecordStore(KEPT_RECORDS)
        self._sinks = open_sinks(settings.log_path, settings.tensorboard_dir)
        native, self._native_is_known = native_reader()
        self._interval = settings.interval
        self._native = NativeSampler(native, max(1, self._interval // 8), max(1, self._interval // 2))
        self.before_step = self._native.before_step
        self._count = self._total_steps = self._full_intervals = self._readings_remembered = 0
        self._samples = Samples()
        self._rss_low = self._native_low = NEVER
        self._blocks = self._rss_now = 0
        self._carried_peak = 0
        self._is_lost = self._is_closed = False
        self._slow = SlowSignals(settings.memory_limit_mb)
        self._uss_step: int | None = None
        self._series = {name: MinimaSeries() for name in SIGNALS}
        self._own_bytes = dict.fromkeys(
            SIGNALS, 0
        )  # what snapshots and collections changed: no growth of the program's
        self._garbage: dict[int, dict[str, int]] = {}  # collected here: step -> bytes by signal
        self._looks: dict[str, LeakVerdict] = {}
        self._statuses: Mapping[str, str] = {}  # of the looks
        self._next_look = MIN_INTERVALS
        self._window: TracingWindow | None = None
        self._paused: tuple[int, dict[str, int]] | None = None  # step and levels when the window opened
        self._unjudged_steps = 0
        self._window_lines: tuple[TopLine, ...] = ()
        self._traces = settings.mode == "trace"
        self._source: TracedHeap | Rss = TracedHeap(settings.nframe) if self._traces else Rss()
        self._release = weakref.finalize(self, _release, self._source, self._sinks, env_id)
        _profiled[env_id] += 1
        self._snapshots: list[tuple[int, dict[Location, tuple[int, int]]]] = []
        self._take_snapshot()
        self._started = self._interval_started = time.perf_counter()
        self._phases = NativePhases(self._native.timed_read())
        self._source.sample()
        self._highest = self._source.peak
        self._last = self._previous_end = self._source.current

    def after_step(self, before: int) -> None:
        """Takes the state after a step into account.

        Args:
            before: what `before_step` returned.
        """
        self._count = count = self._count + 1
        if self._window is not None:
            self._window.after_call()
            self._step_in_window(self._window)
        if self._traces:
            self._sample()
        if before >= 0:
            self._phases.add_step(before, self._native.timed_read())
            self._sample_levels()
        if count == self._interval:
            self._end_interval()

    def before_reset(self) -> int:
        """To be called before each reset; its result is for `after_reset`."""
        if self._window is not None:
            return self._before_step_in_window()
        return self._native.before_reset()

    def after_reset(self, before: int) -> None:
        """Takes the state after a reset into account.

        Args:
            before: what `before_reset` returned.
        """
        if self._window is not None:
            self._window.after_call()
        self._phases.count_reset()
        if before >= 0:
            self._phases.add_reset(before, self._native.timed_read())

    def usage(self) -> dict[str, float] | None:
        """Returns MiB now and the highest since profiling started; after `close`, as they were then; None once lost."""
        if not self._is_closed and not self._is_lost:
            source = self._source
            if source.is_lost or not source.sample():
                self._lose()
            else:
                self._last = source.current
                self._carried_peak = max(self._carried_peak, source.peak)
                self._highest = max(self._highest, source.peak, self._samples.peak_high)
        if self._is_lost:
            return None
        return {"current_mb": mib(self._last), "peak_mb": mib(self._highest)}

    def flush(self) -> None:
        """Ends the running interval early, if it has a step."""
        if self._count and not self._is_closed:
            self._end_interval()

    def close(self) -> None:
        """Reports the tail, keeps what a report needs and lets go of tracing and files. A second call does nothing."""
        if self._is_closed:
            return
        self._slow.allow()
        self._close_window()
        self.flush()
        self._final = self.report()
        self._is_closed = True
        self._release()

    def report(self) -> MemoryReport:
        """Returns what is known so far; after `close`, what was known then."""
        if self._is_closed:
            return self._final
        usage = self.usage()
        phases, outside_bytes = self._phases.so_far(self._count, self._native.timed_read())
        verdicts = self._judge_all()
        lines = self._window_lines
        if self._window is not None:
            with self._own_work():
                found = self._window.so_far()
            lines = relevant_lines(found, _leaking_slopes(self._looks), self._window.untraced)
        if isinstance(self._source, TracedHeap) and not self._is_lost:
            step, snapshot = self._snapshots[0]
            with self._own_work():
                now = traced_lines(self._settings.nframe)
            lines = relevant_lines(
                growing_lines(snapshot, now, self._total_steps + self._count - step), _leaking_slopes(verdicts)
            )
        return MemoryReport(
            steps=self._total_steps + self._count,
            seconds=time.perf_counter() - self._started,
            current_mb=None if usage is None else usage["current_mb"],
            peak_mb=None if usage is None else usage["peak_mb"],
            limit_mb=self._slow.limit_mb,
            verdicts=verdicts,
            phases=phases,
            top_lines=lines,
            hints=hints(verdicts, phases, outside_bytes, lines),
        )

    def _sample_levels(self) -> None:
        native = self._native.last
        if native < self._native_low:
            self._native_low = native
        if self._traces:
            self._rss_now = signals.rss_bytes()
        else:
            self._sample()
            self._rss_now = self._last
        if self._rss_now < self._rss_low:
            self._rss_low = self._rss_now

    def _sample(self) -> None:
        source = self._source
        if not source.sample():
            self._lose()
            return
        peak = source.peak
        if self._carried_peak:
            peak = max(peak, self._carried_peak)
            self._carried_peak = 0
        self._last = current = source.current
        self._samples.add(current, peak)

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            logger.warning(
                "tracemalloc was stopped or cleared by someone else: no [MEMORY] lines and no get_memory_usage() from"
                " here on. mode='light' does not need tracemalloc."
            )

    def _end_interval(self) -> None:
        if self._source.is_lost:
            self._lose()
        self._total_steps += self._count
        start = time.perf_counter()
        self._native.at_interval_end()
        self._sample_levels()
        now = time.perf_counter()
        # Half a sample, with its code and data still in the processor's caches, which the work of a step empties.
        self._native.adapt(2 * COLD * (now - start), (start - self._interval_started) / self._count)
        self._blocks = signals.python_blocks()  # walks all pools: once per interval
        self._slow.read(self._worker_pids())
        if self._slow.is_fresh:
            self._uss_step = self._total_steps
        if self._count == self._interval:
            self._remember_minima()
        in_phases = self._phases.end_interval(self._count, self._native.last)
        if not self._is_lost:
            self._say(self._record(now, in_phases))
            self._previous_end = self._last
        self._interval_started = now
        self._highest = max(self._highest, self._samples.peak_high)
        self._samples.clear()
        self._rss_low = self._native_low = NEVER
        self._count = 0

    def _remember_minima(self) -> None:
        """Adds a full interval's lowest values to the series; looks for leaks at 60, 120, 240, ... intervals.

        Only then: every look has its own chance of a false alarm.
        """
        if self._paused is None:
            self._append_minima()
        elif self._window is None:
            self._resume(*self._paused)
        self._full_intervals += 1
        # Garbage of before the judged intervals, which what is collected later is to be of.
        if self._full_intervals in (FIRST_SNAPSHOT, int(WARM_UP * self._next_look)):
            self._collect_and_take_off()
        if self._full_intervals == FIRST_SNAPSHOT:
            with self._own_work():
                self._take_snapshot()
        if self._full_intervals == self._next_look:
            self._next_look *= 2
            self._looks = self._judge_all()
            self._statuses = {name: look.status for name, look in self._looks.items()}
            with self._own_work():
                self._take_snapshot()
            suspects = any(look.status == "leak" for look in self._looks.values())
            if self._settings.mode == "auto" and suspects and self._paused is None:
                self._open_window()

    def _append_minima(self) -> None:
        traced = self._source.name == "tracemalloc" and not self._is_lost
        lows = {
            "python": self._samples.low if traced else self._blocks * BLOCK_BYTES,
            "native": self._native_low,
            "rss": self._rss_low,
            "workers": self._slow.workers_bytes,
        }
        if self._native.readings == self._readings_remembered:
            del lows["native"]  # too dear to be read in this interval
        self._readings_remembered = self._native.readings
        for name, low in lows.items():
            self._series[name].append(self._total_steps - self._unjudged_steps, low - self._own_bytes[name])

    def _resume(self, step: int, levels: Mapping[str, int]) -> None:
        """Goes on as if the window had not been: tracing grows by itself."""
        self._paused = None
        self._unjudged_steps += self._total_steps - step
        for name, level in self._levels().items():
            self._own_bytes[name] = level - levels[name]

    def _judge_all(self) -> dict[str, LeakVerdict]:
        """Judges every signal; before any is called a leak, garbage is collected and taken off."""
        with self._own_work():
            verdicts = {name: self._judge(name) for name in self._series}
        if any(verdict.status == "leak" for verdict in verdicts.values()):
            self._collect_and_take_off()
            verdicts = {name: self._judge(name) for name in self._series}
        return verdicts

    def _judge(self, name: str) -> LeakVerdict:
        series = self._series[name]
        threshold = self._settings.leak_threshold
        if name == "python" and self._source.name != "tracemalloc":
            threshold = min(threshold, BLOCKS_THRESHOLD)
        verdict = judge(series.steps, series.values, threshold)
        if verdict.status != "leak":
            return verdict
        judged = series.steps[int(len(series) * WARM_UP) :]
        garbage = sum(freed.get(name, 0) for step, freed in self._garbage.items() if step > judged[0])
        if verdict.bytes_per_step - garbage / (judged[-1] - judged[0]) <= threshold:
            return replace(verdict, status="stable")
        steps_per_second = self._total_steps / max(time.perf_counter() - self._started, 1e-9)
        left = max(self._slow.limit_mb - self._slow.used_mb(), 0.0)
        hours = left / mib(verdict.bytes_per_step * steps_per_second) / 3600
        return replace(verdict, hours_to_limit=hours)

    def _own_work(self) -> _OwnWork:
        """Around what allocates for the profiler or collects the program's garbage: neither is growth or a fall of its.

        Else a collection at the first suspicion would look as if the leak had been given back.
        """
        return _OwnWork(self._levels, self._leave_out)

    def _leave_out(self, changes: Mapping[str, int]) -> None:
        for name, change in changes.items():
            self._own_bytes[name] += change
        self._phases.exclude(changes["native"])

    def _collect_and_take_off(self) -> None:
        """Collects garbage, with CPython's free lists, and remembers what that frees: it was no leak."""
        with self._own_work() as work:
            gc.collect()
        changes = work.changes
        step = self._total_steps + self._count - self._unjudged_steps
        self._garbage = {at: freed for at, freed in self._garbage.items() if at > WARM_UP * step}
        earlier = self._garbage.get(step, {})
        self._garbage[step] = {name: earlier.get(name, 0) + max(0, -change) for name, change in changes.items()}

    def _levels(self) -> dict[str, int]:
        levels = {"native": self._native.timed_read(), "rss": signals.rss_bytes()}
        if not self._traces:
            levels["python"] = signals.python_blocks() * BLOCK_BYTES
        elif not self._is_lost:
            levels["python"] = tracemalloc.get_traced_memory()[0]
        return levels

    def _take_snapshot(self) -> None:
        """Keeps the latest two: the older one is a baseline that covers at least half of the run."""
        if isinstance(self._source, TracedHeap) and not self._source.is_lost:
            # Garbage in a baseline only makes a line look smaller; collecting it here would cost a step 20 ms and more.
            lines = traced_lines(self._settings.nframe, collect=False)
            empty_free_lists()  # of what the snapshot was made of: not to be taken off as the program's garbage
            self._snapshots = [*self._snapshots[-1:], (self._total_steps, lines)]

    def _open_window(self) -> None:
        """Traces long enough to see four resets, so that a leak in reset shows in both halves."""
        least, most = WINDOW_STEPS
        spacing = self._total_steps // self._phases.resets if self._phases.resets else 0
        steps = self._settings.diagnosis_steps or min(max(4 * spacing, least), most)
        logger.info("[MEMORY+] a leak is suspected: tracing %d steps to name the lines", steps)
        levels = {name: level - self._own_bytes[name] for name, level in self._levels().items()}
        self._paused = (self._total_steps, levels)
        with self._own_work():
            self._window = TracingWindow(steps, self._settings.nframe, self._native.read)
        self.before_step = self._before_step_in_window

    def _before_step_in_window(self) -> int:
        if self._window is not None:
            self._window.before_call()
        return -1  # what watching allocates is no growth of the step's

    def _step_in_window(self, window: TracingWindow) -> None:
        if window.takes_snapshot_next:
            with self._own_work():
                is_over = window.step_done()
        else:
            is_over = window.step_done()
        if is_over:
            self._close_window()

    def _close_window(self) -> None:
        if self._window is None:
            return
        with self._own_work():
            lines = self._window.close()
            self._window_lines = relevant_lines(lines, _leaking_slopes(self._looks), self._window.untraced)
            self._window = None
            gc.collect()  # free lists full of what the snapshots were made of: not the program's
        self.before_step = self._native.before_step
        for line in self._window_lines[:3]:
            logger.info("[MEMORY+] grows: %s", line)

    def _record(self, now: float, in_phases: Mapping[str, PhaseMemory]) -> MemoryRecord:
        slow, samples = self._slow, self._samples
        return MemoryRecord.of(
            {
                "step": self._total_steps,
                "steps": self._count,
                "time_s": now - self._started,
                "source": self._source.name,
                "current_mb": mib(samples.mean),
                "min_mb": mib(samples.low),
                "max_mb": mib(samples.high),
                "peak_mb": mib(samples.peak_mean),
                "peak_max_mb": mib(samples.peak_high),
                "growth_mb": mib(self._last - self._previous_end),
                "rss_mb": mib(self._rss_now),
                "uss_mb": slow.uss_mb,
                "native_mb": mib(self._native.last) if self._native_is_known else None,
                "python_blocks": self._blocks,
                "resets": in_phases["reset"].calls,
                "step_native_bytes": in_phases["step"].native_bytes,
                "reset_native_bytes": in_phases["reset"].native_bytes,
                "num_workers": slow.num_workers,
                "workers_mb": mib(slow.workers_bytes),
                "num_encoders": slow.num_encoders,
                "encoders_mb": slow.encoders_mb,
                "limit_mb": slow.limit_mb,
                "steps_per_second": self._count / max(now - self._interval_started, 1e-9),
                "verdicts": self._statuses,
                "uss_step": self._uss_step,
            }
        )

    def _say(self, record: MemoryRecord) -> None:
        self.records.append(record)
        sharing = len(_profiled)
        note = f"shared by {sharing} environments of this process" if sharing > 1 else ""
        say(record.line())
        say(record.plus_line(note))
        for sink in tuple(self._sinks):
            try:
                sink.write(record)
            except OSError as error:  # a full disk is no reason to end a training
                self._sinks.remove(sink)
                _close_quietly(sink)
                logger.warning("%s: no more records are written: %s", sink, error)


def _leaking_slopes(verdicts: Mapping[str, LeakVerdict]) -> dict[str, float]:
    return {name: verdict.bytes_per_step for name, verdict in verdicts.items() if verdict.status == "leak"}


def _release(source: TracedHeap | Rss, sinks: list[Sink], env_id: int) -> None:
    _profiled[env_id] -= 1
    if not _profiled[env_id]:
        del _profiled[env_id]
    source.release()
    for sink in sinks:
        _close_quietly(sink)


def _close_quietly(sink: Sink) -> None:
    with contextlib.suppress(OSError):  # every record was written out by itself
        sink.close()
