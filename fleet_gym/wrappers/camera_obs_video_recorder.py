"""`CameraObsVideoRecorder`: one mp4 per environment, camera and episode, written while the episode runs."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

from fleet_gym._gymnasium import AnyVectorWrapper
from fleet_gym.profiling.forwarding import ForwardsToInner
from fleet_gym.profiling.phases import phase
from fleet_gym.video.clips import RecordingOptions
from fleet_gym.video.codecs import check_codec, check_quality
from fleet_gym.video.episode_files import Overwrite, check_name_prefix
from fleet_gym.video.episode_log import EpisodeRecord
from fleet_gym.video.episode_tracker import EpisodeTracker
from fleet_gym.video.errors import VideoEncodeError
from fleet_gym.video.frame_sources import EnvCameraSource, FrameSource, ObservationSource, RenderSource, key_path
from fleet_gym.video.frames import FrameFormat, to_fps
from fleet_gym.video.held_signals import HeldSignals
from fleet_gym.video.recording import Recording
from fleet_gym.video.recovery import recover_leftovers
from fleet_gym.video.retention import Retention
from fleet_gym.video.selection import (
    EpisodeTrigger,
    StepTrigger,
    check_cameras,
    env_mask,
    normalize_episode_trigger,
)
from fleet_gym.video.writers import EncoderSettings, MoviepyBackend, VideoBackend, moviepy_writer

logger = logging.getLogger("fleet_gym.video")

FrameSourceName = Literal["obs", "render", "env"]
Backend = Literal["auto", "moviepy", "pool"]
Backpressure = Literal["block", "drop"]
LONGEST_TIMEOUT_S = 2_000_000.0
"""`select.poll` takes milliseconds as a C int: 23 days stand for anything longer."""


class CameraObsVideoRecorder(ForwardsToInner, AnyVectorWrapper):
    """Streams every camera of every environment to one mp4 per episode, at constant memory.

    Files are called ``<name_prefix>-env<N>-<camera>-episode-<E>.mp4``; see `fleet_gym.video.episode_files`. A T-step
    episode seen from its reset has exactly T + 1 frames in all three autoreset modes, the last observation included.
    E is ``get_episode_index(n)`` of `env` or else of ``env.unwrapped``; without one, resets are counted from 0.
    A file has its final name only when it is whole. ``episodes.jsonl`` beside the videos has a row per episode.

    An explicit reset in the middle of an episode, `close`, and an exception from the environment make an episode
    partial: its videos are deleted, or kept as ``...-partial.mp4`` with `save_partial_episodes`. An episode without a
    step leaves no file. Observations, rewards, flags and infos pass through unchanged.

    The wrapper works on any `gymnasium.vector.VectorEnv`. Put it directly around the environment, inside of profilers
    and of wrappers that change observations.

    Unit tests that want no encoder patch ``fleet_gym.wrappers.camera_obs_video_recorder.FFMPEG_VideoWriter`` (the
    name is looked up at each opening) or pass `writer_factory`, with `fleet_gym.testing.FrameCountingWriter`.

    Attributes:
        video_folder: where the files go.
        name_prefix: first part of the file names.
        fps: frames per second of the environment's steps, an exact fraction.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        video_folder: str | os.PathLike[str],
        name_prefix: str = "robot-cam",
        fps: Any = None,
        save_partial_episodes: bool = False,
        *,
        cameras: Sequence[str] | None = None,
        env_indices: Sequence[int] | None = None,
        frame_source: FrameSourceName = "obs",
        camera_obs_key: str | Sequence[str] = "camera_obs",
        frame_formats: FrameFormat | Mapping[str, FrameFormat] | None = None,
        episode_trigger: EpisodeTrigger | None = None,
        step_trigger: StepTrigger | None = None,
        video_length: int | None = None,
        stride: int = 1,
        keep: Callable[[EpisodeRecord], bool] | None = None,
        keep_last: int | None = None,
        max_disk_mb: float | None = None,
        episode_columns: Callable[[EpisodeRecord], Mapping[str, Any]] | None = None,
        overwrite: Overwrite = "unique",
        backend: Backend = "auto",
        max_writer_processes: int = 16,
        num_workers: int | None = None,
        backpressure: Backpressure = "block",
        encoder_timeout: float = 30.0,
        codec: str = "libx264",
        preset: str | None = None,
        crf: float | None = None,
        bitrate: str | None = None,
        writer_factory: Callable[..., Any] | None = None,
    ) -> None:
        """Wraps a vector environment; reads only its ``num_envs`` and ``metadata``.

        Args:
            env: any vector environment.
            video_folder: made if it is not there.
            name_prefix: first part of the file names.
            fps: frames per second: a number, a fraction, or a string such as ``"30000/1001"``; None takes the
                metadata's ``render_fps``.
            save_partial_episodes: keep the videos of episodes that did not end by themselves.
            cameras: names to record; None for every uint8 colour image.
            env_indices: environments to record; None for all.
            frame_source: ``"obs"`` takes images from the observations, ``"render"`` calls ``render()``, ``"env"``
                calls ``unwrapped.render_cameras``, which draws only the environments being recorded.
            camera_obs_key: where the images are in the observation: a key, a path of keys, or ``()`` for an
                observation that is the image.
            frame_formats: how to read images that are not uint8 with channels last, for all cameras or by name.
            episode_trigger: function of (episode) or (env, episode): whether to record it.
            step_trigger: function of the number of vector steps made: True begins a clip in every environment that
                has none under way.
            video_length: frames of a video at most; None for whole episodes.
            stride: take every so many-th frame, and the last one; the video's rate is lowered alike.
            keep: function of the `EpisodeRecord` of an ended episode: whether its videos stay.
            keep_last: number of episodes, over all environments, whose videos stay.
            max_disk_mb: size of the finished videos of this recorder; the oldest episodes are deleted.
            episode_columns: function of the `EpisodeRecord` returning more columns for the log.
            overwrite: about a name that is taken: ``"unique"`` appends ``-run2``, ``"error"`` raises, ``"replace"``.
            backend: ``"moviepy"``: one ffmpeg process per stream; ``"pool"``: a few worker processes for all;
                ``"auto"``: moviepy up to `max_writer_processes` streams.
            max_writer_processes: for ``"auto"``.
            num_workers: of the pool; None for half of the cores, 4 at most.
            backpressure: ``"block"`` waits for an encoder that is behind, ``"drop"`` leaves out whole frames and
                counts them.
            encoder_timeout: seconds without progress after which an encoder counts as stuck.
            codec: ffmpeg encoder; ``"h264_nvenc"`` if the ffmpeg at hand has it.
            preset: of the codec; None for ``"veryfast"`` of libx264 and the default of any other.
            crf: constant quality of the codec, smaller is better.
            bitrate: such as ``"2M"``.
            writer_factory: called as ``writer_factory(filename, size, fps, **kwargs)`` for each video; returns an
                object with ``write_frame(frame)`` and ``close()``, in place of MoviePy's writer.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for a value that cannot be, or when the rate is not known.
            OSError: when the folder cannot be made or written (`PermissionError`, `NotADirectoryError`...).
        """
        super().__init__(env)
        metadata = env.metadata or {}
        num_envs = env.num_envs
        self.name_prefix = check_name_prefix(name_prefix)
        self.fps = to_fps(fps) if fps is not None else _metadata_fps(metadata)
        _one_of("frame_source", frame_source, get_args(FrameSourceName))
        _one_of("backend", backend, get_args(Backend))
        _one_of("backpressure", backpressure, get_args(Backpressure))
        _one_of("overwrite", overwrite, get_args(Overwrite))
        if writer_factory is not None and backend == "pool":
            raise ValueError("writer_factory: expected backend 'auto' or 'moviepy' with a factory, got backend='pool'")
        for name, function in (("keep", keep), ("step_trigger", step_trigger), ("episode_columns", episode_columns)):
            if function is not None and not callable(function):
                raise TypeError(f"{name}: expected a function, got {function!r}")
        if not isinstance(video_folder, (str, os.PathLike)):
            raise TypeError(f"video_folder: expected a path, got {video_folder!r}")
        own_writer = writer_factory is not None
        check_codec(codec, moviepy=backend != "pool" and not own_writer, pool=backend != "moviepy" and not own_writer)
        check_quality(preset, crf, bitrate)
        settings = EncoderSettings(
            codec=codec,
            preset=preset,
            crf=crf,
            bitrate=bitrate,
            overwrite=overwrite,
            timeout=min(_positive("encoder_timeout", encoder_timeout), LONGEST_TIMEOUT_S),
            drop=backpressure == "drop",
        )
        keep_last = None if keep_last is None else _whole("keep_last", keep_last)
        max_bytes = None if max_disk_mb is None else int(_positive("max_disk_mb", max_disk_mb) * 1e6)
        names = check_cameras(cameras)
        folder = Path(video_folder).absolute()
        options = RecordingOptions(
            folder=folder,
            prefix=self.name_prefix,
            fps=self.fps / _whole("stride", stride),
            save_partial=bool(save_partial_episodes),
            envs=env_mask(env_indices, num_envs),
            episode_trigger=normalize_episode_trigger(episode_trigger),
            step_trigger=step_trigger,
            video_length=None if video_length is None else _whole("video_length", video_length),
            keep=keep,
            retention=Retention(folder, keep_last, max_bytes),
            stride=stride,
            formats=_formats(frame_formats),
            columns=episode_columns,
        )
        source = _make_source(frame_source, env, key_path(camera_obs_key), names)
        make_backend = _BackendMaker(
            options,
            settings,
            backend,
            writer_factory,
            _whole("max_writer_processes", max_writer_processes),
            None if num_workers is None else _whole("num_workers", num_workers),
        )
        self.video_folder = _writable_folder(options.folder)
        recover_leftovers(self.video_folder)
        tracker = EpisodeTracker(num_envs, _autoreset_mode(metadata))
        self._recording = Recording(options, tracker, source, _EpisodeIndex(env), make_backend)
        self._finalizer = weakref.finalize(self, _close_quietly, self._recording)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environments; see `gymnasium.vector.VectorEnv.reset`.

        Raises:
            VideoEncodeError: when a video could not be written.
            ValueError: when an image is not what its camera's first one was.
        """
        self._check_usable("reset")
        mask = None if options is None else options.get("reset_mask")  # read before Sync and Async pop it
        mask = None if mask is None else np.array(mask, dtype=np.bool_)
        with self._given_up_on_errors():
            observation, infos = self.env.reset(seed=seed, options=options)
            with phase("record"), HeldSignals():
                self._recording.reset(mask, seed, observation, infos)
        return observation, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments; see `gymnasium.vector.VectorEnv.step`.

        Raises:
            VideoEncodeError: when a video could not be written.
            ValueError: when an image is not what its camera's first one was.
        """
        self._check_usable("step")
        with self._given_up_on_errors():
            result: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
            with phase("record"), HeldSignals():
                self._recording.step(*result)
        return result

    def close(self, **kwargs: Any) -> None:
        """Ends what is being recorded, waits for the files, and closes the environment. Twice is fine.

        Raises:
            VideoEncodeError: when a video could not be written; the environment is closed all the same.
        """
        self._finalizer.detach()
        try:
            with HeldSignals():
                self._recording.close()
        finally:
            self.env.close(**kwargs)

    def _check_usable(self, what: str) -> None:
        if not self._recording.usable:
            raise RuntimeError(f"{what}: expected a recorder that is open and of this process, got one that is not")

    @contextlib.contextmanager
    def _given_up_on_errors(self) -> Any:
        try:
            yield
        except VideoEncodeError:
            raise  # one video's failure; the other episodes go on
        except BaseException:
            with HeldSignals():
                self._recording.lose()
            raise


