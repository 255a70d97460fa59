"""What a process holds while an environment steps, said every N steps, and whether it leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from fleet_gym._gymnasium import AnyVectorWrapper
from fleet_gym.profiling.forwarding import ProfilesCalls
from fleet_gym.profiling.intervals import MemoryRecord
from fleet_gym.profiling.log import make_lines_visible
from fleet_gym.profiling.memory import MemoryProfiler
from fleet_gym.profiling.report import MemoryReport
from fleet_gym.profiling.settings import MemorySettings, Mode, checked_flag
from fleet_gym.profiling.verdict import LEAK_THRESHOLD


def _worker_pids(env: Any) -> list[int]:
    """Process ids of the environment's own workers, as `gymnasium.vector.AsyncVectorEnv` keeps them."""
    processes = getattr(env, "processes", None)
    if not isinstance(processes, Sequence):
        return []
    return [process.pid for process in processes if isinstance(getattr(process, "pid", None), int)]


class _MemoryProfiling(ProfilesCalls):
    """What both wrappers do: a `MemoryProfiler` fed around each call."""

    _MADE = ("step", "reset", "_profiler", "_fed")
    env: Any
    _settings: MemorySettings
    _profiler: MemoryProfiler
    _fed: MemoryProfiler | None

    def _start(self, settings: MemorySettings, enabled: bool) -> None:
        self._settings = settings
        self._is_on = checked_flag("enabled", enabled) and settings.mode != "off"
        self._open()

    def _open(self) -> None:
        self._is_open = self._is_on
        if self._is_on:
            make_lines_visible()
            innermost = self.env.unwrapped
            self._profiler = MemoryProfiler(self._settings, id(innermost), lambda: _worker_pids(innermost))
        self._bind()

    def _bind(self) -> None:
        self._fed = self._profiler if self._is_open else None
        if not self._is_open:
            self._shorten(step=self.env.step, reset=self.env.reset)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy is made of: all but the profiler and its files, in which a copy would write over it."""
        return {**super().__getstate__(), "_settings": replace(self._settings, log_path=None, tensorboard_dir=None)}

    def step(self, actions: Any) -> Any:
        """Steps the environment and samples memory; what the environment raises passes through after a last line."""
        profiler = self._fed
        if profiler is None:
            return self.env.step(actions)
        before = profiler.before_step()
        try:
            result = self.env.step(actions)
        except BaseException:
            profiler.after_step(before)
            profiler.flush()
            raise
        profiler.after_step(before)
        return result

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Resets the environment; its native growth counts for ``reset``."""
        profiler = self._fed
        if profiler is None:
            return self.env.reset(seed=seed, options=options)
        before = profiler.before_reset()
        try:
            return self.env.reset(seed=seed, options=options)
        finally:
            profiler.after_reset(before)

    def close(self, **kwargs: Any) -> Any:
        """Reports the last, shorter interval, stops tracing if it was started here, and closes the environment."""
        try:
            if self._is_open:
                self._is_open = False
                self._bind()
                self._profiler.close()
        finally:
            closed = self.env.close(**kwargs)
        return closed

    def get_memory_usage(self) -> dict[str, float] | None:
        """Returns what is held now and the most that was held since profiling started.

        Returns:
            ``{"current_mb": ..., "peak_mb": ...}`` in MiB: the traced Python heap in mode ``"trace"``, RSS in the other
            modes. After `close`, the last values. None when disabled, and after somebody else stopped or cleared
            tracemalloc.
        """
        return self._profiler.usage() if self._is_on else None

    def memory_report(self) -> MemoryReport | None:
        """Returns verdicts, native growth by phase, the lines that grow and hints; after `close`, as of then.

        None when disabled. In mode ``"trace"`` it takes a snapshot: 40 ms and more per 100,000 traced blocks.
        """
        return self._profiler.report() if self._is_on else None

    @property
    def memory_records(self) -> tuple[MemoryRecord, ...]:
        """The latest 1,000 intervals, oldest first."""
        return self._profiler.records.latest() if self._is_on else ()

    @property
    def last_memory_record(self) -> MemoryRecord | None:
        """The latest interval, None before the first has ended."""
        return self._profiler.records.last() if self._is_on else None


