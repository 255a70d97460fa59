"""Finds the unfinished videos of recorders that were killed and makes what can be decoded of them playable."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from fleet_gym.video.episode_files import (
    PART_SUFFIX,
    EpisodeVideoName,
    parse_episode_video_filename,
    part_path,
    publish,
)
from fleet_gym.video.episode_log import EpisodeRecord, VideoFile, append_episodes, read_episodes
from fleet_gym.video.mp4 import count_frames
from fleet_gym.video.run_lock import FoundLock, find_locks

logger = logging.getLogger("fleet_gym.video")

UNREADABLE_SUFFIX = ".unreadable"
_QUIET = 0.5  # seconds after which a file nobody holds a lock for counts as no longer written to
_PATIENCE = 5.0


@dataclass(frozen=True)
class RecoveredVideo:
    """What became of a left-over ``.part`` file.

    Attributes:
        part: its path, which is no more.
        path: of the video made of it, or of the unreadable file that was set aside; None when it was empty.
        frames: that can be decoded.
    """

    part: Path
    path: Path | None
    frames: int


def recover_leftovers(folder: str | os.PathLike[str], *, any_host: bool = False) -> list[RecoveredVideo]:
    """Repairs the ``.part`` files of recorders that are no more; those of live ones are left alone.

    Each becomes ``...-partial.mp4`` with every frame that can be decoded, and gets a row in the episode log, marked
    ``crashed`` and ``recovered``. A file without a single frame is set aside with ``.unreadable`` appended, or deleted
    when it is empty. Videos that were finished a moment before the kill and are in no row yet get one too, marked
    ``recovered``. Recorders do this at their start.

    Args:
        folder: of the videos.
        any_host: also those of recorders that ran on another machine. Whether such a one is still alive cannot be told
            on every network file system: say so only when you know that none is.

    Returns:
        What was found.
    """
    with _orphans(Path(folder), any_host) as (orphans, dead):
        found = [result for result in map(_recover, orphans) if result is not None]
        _log(Path(folder), [*_finished_without_row(Path(folder), dead), *found])
    return [result for result, _ in found]


def discard_leftovers(folder: str | os.PathLike[str]) -> None:
    """Deletes what `recover_leftovers` would recover: videos of recorders that are no more which are in no row.

    For whoever records the same episodes again. Unreadable files that were set aside before go too.

    Args:
        folder: of the videos.
    """
    with _orphans(Path(folder), any_host=False) as (orphans, dead):
        whole = [result.path for result, _ in _finished_without_row(Path(folder), dead) if result.path is not None]
        aside = Path(folder).glob(f"*.mp4{PART_SUFFIX}{UNREADABLE_SUFFIX}")
        for path in (*orphans, *whole, *aside):
            with contextlib.suppress(FileNotFoundError):
                _wait_until_quiet(path)
                path.unlink()


@contextlib.contextmanager
def _orphans(root: Path, any_host: bool) -> Iterator[tuple[list[Path], list[FoundLock]]]:
    """The ``.part`` files nobody alive writes to, and the locks of the dead, which go with the block."""
    # In this order: a file seen now was announced before, so that the lock of a live recorder lists it.
    parts = {path.name: path for path in sorted(root.glob(f"*.mp4{PART_SUFFIX}"))}
    locks = find_locks(root, any_host)
    try:
        live = frozenset[str]().union(*(lock.names for lock in locks if lock.live))
        orphans = [path for name, path in parts.items() if name not in live]
        yield orphans, [lock for lock in locks if not lock.live]
    finally:
        for lock in locks:
            lock.close(remove=True)


def _recover(part: Path) -> tuple[RecoveredVideo, _Facts] | None:
    name = parse_episode_video_filename(part.name.removesuffix(PART_SUFFIX))
    if name is None:
        return None
    try:
        _wait_until_quiet(part)
        size = part.stat().st_size
    except FileNotFoundError:
        return None  # published meanwhile
    if size == 0:
        part.unlink()
        return RecoveredVideo(part, None, 0), _Facts(name)
    repaired = part.with_name(part.name + ".repaired")
    facts = _remux(part, repaired, name)
    if facts.frames == 0:
        repaired.unlink(missing_ok=True)
        aside = part.with_name(part.name + UNREADABLE_SUFFIX)
        os.replace(part, aside)
        logger.warning("left-over video %s has no frame that can be decoded; renamed to %s", part, aside.name)
        return RecoveredVideo(part, aside, 0), facts
    path = publish(repaired, replace(name, partial=True), "unique")
    part.unlink()
    logger.warning("left-over video of a killed recorder: %d frames recovered as %s", facts.frames, path)
    return RecoveredVideo(part, path, facts.frames), facts


def _finished_without_row(folder: Path, locks: Iterable[FoundLock]) -> Iterator[tuple[RecoveredVideo, _Facts]]:
    """Yields the whole videos of dead recorders that did not come to log them."""
    claimed = [(lock.run_id, name.removesuffix(PART_SUFFIX)) for lock in locks for name in sorted(lock.names)]
    logged = {file["file"] for row in read_episodes(folder) for file in row.get("files", [])} if claimed else set()
    for run, filename in claimed:
        whole = parse_episode_video_filename(filename)
        for name in () if whole is None else (whole, replace(whole, partial=True)):
            path = folder / name.filename
            if path.name not in logged and path.is_file():
                facts = _facts(path, name)
                if facts.run == run:
                    yield RecoveredVideo(part_path(folder, name), path, facts.frames), facts


def _wait_until_quiet(path: Path) -> None:
    # An encoder whose recorder was killed a moment ago may still be writing the end.
    deadline = time.monotonic() + _PATIENCE
    while time.time() - path.stat().st_mtime < _QUIET and time.monotonic() < deadline:
        time.sleep(0.05)


@dataclass
class _Facts:
    name: EpisodeVideoName
    frames: int = 0
    fps: Fraction | None = None
    size: tuple[int, int] = (0, 0)
    coded_size: tuple[int, int] = (0, 0)
    comment: dict[str, Any] | None = None
    whole: bool = False

    @property
    def run(self) -> str:
        """Of the recorder."""
        return str((self.comment or {}).get("run", ""))

    def read(self, source: Any) -> None:
        """Takes in what an open file says of itself."""
        stream = source.streams.video[0]
        self.fps = stream.average_rate
        self.size = self.coded_size = (stream.codec_context.width, stream.codec_context.height)
        self.comment = _comment(source.metadata.get("comment", ""))
        if self.comment is not None and "size" in self.comment:
            width, height = self.comment["size"]
            self.size = (int(width), int(height))


def _facts(path: Path, name: EpisodeVideoName) -> _Facts:
    """Returns what a finished video says of itself."""
    import av

    facts = _Facts(name, whole=True)
    try:
        facts.frames = count_frames(path) or 0
        with closing(av.open(str(path))) as source:
            facts.read(source)
    except (OSError, av.FFmpegError, IndexError) as error:
        logger.debug("%s cannot be read: %s", path, error)
    return facts


def _remux(part: Path, target: Path, name: EpisodeVideoName) -> _Facts:
    """Copies the packets that can be decoded into an ordinary mp4."""
    import av

    facts = _Facts(name)
    try:
        with closing(av.open(str(part))) as source:
            stream = source.streams.video[0]
            packets, decoded = [], 0
            try:
                for packet in source.demux(stream):
                    if packet.size:
                        decoded += len(packet.decode())
                        packets.append(packet)
                decoded += len(stream.codec_context.decode(None))
            except av.FFmpegError as error:
                logger.debug("%s ends with %s", part, error)  # the cut the kill made
            packets = packets[:decoded]
            facts.frames = len(packets)
            facts.read(source)
            if packets:
                _write(target, stream, packets, source.metadata)
    except (av.FFmpegError, IndexError) as error:
        logger.debug("%s cannot be read: %s", part, error)
    return facts


def _write(target: Path, template: Any, packets: Iterable[Any], metadata: dict[str, str]) -> None:
    import av

    with av.open(str(target), "w", format="mp4") as container:
        container.metadata.update(metadata)
        stream = container.add_stream_from_template(template)
        for packet in packets:
            packet.stream = stream
            container.mux(packet)


def _comment(text: str) -> dict[str, Any] | None:
    try:
        comment = json.loads(text)
    except ValueError:
        return None
    return comment if isinstance(comment, dict) else None


def _log(folder: Path, found: Iterable[tuple[RecoveredVideo, _Facts]]) -> None:
    records: dict[tuple[Any, ...], EpisodeRecord] = {}
    for result, facts in found:
        if not result.frames or result.path is None:
            continue
        name, run = facts.name, facts.run
        record = records.setdefault(
            (run, name.env, name.episode, name.start_step),
            EpisodeRecord(
                name.env, name.episode, episode_return=None, recovered=True, start_step=name.start_step,
                fps=str(facts.fps or ""), run_id=run,
            ),
        )  # fmt: skip
        if not facts.whole:
            record.crashed, record.last_frame = True, "missing"
        record.interrupted |= facts.whole and name.partial
        record.steps = max(record.steps, name.start_step + result.frames - 1)
        file = VideoFile(name.camera, result.path.name, result.frames, 0, facts.size, facts.coded_size)
        file.bytes = result.path.stat().st_size
        record.files.append(file)
    if records:
        append_episodes(folder, (record.row() for record in records.values()))
