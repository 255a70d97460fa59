"""Claim: recording every 50th episode of one world costs a training 3 % at most, with light memory profiling 5 %.

The same PPO training (``examples/ppo_navigation.py``: 64 worlds of 4 robots, the same seed) runs three times in one
process: bare, with the recorder, and with the recorder and light memory profiling. They alternate update by update,
each first in turn, as the speed of a machine changes with what else it does. An update is an episode of world 0; a
cycle is 50 of them, one of which is recorded, and ends when its video is final. CPU time is the process's during the
update, to which the encoders' is added, half to each of the trainings that record; wall time is that of the updates.
Ratios are medians over the cycles. Needs PyTorch and TensorBoard: ``pip install 'fleet-gym[examples]'``.
Run: ``python benchmarks/training_overhead.py`` (10 minutes).
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


def children_seconds() -> float:
    """CPU time of this process's children, those that have ended included."""
    times = psutil.Process().cpu_times()
    alive = sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))
    return times.children_user + times.children_system + alive


def cycle(trainings: dict[str, Training], updates: int) -> dict[str, dict[str, float]]:
    """Makes updates of each training; returns their CPU and wall seconds."""
    seconds = {name: {"cpu_s": 0.0, "wall_s": 0.0} for name in trainings}
    names, encoders = list(trainings), children_seconds()
    for number in range(updates):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            trainer = trainings[name].trainer
            cpu, wall = time.process_time(), time.perf_counter()
            trainer.step()
            trainer.counter.finished.clear()
            seconds[name]["cpu_s"] += time.process_time() - cpu
            seconds[name]["wall_s"] += time.perf_counter() - wall
    recording = [name for name, training in trainings.items() if training.trainer.args.record_every]
    for name in recording:
        trainings[name].expected_videos += updates // RECORD_EVERY
        while len(list(trainings[name].videos.glob("*.mp4"))) < trainings[name].expected_videos:
            time.sleep(0.05)
    for name in recording:
        seconds[name]["cpu_s"] += (children_seconds() - encoders) / len(recording)
    return seconds


def measure(cycles: int, num_envs: int, episode_steps: int, updates: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="fleet-gym-training-") as folder:
        trainings = {name: begin(Path(folder), name, num_envs, episode_steps) for name in VARIANTS}
        found = [cycle(trainings, updates) for _ in range(cycles)]
        for training in trainings.values():
            training.trainer.env.close()
    steps = updates * num_envs * (episode_steps + 1)
    return [
        {
            "training": name,
            "world_steps_per_cpu_s": steps / statistics.median(seconds[name]["cpu_s"] for seconds in found),
            **{
                f"{clock}_ratio": statistics.median(seconds[name][clock] / seconds["bare"][clock] for seconds in found)
                for clock in ("cpu_s", "wall_s")
            },
            "cycles": [seconds[name] for seconds in found],
        }
        for name in VARIANTS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=4)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--episode-steps", type=int, default=50)
    parser.add_argument("--updates", type=int, default=RECORD_EVERY, help="of a cycle; in multiples of 50")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    logging.getLogger("fleet_gym").addHandler(logging.NullHandler())
    torch.set_num_threads(1)
    rows = measure(options.cycles, options.num_envs, options.episode_steps, options.updates)
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
