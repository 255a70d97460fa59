"""MultiRobotSimulationCore: one world of the engine with a run loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fleet_gym._validation import finite_float
from fleet_gym.config import ConfigError, ObstacleConfig, RobotConfig, SimulationConfig, checked, load_config
from fleet_gym.profiling.log import make_lines_visible
from fleet_gym.profiling.memory import MemoryProfiler
from fleet_gym.profiling.phases import phase
from fleet_gym.profiling.settings import MemorySettings
from fleet_gym.profiling.timing import TimeProfiler
from fleet_gym.simulation_callbacks import Callback, make_callback, steps_in
from fleet_gym.simulation_fleet import SimulatedFleet
from fleet_gym.simulation_interrupts import Interrupts
from fleet_gym.simulation_map import occupied_pixels
from fleet_gym.simulation_pacing import Pacer
from fleet_gym.simulation_world import build_scene

if TYPE_CHECKING:
    from fleet_gym.engine import Engine
    from fleet_gym.simulation_viewer import Viewer

logger = logging.getLogger("fleet_gym.simulation")

#: How often a paused run looks whether it may go on, s.
_PAUSED_SLEEP = 0.02
_WALL_THICKNESS = 0.2
#: Called with the simulation and pairs (n, 2) of ids whose contact began and ended in this step.
CollisionCallback = Callable[["MultiRobotSimulationCore", NDArray[np.int64], NDArray[np.int64]], object]


class MultiRobotSimulationCore(SimulatedFleet):
    """One world of robots with a run loop: spawn, send, call back, profile.

    ::

        with MultiRobotSimulationCore(enable_memory_profiling=True, profiling_interval=100) as sim:
            robot = sim.spawn("diffbot", (0, 0))
            sim.set_goal(robot, (3, 4))
            sim.run_simulation(duration=10.0)

    Attributes:
        config: what it was made with.

    Args:
        settings: the keys of the configuration reference, all optional: ``control_dt``, ``duration``, ``target_rtf``,
            ``physics``, ``gui``, ``seed``, ``robots``, ``obstacles``, ``enable_memory_profiling`` and so on.

    Raises:
        fleet_gym.config.ConfigError: an unknown setting (naming the nearest known one), or a bad value.
        fleet_gym.simulation_viewer.NoDisplayError: ``gui=True`` without a display.
    """

    def __init__(self, **settings: Any) -> None:
        self._start(checked(SimulationConfig, settings), Path.cwd())

    @classmethod
    def from_config(cls, config: str | os.PathLike[str] | Mapping[str, Any]) -> MultiRobotSimulationCore:
        """Makes a simulation of a YAML file or a dictionary with the same keys.

        Raises:
            fleet_gym.config.ConfigError: naming file and key.
            TypeError: neither a path nor a mapping.
        """
        simulation = cls.__new__(cls)
        try:
            simulation._start(*load_config(config))
        except ConfigError as error:
            if isinstance(config, Mapping) or str(config) in str(error):
                raise
            raise ConfigError(f"{os.fspath(config)}: {error}") from None
        return simulation

    def _start(self, config: SimulationConfig, folder: Path) -> None:
        super().__init__(config)
        self._step_count = self._steps_made = 0
        self._is_paused = self._is_stopping = False
        self._interrupts = Interrupts()
        self._callbacks: list[Callback] = []
        self._collision_callbacks: list[CollisionCallback] = []
        self._pairs = np.zeros(0, dtype=np.int64)
        self._pacer = Pacer(config.effective_rtf)
        self._memory: MemoryProfiler | None = None
        self._time: TimeProfiler | None = None
        self._viewer: Viewer | None = None
        self._shown: object = None
        try:
            self._open_viewer()
            self._populate(folder)
            self._built()
            self._start_profilers()
        except BaseException:
            self.close()
            raise

    def _open_viewer(self) -> None:
        if self.config.gui:
            from fleet_gym.simulation_viewer import Viewer

            self._viewer = Viewer()

    def _start_profilers(self) -> None:
        config = self.config
        if config.enable_memory_profiling or config.enable_time_profiling:
            make_lines_visible()
        if config.enable_memory_profiling:
            settings = MemorySettings(interval=config.profiling_interval, mode=config.memory_mode)
            self._memory = MemoryProfiler(settings, id(self), lambda: [])
        if config.enable_time_profiling:
            self._time = TimeProfiler(config.profiling_interval)

    # ---- Running ----

    @property
    def sim_time(self) -> float:
        """Simulated s since the beginning or the last `reset`."""
        return self._step_count * self.config.control_dt

    @property
    def step_count(self) -> int:
        """Steps since the beginning or the last `reset`."""
        return self._step_count

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called and `resume` was not."""
        return self._is_paused

    def step_once(self) -> bool:
        """Advances the world by one control step and calls the callbacks that are due.

        What a callback raises passes through after the simulation was closed.

        Returns:
            False when it is paused: then nothing happened.

        Raises:
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        self._require_open()
        if self._is_paused:
            return False
        engine = self._built()
        memory, timing = self._memory, self._time
        before = memory.before_step() if memory is not None else 0
        if timing is not None:
            timing.clock.begin_step()
        try:
            try:
                with self._interrupts:
                    self._move(engine)
                    self._call_back()
                    self._show()
                    self._interrupts.deliver()
            finally:
                if timing is not None:
                    timing.end_step()
                if memory is not None and not self._is_closed:
                    memory.after_step(before)
        except KeyboardInterrupt:
            raise
        except BaseException:
            self.close()
            raise
        return True

    def run_simulation(self, duration: float | None = None) -> int:
        """Steps until `duration` is over, `stop` is called, the window is closed or Ctrl+C is pressed.

        A second run continues where the first ended. While paused the run waits for `resume`, from a callback of
        another thread; Ctrl+C and `stop` end it too.

        Args:
            duration: simulated s; None: the configuration's, and if it has none, for ever.

        Returns:
            Steps made.

        Raises:
            ValueError: a negative duration.
            gymnasium.error.ClosedEnvironmentError: after `close`.
        """
        self._require_open()
        length = self.config.duration if duration is None else finite_float("duration", duration, minimum=0.0)
        limit = None if length is None else steps_in(length, self.config.control_dt)
        self._is_stopping = False
        began = self._steps_made
        try:
            with self._interrupts:
                self._pacer.start(self.sim_time)
                while (limit is None or self._steps_made - began < limit) and self._goes_on():
                    if not self._wait_while_paused():
                        self.step_once()
                        self._pacer.wait(self.sim_time)
        except KeyboardInterrupt:
            logger.info("stopped by Ctrl+C after %d steps", self._steps_made - began)
        finally:
            self._flush()
        return self._steps_made - began

    def stop(self) -> None:
        """Ends the running `run_simulation` after the present step; without one it does nothing."""
        self._is_stopping = True

    def pause(self) -> None:
        """Stops time: steps do nothing until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Lets time go on."""
        self._is_paused = False

    def reset(self) -> None:
        """Puts every robot back to where it was spawned, at rest, and time to 0.

        Nothing is loaded anew. Routes begin again, velocity commands, callbacks and profiles go on: the same run after
        a reset is the same to the last bit.
        """
        self._require_open()
        self._place_at_spawn()
        self._step_count = 0
        self._pacer.start(0.0)
        self._pairs = np.zeros(0, dtype=np.int64)
        for callback in self._callbacks:
            callback.last_step = 0

    def close(self) -> None:
        """Ends profiling, the window and the engine; calling it again does nothing. Figures stay readable."""
        if self._is_closed:
            return
        try:
            if self._time is not None:
                self._time.flush()
            if self._memory is not None:
                self._memory.close()
            if self._viewer is not None:
                self._viewer.close()
        finally:
            super().close()

    def __enter__(self) -> MultiRobotSimulationCore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _move(self, engine: Engine) -> None:
        self._interrupts.hold()
        try:
            self._advance(engine)
            self._step_count += 1
            self._steps_made += 1
        finally:
            self._interrupts.release()

    def _goes_on(self) -> bool:
        return not (self._is_stopping or self._is_closed) and (self._viewer is None or self._viewer.is_open)

    def _wait_while_paused(self) -> bool:
        if not self._is_paused:
            return False
        self._pacer.sleep(_PAUSED_SLEEP)
        self._pacer.start(self.sim_time)
        return True

    def _flush(self) -> None:
        if self._time is not None:
            self._time.flush()
        if self._memory is not None:
            self._memory.flush()

    def _show(self) -> None:
        if self._viewer is None or self._is_closed:
            return
        with phase("viewer"):
            engine = self._built()
            if self._shown is not engine:
                self._viewer.load(build_scene(self._robots, self._obstacles, self.config.arena_size), self._obstacles)
                self._shown = engine
            self._viewer.show(engine.state)

    # ---- Callbacks ----

    def register_callback(
        self, callback: Callable[[MultiRobotSimulationCore, float], object], frequency: float | None = None
    ) -> None:
        """Has a function called from time to time, as ``callback(sim_core, dt)``.

        Args:
            callback: `dt` is the simulated time since its last call (at first: since it was registered), s.
            frequency: Hz of simulated time, on exact counts of steps: 10 Hz are 1,000 calls in 100 s. None: each step.

        Raises:
            TypeError: not a function, or a frequency that is no number.
            ValueError: a frequency that is not positive, or higher than one call per step.
        """
        self._require_open()
        self._callbacks.append(make_callback(callback, frequency, self.config.control_dt, self._step_count))

    def register_collision_callback(self, callback: CollisionCallback) -> None:
        """Has a function called after each step in which contacts began or ended.

        Called as ``callback(sim_core, started, ended)`` with (n, 2) int64 arrays of ids; the second of a pair may be an
        obstacle's. Who overlaps when spawned is reported by the first step.
        """
        self._require_open()
        if not callable(callback):
            raise TypeError(f"callback: expected a function of (sim_core, started, ended), got {callback!r}")
        self._collision_callbacks.append(callback)

    def _call_back(self) -> None:
        with phase("callbacks"):
            if self._collision_callbacks:
                self._report_collisions()
            step = self._step_count
            due = [(callback, step - callback.last_step) for callback in self._callbacks if callback.is_due(step)]
            for callback, steps in due:
                if self._is_closed:
                    return
                if self._step_count == step:  # none before it has reset the time
                    callback.last_step = step
                callback.function(self, steps * self.config.control_dt)

    def _report_collisions(self) -> None:
        pairs = self.contacts()
        if not len(pairs) and not len(self._pairs):
            return
        codes = np.unique((pairs[:, 0] << 32) | pairs[:, 1])
        started, ended = np.setdiff1d(codes, self._pairs), np.setdiff1d(self._pairs, codes)
        self._pairs = codes
        if len(started) or len(ended):
            for callback in tuple(self._collision_callbacks):
                if self._is_closed:
                    return
                callback(self, _pairs_of(started), _pairs_of(ended))

    # ---- Profiling ----

    def get_memory_usage(self) -> dict[str, float] | None:
        """Returns what is held now and the most that was held since profiling started, as the wrapper does.

        Returns:
            ``{"current_mb": ..., "peak_mb": ...}`` in MiB; after `close` the last values. None without
            ``enable_memory_profiling``.
        """
        return self._memory.usage() if self._memory is not None else None

    @property
    def last_profiling(self) -> Mapping[str, Any] | None:
        """The latest interval of time profiling, see `TimeProfilingWrapper`; None before the first."""
        return self._time.last if self._time is not None else None

    # ---- Configuration ----

    def _populate(self, folder: Path) -> None:
        config = self.config
        if config.map is not None:
            with _named("map"):
                cells = occupied_pixels(folder / config.map.image, config.map.threshold)
                self.add_occupancy_grid(
                    cells, config.map.resolution, origin=config.map.origin, height=config.map.height
                )
        if config.walls:
            self._add_outer_walls()
        for index, obstacle in enumerate(config.obstacles):
            with _named(f"obstacles[{index}]"):
                self._add_configured(obstacle)
        for index, robot in enumerate(config.robots):
            with _named(f"robots[{index}]"):
                self._spawn_configured(robot, folder)

    def _add_outer_walls(self) -> None:
        half, out = self.config.arena_size / 2, self.config.arena_size / 2 + _WALL_THICKNESS / 2
        for x in (-out, out):
            self.add_wall((x, -half - _WALL_THICKNESS), (x, half + _WALL_THICKNESS), thickness=_WALL_THICKNESS)
            self.add_wall((-half, x), (half, x), thickness=_WALL_THICKNESS)

    def _add_configured(self, entry: ObstacleConfig) -> None:
        if entry.kind == "wall" and entry.start is not None and entry.end is not None:
            self.add_wall(
                entry.start, entry.end, thickness=entry.thickness, height=entry.height, elevation=entry.elevation
            )
        elif entry.position is not None and entry.size is not None:
            if entry.kind == "box":
                self.add_box(entry.position, entry.size, entry.yaw, elevation=entry.elevation)
            else:
                self.add_cylinder(entry.position, *entry.size, elevation=entry.elevation)

    def _spawn_configured(self, entry: RobotConfig, folder: Path) -> None:
        beside = folder / entry.model
        model = str(beside) if beside.is_file() else entry.model
        kind: dict[str, Any] = {"static": entry.static, "collides": entry.collides, "footprint": entry.footprint}
        if entry.layout == "random":
            ids = self.spawn_random(model, entry.count, **kind)
        elif entry.count > 1:
            ids = self.spawn_grid(
                model, entry.count, center=entry.position, spacing=entry.spacing, yaw=entry.yaw, **kind
            )
        else:
            ids = [self.spawn(model, entry.position, entry.yaw, **kind)]
        for robot in ids:
            if entry.velocity is not None:
                self.set_velocity(robot, entry.velocity)
            elif entry.goal is not None:
                self.set_goal(robot, entry.goal)
            elif entry.path is not None:
                self.set_path(robot, entry.path, patrol=entry.patrol)
            elif entry.random_walk:
                self.random_walk(robot)


class _named:
    """Puts the key of a configuration entry in front of what is wrong with it."""

    #: Arguments that are another key's values.
    _KEYS: ClassVar = {"command": "velocity", "robot": "model"}

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ValueError) and not isinstance(error, ConfigError):
            argument, colon, message = str(error).partition(":")
            raise ConfigError(f"{self._key}.{self._KEYS.get(argument, argument)}{colon}{message}") from None


def _pairs_of(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([codes >> 32, codes & 0xFFFFFFFF], axis=-1)
