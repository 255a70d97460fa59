"""What goes wrong while a video is written."""

from __future__ import annotations


class VideoEncodeError(RuntimeError):
    """An episode's video could not be written.

    Raised at the next `step`, `reset` or `close` after it happened; the other streams' files are not affected.

    Attributes:
        env: index of the sub-environment.
        camera: camera name.
        episode: episode index.
        reason: what happened, with the encoder's own words where it had any.
    """

    def __init__(self, env: int, camera: str, episode: int, reason: str) -> None:
        self.env = env
        self.camera = camera
        self.episode = episode
        self.reason = reason
        super().__init__(f"video of env {env}, camera {camera!r}, episode {episode}: {reason}")

    def __reduce__(self) -> tuple[type[VideoEncodeError], tuple[int, str, int, str]]:
        return type(self), (self.env, self.camera, self.episode, self.reason)
