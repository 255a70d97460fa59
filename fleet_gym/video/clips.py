"""The videos that are being made: at most one per environment at a time, from all its cameras."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.video.episode_files import EpisodeVideoName, checked_filename
from fleet_gym.video.episode_log import EpisodeRecord, VideoFile, append_episodes, check_columns
from fleet_gym.video.episode_tracker import BoolArray
from fleet_gym.video.errors import VideoEncodeError
from fleet_gym.video.frames import CameraSpec, FrameBatch, FrameFormat
from fleet_gym.video.infos import SUCCESS_KEYS, last_info, success_of
from fleet_gym.video.retention import Retention
from fleet_gym.video.writers import Outcome, StreamRequest, StreamResult, VideoBackend

logger = logging.getLogger("fleet_gym.video")

# Rows written in one step at most, or a quarter of those that wait: where hundreds of environments end together, a row
# costs more than handing over the frames it tells of.
_ROWS_PER_STEP = 16


@dataclass(frozen=True)
class RecordingOptions:
    """What a recording is told by its recorder.

    Attributes:
        folder: of the videos.
        prefix: of the file names.
        fps: of the videos, stride already taken into account.
        save_partial: keep episodes that did not end by themselves.
        envs: (E,) bool, which environments are recorded.
        episode_trigger: asked with (env, episode) at each episode's first frame; None records every episode unless
            there is a step trigger.
        step_trigger: asked with the number of vector steps made; True begins a clip in every environment.
        video_length: frames at most, None for whole episodes.
        keep: asked with the record of an ended episode whether its videos stay.
        retention: deletes the oldest videos.
        stride: every how many steps a frame is taken; the last one always is.
        formats: camera -> how to read its images; the entry None is for all others.
        columns: user's columns of the log, called with the record.
        run_id: of the recorder.
    """

    folder: Path
    prefix: str
    fps: Fraction
    save_partial: bool
    envs: NDArray[np.bool_]
    episode_trigger: Callable[[int, int], bool] | None
    step_trigger: Callable[[int], bool] | None
    video_length: int | None
    keep: Callable[[EpisodeRecord], bool] | None
    retention: Retention
    stride: int
    formats: Mapping[str | None, FrameFormat]
    columns: Callable[[EpisodeRecord], Mapping[str, Any]] | None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


@dataclass
class _Clip:
    record: EpisodeRecord
    files: dict[int, VideoFile] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    finished: bool = False  # its streams were told to end
    given_up: bool = False  # it has no frame beyond the first: nothing is told of it
    complete: bool = False  # its record says how the episode ended
    kept: list[tuple[str, int | None]] = field(default_factory=list)  # files and their bytes


class Clips:
    """Opens, feeds and ends the streams of E environments.

    A clip takes frames once its episode has a step. Until then its first frame waits where its file will be made, so
    that an episode without a step leaves no file.

    Attributes:
        prepared: (E,) bool, a clip is prepared but not open.
        begun: (E,) bool, its first frame was handed over, or is missing.
        open: (E,) bool, a clip takes frames.
        first_step: (E,) int64, step of the episode at which the clip begins.
    """

    def __init__(
        self,
        options: RecordingOptions,
        num_envs: int,
        specs: Mapping[str, CameraSpec],
        make_backend: Callable[[int], VideoBackend],
    ) -> None:
        """Makes none yet.

        Args:
            options: what to record.
            num_envs: E.
            specs: of the cameras, filled by the caller before frames come.
            make_backend: called once, with the number of streams, when the first clip is opened.
        """
        self._options = options
        self._specs = specs
        self._make_backend = make_backend
        self._backend: VideoBackend | None = None
        self.prepared = np.zeros(num_envs, dtype=np.bool_)
        self.begun = np.zeros(num_envs, dtype=np.bool_)
        self.open = np.zeros(num_envs, dtype=np.bool_)
        self.first_step = np.zeros(num_envs, dtype=np.int64)
        self._frames = np.zeros(num_envs, dtype=np.int64)
        self._current: dict[int, _Clip] = {}
        self._cut: dict[int, list[_Clip]] = {}
        self._streams: dict[str, NDArray[np.int64]] = {}
        self._clip_of: dict[int, _Clip] = {}
        self._open_envs: NDArray[np.intp] | None = None
        self._endings: list[tuple[int, Outcome]] = []
        self._errors: list[VideoEncodeError] = []
        self._done: list[_Clip] = []  # whole, not in the log yet
        self._rows: list[dict[str, Any]] = []  # of the log, not written yet
        self._log_error: OSError | None = None
        self._callback_error: BaseException | None = None

    @property
    def prepared_any(self) -> bool:
        """Whether any clip waits to be opened."""
        return bool(self.prepared.any())

    @property
    def full(self) -> BoolArray:
        """(E,) clips that have reached the greatest length."""
        length = self._options.video_length
        return np.zeros_like(self.open) if length is None else self._frames >= length

    @property
    def open_envs(self) -> NDArray[np.intp]:
        """(n,) environments with an open clip, ascending."""
        if self._open_envs is None:
            self._open_envs = np.flatnonzero(self.open)
        return self._open_envs

    @property
    def any(self) -> BoolArray:
        """(E,) environments whose running episode has a clip, open or not."""
        found = self.prepared | self.open
        found[list(self._cut)] = True
        return found

    def prepare(self, env: int, record: EpisodeRecord, first_step: int, first_frame: bool) -> None:
        """Prepares a clip.

        Args:
            env: whose.
            record: of the episode, as far as it is known.
            first_step: step of the episode at which the clip begins.
            first_frame: whether its first frame will be handed to `begin`.
        """
        record.fps = str(self._options.fps)
        record.run_id = self._options.run_id
        self._current[env] = _Clip(record)
        self.prepared[env] = True
        self.begun[env] = not first_frame
        self.first_step[env] = first_step
        self._frames[env] = 0

    def begin(self, batch: FrameBatch, envs: BoolArray) -> None:
        """Hands over the first frames of prepared clips.

        Raises:
            FileExistsError: with ``overwrite="error"``, when a video of that name is there; the clips are given up.
            ValueError: when no file can have a camera's name.
        """
        indices = np.flatnonzero(envs)
        self._open_streams(indices)
        self.write(batch, indices)
        self.begun |= envs

    def start(self, envs: BoolArray) -> None:
        """Lets prepared clips take frames.

        Raises:
            FileExistsError, ValueError: as `begin`, of clips whose first frame is missing.
        """
        indices = np.flatnonzero(envs)
        if not len(indices):
            return
        self._open_streams(indices[self._frames[indices] == 0])
        self.prepared[indices] = False
        self.begun[indices] = False
        self.open[indices] = True
        self._open_envs = None

    def write(self, batch: FrameBatch, envs: NDArray[np.intp]) -> None:
        """Writes one more frame of each of the clips of `envs` (n,)."""
        backend = self._get_backend()
        rows = batch.rows(envs)
        backend.write([(images, rows, self._streams[camera][envs]) for camera, images in batch.images.items()])
        self._frames[envs] += 1

    def missing_last(self, envs: BoolArray) -> None:
        """Notes that the last frame of the running episodes will not come."""
        for env in np.flatnonzero(envs & self.open).tolist():
            self._current[env].record.last_frame = "missing"

    def cut(self) -> None:
        """Ends clips that have reached the greatest length; their rows wait for the end of the episode."""
        if self._options.video_length is None:
            return
        for env in np.flatnonzero(self.open & self.full).tolist():
            clip = self._current.pop(env)
            self._cut.setdefault(env, []).append(clip)
            self._stop(env)
            if self._options.keep is None:  # otherwise how the episode ends decides
                self._finish(clip, "keep")

    def end(self, ended: Mapping[int, Mapping[str, Any]], infos: Mapping[str, Any]) -> None:
        """Ends the clips of episodes that are over.

        Args:
            ended: environment -> what to set in the record.
            infos: of the ending step.
        """
        callbacks = self._options.keep is not None or self._options.columns is not None
        for env, facts in ended.items():
            clips = self._cut.pop(env, [])
            whole = len(clips)
            if self.open[env]:
                clips.append(self._current[env])
            info = last_info(infos, env, None if callbacks else SUCCESS_KEYS)
            for position, clip in enumerate(clips):
                record = clip.record
                for name, value in facts.items():
                    setattr(record, name, value)
                record.info = info
                record.success = success_of(info)
                self._conclude(clip, cut_off=record.partial and position >= whole)
            self.forget_env(env)

    def forget(self, envs: BoolArray) -> None:
        """Gives up clips that were prepared but have no frame beyond the first."""
        for env in np.flatnonzero(envs & (self.prepared | self.open)).tolist():
            self.forget_env(env)

    def forget_env(self, env: int) -> None:
        """Takes an environment as not being recorded."""
        clip = self._current.pop(env, None)
        if clip is not None and not clip.finished:
            clip.given_up = True
            self._finish(clip, "discard")
        self._stop(env)

    def settle(self, wait: bool = False, raise_errors: bool = True) -> None:
        """Takes in what the encoders have to say: writes the rows of finished episodes.

        Args:
            wait: until every ended stream is settled.
            raise_errors: otherwise they are kept for the next call.

        Raises:
            VideoEncodeError: when a stream failed; names the first if there are several.
            OSError: when the log could not be written.
            BaseException: what `keep` or `episode_columns` raised.
        """
        if self._backend is not None:
            if self._endings:
                endings, self._endings = self._endings, []
                self._backend.finish(endings)
            for result in self._backend.collect(wait):
                self._take(result)
        self._log(everything=wait, retry=wait and raise_errors)
        if raise_errors:
            self._raise_errors()

    def close(self) -> None:
        """Closes the backend."""
        if self._backend is not None:
            self._backend.close()

    def _raise_errors(self) -> None:
        callback_error, self._callback_error = self._callback_error, None
        if callback_error is not None:
            raise callback_error
        errors, self._errors = self._errors, []
        log_error, self._log_error = self._log_error, None
        if len(errors) == 1:
            raise errors[0] from log_error
        if errors:
            first, rest = errors[0], [f"env {e.env} {e.camera!r} episode {e.episode}" for e in errors[1:]]
            listed = ", ".join(rest[:8]) + (", ..." if len(rest) > 8 else "")
            reason = f"{first.reason} (and {len(rest)} other videos: {listed})"
            raise VideoEncodeError(first.env, first.camera, first.episode, reason) from log_error
        if log_error is not None:
            raise log_error

    def _get_backend(self) -> VideoBackend:
        if self._backend is None:
            self._backend = self._make_backend(int(self._options.envs.sum()) * len(self._specs))
            self._streams = {camera: np.full(len(self.prepared), -1, dtype=np.int64) for camera in self._specs}
        return self._backend

    def _open_streams(self, envs: NDArray[np.intp]) -> None:
        if not len(envs):
            return
        keys = [(camera, env) for camera in self._specs for env in envs.tolist()]
        requests = [self._request(camera, env) for camera, env in keys]
        try:
            for request in requests[len(envs) - 1 :: len(envs)]:  # one of each camera: the numbers are as they should
                checked_filename(request.name)
            numbers = self._get_backend().open(requests)
        except (OSError, ValueError):
            for env in envs.tolist():
                self.forget_env(env)
            raise
        for (camera, env), request, number in zip(keys, requests, numbers, strict=True):
            clip = self._current[env]
            size = (request.width, request.height)
            clip.files[number] = VideoFile(camera, size=size, coded_size=request.coded_size)
            clip.waiting.add(number)
            self._clip_of[number] = clip
            self._streams[camera][env] = number

    def _request(self, camera: str, env: int) -> StreamRequest:
        record, spec = self._current[env].record, self._specs[camera]
        name = EpisodeVideoName(self._options.prefix, env, camera, record.episode, record.start_step)
        return StreamRequest(name, spec.width, spec.height, spec.pixel_format, self._options.fps, record.run_id)

    def _stop(self, env: int) -> None:
        self.prepared[env] = self.begun[env] = self.open[env] = False
        self._open_envs = None

    def _finish(self, clip: _Clip, outcome: Outcome) -> None:
        if not clip.finished:
            clip.finished = True
            self._endings += [(stream, outcome) for stream in clip.files]

    def _conclude(self, clip: _Clip, cut_off: bool) -> None:
        outcome: Outcome = "partial" if cut_off else "keep"
        try:
            keep = self._options.keep
            if (cut_off and not self._options.save_partial) or (keep is not None and not keep(clip.record)):
                outcome = "discard"
            if self._options.columns is not None:
                clip.record.columns = check_columns(self._options.columns(clip.record))
        except BaseException as error:  # the video is kept; told after everything else was settled
            self._note_callback_error(error, told_already=clip.record.crashed)
        clip.complete = True
        self._finish(clip, outcome)
        self._log_if_done(clip)

    def _note_callback_error(self, error: BaseException, told_already: bool) -> None:
        if told_already:  # something was raised before: that is what matters
            logger.error("keep or episode_columns raised for an episode that crashed", exc_info=error)
        elif self._callback_error is None:
            self._callback_error = error

    def _take(self, result: StreamResult) -> None:
        clip = self._clip_of[result.stream]
        file = clip.files[result.stream]
        if result.error is not None and file.error is None and not clip.given_up:
            file.error = result.error
            self._errors.append(VideoEncodeError(clip.record.env, file.camera, clip.record.episode, result.error))
        if not result.ended:
            return
        del self._clip_of[result.stream]
        file.frames, file.dropped, file.bytes = result.frames, result.dropped, result.bytes
        if result.dropped:
            logger.warning(
                "env %d, camera %r, episode %d: %d of %d frames dropped, the encoder could not keep up",
                clip.record.env, file.camera, clip.record.episode, result.dropped, result.dropped + result.frames,
            )  # fmt: skip
        if result.file is not None:
            file.file = result.file
            clip.kept.append((result.file, result.bytes))
        clip.waiting.discard(result.stream)
        self._log_if_done(clip)

    def _log_if_done(self, clip: _Clip) -> None:
        if clip.complete and not clip.waiting:
            clip.record.files = [file for file in clip.files.values() if file.file or file.error]
            self._done.append(clip)

    def _log(self, everything: bool, retry: bool) -> None:
        """Writes the rows of clips that are whole.

        Args:
            everything: and not only as many as a step should be held up by.
            retry: also when there are none but those that could not be written before.
        """
        count = len(self._done) if everything else max(_ROWS_PER_STEP, len(self._done) // 4)
        done, self._done = self._done[:count], self._done[count:]
        self._rows += [clip.record.row() for clip in done]
        if not self._rows or not (done or retry):
            return
        try:
            append_episodes(self._options.folder, self._rows)
        except OSError as error:  # told after everything else was settled; the next rows are written with these
            self._log_error = error
        else:
            self._rows = []
        for clip in done:
            self._options.retention.add(clip.kept)
