"""The naming contract of episode videos, and how a file gets its final name without ever replacing another.

A video is written as ``<name>.mp4.part`` and gets the name ``<name>.mp4`` when it is whole:

    <prefix>-env<N>-<camera>-episode-<E>[-from<T>][-partial][-run<R>].mp4

``<camera>`` is percent-encoded, so that every camera name has its own file name and none leaves the folder. ``-from``
says at which step of the episode a clip begins when it is not the episode's first frame, ``-partial`` marks an episode
that did not end by itself, ``-run`` (from 2 on) keeps files of the same name apart.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

Overwrite = Literal["unique", "error", "replace"]
PART_SUFFIX = ".part"
_LONGEST_NAME = 255 - len(PART_SUFFIX)
_NAME = re.compile(
    r"(?P<prefix>.+)-env(?P<env>\d+)-(?P<camera>.+)-episode-(?P<episode>\d+)"
    r"(?:-from(?P<start>\d+))?(?P<partial>-partial)?(?:-run(?P<run>\d+))?\.mp4",
    re.DOTALL,
)
_LOOKS_LIKE_ENV = re.compile(r"(^|-)env(?=\d)")
# What file systems without hard links answer to link(2).
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@functools.lru_cache(maxsize=256)
def _quoted(camera: str) -> str:
    # An "env3" inside a camera name would be taken for the environment's index when the name is read back.
    return _LOOKS_LIKE_ENV.sub(r"\1%65nv", quote(camera, safe=""))


@dataclass(frozen=True)
class EpisodeVideoName:
    """What the file name of an episode video says.

    Attributes:
        prefix: the recorder's `name_prefix`.
        env: index of the sub-environment.
        camera: camera name, decoded.
        episode: episode index.
        start_step: step of the episode whose observation is the first frame.
        partial: the episode did not end by itself.
        run: 1, or more where the name was taken.
    """

    prefix: str
    env: int
    camera: str
    episode: int
    start_step: int = 0
    partial: bool = False
    run: int = 1

    @property
    def filename(self) -> str:
        """The file name, see the module's text."""
        return (
            f"{self.prefix}-env{self.env}-{_quoted(self.camera)}-episode-{self.episode}"
            + (f"-from{self.start_step}" if self.start_step else "")
            + ("-partial" if self.partial else "")
            + (f"-run{self.run}" if self.run > 1 else "")
            + ".mp4"
        )


