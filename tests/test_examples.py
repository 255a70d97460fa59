"""The examples and the stepping benchmark run, and do what they claim."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / name))


def test_the_training_loop_learns() -> None:
    train = load("training_loop.py")["train"]
    assert train(generations=10, num_envs=30, steps=100, seed=0) >= 0.8


def test_the_evaluation_plays_and_records_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--num-envs", "2", "--episodes", "4", "--max-episode-steps", "20", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["evaluate_policy.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / "evaluate_policy.py"), run_name="__main__")
    assert sorted(path.name for path in tmp_path.glob("*.mp4")) == [
        f"robot-cam-env{world}-overhead-episode-{episode}.mp4" for world in range(2) for episode in range(2)
    ]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [f"world {k % 2}, seed {k}" for k in range(4)]
    assert lines[4].startswith("success ")
    assert (tmp_path / "report.html").exists()


def test_the_stepping_benchmark_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.json"
    arguments = ["--num-envs", "1", "2", "--num-robots", "1", "--seconds", "0.1", "--json", str(rows)]
    monkeypatch.setattr(sys, "argv", ["stepping.py", *arguments])
    runpy.run_path(str(ROOT / "benchmarks" / "stepping.py"), run_name="__main__")
    measured = json.loads(rows.read_text())
    assert [(row["dynamics"], row["num_envs"]) for row in measured] == [
        (dynamics, num_envs) for dynamics in ("kinematic", "physics") for num_envs in (1, 2)
    ]
    assert all(row["robot_steps_per_cpu_s"] > 0 for row in measured)
