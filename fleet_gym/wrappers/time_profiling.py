"""Where the time of a step goes, said every N steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from fleet_gym._gymnasium import AnyVectorWrapper
from fleet_gym.profiling.forwarding import ProfilesCalls
from fleet_gym.profiling.log import make_lines_visible
from fleet_gym.profiling.phases import NO_PHASE, checked_name
from fleet_gym.profiling.settings import checked_flag, whole_number
from fleet_gym.profiling.timing import RESET, TimeProfiler


class _TimeProfiling(ProfilesCalls):
    """What both wrappers do: a `TimeProfiler` fed around each call."""

    _MADE = ("step", "reset", "_profiler", "_timed_step", "_reset_phase")
    env: Any
    _interval: int
    _profiler: TimeProfiler
    _timed_step: Callable[[Any], Any]
    _reset_phase: AbstractContextManager[None]

    def _start(self, enabled: bool, interval: int) -> None:
        self._interval = interval
        self._is_on = checked_flag("enabled", enabled)
        self._open()

    def _open(self) -> None:
        self._is_open = self._is_on
        if self._is_on:
            make_lines_visible()
            self._profiler = TimeProfiler(self._interval)
        self._bind()

    def _bind(self) -> None:
        if self._is_open:
            self._timed_step = self._profiler.timed(self.env)
            self._reset_phase = self._profiler.clock.phases[RESET]
            self._shorten(step=self._named(self._timed_step))
        else:
            self._timed_step, self._reset_phase = self.env.step, NO_PHASE
            self._shorten(step=self.env.step, reset=self.env.reset)

    def _named(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a step whose argument is called as that of the kind of environment."""
        return step

    def step(self, actions: Any) -> Any:
        """Steps the environment and times it; what the environment raises passes through after a last line."""
        return self._timed_step(actions)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Resets the environment; all of it counts as ``reset``."""
        with self._reset_phase:
            return self.env.reset(seed=seed, options=options)

    def close(self, **kwargs: Any) -> Any:
        """Reports the last, shorter interval and closes the environment."""
        try:
            if self._is_open:
                self._is_open = False
                self._bind()
                self._profiler.flush()
        finally:
            closed = self.env.close(**kwargs)
        return closed

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Charges the time of a ``with`` block to a phase of your own, inside a step or between steps.

        Args:
            name: for example ``"policy"``; not ``"step"`` or ``"total"``, which the line needs for itself.
        """
        checked_name(name)
        return self._profiler.clock.phases[name] if self._is_open else super().phase(name)

    @property
    def last_profiling(self) -> Mapping[str, Any] | None:
        """The latest interval, read-only; None before the first has ended, and when disabled.

        ``step`` (so far) and ``steps`` (in the interval); averages per step in ms: ``step_ms``, ``total_ms`` (with
        everything between the steps), ``phases_ms`` by name; ``p50_ms``, ``p95_ms``, ``p99_ms`` of the steps;
        ``steps_per_second``. The phases add up to ``total_ms``.
        """
        return self._profiler.last if self._is_on else super().last_profiling


class TimeProfilingWrapper(_TimeProfiling, AnyVectorWrapper):
    """Reports where the time of a vector environment's steps goes, every `profiling_interval` steps.

    Through the logger ``fleet_gym.profiling``, at INFO, in one line::

        [PROFILING] Last 100 steps average: step=2.31ms (81.2%), dynamics=1.02ms (35.8%), task=0.55ms (19.3%),
        render=0.61ms (21.4%), other=0.13ms (4.6%), outside=0.54ms (18.8%), p50=2.25ms, p95=2.80ms, p99=3.31ms,
        351.5 steps/s

    The phases of a step come from code that marks them with `fleet_gym.profiling.phases.phase`, as `FleetVectorEnv`
    and `CameraObsVideoRecorder` do; the rest of it is ``other``. ``outside`` is the time between steps.

    Args:
        env: any `gymnasium.vector.VectorEnv`.
        enabled: False makes ``step`` and ``reset`` the environment's own.
        profiling_interval: steps per line, at least 1.

    Raises:
        TypeError: when `env` is not a vector environment.
        ValueError: when an argument is out of range.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], enabled: bool = True, profiling_interval: int = 100) -> None:
        if not isinstance(env, VectorEnv):
            raise TypeError(
                "env: expected a gymnasium.vector.VectorEnv (TimeProfilingEnvWrapper wraps a gymnasium.Env),"
                f" got {type(env).__name__}"
            )
        interval = whole_number("profiling_interval", profiling_interval)
        super().__init__(env)
        self._start(enabled, interval)


class TimeProfilingEnvWrapper(_TimeProfiling, gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """`TimeProfilingWrapper` for a single `gymnasium.Env`: same arguments, same figures."""

    def __init__(self, env: gym.Env[Any, Any], enabled: bool = True, profiling_interval: int = 100) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(
                "env: expected a gymnasium.Env (TimeProfilingWrapper wraps a gymnasium.vector.VectorEnv),"
                f" got {type(env).__name__}"
            )
        interval = whole_number("profiling_interval", profiling_interval)
        gym.utils.RecordConstructorArgs.__init__(self, enabled=enabled, profiling_interval=profiling_interval)
        gym.Wrapper.__init__(self, env)
        self._start(enabled, interval)

    def _named(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda action: step(action)

    def step(self, action: Any) -> Any:
        """Steps the environment and times it; what the environment raises passes through after a last line."""
        return super().step(action)
