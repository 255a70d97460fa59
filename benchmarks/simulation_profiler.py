"""Claims: where the time of a simulation's step goes, per phase and number of robots; 1.0 is real time within 1 %.

Each row is the median of several runs of `MultiRobotSimulationCore`, each in a process of its own: robots on a grid
drive to random points, collisions in every step. Run: ``python benchmarks/simulation_profiler.py``.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def child(num_robots: int, steps: int) -> dict[str, float]:
    """One run: ms per step by phase, and MiB of resident memory that robots and engine took."""
    import psutil

    from fleet_gym import MultiRobotSimulationCore

    logging.getLogger("fleet_gym").addHandler(logging.NullHandler())  # the figures are printed, not the lines
    process = psutil.Process()
    side = 2.0 * num_robots**0.5 + 10.0
    with MultiRobotSimulationCore(arena_size=side, enable_time_profiling=True, profiling_interval=steps) as sim:
        before = process.memory_info().rss
        for robot in sim.spawn_grid("diffbot", num_robots, spacing=1.5):
            sim.random_walk(robot)
        sim.run_simulation(duration=10 * sim.config.control_dt)
        memory = process.memory_info().rss - before
        sim.run_simulation(duration=steps * sim.config.control_dt)
        record = sim.last_profiling
        assert record is not None
        return {"step": record["step_ms"], **record["phases_ms"], "rss_mib": memory / 2**20}


def measure(num_robots: int, steps: int, repeats: int) -> dict[str, Any]:
    """Medians over `repeats` processes."""
    command = [sys.executable, __file__, "--child", str(num_robots), "--steps", str(steps)]
    runs = []
    for _ in range(repeats):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    row = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}
    return {"robots": num_robots, **row, "us_per_robot": 1e3 * row["step"] / num_robots}


def real_time(seconds: float) -> float:
    """Simulated s per s that ``target_rtf=1.0`` comes to with 100 robots."""
    from fleet_gym import MultiRobotSimulationCore

    with MultiRobotSimulationCore(target_rtf=1.0) as sim:
        for robot in sim.spawn_grid("diffbot", 100):
            sim.random_walk(robot)
        sim.run_simulation(duration=1.0)
        start = time.perf_counter()
        sim.run_simulation(duration=seconds)
        return seconds / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--real-time", type=float, default=60.0, help="s of the real-time run, 0 for none")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.stdout.write(json.dumps(child(options.child, options.steps)) + "\n")
        return
    rows = [measure(count, options.steps, options.repeats) for count in options.robots]
    names = ["robots", "step", "dynamics", "routes", "callbacks", "other", "us_per_robot", "rss_mib"]
    table = Table(*[name if name in ("robots", "us_per_robot", "rss_mib") else f"{name} ms" for name in names])
    for row in rows:
        table.add_row(*(f"{row.get(name, 0.0):.3f}" if name != "robots" else str(row["robots"]) for name in names))
    Console(width=120).print(table)
    report: dict[str, Any] = {"rows": rows}
    if options.real_time > 0:
        report["real_time_factor"] = real_time(options.real_time)
        Console().print(f"target_rtf=1.0 over {options.real_time:g} s: {report['real_time_factor']:.4f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
