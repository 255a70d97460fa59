"""What the profilers cost, and whether their answers are right. Every figure of docs/memory-profiling.md.

    python benchmarks/memory_profiling.py --out memory_profiling.json
    python benchmarks/memory_profiling.py --only overhead trace
    python benchmarks/memory_profiling.py --only peer      # installs PyBulletFleet 0.8.0 into a temporary venv

Each section runs in a process of its own. The variants of a ratio take turns in it. What a wrapper adds is the CPU time
of its calls less that of those inside, in the quietest tenth of many blocks that each hold an interval's end; what it
slows inside shows in the median of those. Exit code 1 if a bound is missed.
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
import tracemalloc
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from fleet_gym.profiling.phases import phase
from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper
from fleet_gym.wrappers.time_profiling import TimeProfilingWrapper

PEER = "pybullet-fleet==0.8.0"
HERE = Path(__file__).resolve().parent
Figures = dict[str, Any]


class WorkEnv(VectorEnv[Any, Any, Any]):
    """Steps by doing `work`, resets by doing `renew`; keeps the duration of the latest step, s."""

    def __init__(self, work: Callable[[], object], renew: Callable[[], object] = lambda: None) -> None:
        self.num_envs = 4
        self.single_action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 4)
        self.single_observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 4)
        self.work, self.renew = work, renew
        self.actions = np.zeros((4, 2), np.float32)
        self.duration = 0.0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Does `renew`."""
        self.renew()
        return np.zeros((4, 8), np.float32), {}

    def step(self, actions: Any) -> Any:
        """Does `work`."""
        start = time.thread_time()
        self.work()
        flags = np.zeros(4, bool)
        result = np.zeros((4, 8), np.float32), np.zeros(4), flags, flags, {}
        self.duration = time.thread_time() - start
        return result


def run(env: Any, steps: int) -> None:
    actions = env.unwrapped.actions
    for _ in range(steps):
        env.step(actions)


def work_of(microseconds: float) -> Callable[[], object]:
    """Returns a mix of NumPy calls and small Python objects that takes about this long."""
    state = np.random.default_rng(0).random((64, 4))

    def part() -> object:
        np.sqrt(state * state + 1.0)
        return [{"index": index} for index in range(8)]

    count = 1

    def work() -> None:
        for _ in range(count):
            part()

    def duration() -> float:
        """Of `work` among others, as it is in a benchmark's turns, us."""
        times = []
        for _ in range(300):
            start = time.thread_time()
            work()
            times.append(time.thread_time() - start)
        return statistics.median(times) * 1e6

    duration()
    for _ in range(3):
        count = max(1, round(count * microseconds / duration()))
    return work


def take_turns(envs: dict[str, Any], steps: int, blocks: int = 60) -> dict[str, float]:
    """Returns each variant's CPU time per step over that of the first, whose own is given in us.

    The variants alternate step by step, each first in turn: the processor's speed changes with what else the machine
    does.
    """
    names = list(envs)
    inside: dict[str, list[float]] = {name: [] for name in envs}
    added: dict[str, list[float]] = {name: [] for name in envs}
    for env in envs.values():
        run(env, 2 * steps)
    calls = {name: (env.unwrapped, env.step, env.unwrapped.actions) for name, env in envs.items()}
    for _ in range(blocks):
        durations: dict[str, list[float]] = {name: [] for name in envs}
        extra = dict.fromkeys(envs, 0.0)
        for count in range(steps):
            first = count % len(names)
            for name in (*names[first:], *names[:first]):
                base, step, actions = calls[name]
                start = time.thread_time()
                step(actions)
                extra[name] += time.thread_time() - start - base.duration
                durations[name].append(base.duration)
        for name in envs:
            inside[name].append(statistics.median(durations[name]))
            added[name].append(extra[name] / steps)
    bare = statistics.median(inside[names[0]])
    ratios = {"us": 1e6 * bare}
    for name in envs:
        slowed = statistics.median(mine / its for mine, its in zip(inside[name], inside[names[0]], strict=True))
        cost = float(np.percentile(added[name], 10) - np.percentile(added[names[0]], 10))
        ratios[name] = slowed + cost / bare
    return ratios


