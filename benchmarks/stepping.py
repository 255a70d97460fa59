"""Claim: how many world steps a CPU second holds, without cameras, kinematic and on contact physics.

Three husky drive at random among four obstacles; episodes end and begin again as in training. CPU seconds rather than
seconds, so that other load on the machine does not count. Run: ``python benchmarks/stepping.py``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fleet_gym import FleetVectorEnv


def measure(dynamics: str, num_envs: int, seconds: float, num_robots: int) -> dict[str, Any]:
    """Steps an env for `seconds` of CPU time, after a warm-up that compiles what has to be compiled."""
    env = FleetVectorEnv(num_envs, num_robots=num_robots, dynamics=dynamics)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (32, *env.action_space.shape)).astype(np.float32)
    env.reset(seed=0)
    for action in actions[:5]:
        env.step(action)
    steps = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < seconds:
        env.step(actions[steps % len(actions)])
        steps += 1
    env.close()
    rate = steps * num_envs / elapsed
    return {
        "dynamics": dynamics,
        "num_envs": num_envs,
        "num_robots": num_robots,
        "world_steps_per_cpu_s": round(rate),
        "robot_steps_per_cpu_s": round(rate * num_robots),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--num-robots", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds per row")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    rows = [
        measure(dynamics, num_envs, options.seconds, options.num_robots)
        for dynamics in ("kinematic", "physics")
        for num_envs in options.num_envs
    ]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