def _close_quietly(recording: Recording) -> None:
    try:
        recording.close()
    except (VideoEncodeError, OSError):
        logger.exception("a recorder was left without close() and its videos could not all be written")


class _EpisodeIndex:
    """Asks the environment for its episode index, where it has one."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env

    def __call__(self, env_index: int) -> int | None:
        method = getattr(self._env, "get_episode_index", None)  # a wrapper that counts otherwise
        if method is None and (inner := self._env.unwrapped).num_envs == self._env.num_envs:
            # Inside a wrapper that makes other environments of them they are not those that are recorded.
            method = getattr(inner, "get_episode_index", None)
        index = method(env_index) if callable(method) else None
        if isinstance(index, np.ndarray) and index.ndim == 0:
            index = index.item()
        return int(index) if isinstance(index, (int, np.integer)) and index >= 0 else None


class _BackendMaker:
    """Chooses and makes the backend when the number of streams is known."""

    def __init__(
        self,
        options: RecordingOptions,
        settings: EncoderSettings,
        backend: Backend,
        writer_factory: Callable[..., Any] | None,
        max_writer_processes: int,
        num_workers: int | None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._backend = backend
        self._factory = writer_factory
        self._max_writer_processes = max_writer_processes
        self._num_workers = num_workers

    def _current_factory(self) -> Callable[..., Any]:
        factory: Callable[..., Any] = self._factory or FFMPEG_VideoWriter
        return factory

    def __call__(self, num_streams: int) -> VideoBackend:
        folder, run_id = self._options.folder, self._options.run_id
        pool = self._backend == "pool"
        if self._backend == "auto":
            replaced = self._current_factory() is not moviepy_writer()
            pool = num_streams > self._max_writer_processes and not replaced
        if not pool:
            return MoviepyBackend(folder, self._settings, self._current_factory, run_id)
        from fleet_gym.video.pool import PoolBackend, default_workers

        envs = np.flatnonzero(self._options.envs).tolist()
        return PoolBackend(folder, self._settings, run_id, envs, num_streams, self._num_workers or default_workers())


def _metadata_fps(metadata: Mapping[str, Any]) -> Any:
    fps = metadata.get("render_fps")
    if fps is None:
        raise ValueError("fps: expected a frame rate, as an argument or as the environment's metadata['render_fps']")
    return to_fps(fps, "metadata['render_fps']")


def _autoreset_mode(metadata: Mapping[str, Any]) -> AutoresetMode | None:
    mode = metadata.get("autoreset_mode")
    if isinstance(mode, (AutoresetMode, str)):
        return AutoresetMode(mode)
    logger.debug("the metadata say nothing of the autoreset mode: it is told by the infos of ended episodes")
    return None


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {list(allowed)}, got {value!r}")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, got {value}")
    return int(value)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not value > 0:
        raise ValueError(f"{name}: expected more than 0, got {value}")
    return float(value)


def _formats(formats: FrameFormat | Mapping[str, FrameFormat] | None) -> dict[str | None, FrameFormat]:
    if isinstance(formats, FrameFormat):
        return {None: formats}
    named = {} if formats is None else dict(formats)
    if not all(isinstance(value, FrameFormat) for value in named.values()):
        raise TypeError(f"frame_formats: expected FrameFormat values, got {formats!r}")
    result: dict[str | None, FrameFormat] = {None: FrameFormat()}
    result.update(named)
    return result


def _make_source(
    name: FrameSourceName, env: VectorEnv[Any, Any, Any], path: tuple[str, ...], cameras: tuple[str, ...] | None
) -> FrameSource:
    if name == "obs":
        return ObservationSource(path, cameras)
    return RenderSource(env, cameras) if name == "render" else EnvCameraSource(env, cameras)


def _writable_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # an access check would not see a read-only or full disk
            return folder
    except OSError as error:
        what = f"video_folder: expected a folder that can be written, got {str(folder)!r}: {error.strerror}"
        raise type(error)(error.errno, what) from error
