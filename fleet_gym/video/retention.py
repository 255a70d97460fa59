"""Which of the finished videos stay on the disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger("fleet_gym.video")


class Retention:
    """Deletes this recorder's oldest videos, whole episodes at a time. What other runs left is not touched."""

    def __init__(self, folder: Path, keep_last: int | None, max_bytes: int | None) -> None:
        """Sets the limits.

        Args:
            folder: of the videos.
            keep_last: episodes whose videos stay, over all environments; None for no limit.
            max_bytes: bytes of finished videos; None for no limit.
        """
        self._folder = folder
        self._keep_last = keep_last
        self._max_bytes = max_bytes
        self._episodes: deque[tuple[list[str], int]] = deque()
        self._bytes = 0

    def add(self, files: Sequence[tuple[str, int | None]]) -> None:
        """Takes in an episode's finished files and deletes what is now too much."""
        if not files or (self._keep_last is None and self._max_bytes is None):
            return
        size = sum(count or 0 for _, count in files)
        self._episodes.append(([name for name, _ in files], size))
        self._bytes += size
        while self._too_many():
            names, gone = self._episodes.popleft()
            self._bytes -= gone
            for name in names:
                (self._folder / name).unlink(missing_ok=True)
                logger.debug("deleted %s to stay within keep_last or max_disk_mb", name)

    def _too_many(self) -> bool:
        if not self._episodes:
            return False
        too_long = self._keep_last is not None and len(self._episodes) > self._keep_last
        return too_long or (self._max_bytes is not None and self._bytes > self._max_bytes)
