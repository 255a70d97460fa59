"""``fleet-gym evaluate`` and ``fleet-gym compare``: what they print, write, go on with and refuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import gymnasium as gym
import numpy as np
import pytest

from fleet_gym import cli
from fleet_gym.evaluation import read_run
from fleet_gym.evaluation.environments import EnvRequest, make_env
from fleet_gym.video.episode_log import read_episodes

SMALL = ["--robot=diffbot", "--num-robots=2", "--max-steps=30", "--width=64", "--height=48", "--num-envs=3"]


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fleet-gym", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fleet_gym.cli", "evaluate", *SMALL, *arguments]


def frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Eight episodes, four of them recorded with two cameras, the output piped."""
    out = tmp_path_factory.mktemp("scripted") / "run"
    arguments = command("--episodes=8", "--videos=4", "--cameras=overhead,front", "--out", str(out))
    return out, subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)


def test_it_writes_results_rows_videos_and_a_report(scripted: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, process = scripted
    assert process.returncode == 0, process.stderr
    result = read_run(out)
    assert result.seeds == list(range(8))
    rows = {row["index"]: row for row in read_episodes(out)}
    assert [rows[e.index]["return"] for e in result.episodes] == [e.episode_return for e in result.episodes]
    assert {path.name: frames(path) for path in out.glob("*.mp4")} == {
        f"robot-cam-env{e.env}-{camera}-episode-{e.episode}.mp4": e.steps + 1
        for e in result.episodes[:4]
        for camera in ("overhead", "front")
    }
    assert {"run.json", "results.json", "episodes.jsonl", "report.html", "memory.jsonl", "time.jsonl"} <= {
        path.name for path in out.iterdir()
    }
    assert result.config["env_kwargs"] == {"robot": "diffbot", "num_robots": 2}


def test_piped_output_is_plain_and_says_the_metrics(scripted: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, process = scripted
    assert process.stderr == ""
    assert "\x1b" not in process.stdout
    assert "\r" not in process.stdout
    rows = [line.split()[0] for line in process.stdout.splitlines() if line.strip()]
    assert [name for name in rows if name in ("success", "return", "length", "collisions")] == [
        "success", "return", "length", "collisions",
    ]  # fmt: skip
    assert (out / "report.html").as_uri() in process.stdout


def test_a_killed_run_goes_on_and_ends_like_one_that_was_not(
    scripted: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    whole = scripted[0]
    # The scripted policy, slowed down until it has been killed.
    (tmp_path / "unhurried.py").write_text(
        "import os, time\nfrom fleet_gym.tasks.navigation_policy import GoToGoalPolicy\n\n"
        "def make(env):\n    drive, pause = GoToGoalPolicy(env), float(os.environ['PAUSE'])\n"
        "    return lambda observation: time.sleep(pause) or drive(observation)\n"
    )
    arguments = command("--episodes=8", "--videos=4", "--cameras=overhead,front", "--policy=unhurried:make")
    arguments += ["--out", str(tmp_path / "killed")]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, env={**os.environ, "PAUSE": "0.05"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    log = tmp_path / "killed" / "episodes.jsonl"
    while not (log.exists() and log.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "results.json").exists()
    (tmp_path / "killed" / "robot-cam-env1-front-episode-3.mp4.part").write_bytes(b"cut off before its first frame")
    again = subprocess.run(
        arguments,
        cwd=tmp_path,
        env={**os.environ, "PAUSE": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert "of 8 episodes were played by an earlier session" in again.stdout
    resumed, expected = read_run(tmp_path / "killed"), read_run(whole)
    assert 0 < resumed.timings["resumed_episodes"] < 8
    assert resumed.episodes == expected.episodes
    assert resumed.metrics == expected.metrics
    found = [{p.name: frames(p) for p in folder.glob("*.mp4*")} for folder in (tmp_path / "killed", whole)]
    assert found[0] == found[1]
    rows = [
        [
            {key: value for key, value in row.items() if key not in ("run_id", "files")}
            for row in sorted(read_episodes(folder), key=lambda row: row["index"])
        ]
        for folder in (tmp_path / "killed", whole)
    ]
    assert rows[0] == rows[1]
    assert (tmp_path / "killed" / "memory-1.jsonl").exists()


def test_a_finished_run_is_said_to_be(
    scripted: tuple[Path, subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, process = scripted
    before = {path: path.read_bytes() for path in out.iterdir()}
    arguments = ["evaluate", *SMALL, "--episodes=8", "--videos=4", "--cameras=overhead,front", "--out", str(out)]
    assert run_main(monkeypatch, *arguments) == 0
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "this run is finished already; its results:"
    assert lines[1:] == process.stdout.splitlines()


def test_a_terminal_sees_how_far_it_is(tmp_path: Path, output_on_a_terminal: Callable[[Sequence[str]], str]) -> None:
    arguments = [sys.executable, "-m", "fleet_gym.cli", "evaluate", "--env=CartPole-v1", "--policy=random"]
    arguments += ["--episodes=6", "--num-envs=2", "--profile=off", "--out", str(tmp_path / "run")]
    output = output_on_a_terminal(arguments)
    assert "6/6" in output


def test_environments_of_others_are_made_by_their_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pole"
    arguments = ["evaluate", "--env=CartPole-v1", "--policy=random", "--episodes=7", "--num-envs=3", "--out", str(out)]
    assert run_main(monkeypatch, *arguments, "--max-steps=12", "--profile=off") == 0
    result = read_run(out)
    assert len(result.episodes) == 7
    assert all(e.steps <= 12 and e.episode_return == e.steps and e.success is None for e in result.episodes)
    assert len(read_episodes(out)) == 7
    assert not list(out.glob("*.mp4"))
    assert "success" not in capsys.readouterr().out


@pytest.mark.parametrize(("cameras", "recorded"), [("render", "render"), ("front", "front"), (None, None)])
def test_others_are_recorded_by_rendering_or_by_the_names_of_their_images(
    cameras: str | None, recorded: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gym.registry))
    gym.register("Coded-v0", "fleet_gym.testing.coded_color_env:CodedColorEnv")
    arguments = ["evaluate", "--env=Coded-v0", "--policy=random", "--episodes=5", "--num-envs=2", "--videos=3"]
    arguments += ["--profile=off", "--out", str(tmp_path / "run")]
    assert run_main(monkeypatch, *arguments, *([] if cameras is None else ["--cameras", cameras])) == 0
    found = {path.name: frames(path) for path in (tmp_path / "run").glob("*.mp4")}
    which = ((0, 0), (1, 0), (0, 1))  # the first three episodes over both worlds
    names = {f"robot-cam-env{env}-{recorded}-episode-{episode}.mp4" for env, episode in which}
    assert found == ({} if recorded is None else dict.fromkeys(names, 6))
    assert read_run(tmp_path / "run").length.value == 5


def test_a_function_of_ones_own_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steady_hand.py").write_text(
        "import numpy as np\n\ndef make(env):\n    return lambda observation: np.ones(env.num_envs, dtype=int)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["evaluate", "--env=CartPole-v1", "--policy=steady_hand:make", "--episodes=2", "--profile=off"]
    assert run_main(monkeypatch, *arguments, "--out=run") == 0
    assert read_run("run").config["policy"] == "steady_hand:make"
    assert read_run("run").length.value < 12


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "impatient.py").write_text(
        "def make(env):\n    def policy(observation):\n        raise KeyboardInterrupt\n    return policy\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["evaluate", "--env=CartPole-v1", "--policy=impatient:make", "--episodes=2", "--out=run"]
    assert run_main(monkeypatch, *arguments) == 130
    captured = capsys.readouterr()
    assert "interrupted; the same command goes on from here" in captured.out
    assert captured.err == ""


def test_cameras_are_presets_names_or_objects() -> None:
    kwargs: dict[str, Any] = {"robot": "diffbot", "num_robots": 1}
    spec = {"name": "corner", "width": 32, "height": 24, "position": [3, 3, 3], "target": [0, 0, 0]}
    made = make_env(EnvRequest(num_envs=1, kwargs=kwargs, cameras=("front", json.dumps(spec))))
    assert made.cameras == ("front", "corner")
    assert [camera.name for camera in made.env.unwrapped.scene.cameras] == ["corner", "front"]
    assert "camera_obs" not in made.env.single_observation_space.spaces
    made.env.close()
    made = make_env(EnvRequest(num_envs=1, kwargs={**kwargs, "cameras": [spec]}))
    assert made.cameras == ("corner",)
    assert "camera_obs" in made.env.single_observation_space.spaces  # the policy may look at its own cameras
    made.env.close()
    made = make_env(EnvRequest(num_envs=1, kwargs=kwargs, cameras=("none",)))
    assert not made.records
    made.env.close()


def test_comparing_two_runs_prints_a_table_and_writes_a_page(
    scripted: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "random"
    arguments = ["evaluate", *SMALL, "--policy=random", "--episodes=8", "--videos=0", "--out", str(out)]
    assert run_main(monkeypatch, *arguments) == 0
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert run_main(monkeypatch, "compare", str(scripted[0]), str(out), "--out", str(page)) == 0
    printed = capsys.readouterr().out
    assert "8 pairs" in printed
    assert page.as_uri() in printed
    assert page.read_text().startswith("<!doctype html>")
    (line,) = (line for line in printed.splitlines() if line.strip().startswith("return"))
    difference = float(line.split()[3])
    means = [read_run(folder).mean_return.value for folder in (scripted[0], out)]
    assert difference == pytest.approx(means[1] - means[0], abs=0.006)
    assert np.sign(difference) == -1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes=0"], "--episodes"),
        (["--num-envs=0"], "--num-envs"),
        (["--env=Nowhere-v0"], "env: expected an id registered with Gymnasium, got 'Nowhere-v0'"),
        (["--env=no_such_module:X-v0"], "env: expected a module that can be imported"),
        (["--env=CartPole-v1", "--robot=husky"], "--robot: expected only with an environment of this suite"),
        (["--env=CartPole-v1"], "got 'scripted', which drives Navigation only"),
        (["--env=CartPole-v1", "--env-kwargs", '{"gravitas": 1}', "--policy=random"], "gravitas"),
        (["--env-kwargs=[1]"], "--env-kwargs: expected a JSON object, got '[1]'"),
        (["--env-kwargs=}"], "--env-kwargs: expected a JSON object, got '}'"),
        (["--env-kwargs", '{"num_envs": 2}'], "env_kwargs: expected none of num_envs, autoreset_mode, got num_envs"),
        (["--policy=nobody"], "policy: expected 'scripted', 'random', a file ending in .pt or 'module:name'"),
        (["--policy=no_such_module:make"], "policy: expected a module that can be imported"),
        (["--policy=math:nothing"], "policy: expected a name of module math after the colon"),
        (["--policy=math:pi"], "policy: expected math:pi to be a function of the vector environment"),
        (["--policy=os:getcwd"], "policy: expected os:getcwd to be a function of the vector environment that returns"),
        (["--env-kwargs", '{"cameras": 3}'], "cameras: expected a list of cameras in env_kwargs, got 3"),
        (["--policy=builtins:id"], "policy: expected builtins:id(env) to return a function"),
        (["--cameras=left"], "cameras: expected names among ['front', 'overhead'], got left"),
        (
            ["--env=CartPole-v1", "--policy=random", "--cameras=left"],
            "cameras: expected none of an environment without",
        ),
        (["--env=CartPole-v1", "--policy=random", "--cameras=render,left"], "got render, left"),
        (["--cameras={"], "cameras: expected a name or the JSON object of a camera, got '{'"),
        (["--cameras", '{"width": 3}'], "cameras: expected a name or the JSON object of a camera"),
        (["--confidence=2"], "confidence: expected a number above 0 and below 1, got 2"),
        (["--profile=trace"], "profile"),
        (["--dynamics=magic"], "dynamics"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(monkeypatch, "evaluate", "--out", str(tmp_path / "run"), *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error:")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "run").exists()


def test_another_run_in_the_folder_is_one_line(
    scripted: tuple[Path, subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["evaluate", *SMALL, "--episodes=9", "--videos=4", "--cameras=overhead,front", "--out"]
    assert run_main(monkeypatch, *arguments, str(scripted[0])) == 2
    assert "with another run: episodes is 8 there, 9 here" in capsys.readouterr().err


def test_a_policy_file_without_pytorch_names_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.pt").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run_main(monkeypatch, "evaluate", "--policy", str(tmp_path / "policy.pt"), "--out", str(tmp_path / "r")) == 2
    assert "a policy file needs PyTorch: pip install torch" in capsys.readouterr().err


def test_comparing_what_is_no_evaluation_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "compare", str(tmp_path), str(tmp_path), "--out", str(tmp_path / "page.html")) == 2
    assert "run: expected a folder of `fleet-gym evaluate` with results" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
