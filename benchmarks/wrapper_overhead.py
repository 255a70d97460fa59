"""Claim: what each wrapper costs on the same loop, in time and in memory.

64 worlds of 16 robots step with random actions. Every run is a process of its own; rows are medians over several,
taken in turns. Time is CPU time of the loop, memory is resident memory at its end: no tracemalloc, except where the
wrapper itself traces. Run: ``python benchmarks/wrapper_overhead.py``.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

SMALL_CAMERA = {"name": "top", "width": 64, "height": 48, "position": (0, 0, 12), "target": (0, 0, 0)}

#: Gone when the process ends.
_folders: list[tempfile.TemporaryDirectory[str]] = []


def _bare(env: Any) -> Any:
    return env


def _time(env: Any) -> Any:
    from fleet_gym import TimeProfilingWrapper

    return TimeProfilingWrapper(env)


def _memory(mode: str) -> Callable[[Any], Any]:
    def wrap(env: Any) -> Any:
        from fleet_gym import MemoryProfilingWrapper

        return MemoryProfilingWrapper(env, mode=mode)

    return wrap


def _recorder(env: Any) -> Any:
    from fleet_gym import CameraObsVideoRecorder

    _folders.append(tempfile.TemporaryDirectory(prefix="fleet-gym-overhead-"))
    return CameraObsVideoRecorder(env, _folders[-1].name)


#: Name -> wrapper, whether there is a camera. The recorder is compared with the same cameras without it.
LOOPS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "bare": (_bare, False),
    "TimeProfilingWrapper": (_time, False),
    "MemoryProfilingWrapper, light": (_memory("light"), False),
    "MemoryProfilingWrapper, trace": (_memory("trace"), False),
    "bare, 2 worlds with a camera": (_bare, True),
    "CameraObsVideoRecorder, 2 worlds": (_recorder, True),
}


def child(name: str, steps: int) -> dict[str, float]:
    """One run: ms per step and MiB at the end."""
    import psutil

    from fleet_gym import FleetVectorEnv

    logging.getLogger("fleet_gym").addHandler(logging.NullHandler())
    wrap, has_camera = LOOPS[name]
    num_envs = 2 if has_camera else 64
    cameras = [SMALL_CAMERA] if has_camera else []
    env = wrap(FleetVectorEnv(num_envs, num_robots=16, robot="diffbot", cameras=cameras, max_episode_steps=100))
    actions = np.random.default_rng(0).uniform(-1, 1, (16, *env.action_space.shape)).astype(np.float32)
    env.reset(seed=0)
    for n in range(20):
        env.step(actions[n % 16])
    start = time.process_time()
    for n in range(steps):
        env.step(actions[n % 16])
    seconds = time.process_time() - start
    memory = psutil.Process().memory_info().rss
    env.close()
    return {"ms_per_step": 1e3 * seconds / steps, "rss_mib": memory / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.stdout.write(json.dumps(child(options.child, options.steps)) + "\n")
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for _ in range(options.repeats):
        for name, found in runs.items():
            command = [sys.executable, __file__, "--child", name, "--steps", str(options.steps)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout))
    rows = []
    for name, found in runs.items():
        base = runs["bare, 2 worlds with a camera" if LOOPS[name][1] else "bare"]
        ratio = statistics.median(a["ms_per_step"] / b["ms_per_step"] for a, b in zip(found, base, strict=True))
        more = statistics.median(a["rss_mib"] - b["rss_mib"] for a, b in zip(found, base, strict=True))
        cost = statistics.median(run["ms_per_step"] for run in found)
        rows.append({"loop": name, "ms_per_step": cost, "ratio": ratio, "rss_more_mib": more})
    table = Table("loop", "CPU ms / step", "ratio to bare", "resident MiB more")
    for row in rows:
        table.add_row(
            str(row["loop"]), f"{row['ms_per_step']:.3f}", f"{row['ratio']:.2f}", f"{row['rss_more_mib']:+.1f}"
        )
    Console(width=100).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
