"""Claim: robot-steps per second, motion and collisions in every step, against PyBulletFleet 0.8.0 (and VMAS).

Each peer runs in a virtual environment of its own that this script makes below ``--venvs``, and takes turns with us, so
that other load on the machine hits both. Figures are CPU seconds. All robots move all the time: ours drive and turn at
commanded speeds (motion, contacts reported as the peer does) or make random actions in `FleetVectorEnv` (full env step:
collisions, neighbours, observation, reward, infos, autoreset); PyBulletFleet's follow paths that never end with its
batch controller and compute no observation. Its worlds are 0.1 m cubes on a 1 m grid, and so are ours for motion. More
worlds are more simulations in one process, at most 64 of them: a client takes 28 MiB.

Run: ``python benchmarks/kinematics.py`` (``--no-peers`` without network).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
#: Worlds, robots, whether it is a full env step, and the ratio to PyBulletFleet that the project promises.
ROWS = [
    (1, 100, False, 100),
    (1, 1000, False, 200),
    (1, 1000, True, 50),
    (64, 16, True, 60),
    (1024, 16, True, 120),
]
PEER_WORLDS = 64
VMAS_PROMISE = 3


def steps_per_block(num_envs: int, num_robots: int) -> int:
    return max(5, min(1000, 400_000 // (num_envs * num_robots)))


class Motion:
    """`KinematicDynamics` alone: motion and collisions."""

    def __init__(self, num_envs: int, num_robots: int, bodies: Sequence[Any] = (), places: Any = ()) -> None:
        from fleet_gym.dynamics.kinematic import KinematicDynamics
        from fleet_gym.world.robots import RobotModel
        from fleet_gym.world.scene import Scene
        from fleet_gym.world.state import WorldSample, yaw_quaternion

        cube = RobotModel("cube", "none", footprint_radius=0.0708, height=0.1, max_speed=1.5, max_turn_rate=2.0)
        self.dynamics = KinematicDynamics(
            Scene((cube,) * num_robots, tuple(bodies)), num_envs, control_dt=0.1, collision_response="report"
        )
        rng = np.random.default_rng(0)
        side = int(np.ceil(np.sqrt(num_robots)))
        grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)[:num_robots]
        position = np.zeros((num_envs, num_robots, 3))
        position[..., :2] = grid
        body_position = np.zeros((num_envs, len(bodies), 3))
        body_position[..., :2] = np.reshape(places, (-1, 2))
        sample = WorldSample(
            position,
            yaw_quaternion(rng.uniform(-np.pi, np.pi, (num_envs, num_robots))),
            np.ones((num_envs, num_robots), dtype=np.bool_),
            body_position,
            yaw_quaternion(np.zeros((num_envs, len(bodies)))),
            np.ones((num_envs, len(bodies)), dtype=np.bool_),
        )
        self.dynamics.reset(np.arange(num_envs), sample)
        self.commands = np.empty((num_envs, num_robots, 2))
        self.commands[..., 0] = rng.uniform(0.5, 1.0, (num_envs, num_robots))
        self.commands[..., 1] = rng.choice([-1, 1], (num_envs, num_robots)) * rng.uniform(
            0.5, 2.0, (num_envs, num_robots)
        )
        self.active = np.ones(num_envs, dtype=np.bool_)

    def block(self, steps: int) -> float:
        """CPU seconds of so many steps."""
        start = time.process_time()
        for _ in range(steps):
            self.dynamics.step(self.commands, self.active)
        return time.process_time() - start

    def moving(self) -> float:
        """Share of robots that moved in the last step."""
        return float((np.abs(self.dynamics.state.linear_velocity).sum(axis=-1) > 0).mean())

    def close(self) -> None:
        """Frees what it holds."""
        self.dynamics.close()


class FullStep:
    """`FleetVectorEnv`: everything a learner gets."""

    def __init__(self, num_envs: int, num_robots: int, **task_kwargs: Any) -> None:
        from fleet_gym import FleetVectorEnv

        self.env = FleetVectorEnv(num_envs, num_robots=num_robots, robot="diffbot", task_kwargs=task_kwargs)
        self.env.reset(seed=0)
        rng = np.random.default_rng(0)
        self.actions = rng.uniform(-1, 1, (16, *self.env.action_space.shape)).astype(np.float32)
        self.actions[..., 0] = np.abs(self.actions[..., 0])
        for action in self.actions[:3]:
            self.env.step(action)

    def block(self, steps: int) -> float:
        """CPU seconds of so many steps, autoresets among them."""
        start = time.process_time()
        for n in range(steps):
            self.env.step(self.actions[(n // 5) % len(self.actions)])
        return time.process_time() - start

    def moving(self) -> float:
        """Share of robots that moved in the last step."""
        return float((np.abs(self.env.state.linear_velocity).sum(axis=-1) > 0).mean())

    def close(self) -> None:
        """Frees what it holds."""
        self.env.close()


class Peer:
    """A peer's process: reads a number of steps, answers with CPU seconds."""

    def __init__(self, python: Path, script: str, *arguments: int) -> None:
        command = [str(python), str(HERE / "peers" / script), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def block(self, steps: int) -> float:
        """CPU seconds of so many steps of all its worlds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"the peer ended with {self._process.wait()}")

    def close(self) -> None:
        """Frees what it holds."""
        self._process.communicate("0\n")


def make_venv(folder: Path, *packages: str) -> Path:
    """Makes a virtual environment with some packages, unless it is there; returns its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "complete").touch()
    return python