def at_length(microseconds: float, measure: Callable[[float], Figures]) -> Figures:
    """Returns what `measure` says of steps that took about as long as wanted while they were measured.

    The processor's speed changes by a factor of two from one second to the next, also after the work was sized.
    """
    figures: Figures = {}
    for _ in range(8):
        figures = measure(microseconds)
        if abs(figures["us"] / microseconds - 1) < 0.2:
            break
    return figures


def quiet() -> None:
    """Lines are made and handed to a handler, as in use, but not shown."""
    logging.getLogger("fleet_gym").addHandler(logging.NullHandler())
    logging.getLogger("fleet_gym").setLevel(logging.INFO)


def overhead() -> Figures:
    """Off and light against the bare environment, at three durations of a step."""

    def measure(microseconds: float) -> Figures:
        work = work_of(microseconds)
        envs = {
            "bare": WorkEnv(work),
            "off": MemoryProfilingWrapper(WorkEnv(work), mode="off"),
            "light": MemoryProfilingWrapper(WorkEnv(work), mode="light"),
            "auto": MemoryProfilingWrapper(WorkEnv(work), mode="auto"),
        }
        figures = take_turns(envs, steps=200, blocks=40)
        for env in envs.values():
            env.close()
        return figures

    return {f"{microseconds} us": at_length(microseconds, measure) for microseconds in (40, 200, 1000)}


def trace() -> Figures:
    """Trace against tracemalloc alone, and what that costs, at two durations of a step."""

    def measure(microseconds: float) -> Figures:
        work = work_of(microseconds)
        untraced = take_turns({"bare": WorkEnv(work)}, steps=200, blocks=30)["us"]
        env = MemoryProfilingWrapper(WorkEnv(work), mode="trace")
        ratios = take_turns({"tracemalloc": env.env, "trace": env}, steps=200)
        env.close()
        return {
            "us": untraced,
            "tracemalloc": ratios["us"] / untraced,
            "trace_over_tracemalloc": ratios["trace"],
        }

    return {f"{microseconds} us": at_length(microseconds, measure) for microseconds in (40, 200)}


def time_profiling() -> Figures:
    """TimeProfilingWrapper against the same environment without it: one that marks no phases, and one with three."""

    def against_bare(work: Callable[[], object]) -> Figures:
        envs = {"bare": WorkEnv(work), "timed": TimeProfilingWrapper(WorkEnv(work))}
        figures = take_turns(envs, steps=100, blocks=60)
        envs["timed"].close()
        return figures

    def plain(microseconds: float) -> Figures:
        return against_bare(work_of(microseconds))

    def phased(microseconds: float) -> Figures:
        third = work_of(microseconds / 3)

        def work() -> None:
            for name in ("dynamics", "task", "render"):
                with phase(name):
                    third()

        return against_bare(work)

    figures = {}
    for microseconds in (200, 1000):
        figures[f"{microseconds} us"] = at_length(microseconds, plain)
        figures[f"{microseconds} us, 3 phases"] = at_length(microseconds, phased)
    return figures


def detector() -> Figures:
    """Series called a leak, of 100 per class; leak_detector.py has the whole table."""
    sys.path.insert(0, str(HERE))
    from leak_detector import HEALTHY, LEAKING, flagged

    healthy = ("flat", "warm-up to a plateau", "GC sawtooth 1-8 MB", "video sawtooth 20-60 MB", "one step of 1-20 MB")
    leaking = ("1 kB/step", "10 kB/step", "585 kB per 500-step reset")
    figures = {name: flagged(name, HEALTHY[name], 100, 10_000)["verdict"] for name in (*healthy, "RSS ratchet")}
    return figures | {name: flagged(name, LEAKING[name], 100, 10_000)["verdict"] for name in leaking}


