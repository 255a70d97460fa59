"""A stranger's first minutes: clone, `make demo`, look at the videos. Needs a network for pip."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import av
import pytest

ROOT = Path(__file__).parents[2]


def frame_count(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed: a file that was forgotten is missing here."""
    folder = tmp_path_factory.mktemp("fresh") / "fleet_gym"
    # The checkout may belong to another user than the one who runs the tests.
    trust = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    command = ["git", "clone", "--quiet", str(ROOT), str(folder)]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, **trust})
    return folder


def test_make_demo_leaves_sixteen_whole_videos(clone: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment["DEMO_ARGS"] = "--out videos"
    process = subprocess.run(
        ["make", "demo"], cwd=clone, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    episodes = json.loads((clone / "videos" / "results.json").read_text())["episodes"]
    played = [(episode["world"], episode["episode"]) for episode in episodes]
    assert played == [(world, episode) for world in range(4) for episode in range(2)]
    frames = {video: episode["steps"] + 1 for episode in episodes for video in episode["videos"]}
    assert len(frames) == 16
    assert {path.name: frame_count(path) for path in (clone / "videos").glob("*.mp4")} == frames
    assert "[MEMORY]" in process.stdout


def test_the_clone_stays_clean_but_for_what_is_ignored(clone: Path) -> None:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True, timeout=60
    )
    assert [line for line in status.stdout.splitlines() if "videos/" not in line] == []


def test_a_wheel_holds_every_file_of_the_package(clone: Path, tmp_path: Path) -> None:
    listing = subprocess.run(
        ["git", "ls-files", "fleet_gym"], cwd=clone, capture_output=True, text=True, check=True, timeout=60
    )
    command = [".venv/bin/python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "."]
    subprocess.run(command, cwd=clone, check=True, timeout=300)
    (wheel,) = tmp_path.glob("fleet_gym-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        missing = set(listing.stdout.splitlines()) - set(archive.namelist())
    assert missing == set()
