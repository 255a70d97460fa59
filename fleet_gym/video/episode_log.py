"""The episode log: one row of JSON per recorded episode, next to the videos."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

EPISODE_LOG = "episodes.jsonl"


@dataclass
class VideoFile:
    """One camera's video of an episode.

    Attributes:
        camera: its name.
        file: file name in the folder of the log, None when it failed.
        frames: frames in the file.
        dropped: frames left out because the encoder could not keep up (``backpressure="drop"``).
        size: (width, height) of the camera's images, pixels.
        coded_size: (width, height) of the video, padded to even numbers.
        bytes: of the file, None when unknown.
        error: why there is no whole file, None when there is.
    """

    camera: str
    file: str | None = None
    frames: int = 0
    dropped: int = 0
    size: tuple[int, int] = (0, 0)
    coded_size: tuple[int, int] = (0, 0)
    bytes: int | None = None
    error: str | None = None


@dataclass
class EpisodeRecord:
    """What is known about one episode; a row of ``episodes.jsonl``.

    Attributes:
        env: index of the sub-environment.
        episode: episode index.
        seed: of the episode, None when unknown.
        steps: number of steps.
        episode_return: sum of rewards, None when it is not one finite number; ``"return"`` in the log.
        terminated: the environment said so.
        truncated: the environment said so.
        interrupted: cut off by a reset or by closing.
        crashed: cut off by an exception or by the end of the process.
        recovered: written after a crash, from what was on the disk.
        success: from the infos (``success`` or ``is_success``), None when they do not say.
        fps: of the videos, as an exact fraction such as ``"10"`` or ``"30000/1001"``.
        start_step: step whose observation is the first frame.
        first_frame: ``"recorded"``, or ``"missing"`` when the episode was joined after its reset.
        last_frame: ``"recorded"``, or ``"missing"`` when the environment did not hand it over.
        files: one entry per camera whose video was kept or failed.
        run_id: of the recorder that wrote it.
        info: the environment's last infos of this episode; not in the log.
        columns: the user's own columns; in the log beside the others.
    """

    env: int
    episode: int
    seed: int | None = None
    steps: int = 0
    episode_return: float | None = 0.0
    terminated: bool = False
    truncated: bool = False
    interrupted: bool = False
    crashed: bool = False
    recovered: bool = False
    success: bool | None = None
    fps: str = ""
    start_step: int = 0
    first_frame: str = "recorded"
    last_frame: str = "recorded"
    files: list[VideoFile] = field(default_factory=list)
    run_id: str = ""
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """The episode did not end by itself."""
        return self.interrupted or self.crashed

    def row(self) -> dict[str, Any]:
        """Returns the log's row: plain JSON values."""
        own = {key: value for key, value in vars(self).items() if key not in ("info", "columns", "files")}
        own["return"] = own.pop("episode_return")
        own["files"] = [dict(vars(file)) for file in self.files]
        return {**own, **self.columns}


_KINDS = {"env": int, "episode": int, "steps": int | None, "return": int | float | None, "files": list}
_FILE_KINDS = {"camera": str, "file": str | None}
RESERVED_COLUMNS = frozenset(EpisodeRecord(0, 0).row())


def check_columns(columns: Any) -> dict[str, Any]:
    """Returns what the user's `episode_columns` returned, as JSON values.

    Raises:
        TypeError: when it is not a dict of JSON values.
        ValueError: when a name is one of the log's own.
    """
    if not isinstance(columns, Mapping):
        raise TypeError(f"episode_columns: expected a function returning a dict, got {type(columns).__name__}")
    taken = RESERVED_COLUMNS.intersection(columns)
    if taken:
        raise ValueError(f"episode_columns: expected names other than the log's own, got {sorted(taken)}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(columns), default=_plain), parse_constant=_null)
    except ValueError as error:
        raise TypeError(f"episode_columns: expected JSON values, got {columns!r} ({error})") from None
    return plain


def _null(constant: str) -> None:
    """What NaN and the infinities become, which JSON has no word for and browsers stumble over."""


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"expected JSON values, got {type(value).__name__}: {value!r}")


def append_episodes(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends rows to the folder's log with one write, so that readers and other writers never see half of them."""
    lines = b"".join(json.dumps(row, default=_plain).encode() + b"\n" for row in rows)
    descriptor = os.open(folder / EPISODE_LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: rows stay whole, a blank line may appear
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines  # a writer was killed in the middle of its row
        written = os.write(descriptor, lines)
        if written != len(lines):
            os.ftruncate(descriptor, size)  # whoever tries again writes all of them
            raise OSError(f"{folder / EPISODE_LOG}: {written} of {len(lines)} bytes written")
    finally:
        os.close(descriptor)


def read_episodes(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the episode log of a folder of videos.

    Args:
        folder: where the videos lie.

    Returns:
        The rows in the order they were written; every entry of a row's ``"files"`` has ``"exists"`` added: whether
        the file is there now. A row that was cut off by a crash or that is of another kind is left out. No log: an
        empty list.

    Raises:
        NotADirectoryError: when there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise NotADirectoryError(f"folder: expected a folder of videos, got {str(root)!r}")
    if not (root / EPISODE_LOG).exists():
        return []
    rows = []
    for line in (root / EPISODE_LOG).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if _is_episode(row):
            for file in row.get("files", []):
                exists = file.get("file") is not None and (root / file["file"]).is_file()
                file |= {**vars(VideoFile(file["camera"])), **file, "exists": exists}
            rows.append(row)
    return rows


def _is_episode(row: Any) -> bool:
    """Returns whether it is a row of ours; other projects write files of the same name."""
    if not isinstance(row, dict) or not {"env", "episode"} <= row.keys():
        return False
    return _has_kinds(row, _KINDS) and all(
        isinstance(file, dict) and "camera" in file and _has_kinds(file, _FILE_KINDS) for file in row.get("files", [])
    )


def _has_kinds(row: Mapping[str, Any], kinds: Mapping[str, Any]) -> bool:
    return all(isinstance(row[key], kind) for key, kind in kinds.items() if key in row)