def urdf_reload() -> Figures:
    """A world whose reset loads r2d2 anew, freed by removeBody and by resetSimulation: 12,000 steps of light each."""
    from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path, quiet_descriptors

    p = pybullet()
    figures = {}
    for how in ("removeBody", "resetSimulation"):
        client = DirectClient()
        bodies: list[int] = []

        def renew(client: DirectClient = client, bodies: list[int] = bodies, how: str = how) -> None:
            with quiet_descriptors():
                if how == "resetSimulation":
                    p.resetSimulation(physicsClientId=client.id)
                    p.setAdditionalSearchPath(pybullet_data_path(), physicsClientId=client.id)
                else:
                    for body in bodies:
                        p.removeBody(body, physicsClientId=client.id)
            bodies[:] = [client.load_urdf("r2d2.urdf")]

        def work(client: DirectClient = client) -> None:
            p.stepSimulation(physicsClientId=client.id)

        env = MemoryProfilingWrapper(WorkEnv(work, renew), mode="light")
        for _ in range(60):
            env.reset()
            run(env, 200)
        report = env.memory_report()
        figures[how] = {
            "native": report.verdicts["native"].status,
            "python": report.verdicts["python"].status,
            "bytes_per_reset": report.phases["reset"].native_bytes_per_call,
            "bytes_per_step": report.phases["step"].native_bytes_per_call,
            "hints": list(report.hints),
        }
        env.close()
        client.close()
    return figures


def python_leak() -> Figures:
    """A list that keeps 1,000 bytes a step: what auto and trace name after 6,400 steps."""
    figures = {}
    for mode in ("auto", "trace"):
        kept: list[bytes] = []

        def work(kept: list[bytes] = kept) -> None:
            kept.append(bytes(1000))

        env = MemoryProfilingWrapper(WorkEnv(work), mode=mode)
        run(env, 6_400)
        report = env.memory_report()
        if not report.top_lines:
            raise RuntimeError(f"{mode} named no line: {report}")
        top = report.top_lines[0]
        figures[mode] = {"line": f"{Path(top.filename).name}: {top.source}", "bytes_per_step": top.bytes_per_step}
        env.close()
    return figures


