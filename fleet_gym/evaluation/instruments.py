"""What an evaluation puts around the environment: the recorder, the profilers and their logs."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from fleet_gym._gymnasium import AnyVectorWrapper
from fleet_gym.evaluation.play import Episode, Plan, collisions_of
from fleet_gym.evaluation.run_folder import MEMORY_LOG, TIME_LOG, RunFolder

AnyVectorEnv = VectorEnv[Any, Any, Any]
#: Steps per record of the profilers.
PROFILING_INTERVAL = 50
#: Frames per second of videos of an environment that does not say.
DEFAULT_FPS = 30


@dataclass(frozen=True)
class InstrumentSettings:
    """What to record and profile; see `fleet_gym.evaluation.evaluate`.

    Attributes:
        videos: how many episodes to record.
        cameras: names to record, None for all colour cameras.
        frame_source: as the recorder takes it, or ``"auto"``.
        profile: mode of the memory profiler, or ``"off"``.
    """

    videos: int
    cameras: tuple[str, ...] | None
    frame_source: str
    profile: str


class _KeptOpen(AnyVectorWrapper):
    """Stays open when the wrappers around it are closed, and begins to count episodes anew."""

    def get_episode_index(self, env_idx: int) -> int:
        """Returns -1, so that the recorder counts from the evaluation's first reset: the env may have been used."""
        return -1

    def close(self, **kwargs: Any) -> None:
        """Does nothing."""


class Instruments:
    """The environment with recorder and profilers around it. Leaving the block takes them off; the env stays open.

    Args:
        env: the environment.
        plan: what is played.
        folder: of the files; None: no videos and no logs.
        settings: what to record and profile.
        done: (E,) episodes of each world that an earlier session played.

    Attributes:
        env: the outermost.
        memory: what the memory profiler found, once the block is left.
    """

    def __init__(
        self,
        env: AnyVectorEnv,
        plan: Plan,
        folder: RunFolder | None,
        settings: InstrumentSettings,
        done: NDArray[Any],
    ) -> None:
        self.env: AnyVectorEnv = _KeptOpen(env)
        self.memory: dict[str, Any] = {}
        self._plan = plan
        self._folder = folder
        self._recorded: Callable[[int, int], bool] = lambda world, episode: False
        self._fps = ""
        self._run_id = uuid.uuid4().hex[:12]
        self._profiles: _Profiles | None = None
        try:
            if folder is not None and settings.videos:
                self._record(folder, settings, done)
            if settings.profile != "off":
                self._profiles = _Profiles(self.env, settings.profile, folder)
                self.env = self._profiles.env
        except BaseException:
            self.env.close()
            raise

    def _record(self, folder: RunFolder, settings: InstrumentSettings, done: NDArray[Any]) -> None:
        from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

        source: Any = settings.frame_source
        source = frame_source_of(self.env, settings.cameras) if source == "auto" else source
        if source is None and settings.cameras is None:
            return
        if source is None:
            raise ValueError(
                f"cameras: expected none of an environment without images, got {', '.join(settings.cameras or ())}; "
                "images are those of the observation's 'camera_obs', or of render() with render_mode='rgb_array'"
            )
        plan, shares = self._plan, self._plan.shares

        def wanted(world: int, episode: int) -> bool:
            return bool(done[world] <= episode < shares[world]) and plan.index(world, episode) < settings.videos

        recorder = CameraObsVideoRecorder(
            self.env,
            folder.path,
            fps=None if self.env.metadata.get("render_fps") else DEFAULT_FPS,
            cameras=settings.cameras,
            frame_source=source,
            episode_trigger=wanted,
            episode_columns=lambda record: {
                "index": plan.index(record.env, record.episode),
                "collisions": collisions_of(record.info),
            },
        )
        self.env, self._recorded, self._fps = recorder, wanted, str(recorder.fps)

    def acting(self) -> contextlib.AbstractContextManager[Any]:
        """Charges the time of a ``with`` block to the policy."""
        return contextlib.nullcontext() if self._profiles is None else self._profiles.acting()

    def after_step(self, ended: Sequence[Episode]) -> None:
        """Writes down what a step brought."""
        if self._profiles is not None:
            self._profiles.after_step()
        if self._folder is not None and ended:
            unrecorded = [episode for episode in ended if not self._recorded(episode.env, episode.episode)]
            self._folder.log_unrecorded(unrecorded, self._fps, self._run_id)

    def __enter__(self) -> Instruments:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.env.close()
        finally:
            if self._profiles is not None:
                self.memory = self._profiles.close()


def frame_source_of(env: AnyVectorEnv, cameras: Sequence[str] | None) -> str | None:
    """Returns where the recorder gets images from with the least work, None for nowhere.

    Args:
        env: the environment.
        cameras: names wanted, None for all.
    """
    space = env.single_observation_space
    images = space.get("camera_obs") if isinstance(space, spaces.Dict) else None
    observed = set(images.spaces) if isinstance(images, spaces.Dict) else {"camera_obs"} if images else set()
    base: Any = env.unwrapped
    draws = hasattr(base, "render_cameras")
    drawn = {camera.name for camera in base.scene.cameras} if draws and hasattr(base, "scene") else observed
    if observed and observed.issuperset(drawn if cameras is None else cameras):
        return "obs"
    if draws and (drawn or not hasattr(base, "scene")):
        return "env"
    return "render" if getattr(env, "render_mode", None) == "rgb_array" else None


class _Profiles:
    """Memory and time profilers whose records go to files, not to the log's readers."""

    def __init__(self, env: AnyVectorEnv, mode: Any, folder: RunFolder | None) -> None:
        from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper
        from fleet_gym.wrappers.time_profiling import TimeProfilingWrapper

        memory_log = None if folder is None else folder.next_log(MEMORY_LOG)
        self._time_log = None if folder is None else folder.next_log(TIME_LOG)
        self._written = 0
        with _unseen():
            self._memory = MemoryProfilingWrapper(
                env, profiling_interval=PROFILING_INTERVAL, mode=mode, log_path=memory_log
            )
            self._time = TimeProfilingWrapper(self._memory, profiling_interval=PROFILING_INTERVAL)
        self.env: AnyVectorEnv = self._time

    def acting(self) -> contextlib.AbstractContextManager[Any]:
        return self._time.phase("policy")

    def after_step(self) -> None:
        record = self._time.last_profiling
        if self._time_log is not None and record is not None and record["step"] != self._written:
            self._written = record["step"]
            with self._time_log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(_plain(record)) + "\n")

    def close(self) -> dict[str, Any]:
        """Writes the last record and returns what memory did."""
        self.after_step()
        report, records = self._memory.memory_report(), self._memory.memory_records
        if report is None or not records:
            return {}
        return {
            "highest_rss_mb": max(record.rss_mb for record in records),
            "verdicts": {name: verdict.status for name, verdict in report.verdicts.items()},
            "hints": list(report.hints),
        }


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in record.items()}


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Keeps the profilers from printing their lines where nobody has configured logging."""
    logger = logging.getLogger("fleet_gym")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def read_time_records(path: Path) -> list[dict[str, Any]]:
    """Reads a session's ``time.jsonl``; a last line that a kill cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records
