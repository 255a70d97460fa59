"""The gallery: one HTML page to look through the videos of one or several folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fleet_gym.pages import page_path, render_page, write_page
from fleet_gym.video.episode_files import parse_episode_video_filename
from fleet_gym.video.episode_log import RESERVED_COLUMNS, read_episodes
from fleet_gym.video.thumbnails import contact_sheet

_TEMPLATE = "gallery/index.html.j2"
#: What the page calls an environment, in brief and in full, and the order its episodes come in.
WORDS = {"env": "env", "environment": "environment", "order": "order of the log"}


@dataclass
class GalleryVideo:
    """A video of the page.

    Attributes:
        camera: its name.
        link: relative URL.
        sheet: contact sheet as a ``data:`` URI.
        warning: what is wrong with it, empty when nothing is.
        frames: in the file, None when unknown.
        size: width and height, None when it cannot be decoded.
    """

    camera: str
    link: str
    sheet: str
    warning: str
    frames: int | None = None
    size: tuple[int, int] | None = None


@dataclass
class GalleryEpisode:
    """A row of the page.

    Attributes:
        folder: where its files are.
        env: index of the sub-environment.
        episode: episode index.
        steps: number of steps, None when unknown.
        episode_return: sum of rewards, None when unknown.
        success: None when unknown.
        status: how it ended.
        seed: None when unknown.
        notes: warnings about the episode as a whole.
        columns: the user's own.
        videos: one per camera.
        title: its heading, empty for that of the log's indices.
    """

    folder: str
    env: int
    episode: int
    steps: int | None = None
    episode_return: float | None = None
    success: bool | None = None
    status: str = "unknown"
    seed: int | None = None
    notes: list[str] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)
    videos: list[GalleryVideo] = field(default_factory=list)
    title: str = ""

    @property
    def heading(self) -> str:
        """What the page calls it."""
        return self.title or f"env {self.env} \N{MIDDLE DOT} episode {self.episode}"


def write_gallery(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None
) -> Path:
    """Writes a page with a row for every episode that has a video, or an error in place of one.

    The page holds its own style, script and thumbnails, links the videos relatively and works from the disk.

    Args:
        folders: of videos, as recorders left them; the episode log is used where there is one.
        output: a page ending in ``.html``, or a folder for an ``index.html``; None for that in the first folder.

    Returns:
        The page's path.

    Raises:
        ValueError: when no folder is given or none has an episode, or `output` is another kind of file.
        NotADirectoryError: when a folder is not there.
    """
    several = [folders] if isinstance(folders, (str, os.PathLike)) else list(folders)
    if not several:
        raise ValueError("folders: expected at least one folder of videos, got none")
    roots = [Path(folder) for folder in several]
    page = roots[0] / "index.html" if output is None else page_path("output", output, "index.html")
    logs = {root: read_episodes(root) for root in roots}
    episodes = [episode for root in roots for episode in _episodes(root, logs[root], page.parent)]
    if not episodes:
        raise ValueError(f"folders: expected videos of a recorder, got none in {[str(root) for root in roots]}")
    return write_page(page, render_page(_TEMPLATE, **gallery_context(episodes), **_headline(logs.values(), episodes)))


def gallery_episodes(folder: Path, base: Path) -> list[GalleryEpisode]:
    """Returns the rows of a folder that have a video, or an error in place of one.

    Args:
        folder: of videos, as recorders left them.
        base: folder of the page, for its links.
    """
    return _episodes(folder, read_episodes(folder), base)


def gallery_context(episodes: Sequence[GalleryEpisode], words: Mapping[str, str] = WORDS) -> dict[str, Any]:
    """Returns what the templates of controls and episodes show.

    Args:
        episodes: in the order of the page.
        words: for what `WORDS` has words for.
    """
    return {
        "words": words,
        "episodes": list(episodes),
        "columns": sorted({name for episode in episodes for name in episode.columns}),
        "folders": sorted({episode.folder for episode in episodes}),
    }


def _headline(logs: Iterable[Sequence[dict[str, Any]]], episodes: Sequence[GalleryEpisode]) -> dict[str, Any]:
    rows = [row for log in logs for row in log]
    judged = [row["success"] for row in rows if row.get("success") is not None]
    return {
        "logged": len(rows),
        "success_rate": sum(map(bool, judged)) / len(judged) if judged else None,
        "warnings": sum(bool(video.warning) for episode in episodes for video in episode.videos),
    }


def _episodes(root: Path, rows: list[dict[str, Any]], base: Path) -> list[GalleryEpisode]:
    episodes: list[GalleryEpisode] = []
    seen: set[str] = set()
    for row in rows:
        files = row.get("files", [])
        seen.update(file["file"] for file in files if file.get("file"))
        episode = _from_row(root, row, base)
        if episode.videos or episode.notes:
            episodes.append(episode)
    unlogged: dict[tuple[Any, ...], GalleryEpisode] = {}
    for path in sorted(root.glob("*.mp4")):
        name = parse_episode_video_filename(path)
        if name is not None and path.name not in seen:
            key = (name.prefix, name.env, name.episode, name.start_step, name.run, name.partial)
            status = "partial" if name.partial else "unknown"
            episode = unlogged.setdefault(key, GalleryEpisode(str(root), name.env, name.episode, status=status))
            episode.videos.append(_video(path, name.camera, base, None))
    return episodes + list(unlogged.values())


def _from_row(root: Path, row: dict[str, Any], base: Path) -> GalleryEpisode:
    episode = GalleryEpisode(
        folder=str(root),
        env=row["env"],
        episode=row["episode"],
        steps=row.get("steps"),
        episode_return=row.get("return"),
        success=row.get("success"),
        status=next((how for how in ("crashed", "interrupted", "terminated", "truncated") if row.get(how)), "unknown"),
        seed=row.get("seed"),
        columns={name: value for name, value in row.items() if name not in RESERVED_COLUMNS},
    )
    for which in ("first_frame", "last_frame"):
        if row.get(which) == "missing" and row.get("files"):
            episode.notes.append(f"{which.replace('_', ' ')} missing")
    for file in row.get("files", []):
        if file.get("dropped"):
            episode.notes.append(f"{file['camera']}: {file['dropped']} frames dropped")
        if file.get("error"):
            episode.notes.append(f"{file['camera']}: {file['error']}")
        elif file["exists"]:
            episode.videos.append(_video(root / file["file"], file["camera"], base, file["frames"]))
    return episode


def _video(path: Path, camera: str, base: Path, frames: int | None) -> GalleryVideo:
    sheet = contact_sheet(path)
    link = quote(os.path.relpath(path, base).replace(os.sep, "/"))
    return GalleryVideo(camera, link, sheet.image, sheet.warning, frames, sheet.size)
