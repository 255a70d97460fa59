"""What an encoder backend is, and the backend that runs one ffmpeg per stream through MoviePy."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet_gym.video.episode_files import EpisodeVideoName, Overwrite, claim, free_name, part_path, publish
from fleet_gym.video.ffmpeg_process import FfmpegProcess, interrupts_kept_off
from fleet_gym.video.frames import CHANNELS, PixelFormat
from fleet_gym.video.mp4 import count_frames
from fleet_gym.video.run_lock import RunLock

logger = logging.getLogger("fleet_gym.video")

Outcome = Literal["keep", "partial", "discard"]
Images = NDArray[np.uint8] | Sequence[NDArray[np.uint8]]
#: ``images[rows[k]]`` is the next frame of ``streams[k]``; the images are of one shape.
FrameGroup = tuple[Images, NDArray[np.intp], NDArray[np.int64]]
# A frame interval after which a killed file can be decoded up to: frames lost are at most one group.
KEYFRAME_INTERVAL = 30


@dataclass(frozen=True)
class EncoderSettings:
    """How videos are encoded, the same for every stream of a recorder.

    Attributes:
        codec: ``"libx264"``, ``"h264_nvenc"`` or another encoder of the ffmpeg at hand.
        preset: of the codec, None for ``"veryfast"`` of libx264 and the default of any other.
        crf: constant quality, None for the codec's default.
        bitrate: such as ``"2M"``, None for the codec's default.
        overwrite: what to do about a name that is taken.
        timeout: seconds without progress after which an encoder counts as stuck.
        drop: leave whole frames out rather than wait for the encoder.
    """

    codec: str = "libx264"
    preset: str | None = None
    crf: float | None = None
    bitrate: str | None = None
    overwrite: Overwrite = "unique"
    timeout: float = 30.0
    drop: bool = False

    def codec_options(self) -> dict[str, str]:
        """Returns the encoder's private options, under ffmpeg's names."""
        options = {"g": str(KEYFRAME_INTERVAL)}
        if self.codec == "libx264":
            # Without look-ahead an encoder holds a few frames instead of dozens, and has nothing left to do at close.
            options |= {"preset": "veryfast", "tune": "zerolatency"}
        if self.preset is not None:
            options["preset"] = self.preset
        if self.crf is not None:
            options["cq" if self.codec.endswith("_nvenc") else "crf"] = f"{self.crf:g}"
        if self.bitrate is not None:
            options["b"] = self.bitrate
        return options


@dataclass(frozen=True)
class StreamRequest:
    """A video to be written: one camera's view of one episode.

    Attributes:
        name: what to call it.
        width: pixels.
        height: pixels.
        pixel_format: of the frames that will come.
        fps: exact.
        run_id: of the recorder.
    """

    name: EpisodeVideoName
    width: int
    height: int
    pixel_format: PixelFormat
    fps: Fraction
    run_id: str = ""

    @property
    def comment(self) -> str:
        """Stored in the file's metadata: a left-over file says whose it is and what was padded."""
        name, size = self.name, [self.width, self.height]
        facts = {"env": name.env, "camera": name.camera, "episode": name.episode, "size": size, "run": self.run_id}
        return json.dumps(facts)

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame."""
        return self.width * self.height * CHANNELS[self.pixel_format]

    @property
    def coded_size(self) -> tuple[int, int]:
        """(width, height) padded to even numbers, which 4:2:0 video needs."""
        return self.width + self.width % 2, self.height + self.height % 2


class StreamResult(NamedTuple):
    """How a stream ended, or that it failed.

    Attributes:
        stream: its number.
        frames: frames in the file.
        dropped: frames left out.
        file: name of the final file, None when nothing was kept.
        bytes: of the final file, None when unknown.
        error: what went wrong, None when nothing did.
        ended: no further result will come for this stream.
    """

    stream: int
    frames: int = 0
    dropped: int = 0
    file: str | None = None
    bytes: int | None = None
    error: str | None = None
    ended: bool = True


class VideoBackend(Protocol):
    """Encodes streams. No call raises because an encoder failed; `collect` tells."""

    def open(self, requests: Sequence[StreamRequest]) -> list[int]:
        """Opens streams and returns their numbers.

        A stream has no file before its second frame, or its end when the outcome is not ``"discard"``: many an episode
        is reset before its first step.

        Raises:
            FileExistsError: when a name is taken and ``overwrite="error"``; none of the streams is then open.
        """
        ...

    def write(self, groups: Sequence[FrameGroup]) -> None:
        """Writes the frames of a step; nothing of the images is kept."""
        ...

    def finish(self, endings: Sequence[tuple[int, Outcome]]) -> None:
        """Ends streams: their files get their names, ``-partial`` names, or are deleted."""
        ...

    def collect(self, wait: bool) -> list[StreamResult]:
        """Returns what became known since the last call; with `wait`, of every finished stream."""
        ...

    def close(self) -> None:
        """Frees what it holds; streams not finished are left as they are (``.part`` files). Twice is fine."""
        ...


def refuse_taken_names(folder: Path, requests: Sequence[StreamRequest], settings: EncoderSettings) -> None:
    """Raises FileExistsError when there is a video of one of the names and ``overwrite="error"``."""
    if settings.overwrite == "error":
        for request in requests:
            free_name(folder, request.name, "error")


class EpisodeVideoWriter:
    """One video being written by one writer: MoviePy's ffmpeg, hardened, or whatever a user's factory returned.

    The writer is made at the second frame, or at the end. MoviePy's own gets the ``.part`` name and is watched:
    time-out, return code and number of frames. Any other writer gets the final name and is only asked to write and
    close.
    """

    def __init__(
        self,
        folder: Path,
        request: StreamRequest,
        settings: EncoderSettings,
        factory: Callable[..., Any],
        announce: Callable[[str], None],
    ) -> None:
        self.request = request
        self.dropped = 0
        self.error: str | None = None
        self._frames = 0
        self._folder = folder
        self._settings = settings
        self._factory = factory
        self._announce = announce
        self._first: NDArray[np.uint8] | None = None
        self._claimed = False  # until then a file of that name is somebody else's
        self._writer: Any = None
        self._process: FfmpegProcess | None = None

    @property
    def frames(self) -> int:
        """Frames handed to the writer."""
        return self._frames if self._process is None else self._process.frames

    @property
    def _watched(self) -> bool:
        return self._factory is moviepy_writer()

    def write_frame(self, frame: NDArray[np.uint8]) -> None:
        """Hands a frame over; a failure is kept in `error`, and later frames are ignored."""
        if self.error is not None:
            return
        if self._first is None and self._writer is None:
            self._first = np.array(frame)
            return
        try:
            self._write_first()
            self._write(frame)
        except Exception as error:  # whatever a user's writer raises is that stream's failure, told by the caller
            self._fail(error)

    def end_input(self, outcome: Outcome) -> None:
        """Tells the encoder that no more frames come, without waiting for it. A failure is kept in `error`."""
        try:
            if outcome != "discard":
                self._write_first()
            if self._process is not None:
                self._process.end_input()
        except Exception as error:  # as in write_frame
            self._fail(error)

    def close(self, outcome: Outcome) -> Path | None:
        """Waits for the encoder and settles the file.

        Returns:
            The final path, None when nothing was kept. A failure is kept in `error`.
        """
        try:
            if self._watched:
                return self._close_watched(outcome)
            if self._writer is not None:
                return self._close_custom(outcome)
        except Exception as error:  # as in write_frame
            self._fail(error)
        return None

    def abandon(self) -> None:
        """Ends the encoder and leaves the file as it is."""
        if self._process is not None:
            self._process.kill()
            self._forget_process(self._process)
        elif self._writer is not None and self._watched and self._writer.proc.poll() is None:
            self._writer.proc.kill()  # started, and interrupted before it could be taken over
            self._writer.proc.wait()

    def _forget_process(self, process: FfmpegProcess) -> None:
        self._frames = process.frames
        self._process = None

    def _write_first(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            self._claim()
            try:
                self._open()
            except Exception:
                if self._watched:
                    part_path(self._folder, self.request.name).unlink(missing_ok=True)
                raise
            self._write(first)

    def _write(self, frame: NDArray[np.uint8]) -> None:
        if self._process is None:
            self._writer.write_frame(np.ascontiguousarray(_as_rgb(frame, keep_alpha=False)))
            self._frames += 1
        elif not self._process.write(_as_rgb(frame, keep_alpha=True), self._settings.drop):
            self.dropped += 1

    def _claim(self) -> None:
        folder, overwrite, name = self._folder, self._settings.overwrite, self.request.name
        name = claim(folder, name, overwrite, self._announce) if self._watched else free_name(folder, name, overwrite)
        self.request = replace(self.request, name=name)
        self._claimed = True

    def _open(self) -> None:
        request, settings = self.request, self._settings
        target = part_path(self._folder, request.name) if self._watched else self._folder / request.name.filename
        options = settings.codec_options()
        preset = options.pop("preset", "medium")  # MoviePy passes one on in any case, and this where none is given
        options.pop("b", None)
        arguments: dict[str, Any] = {"codec": settings.codec, "preset": preset, "bitrate": settings.bitrate}
        # The exact rate is set by the setpts filter; what MoviePy passes on is rounded to hundredths.
        fps = int(request.fps) if request.fps.denominator == 1 else float(request.fps)
        if self._watched:
            arguments |= {
                "with_mask": request.pixel_format == "rgba",
                "ffmpeg_params": _ffmpeg_params(request, options),
            }
            fps = max(fps, 0.01)
        size = (request.width, request.height)
        if not self._watched:
            self._writer = self._factory(str(target), size, fps, threads=1, **arguments)
        else:
            with interrupts_kept_off():
                self._writer = self._factory(str(target), size, fps, threads=1, **arguments)
            frame_bytes = request.width * request.height * (4 if request.pixel_format == "rgba" else 3)
            self._process = FfmpegProcess(self._writer.proc, settings.timeout, frame_bytes)

    def _fail(self, error: Exception) -> None:
        self.error = str(error) or repr(error)
        self.abandon()

    def _close_watched(self, outcome: Outcome) -> Path | None:
        part, process = part_path(self._folder, self.request.name), self._process
        if outcome == "discard" or self.error is not None or process is None:
            self.abandon()
            if outcome == "discard" and self._claimed:
                part.unlink(missing_ok=True)
            return None
        said = process.wait()
        self._forget_process(process)
        counted = count_frames(part) or 0
        if counted != self.frames:
            what = f"the file {part.name} holds {counted} of {self.frames} frames"
            raise OSError(what + (f"; ffmpeg said: {said}" if said else ""))
        return publish(part, replace(self.request.name, partial=outcome == "partial"), self._settings.overwrite)

    def _close_custom(self, outcome: Outcome) -> Path | None:
        self._writer.close()
        path = self._folder / self.request.name.filename
        if outcome == "discard":
            path.unlink(missing_ok=True)
            return None
        if outcome == "partial" and path.exists():
            return publish(path, replace(self.request.name, partial=True), self._settings.overwrite)
        return path


def moviepy_writer() -> Any:
    """Returns MoviePy's own ``FFMPEG_VideoWriter``."""
    from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

    return FFMPEG_VideoWriter


