"""The folder of an evaluation: whose it is, what is in it already, and what goes into it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.evaluation.env_facts import differing_settings
from fleet_gym.evaluation.play import Episode, Plan
from fleet_gym.evaluation.results import FORMAT, EvaluationResult
from fleet_gym.video.episode_log import EPISODE_LOG, EpisodeRecord, append_episodes, read_episodes
from fleet_gym.video.recovery import discard_leftovers

logger = logging.getLogger("fleet_gym.evaluation")

RUN, RESULTS, REPORT = "run.json", "results.json", "report.html"
MEMORY_LOG, TIME_LOG = "memory.jsonl", "time.jsonl"


class RunFolder:
    """A folder claimed for one run; nobody else can evaluate into it until it is closed.

    Args:
        path: made if it is not there.
        config: of the run, JSON values. A folder that holds the same run is gone on with.
        versions: of what decides about results; a run that others began is gone on with, and a warning.

    Attributes:
        path: of the folder.
        resumed: somebody began the run before.

    Raises:
        ValueError: when the folder holds another run or other files, or somebody evaluates into it right now.
        OSError: when it cannot be made or written.
    """

    def __init__(self, path: str | os.PathLike[str], config: Mapping[str, Any], versions: Mapping[str, str]) -> None:
        self.path = Path(path).absolute()
        check_out(self.path, config)
        self._made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path / RUN, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock()
            check_out(self.path, config)  # now that nobody else can change it
            self.resumed = os.fstat(self._descriptor).st_size > 0
            if self.resumed:
                self._warn_of_other(versions)
            else:
                content = {"format": FORMAT, "config": config, "versions": versions}
                os.write(self._descriptor, json.dumps(content, indent=2).encode() + b"\n")
        except BaseException:
            os.close(self._descriptor)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"out: expected a folder nobody writes to, got {str(self.path)!r}, into which another process evaluates"
            ) from None

    def _warn_of_other(self, versions: Mapping[str, str]) -> None:
        began: Mapping[str, str] = json.loads((self.path / RUN).read_text(encoding="utf-8")).get("versions", {})
        others = [
            f"{name} {began[name]}, now {versions.get(name)}" for name in began if began[name] != versions.get(name)
        ]
        if others:
            logger.warning("%s was begun with %s: its episodes may differ", self.path, "; ".join(others))

    def close(self) -> None:
        """Lets others evaluate into it."""
        os.close(self._descriptor)

    def abandon_if_empty(self) -> None:
        """Gives the folder back as it was found if no episode was finished, so that a mended command can have it."""
        if self.resumed or (self.path / EPISODE_LOG).exists():
            return
        for name in (MEMORY_LOG, TIME_LOG, RUN):
            (self.path / name).unlink(missing_ok=True)
        if self._made:
            with contextlib.suppress(OSError):  # somebody put something into it
                self.path.rmdir()

    def keep_finished(self, plan: Plan) -> list[Episode]:
        """Returns the episodes that were finished before, and removes what is left of others.

        Every world plays its episodes in order, so those up to the first one that is missing count.
        """
        discard_leftovers(self.path)  # the episodes they are of are played again
        rows = {row["index"]: row for row in read_episodes(self.path) if _is_whole(row)}
        kept: list[dict[str, Any]] = []
        for world in range(plan.num_envs):
            for episode in range(int(plan.shares[world])):
                row = rows.get(plan.index(world, episode))
                if row is None:
                    break
                kept.append(row)
        self.keep_rows({row["index"] for row in kept})
        return sorted((_episode(row) for row in kept), key=lambda episode: episode.index)

    def keep_rows(self, indices: set[int]) -> None:
        """Removes every row of the episode log that is not a whole episode of `indices`, with its videos."""
        if not (self.path / EPISODE_LOG).exists():
            return
        kept: list[dict[str, Any]] = []
        removed: list[dict[str, Any]] = []
        for row in read_episodes(self.path):
            whole = _is_whole(row) and row["index"] in indices
            (kept if whole else removed).append(row)
        if not removed:
            return
        names = {file["file"] for row in kept for file in row["files"]}
        for file in (file for row in removed for file in row.get("files", []) if file.get("file")):
            if file["file"] not in names:
                (self.path / file["file"]).unlink(missing_ok=True)
        lines = (json.dumps(_logged(row)) + "\n" for row in kept)
        replace_text(self.path / EPISODE_LOG, "".join(lines))

    def log_unrecorded(self, episodes: Iterable[Episode], fps: str, run_id: str) -> None:
        """Appends rows of episodes without videos, as the recorder writes them for those with."""
        rows = [
            EpisodeRecord(
                env=episode.env,
                episode=episode.episode,
                seed=episode.seed,
                steps=episode.steps,
                episode_return=episode.episode_return,
                terminated=episode.terminated,
                truncated=episode.truncated,
                success=episode.success,
                fps=fps,
                run_id=run_id,
                columns={"index": episode.index, "collisions": episode.collisions},
            ).row()
            for episode in episodes
        ]
        if rows:
            append_episodes(self.path, rows)

    def next_log(self, name: str) -> Path:
        """Returns the path of a session's log, after renaming that of the session before."""
        path = self.path / name
        if path.exists():
            path.rename(self.path / f"{path.stem}-{len(session_logs(self.path, name))}{path.suffix}")
        return path

    def write_results(self, result: EvaluationResult) -> None:
        """Writes ``results.json``."""
        replace_text(self.path / RESULTS, json.dumps(result.to_json(), indent=2) + "\n")