class KeepingEnv(gym.Env[Any, Any]):
    """Keeps 8 KiB a step."""

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.kept: list[bytearray] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Keeps what it has."""
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        """Keeps 8 KiB more."""
        self.kept.append(bytearray(b"x" * 8192))
        return np.zeros(8, np.float32), 0.0, False, False, {"traced": tracemalloc.is_tracing()}


def workers() -> Figures:
    """Four forked workers that keep 8 KiB a step each, profiled in the parent by trace."""
    holder = MemoryProfilingWrapper(WorkEnv(lambda: None))  # the worst case: tracing is on when they are forked
    env = MemoryProfilingWrapper(AsyncVectorEnv([KeepingEnv] * 4, context="fork"), profiling_interval=100)
    env.reset()
    actions = np.zeros((4, 2), np.float32)
    for _ in range(2_000):
        *_, info = env.step(actions)
    records, report = env.memory_records, env.memory_report()
    env.close()
    holder.close()
    return {
        "workers_bytes_per_step": report.verdicts["workers"].bytes_per_step,
        "expected": 4 * 8192,
        "parent_python_bytes_per_step": report.verdicts["python"].bytes_per_step,
        "workers_traced": bool(np.any(info["traced"])),
        "workers_mb": [records[0].workers_mb, records[-1].workers_mb],
    }


def fleet() -> Figures:
    """All modes over FleetVectorEnv, one world of 100 and of 1,000 robots."""
    from fleet_gym import FleetVectorEnv

    figures = {}
    for num_robots in (100, 1000):
        env = FleetVectorEnv(1, num_robots=num_robots, max_episode_steps=100_000)
        env.reset(seed=0)
        env.actions = env.action_space.sample()
        step, env.duration = env.step, 0.0

        def timed_step(actions: Any, env: Any = env, step: Callable[..., Any] = step) -> Any:
            start = time.thread_time()
            result = step(actions)
            env.duration = time.thread_time() - start
            return result

        env.step = timed_step
        light, timed = MemoryProfilingWrapper(env, mode="light"), TimeProfilingWrapper(env)
        steps = max(5, 4000 // num_robots)
        figures[str(num_robots)] = take_turns({"bare": env, "light": light, "timed": timed}, steps, blocks=40)
        traced_ms = []
        for _ in range(9):
            traced = MemoryProfilingWrapper(env, mode="trace")
            run(traced, steps)
            start = time.process_time()
            run(traced, steps)
            traced_ms.append(1e6 * (time.process_time() - start) / steps)
            traced._profiler.close()
        figures[str(num_robots)]["trace"] = statistics.median(traced_ms) / figures[str(num_robots)]["us"]
        env.close()
    return figures


def peer() -> Figures:
    """PyBulletFleet's own memory profiling, in a venv of its own: it needs numpy below 2."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
        script = HERE / "peer_pybullet_fleet.py"
        done = subprocess.run([python, script, "100", "1000"], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


SECTIONS: dict[str, Callable[[], Figures]] = {
    "overhead": overhead,
    "trace": trace,
    "time_profiling": time_profiling,
    "detector": detector,
    "urdf_reload": urdf_reload,
    "python_leak": python_leak,
    "workers": workers,
    "fleet": fleet,
    "peer": peer,
}


def misses(figures: Figures) -> list[str]:
    """Returns what lies outside its bound."""
    found = []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            found.append(what)

    if "overhead" in figures:
        for duration, light in (("40 us", 1.12), ("200 us", 1.05), ("1000 us", 1.05)):
            row = figures["overhead"][duration]
            expect(row["off"] <= 1.02, f"off at {duration}: {row['off']:.3f} > 1.02")
            expect(row["light"] <= light, f"light at {duration}: {row['light']:.3f} > {light}")
    for duration, row in figures.get("trace", {}).items():
        ratio = row["trace_over_tracemalloc"]
        expect(ratio <= 1.05, f"trace over tracemalloc at {duration}: {ratio:.3f} > 1.05")
    for duration, row in figures.get("time_profiling", {}).items():
        expect(row["timed"] <= 1.01, f"time profiling at {duration}: {row['timed']:.3f} > 1.01")
    for name, share in figures.get("detector", {}).items():
        is_leak = "/step" in name or "reset" in name
        expect(share >= 95 if is_leak else share == 0, f"{name}: {share:.0f} of 100 called a leak")
    if "urdf_reload" in figures:
        leaking, clean = figures["urdf_reload"]["removeBody"], figures["urdf_reload"]["resetSimulation"]
        expect(leaking["native"] == "leak" and leaking["python"] == "stable", "the URDF leak was not called one")
        expect(abs(leaking["bytes_per_reset"] / 585e3 - 1) <= 0.1, f"{leaking['bytes_per_reset']:.0f} bytes per reset")
        expect(clean["native"] == "stable", "resetSimulation was called a leak")
    for mode, row in figures.get("python_leak", {}).items():
        named = "kept.append" in row["line"] and 1000 <= row["bytes_per_step"] <= 1100
        expect(named, f"{mode} named {row['line']} with {row['bytes_per_step']:.0f} bytes per step")
    if "workers" in figures:
        row = figures["workers"]
        share = row["workers_bytes_per_step"] / row["expected"]
        expect(abs(share - 1) <= 0.1 and not row["workers_traced"], f"workers: {share:.2f} of what they leak")
    return found


def show(value: Any, indent: str = "  ") -> None:
    """Prints nested figures as an indented table."""
    for key, entry in value.items():
        if isinstance(entry, dict):
            if all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in entry.values()):
                print(f"{indent}{key:<28}" + "  ".join(f"{name} {one:.3f}" for name, one in entry.items()))
                continue
            print(f"{indent}{key}")
            show(entry, indent + "  ")
        else:
            print(f"{indent}{key:<28}{entry:.3f}" if isinstance(entry, float) else f"{indent}{key:<28}{entry}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS), help="sections to run")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.section:
        quiet()
        print(json.dumps(SECTIONS[arguments.section]()))
        return
    figures: Figures = {}
    for name in arguments.only:
        command = [sys.executable, __file__, "--section", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures[name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"{name}: {SECTIONS[name].__doc__}")
        show(figures[name])
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2))
    missed = misses(figures)
    for line in missed:
        print(f"MISSED {line}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
