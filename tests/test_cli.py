"""The ``fleet-gym`` command: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import pytest

import fleet_gym
from fleet_gym import cli, diagnostics
from fleet_gym.profiling.sinks import read_records

SMALL_DEMO = ["--num-envs=2", "--num-robots=2", "--robot=diffbot", "--width=64", "--height=48", "--max-steps=12"]


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fleet-gym", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code


def frame_count(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A small demo in its own process, its output piped."""
    out = tmp_path_factory.mktemp("demo") / "videos"
    command = [sys.executable, "-m", "fleet_gym.cli", "demo", *SMALL_DEMO, "--seed", "5", "--out", str(out)]
    return out, subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def results(demo_run: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((demo_run[0] / "results.json").read_text())
    return document


def test_demo_plays_exactly_its_episodes_in_every_world(
    demo_run: tuple[Path, subprocess.CompletedProcess[str]], results: dict[str, Any]
) -> None:
    assert demo_run[1].returncode == 0, demo_run[1].stderr
    played = [(episode["world"], episode["episode"]) for episode in results["episodes"]]
    assert played == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [episode["seed"] for episode in results["episodes"] if episode["episode"] == 0] == [5, 6]


def test_demo_leaves_one_whole_video_per_world_camera_and_episode(
    demo_run: tuple[Path, subprocess.CompletedProcess[str]], results: dict[str, Any]
) -> None:
    out, _ = demo_run
    expected = {
        f"robot-cam-env{episode['world']}-{camera}-episode-{episode['episode']}.mp4": episode["steps"] + 1
        for episode in results["episodes"]
        for camera in ("overhead", "front")
    }
    assert {path.name: frame_count(path) for path in out.glob("*.mp4")} == expected
    assert {video for episode in results["episodes"] for video in episode["videos"]} == set(expected)


def test_piped_demo_output_is_plain_and_complete(
    demo_run: tuple[Path, subprocess.CompletedProcess[str]], results: dict[str, Any]
) -> None:
    out, process = demo_run
    assert "\x1b" not in process.stdout
    assert "\r" not in process.stdout
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    (header,) = (line for line in lines if line.split()[:2] == ["world", "episode"])
    assert header.split() == ["world", "episode", "steps", "return", "success", "collisions", "videos"]
    for episode in results["episodes"]:
        row = [str(episode["world"]), str(episode["episode"]), str(episode["steps"])]
        assert any(line.split()[:3] == row for line in lines)
        assert all(any(video in line for line in lines) for video in episode["videos"])
    logged = [line for line in lines if line.startswith("[MEMORY] Last")]
    assert len(logged) == len(read_records(out / "memory.jsonl")) > 0
    assert str(out) in lines[-2]
    assert lines[-1].endswith((out / "index.html").as_uri())


def test_demo_into_an_old_folder_replaces_nothing(
    demo_run: tuple[Path, subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = demo_run
    before = {path: path.read_bytes() for path in out.glob("*.mp4")}
    code = run_main(monkeypatch, "demo", *SMALL_DEMO, "--num-envs", "1", "--episodes", "1", "--out", str(out))
    assert code == 0
    assert {path: path.read_bytes() for path in before} == before
    (episode,) = json.loads((out / "results.json").read_text())["episodes"]
    assert Counter("-run2" in video for video in episode["videos"]) == {True: 2}
    assert "-run2" in capsys.readouterr().out


def test_a_terminal_gets_a_progress_bar(tmp_path: Path, output_on_a_terminal: Callable[[Sequence[str]], str]) -> None:
    command = [sys.executable, "-m", "fleet_gym.cli", "demo", *SMALL_DEMO, "--episodes=1", f"--out={tmp_path}"]
    output = output_on_a_terminal(command)
    assert "2 worlds x 2 diffbot" in output
    assert "100%" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--robot", "nonsense"], ["nonsense", "husky"]),
        (["--robot", "missing/robot.urdf"], ["missing/robot.urdf"]),
        (["--robot", "kuka_iiwa"], ["kuka_iiwa"]),
        (["--dynamics", "magic"], ["dynamics", "magic", "kinematic"]),
        (["--renderer", "crayon"], ["renderer", "crayon", "tiny"]),
        (["--episodes", "0"], ["--episodes"]),
        (["--num-envs", "0"], ["--num-envs"]),
        (["--num-robots", "-1"], ["--num-robots"]),
        (["--width", "wide"], ["--width"]),
        (["--seed", "-1"], ["--seed"]),
        (["--colour", "red"], ["--colour"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    expected: list[str],
) -> None:
    out = tmp_path / "out"
    assert run_main(monkeypatch, "demo", "--out", str(out), *arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    for text in expected:
        assert text in line
    assert not list(tmp_path.rglob("*.mp4*"))


def test_an_out_that_is_a_file_is_one_line_and_untouched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    assert run_main(monkeypatch, "demo", *SMALL_DEMO, "--out", str(out)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(out) in line
    assert out.read_text() == "mine"


def test_traceback_shows_where_an_error_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        sys, "argv", ["fleet-gym", "--traceback", "demo", "--robot", "nonsense", "--out", str(tmp_path)]
    )
    with pytest.raises(ValueError, match="nonsense"):
        cli.main()


def test_without_a_command_the_help_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch) == 0
    output = capsys.readouterr().out
    for command in ("demo", "gallery", "memory", "check", "info"):
        assert f" {command} " in output


def test_check_passes_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "check") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * len(diagnostics.CHECKS)


def test_check_names_the_remedy_of_what_is_broken_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", os.devnull)
    names = ("ffmpeg", "python")
    checks = {name: check for check in diagnostics.CHECKS for name in [check[0]]}
    monkeypatch.setattr(diagnostics, "CHECKS", tuple(checks[name] for name in names))
    assert run_main(monkeypatch, "check") == 1
    broken, remedy, fine = capsys.readouterr().out.splitlines()
    assert broken.startswith("failed ffmpeg")
    assert "IMAGEIO_FFMPEG_EXE" in remedy
    assert fine.startswith("ok     python")


def test_info_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"husky", "diffbot"} <= set(facts["robots"])
    assert facts["versions"]["pybullet"].startswith("3.2")
    assert all(Path(path).exists() for path in facts["paths"].values())


def test_info_as_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "info") == 0
    output = capsys.readouterr().out
    assert "husky" in output
    assert "pybullet_data" in output


def test_gallery_shows_every_video_of_the_demo(
    demo_run: tuple[Path, subprocess.CompletedProcess[str]],
    results: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.html"
    assert run_main(monkeypatch, "gallery", str(demo_run[0]), "--out", str(page)) == 0
    assert capsys.readouterr().out.strip() == str(page)
    for html in (page.read_text(), (demo_run[0] / "index.html").read_text()):
        assert all(video in html for episode in results["episodes"] for video in episode["videos"])


def test_gallery_without_videos_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_main(monkeypatch, "gallery", str(tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line
    assert not list(tmp_path.iterdir())


def test_memory_reads_what_the_demo_kept(
    demo_run: tuple[Path, subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    records = str(demo_run[0] / "memory.jsonl")
    assert run_main(monkeypatch, "memory", records, "--no-png", "--out", str(tmp_path)) == 0
    assert "RSS" in capsys.readouterr().out
    assert "<html" in (tmp_path / "memory.html").read_text()


def test_memory_of_a_file_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_main(monkeypatch, "memory", str(tmp_path / "none.jsonl")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.jsonl" in line


def test_the_package_is_the_command_too() -> None:
    command = [sys.executable, "-m", "fleet_gym", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["fleet-gym", fleet_gym.__version__]
