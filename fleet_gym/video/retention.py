"""Which of the finished videos stay on the disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger("fleet_gym.video")


class Retention:
    """Deletes this recorder's oldest videos, whole episodes at a time. What other runs left is not touched."""

    def __init__(self, keep_last: int | None, max_bytes: int | None) -> None:
        """Sets the limits.

        Args:
            keep_last: episodes whose videos stay, over all environments; None for no limit.
            max_bytes: bytes of finished videos; None for no limit.
        """
        self._keep_last = keep_last
        self._max_bytes = max_bytes
        self._episodes: deque[tuple[list[Path], int]] = deque()
        self._bytes = 0

    def add(self, files: Sequence[tuple[Path, int | None]]) -> None:
        """Takes in an episode's finished files and deletes what is now too much."""
        if not files or (self._keep_last is None and self._max_bytes is None):
            return
        size = sum(count or 0 for _, count in files)
        self._episodes.append(([path for path, _ in files], size))
        self._bytes += size
        while self._too_many():
            paths, gone = self._episodes.popleft()
            self._bytes -= gone
            for path in paths:
                path.unlink(missing_ok=True)
                logger.debug("deleted %s to stay within keep_last or max_disk_mb", path)

    def _too_many(self) -> bool:
        if not self._episodes:
            return False
        too_long = self._keep_last is not None and len(self._episodes) > self._keep_last
        return too_long or (self._max_bytes is not None and self._bytes > self._max_bytes)
