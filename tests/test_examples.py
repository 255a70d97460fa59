"""The examples run, and do what they claim."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def test_the_training_loop_learns() -> None:
    train = load("training_loop.py")["train"]
    assert train(generations=10, num_envs=30, steps=100, seed=0) >= 0.8


def test_the_evaluation_plays_and_records_its_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    successes = load("evaluate_policy.py")["evaluate"](2, 2, str(tmp_path), seed=0, max_episode_steps=20)
    assert len(successes) == 4
    assert sorted(path.name for path in tmp_path.glob("*.mp4")) == [
        f"robot-cam-env{world}-overhead-episode-{episode}.mp4" for world in range(2) for episode in range(2)
    ]
    assert len(capsys.readouterr().out.splitlines()) == 4