def check_name_prefix(prefix: str) -> str:
    """Returns `prefix` if file names can begin with it.

    Raises:
        TypeError: when it is not a string.
        ValueError: when it is empty or holds a path separator or a NUL.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"name_prefix: expected a str, got {prefix!r}")
    if not prefix or "/" in prefix or "\\" in prefix or "\0" in prefix:
        raise ValueError(f"name_prefix: expected a non-empty file name without path separators, got {prefix!r}")
    return prefix


def format_episode_video_filename(
    prefix: str, env: int, camera: str, episode: int, *, start_step: int = 0, partial: bool = False, run: int = 1
) -> str:
    """Returns the file name of an episode video; `parse_episode_video_filename` reads it back.

    Raises:
        ValueError: when a number is negative, `camera` is empty, or the name is longer than file systems allow.
    """
    name = EpisodeVideoName(check_name_prefix(prefix), env, camera, episode, start_step, partial, run)
    return checked_filename(name)


def checked_filename(name: EpisodeVideoName) -> str:
    """Returns ``name.filename``.

    Raises:
        ValueError: when a number is negative, the camera is empty, or the name is longer than file systems allow.
    """
    if min(name.env, name.episode, name.start_step) < 0 or name.run < 1:
        raise ValueError(f"expected env, episode, start_step >= 0 and run >= 1, got {name}")
    if not name.camera:
        raise ValueError("camera: expected a non-empty name, got ''")
    filename = name.filename
    if len(os.fsencode(filename)) > _LONGEST_NAME:
        raise ValueError(
            f"name_prefix, camera: expected names that make a file name of at most {_LONGEST_NAME} bytes, "
            f"got {filename!r}"
        )
    return filename


def parse_episode_video_filename(filename: str | os.PathLike[str]) -> EpisodeVideoName | None:
    """Reads a file name made by `format_episode_video_filename`.

    Args:
        filename: a name or a path; only its last component is looked at.

    Returns:
        What the name says, or None when it is not the name of an episode video.
    """
    match = _NAME.fullmatch(os.path.basename(os.fspath(filename)))
    if match is None:
        return None
    return EpisodeVideoName(
        prefix=match["prefix"],
        env=int(match["env"]),
        camera=unquote(match["camera"]),
        episode=int(match["episode"]),
        start_step=int(match["start"] or 0),
        partial=match["partial"] is not None,
        run=int(match["run"] or 1),
    )


def _runs(name: EpisodeVideoName) -> Iterator[EpisodeVideoName]:
    return (replace(name, run=run) for run in itertools.count(name.run))


def part_path(folder: Path, name: EpisodeVideoName) -> Path:
    """Returns the path a video is written to before it is whole."""
    return folder / (checked_filename(name) + PART_SUFFIX)


def free_name(folder: Path, name: EpisodeVideoName, overwrite: Overwrite) -> EpisodeVideoName:
    """Returns the first run of `name` that no file has yet, without claiming it.

    Raises:
        FileExistsError: when the name is taken and `overwrite` is ``"error"``.
    """
    for candidate in _runs(name):
        path = folder / checked_filename(candidate)
        if overwrite == "replace" or not os.path.lexists(path):
            return candidate
        if overwrite == "error":
            raise FileExistsError(errno.EEXIST, "overwrite='error' and the video exists", str(path))
    raise AssertionError("unreachable")


def claim(
    folder: Path, name: EpisodeVideoName, overwrite: Overwrite, announce: Callable[[str], None] = lambda _: None
) -> EpisodeVideoName:
    """Creates the empty ``.part`` file of a video; nobody else can then have the same.

    Args:
        folder: where.
        name: the wanted name.
        overwrite: ``"unique"`` takes the next free run of the name.
        announce: called with the name of the ``.part`` file before each attempt to create it.

    Returns:
        The name claimed.

    Raises:
        FileExistsError: when the name is taken and `overwrite` is not ``"unique"``.
    """
    for candidate in _runs(name):
        candidate = free_name(folder, candidate, overwrite)
        part = part_path(folder, candidate)
        announce(part.name)
        try:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            if overwrite == "unique":
                continue
            raise FileExistsError(errno.EEXIST, "another recorder is writing this video", str(part)) from None
        if overwrite == "unique" and os.path.lexists(folder / candidate.filename):
            os.unlink(part)  # published by somebody between the look and the claim
            continue
        return candidate
    raise AssertionError("unreachable")


def publish(part: Path, name: EpisodeVideoName, overwrite: Overwrite) -> Path:
    """Gives a whole video its final name, in the folder it lies in.

    Args:
        part: the file that is whole.
        name: the wanted name.
        overwrite: ``"unique"`` takes the next run of the name when somebody has it; ``"replace"`` replaces.

    Returns:
        The final path.

    Raises:
        FileExistsError: when the name is taken and `overwrite` is ``"error"``.
    """
    if overwrite == "replace":
        final = part.parent / checked_filename(name)
        os.replace(part, final)
        return final
    for candidate in _runs(name):
        final = part.parent / checked_filename(candidate)
        try:
            _rename_no_replace(part, final)
        except FileExistsError:
            if overwrite == "unique":
                continue
            raise FileExistsError(errno.EEXIST, "overwrite='error' and the video exists", str(final)) from None
        return final
    raise AssertionError("unreachable")


def _rename_no_replace(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.rename(source, target)
    else:
        os.unlink(source)