def measure(
    ours: Any, peer: Peer | None, num_envs: int, num_robots: int, repeats: int, peer_envs: int
) -> dict[str, Any]:
    """Alternates blocks of both and compares the medians of their rates, robot-steps per CPU second."""
    own_steps = steps_per_block(num_envs, num_robots)
    peer_steps = max(3, 30_000 // (peer_envs * num_robots))
    own, other = [], []
    for n in range(repeats + 1):
        own.append(own_steps * num_envs * num_robots / ours.block(own_steps))
        if peer is not None:
            other.append(peer_steps * peer_envs * num_robots / peer.block(peer_steps))
        if n == 0:  # warm-up
            own, other = [], []
    row = {
        "ours": statistics.median(own),
        "ms_per_step": 1e3 * num_envs * num_robots / statistics.median(own),
        "moving": ours.moving(),
    }
    if peer is not None:
        row["peer"] = statistics.median(other)
        row["ratio"] = statistics.median(a / b for a, b in zip(own, other, strict=True))
        row["ratio_min"] = min(a / b for a, b in zip(own, other, strict=True))
        row["ratio_max"] = max(a / b for a, b in zip(own, other, strict=True))
    return row


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    pybullet_fleet = None
    if not options.no_peers:
        pybullet_fleet = make_venv(options.venvs / "pybullet_fleet", "pybullet-fleet==0.8.0")
    for num_envs, num_robots, full, promise in ROWS:
        peer_envs = min(num_envs, PEER_WORLDS)
        peer = Peer(pybullet_fleet, "pybullet_fleet_blocks.py", peer_envs, num_robots) if pybullet_fleet else None
        ours = FullStep(num_envs, num_robots) if full else Motion(num_envs, num_robots)
        row = measure(ours, peer, num_envs, num_robots, options.repeats, peer_envs)
        rows.append({"what": "full env step" if full else "motion", "worlds": num_envs, "robots": num_robots, **row})
        rows[-1]["promised"] = promise
        ours.close()
        if peer is not None:
            peer.close()
    rows += [growth(options.repeats), map_growth(options.repeats)]
    if options.vmas and not options.no_peers:
        rows.append(against_vmas(options))
    return rows


class MapMotion(Motion):
    """As `Motion`, beside a map of so many boxes, of which every robot meets the same number."""

    def __init__(self, num_boxes: int) -> None:
        from fleet_gym.world.scene import BodySpec, Shape

        side = int(np.sqrt(num_boxes))
        boxes = [BodySpec(f"box{n}", "obstacle", Shape("box", (0.3, 0.3, 1.0))) for n in range(side * side)]
        places = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2) + 0.5
        super().__init__(1, 64, boxes, places)


def map_growth(repeats: int) -> dict[str, Any]:
    """Cost per robot-step beside 10,000 boxes, relative to 100; blocks taken in turns."""
    small, large = MapMotion(100), MapMotion(10_000)
    pairs = [(small.block(500) / 32_000, large.block(500) / 32_000) for _ in range(repeats + 1)][1:]
    return {
        "what": "cost per robot, map of 10,000 : 100 boxes",
        "worlds": 1,
        "robots": 64,
        "ours": 1 / statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "promised": 1.5,
    }


def growth(repeats: int) -> dict[str, Any]:
    """Cost per robot-step with 10,000 robots in a world, relative to 1,000; blocks taken in turns."""
    small, large = Motion(1, 1000), Motion(1, 10_000)
    pairs = [(small.block(100) / 100_000, large.block(20) / 200_000) for _ in range(repeats + 1)][1:]
    return {
        "what": "cost per robot, 10,000 : 1,000",
        "worlds": 1,
        "robots": 10_000,
        "ours": 1 / statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "promised": 1.5,
    }


def against_vmas(options: argparse.Namespace) -> dict[str, Any]:
    """VMAS navigation with lidar, 1,024 worlds of 4 agents, one torch thread."""
    python = make_venv(options.venvs / "vmas", "vmas", options.torch)
    peer = Peer(python, "vmas_blocks.py", 1024, 4)
    ours = FullStep(1024, 4, num_obstacles=0, lidar_rays=12)
    row = measure(ours, peer, 1024, 4, options.repeats, 1024)
    ours.close()
    peer.close()
    return {
        "what": "full env step with lidar, against VMAS",
        "worlds": 1024,
        "robots": 4,
        **row,
        "promised": VMAS_PROMISE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--venvs", type=Path, default=Path(tempfile.gettempdir()) / "fleet-gym-benchmarks")
    parser.add_argument("--no-peers", action="store_true", help="measure fleet_gym only")
    parser.add_argument("--vmas", action="store_true", help="compare with VMAS, too (installs torch)")
    parser.add_argument("--torch", default="torch", help="what pip installs for VMAS, for example torch==2.8.0+cpu")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    rows = run(options)
    table = Table("what", "worlds", "robots", "robot-steps / CPU s", "peer", "ratio (min-max)", "promised", "moving")
    for row in rows:
        spread = f"{row['ratio']:.3g}" if "ratio" in row else ""
        if "ratio_min" in row:
            spread += f" ({row['ratio_min']:.3g}-{row['ratio_max']:.3g})"
        table.add_row(
            row["what"],
            str(row["worlds"]),
            str(row["robots"]),
            f"{row['ours']:,.0f}",
            f"{row['peer']:,.0f}" if "peer" in row else "",
            spread,
            str(row["promised"]),
            f"{row['moving']:.2f}" if "moving" in row else "",
        )
    Console(width=140).print(table)
    if options.json:
        options.json.write_text(json.dumps({"python": sys.version, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