def check_out(path: Path, config: Mapping[str, Any]) -> None:
    """Checks that a run can be written into a folder, changing nothing.

    Raises:
        ValueError: when it holds another run, or other files.
        NotADirectoryError: when it is a file.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise NotADirectoryError(f"out: expected a folder, got the file {str(path)!r}")
    run = path / RUN
    others = [entry.name for entry in path.iterdir() if entry.name != RUN]
    content = run.read_text(encoding="utf-8") if run.exists() else ""
    if not content:
        if others:
            raise ValueError(f"out: expected a new folder or one of the same run, got {str(path)!r} with other files")
        return
    try:
        theirs = json.loads(content)["config"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"out: expected a new folder or one of the same run, got a damaged {str(run)!r}") from None
    ours = json.loads(json.dumps(config))
    for name, (there, here) in differing_settings(theirs, ours).items():
        raise ValueError(
            f"out: expected a new folder or one of the same run, got {str(path)!r} with another run: {name} is "
            f"{there!r} there, {here!r} here"
        )


def read_run(folder: str | os.PathLike[str]) -> EvaluationResult:
    """Reads the results of a finished evaluation.

    Args:
        folder: as `evaluate` and ``fleet-gym evaluate`` left it.

    Raises:
        ValueError: when there are none, or the run is not finished.
    """
    path = Path(folder)
    if not (path / RESULTS).is_file():
        what = "something else" if path.exists() else "one that is not there"
        what = "an unfinished run" if (path / RUN).is_file() else what
        raise ValueError(f"run: expected a folder of `fleet-gym evaluate` with results, got {what}: {str(path)!r}")
    try:
        document: Any = json.loads((path / RESULTS).read_text(encoding="utf-8"))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(f"run: expected the results of an evaluation, got a damaged {str(path / RESULTS)!r}")
    try:
        return EvaluationResult.from_json(document, path)
    except ValueError as error:
        raise ValueError(f"run {str(path)!r}: {error}") from None


def session_logs(folder: Path, name: str) -> list[Path]:
    """Returns the logs of a run's sessions, the oldest first."""
    path = folder / name
    earlier = sorted(folder.glob(f"{path.stem}-*{path.suffix}"), key=lambda log: int(log.stem.rpartition("-")[2]))
    return [*earlier, *([path] if path.exists() else [])]


def finished_by_world(episodes: Iterable[Episode], num_envs: int) -> NDArray[np.int64]:
    """Returns (E,) how many of the episodes each world played."""
    return np.bincount([episode.env for episode in episodes], minlength=num_envs).astype(np.int64)


def replace_text(path: Path, text: str) -> None:
    """Writes a file so that whoever looks sees the old content or the new, and nothing between."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


@contextlib.contextmanager
def claimed(
    out: str | os.PathLike[str] | None, config: Mapping[str, Any], versions: Mapping[str, str]
) -> Iterator[RunFolder | None]:
    """Claims the folder for the block; None stays None. A run that fails before its first episode leaves no traces."""
    folder = None if out is None else RunFolder(out, config, versions)
    try:
        yield folder
    except BaseException:
        if folder is not None:
            folder.abandon_if_empty()
        raise
    finally:
        if folder is not None:
            folder.close()


def _is_whole(row: Mapping[str, Any]) -> bool:
    if not isinstance(row.get("index"), int) or not (row.get("terminated") or row.get("truncated")):
        return False
    return not (row.get("interrupted") or row.get("crashed") or any(file.get("error") for file in row["files"]))


def _logged(row: Mapping[str, Any]) -> dict[str, Any]:
    files = [{key: value for key, value in file.items() if key != "exists"} for file in row["files"]]
    return {**row, "files": files}


def _episode(row: Mapping[str, Any]) -> Episode:
    return Episode(
        index=row["index"],
        env=row["env"],
        episode=row["episode"],
        seed=row["seed"],
        steps=row["steps"],
        episode_return=row["return"],
        success=row["success"],
        collisions=row["collisions"],
        terminated=row["terminated"],
        truncated=row["truncated"],
    )
