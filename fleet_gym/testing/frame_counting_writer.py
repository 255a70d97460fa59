"""A stand-in for MoviePy's ``FFMPEG_VideoWriter`` that encodes nothing."""

from __future__ import annotations

from typing import Any


class FrameCountingWriter:
    """Counts the frames it is handed; starts no process and writes no file.

    Put it in the recorder's place of MoviePy's writer, by patching or as a factory::

        mocker.patch("fleet_gym.wrappers.camera_obs_video_recorder.FFMPEG_VideoWriter", FrameCountingWriter)
        CameraObsVideoRecorder(env, folder, writer_factory=FrameCountingWriter)

    Attributes:
        filename: final name of the video.
        size: (width, height), pixels.
        fps: frames per second.
        kwargs: what else the recorder would have told MoviePy's writer.
        frames_written: frames handed over so far.
        closed: whether `close` was called.
    """

    def __init__(self, filename: str, size: tuple[int, int], fps: float, **kwargs: Any) -> None:
        self.filename = filename
        self.size = size
        self.fps = fps
        self.kwargs = kwargs
        self.frames_written = 0
        self.closed = False

    def write_frame(self, frame: Any) -> None:
        """Counts a frame.

        Raises:
            ValueError: when the writer was closed.
        """
        if self.closed:
            raise ValueError(f"write_frame: expected an open writer, got one that was closed: {self.filename}")
        self.frames_written += 1

    def close(self) -> None:
        """Ends the video; calling it again does nothing."""
        self.closed = True