def _as_rgb(frame: NDArray[np.uint8], keep_alpha: bool) -> NDArray[np.uint8]:
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.shape[-1] == 1:
        return np.repeat(frame, 3, axis=-1)
    return frame if keep_alpha or frame.shape[-1] == 3 else frame[..., :3]


def _ffmpeg_params(request: StreamRequest, options: dict[str, str]) -> list[str]:
    rate = request.fps
    filters = [f"settb={rate.denominator}/{rate.numerator}", "setpts=N", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    params = ["-vf", ",".join(filters), "-filter_threads", "1", "-fps_mode", "passthrough"]
    params += ["-enc_time_base", "filter", "-pix_fmt", "yuv420p", "-f", "mp4"]
    # Fragments on the disk as they come, an ordinary mp4 after a clean end.
    params += ["-movflags", "+hybrid_fragmented+frag_keyframe", "-flush_packets", "1"]
    params += ["-metadata", f"comment={request.comment}"]
    for name, value in options.items():
        params += [f"-{name}", value]
    return params


class MoviepyBackend:
    """One writer, and with MoviePy's own one ffmpeg process, per stream."""

    def __init__(
        self,
        folder: Path,
        settings: EncoderSettings,
        factory: Callable[[], Callable[..., Any]],
        run_id: str,
    ) -> None:
        """Makes a backend without streams.

        Args:
            folder: of the videos.
            settings: of the encoders.
            factory: returns what makes writers; asked at every opening.
            run_id: of the recorder, for its lock file.
        """
        self._folder = folder
        self._settings = settings
        self._factory = factory
        self._run_id = run_id
        self._lock: RunLock | None = None
        self._writers: dict[int, EpisodeVideoWriter] = {}
        self._next = 0
        self._results: list[StreamResult] = []

    def open(self, requests: Sequence[StreamRequest]) -> list[int]:
        """See `VideoBackend`."""
        refuse_taken_names(self._folder, requests, self._settings)
        factory = self._factory()
        numbers = list(range(self._next, self._next + len(requests)))
        self._next += len(requests)
        for number, request in zip(numbers, requests, strict=True):
            writer = EpisodeVideoWriter(self._folder, request, self._settings, factory, self._announce)
            self._writers[number] = writer
        return numbers

    def write(self, groups: Sequence[FrameGroup]) -> None:
        """See `VideoBackend`."""
        for images, rows, streams in groups:
            for row, stream in zip(rows.tolist(), streams.tolist(), strict=True):
                writer = self._writers[stream]
                failed = writer.error is not None
                writer.write_frame(images[row])
                if writer.error is not None and not failed:
                    self._results.append(StreamResult(stream, error=writer.error, ended=False))

    def finish(self, endings: Sequence[tuple[int, Outcome]]) -> None:
        """See `VideoBackend`."""
        for stream, outcome in endings:
            self._writers[stream].end_input(outcome)  # all encoders drain at the same time
        for stream, outcome in endings:
            writer = self._writers.pop(stream)
            path = writer.close(outcome)
            size = None
            if path is not None:
                with contextlib.suppress(FileNotFoundError):  # a stand-in writer may write no file
                    size = os.stat(path).st_size
            name = None if path is None else path.name
            self._results.append(StreamResult(stream, writer.frames, writer.dropped, name, size, writer.error))

    def collect(self, wait: bool) -> list[StreamResult]:
        """See `VideoBackend`."""
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        """See `VideoBackend`."""
        for writer in self._writers.values():
            writer.abandon()
        self._writers.clear()
        if self._lock is not None:
            self._lock.close()

    def _announce(self, part_name: str) -> None:
        if self._lock is None:  # not before there is a file to protect, and never for a user's own writers
            self._lock = RunLock(self._folder, self._run_id)
        self._lock.announce(part_name)
