"""Where the time of a step goes, said every N steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from fleet_gym._gymnasium import AnyVectorWrapper
from fleet_gym.profiling.forwarding import ForwardsToInner
from fleet_gym.profiling.log import make_lines_visible
from fleet_gym.profiling.settings import checked_flag, whole_number
from fleet_gym.profiling.timing import RESERVED, RESET, TimeProfiler


class _TimeProfiling(ForwardsToInner):
    """What both wrappers do: a `TimeProfiler` fed around each call."""

    env: Any
    _profiler: TimeProfiler

    def _start(self, enabled: bool, interval: int) -> None:
        self._is_on = checked_flag("enabled", enabled)
        if not self._is_on:
            self._step_aside()
            return
        make_lines_visible()
        self._profiler = TimeProfiler(interval)
        self._clock = self._profiler.clock
        self._timed_step = self._profiler.timed(self.env)
        if type(self).step is _TimeProfiling.step:  # else a subclass has work of its own around it
            vars(self)["step"] = self._timed_step  # found before the class's: a call less
        self._reset_phase = self._clock.phases[RESET]

    def _step_aside(self) -> None:
        # Found on the instance before the class: a call costs what it costs without the wrapper.
        vars(self).update(step=self.env.step, reset=self.env.reset)

    def step(self, action: Any) -> Any:
        """Steps the environment and times it; what the environment raises passes through after a last line."""
        return self._timed_step(action)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Resets the environment; all of it counts as ``reset``."""
        with self._reset_phase:
            return self.env.reset(seed=seed, options=options)

    def close(self, **kwargs: Any) -> Any:
        """Reports the last, shorter interval and closes the environment."""
        try:
            if self._is_on:
                self._step_aside()
                self._profiler.flush()
        finally:
            closed = self.env.close(**kwargs)
        return closed

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Charges the time of a ``with`` block to a phase of your own, inside a step or between steps.

        Args:
            name: for example ``"policy"``; not ``"step"`` or ``"total"``, which the line needs for itself.
        """
        if not isinstance(name, str) or not name.isprintable() or not name or name in RESERVED:
            taken = " and ".join(RESERVED)
            raise ValueError(f"name: expected the name of a phase, printable and other than {taken}, got {name!r}")
        return self._clock.phases[name] if self._is_on else super().phase(name)

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