class MemoryProfilingWrapper(_MemoryProfiling, AnyVectorWrapper):
    """Reports the memory of the process that steps a vector environment, every `profiling_interval` steps.

    Through the logger ``fleet_gym.profiling``, at INFO::

        [MEMORY] Last 100 steps: current=4.22MB (min=4.20, max=4.25), peak=4.31MB (max=4.40), growth=+0.01MB
        [MEMORY+] source=tracemalloc rss=98.31MB uss=86.02MB native=31.77MB blocks=88211 step=+12B/call limit=24105MB

    Figures are per process: two environments in one process share them. Nothing is put into ``info``.

    Args:
        env: any `gymnasium.vector.VectorEnv`.
        enabled: False is mode ``"off"``.
        profiling_interval: steps per line, at least 1.
        mode: ``"trace"``: the Python heap by `tracemalloc` (steps cost 3 to 9 times as much unless rendering
            dominates). ``"light"``: RSS, the native heap and Python blocks, nearly free. ``"auto"``: light, and a
            bounded stretch of tracing that names the growing lines whenever a leak is suspected. ``"off"``: ``step``
            and ``reset`` are the environment's own.
        nframe: frames tracemalloc keeps per allocation, 1 to 65535.
        leak_threshold: growth below this is not called a leak, bytes per step.
        memory_limit_mb: limit for the projection of a leak, MiB; None takes the cgroup's, else the machine's memory.
        diagnosis_steps: length of a stretch of tracing in mode ``"auto"``; None: 200 to 2,000, four resets long.
        log_path: file ending in ``.jsonl`` or ``.csv`` that gets a record per interval; replaced if it exists.
        tensorboard_dir: folder for TensorBoard scalars ``memory/*`` (needs the extra ``tensorboard``).

    Raises:
        TypeError: when `env` is not a vector environment.
        ValueError: when an argument is out of range.
        OSError: when `log_path` cannot be written.
        ImportError: for `tensorboard_dir` without TensorBoard.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        enabled: bool = True,
        profiling_interval: int = 100,
        *,
        mode: Mode = "trace",
        nframe: int = 1,
        leak_threshold: float = LEAK_THRESHOLD,
        memory_limit_mb: float | None = None,
        diagnosis_steps: int | None = None,
        log_path: str | Path | None = None,
        tensorboard_dir: str | Path | None = None,
    ) -> None:
        if not isinstance(env, VectorEnv):
            raise TypeError(
                "env: expected a gymnasium.vector.VectorEnv (MemoryProfilingEnvWrapper wraps a gymnasium.Env),"
                f" got {type(env).__name__}"
            )
        settings = MemorySettings.checked(
            profiling_interval=profiling_interval,
            mode=mode,
            nframe=nframe,
            leak_threshold=leak_threshold,
            memory_limit_mb=memory_limit_mb,
            diagnosis_steps=diagnosis_steps,
            log_path=log_path,
            tensorboard_dir=tensorboard_dir,
        )
        super().__init__(env)
        self._start(settings, enabled)


class MemoryProfilingEnvWrapper(_MemoryProfiling, gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """`MemoryProfilingWrapper` for a single `gymnasium.Env`: same arguments, same figures."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        enabled: bool = True,
        profiling_interval: int = 100,
        *,
        mode: Mode = "trace",
        nframe: int = 1,
        leak_threshold: float = LEAK_THRESHOLD,
        memory_limit_mb: float | None = None,
        diagnosis_steps: int | None = None,
        log_path: str | Path | None = None,
        tensorboard_dir: str | Path | None = None,
    ) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(
                "env: expected a gymnasium.Env (MemoryProfilingWrapper wraps a gymnasium.vector.VectorEnv),"
                f" got {type(env).__name__}"
            )
        arguments: dict[str, Any] = {
            "profiling_interval": profiling_interval,
            "mode": mode,
            "nframe": nframe,
            "leak_threshold": leak_threshold,
            "memory_limit_mb": memory_limit_mb,
            "diagnosis_steps": diagnosis_steps,
            "log_path": log_path,
            "tensorboard_dir": tensorboard_dir,
        }
        settings = MemorySettings.checked(**arguments)
        gym.utils.RecordConstructorArgs.__init__(self, enabled=enabled, **arguments)
        gym.Wrapper.__init__(self, env)
        self._start(settings, enabled)

    def step(self, action: Any) -> Any:
        """Steps the environment and samples memory; what the environment raises passes through after a last line."""
        return super().step(action)
