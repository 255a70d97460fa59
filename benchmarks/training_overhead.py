"""Claim: recording every 50th episode of one world costs a training 3 % at most, with light memory profiling 5 %.

The same PPO training (``examples/ppo_navigation.py``: 64 worlds of 4 robots, the same seed) runs three times side by
side: bare, with the recorder, and with the recorder and light memory profiling. They take turns; a turn is 50 episodes
of world 0, one of which is recorded, and ends when its video is final. CPU time is the process's and the encoder's;
rows are medians of the ratios over the turns. Needs PyTorch and TensorBoard: ``pip install 'fleet-gym[examples]'``.
Run: ``python benchmarks/training_overhead.py``.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from ppo_navigation import Policy, Trainer, make_training_env, parse_arguments

RECORD_EVERY = 50
VARIANTS = {
    "bare": (0, "off"),
    "recording": (RECORD_EVERY, "off"),
    "recording, light memory profiling": (RECORD_EVERY, "light"),
}


@dataclass
class Training:
    """One of the trainings, and how many of its videos are final."""

    trainer: Trainer
    videos: Path
    expected_videos: int


def begin(folder: Path, name: str, num_envs: int, episode_steps: int) -> Training:
    record_every, memory = VARIANTS[name]
    # A rollout is an episode of world 0 and the step that resets it, so that a turn records exactly one.
    defaults = ["--num-envs", str(num_envs), "--max-episode-steps", str(episode_steps)]
    args = parse_arguments(
        [*defaults, "--rollout-steps", str(episode_steps + 1), "--total-steps", str(10**12)], command_line=()
    )
    args.run, args.record_every, args.memory_profiling = folder / name.replace(", ", "-"), record_every, memory
    args.run.mkdir()
    torch.manual_seed(0)
    env = make_training_env(args)
    sizes = env.single_observation_space["state"].shape[-1], env.single_action_space.shape[-1], args.hidden
    training = Training(Trainer(args, env, Policy(*sizes)), args.run / "videos", 0)
    training.trainer.begin()
    return training


def cpu_seconds() -> float:
    """Of this process and its children, those that have ended included."""
    times = psutil.Process().cpu_times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))


def turn(training: Training, updates: int) -> dict[str, float]:
    """Trains for some updates; returns CPU and wall seconds, without the wait for the last frames in the latter."""
    trainer = training.trainer
    cpu, wall = cpu_seconds(), time.perf_counter()
    for _ in range(updates):
        trainer.step()
        trainer.counter.finished.clear()
    wall = time.perf_counter() - wall
    if trainer.args.record_every:
        training.expected_videos += updates // trainer.args.record_every
        while len(list(training.videos.glob("*.mp4"))) < training.expected_videos:
            time.sleep(0.05)
    return {"cpu_s": cpu_seconds() - cpu, "wall_s": wall}


def measure(turns: int, num_envs: int, episode_steps: int, updates: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="fleet-gym-training-") as folder:
        trainings = {name: begin(Path(folder), name, num_envs, episode_steps) for name in VARIANTS}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
        for number in range(turns):
            names = list(VARIANTS) if number % 2 == 0 else list(VARIANTS)[::-1]
            for name in names:
                found[name].append(turn(trainings[name], updates))
        for training in trainings.values():
            training.trainer.env.close()
    steps = updates * num_envs * (episode_steps + 1)
    return [
        {
            "training": name,
            "world_steps_per_cpu_s": steps / statistics.median(row["cpu_s"] for row in rows),
            **{
                f"{clock}_ratio": statistics.median(
                    a[clock] / b[clock] for a, b in zip(rows, found["bare"], strict=True)
                )
                for clock in ("cpu_s", "wall_s")
            },
            "turns": rows,
        }
        for name, rows in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--episode-steps", type=int, default=50)
    parser.add_argument("--updates", type=int, default=RECORD_EVERY, help="of a turn; a multiple of 50 is whole cycles")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    logging.getLogger("fleet_gym").addHandler(logging.NullHandler())
    torch.set_num_threads(1)
    rows = measure(options.turns, options.num_envs, options.episode_steps, options.updates)
    table = Table("training", "world steps / CPU s", "CPU time", "wall time")
    for row in rows:
        table.add_row(
            row["training"],
            f"{row['world_steps_per_cpu_s']:,.0f}",
            f"{row['cpu_s_ratio']:.3f}x",
            f"{row['wall_s_ratio']:.3f}x",
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
