"""How much faster than TinyRenderer the rasterizer draws, on one core.

Run ``python benchmarks/rendering.py`` (``--quick`` for a short look, ``--part images|env|threads|start`` for one part,
``--json FILE`` to keep the figures). Figures are CPU time of the process (``time.process_time``), one thread, mean of
three views, TinyRenderer measured in the same run, rounds interleaved and the best of each taken, so that other load on
the machine shifts both sides alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.cameras import Camera
from fleet_gym.world.forward_kinematics import load_tree
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import FleetState, yaw_quaternion

SIZES = ((64, 64), (128, 128), (320, 240), (640, 480), (1280, 720))
WORLDS = (16, 16, 8, 4, 2)  # drawn by one call, per size
SCENES = {"r2d2": ("r2d2.urdf", 0.48), "kuka": ("kuka_iiwa/model.urdf", 0.0), "husky": ("husky/husky.urdf", 0.13)}
VIEWS = (
    {"position": (3.0, -2.5, 2.0), "target": (0.0, 0.0, 0.3)},
    {"position": (-3.0, -3.0, 1.5), "target": (0.0, 0.0, 0.3)},
    {"position": (0.0, 0.0, 5.0), "target": (0.0, 0.0, 0.0)},
)
#: Least ratios to TinyRenderer, per size.
MUST = {
    "r2d2": (65, 42, 32, 34, 32),
    "kuka": (65, 42, 32, 34, 32),
    "husky": (70, 45, 34, 28, 26),
    "cubes": (30, 26, 28, 30, 34),
    "r2d2 depth+seg": (60, 36, 25, 25, 24),
}


def fleet(name: str, worlds: int) -> tuple[Scene, FleetState]:
    """Five robots (or cubes) on the plane, posed differently in every world."""
    rng = np.random.default_rng(0)
    places = np.array([[0, 0], [1, 0.8], [-1, 0.7], [0.9, -0.8], [-0.8, -1]])
    if name == "cubes":
        cube = Shape("box", (0.3, 0.3, 0.3))
        scene = Scene((), tuple(BodySpec(f"cube{i}", "obstacle", cube, (0.2, 0.4, 0.8, 1.0)) for i in range(5)))
        state = FleetState.allocate(worlds, scene)
        state.body_position[:, :, :2] = places + rng.normal(size=(worlds, 5, 2)) * 0.1
        state.body_position[..., 2] = 0.15
        state.body_active[:] = True
        return scene, state
    urdf, height = SCENES[name]
    path = os.path.join(pybullet_data_path(), urdf)
    scene = Scene((RobotModel(name, path, num_joints=load_tree(path).num_joints),) * 5)
    state = FleetState.allocate(worlds, scene)
    state.position[:, :, :2] = places + rng.normal(size=(worlds, 5, 2)) * 0.1
    state.position[..., 2] = height
    state.orientation[:] = yaw_quaternion(rng.uniform(-3, 3, (worlds, 5)))
    state.joint_position[:] = rng.uniform(-0.5, 0.5, state.joint_position.shape)
    return scene, state


def cpu_seconds(function: Callable[[], object], repeats: int) -> float:
    """CPU seconds of one call, averaged over `repeats` calls."""
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats


def image_times(name: str, size: int, rounds: int, threads: int = 1) -> dict[str, float]:
    """CPU ms per image: TinyRenderer, rasterizer, and rasterizer with depth and segmentation."""
    (width, height), worlds = SIZES[size], WORLDS[size]
    scene, state = fleet(name, worlds)
    tiny, raster = TinyRenderer(scene), RasterRenderer(scene, threads=threads)
    color = [Camera(f"c{i}", width, height, **view) for i, view in enumerate(VIEWS)]
    every = [
        Camera(f"c{i}", width, height, modalities=("rgb", "depth", "segmentation"), **view)
        for i, view in enumerate(VIEWS)
    ]
    all_worlds, first = np.arange(worlds), np.arange(1)
    images, more, one = allocate_images(color, worlds), allocate_images(every, worlds), allocate_images(color, 1)
    jobs = {
        "tiny": (lambda: tiny.render(state, first, color, one), len(VIEWS)),
        "raster": (lambda: raster.render(state, all_worlds, color, images), len(VIEWS) * worlds),
        "raster depth+seg": (lambda: raster.render(state, all_worlds, every, more), len(VIEWS) * worlds),
    }
    best = dict.fromkeys(jobs, float("inf"))
    for job, _ in jobs.values():
        job()
    # Every measurement takes as long as TinyRenderer's: the processor's speed changes within a second.
    alone = {key: cpu_seconds(job, 1) for key, (job, _) in jobs.items()}
    repeats = {key: max(1, round(alone["tiny"] / seconds)) for key, seconds in alone.items()}
    for _ in range(rounds):
        for key, (job, count) in jobs.items():
            best[key] = min(best[key], 1e3 * cpu_seconds(job, repeats[key]) / count)
    tiny.close()
    raster.close()
    return best


def images_part(rounds: int) -> list[dict[str, Any]]:
    """The table of ratios."""
    rows = []
    for name in ("r2d2", "kuka", "husky", "cubes"):
        for size, (width, height) in enumerate(SIZES):
            ms = image_times(name, size, rounds)
            for column, key in ((name, "raster"), (f"{name} depth+seg", "raster depth+seg")):
                ratio = ms["tiny"] / ms[key]
                must = MUST[column][size] if column in MUST else None
                row = {"scene": column, "size": f"{width}x{height}", "tiny_ms": ms["tiny"], "raster_ms": ms[key]}
                rows.append({**row, "ratio": ratio, "must": must})
                verdict = "" if must is None else f"must {must:3d} {'ok' if ratio >= must else 'MISSED'}"
                print(
                    f"{column:16s} {width:4d}x{height:<4d} tiny {ms['tiny']:8.2f} ms  raster {ms[key]:7.3f} ms"
                    f"  {ratio:6.1f}x  {verdict}",
                    flush=True,
                )
    return rows


def env_part(rounds: int) -> list[dict[str, Any]]:
    """`render_cameras` of a kinematic env, and a whole step in physics."""
    from fleet_gym import FleetVectorEnv

    def cameras(width: int, height: int, count: int) -> list[dict[str, Any]]:
        return [
            {"name": f"c{i}", "width": width, "height": height, "position": VIEWS[i]["position"], "target": (0, 0, 0.3)}
            for i in range(count)
        ]

    rows = []
    for worlds, (width, height), must in ((8, (64, 64), 45), (4, (320, 240), 24), (1, (1280, 720), 24)):
        envs = {}
        for renderer in ("tiny", "raster"):
            envs[renderer] = FleetVectorEnv(
                worlds,
                num_robots=5,
                robot="r2d2",
                cameras=cameras(width, height, 2),
                camera_obs=False,
                renderer=renderer,
            )
            envs[renderer].reset(seed=0)
            envs[renderer].unwrapped.render_cameras()
        best = dict.fromkeys(envs, float("inf"))
        for _ in range(rounds):
            for key, env in envs.items():
                best[key] = min(best[key], 1e3 * cpu_seconds(env.unwrapped.render_cameras, 3 if width == 64 else 1))
        for env in envs.values():
            env.close()
        ratio = best["tiny"] / best["raster"]
        rows.append({"render_cameras": f"{worlds} worlds {width}x{height}", **best, "ratio": ratio, "must": must})
        print(f"render_cameras {worlds} worlds x 2 cameras {width}x{height}: {ratio:.1f}x (must {must})", flush=True)

    envs = {}
    for renderer in ("tiny", "raster"):
        envs[renderer] = FleetVectorEnv(
            16, num_robots=5, robot="r2d2", dynamics="physics", control_dt=4 / 240, renderer=renderer,
            cameras=cameras(64, 64, 3),
        )  # fmt: skip
        envs[renderer].reset(seed=0)
    action = np.zeros(envs["raster"].action_space.shape, dtype=np.float32)
    jobs = {key: (lambda env=env: env.step(action)) for key, env in envs.items()}
    jobs["drawing"] = envs["raster"].unwrapped.render_cameras
    seconds = dict.fromkeys(jobs, float("inf"))
    for _ in range(2 * rounds):
        for key, job in jobs.items():
            seconds[key] = min(seconds[key], cpu_seconds(job, 1))
    for env in envs.values():
        env.close()
    share = seconds["drawing"] / seconds["raster"]
    rows.append({"physics_step": seconds, "rendering_share": share, "ratio": seconds["tiny"] / seconds["raster"]})
    print(
        f"physics step, 16 worlds x 3 cameras 64x64, 5 r2d2, 4 substeps: {1e3 * seconds['raster']:.1f} ms, rendering "
        f"{100 * share:.0f} % of it (must <= 20), {seconds['tiny'] / seconds['raster']:.1f}x tiny's (must 9)",
        flush=True,
    )
    return rows


def threads_part(rounds: int) -> list[dict[str, Any]]:
    """Wall time of two threads against one; only meaningful on idle cores."""
    rows = []
    for size in (0, 2, 4):
        (width, height), worlds = SIZES[size], WORLDS[size]
        scene, state = fleet("r2d2", worlds)
        cameras = [Camera(f"c{i}", width, height, **view) for i, view in enumerate(VIEWS)]
        images = allocate_images(cameras, worlds)
        best = {}
        for threads in (1, 2):
            raster = RasterRenderer(scene, threads=threads)
            raster.render(state, np.arange(worlds), cameras, images)
            times = []
            for _ in range(4 * rounds):
                start = time.perf_counter()
                raster.render(state, np.arange(worlds), cameras, images)
                times.append(time.perf_counter() - start)
            best[threads] = min(times)
            raster.close()
        rows.append({"size": f"{width}x{height}", "wall_1": best[1], "wall_2": best[2], "speedup": best[1] / best[2]})
        print(
            f"two threads {width}x{height}: {best[1] / best[2]:.2f}x the speed of one (load {os.getloadavg()[0]:.1f})"
        )
    return rows


_START = """
import time
import numpy as np
import benchmarks_rendering as b
scene, state = b.fleet("husky", 1)
import fleet_gym.rendering._raster_kernel, fleet_gym.world._kinematics_kernel, PIL.Image
cameras = [b.Camera("c", 64, 64, **b.VIEWS[0])]
cpu, wall = time.process_time(), time.perf_counter()
renderer = b.RasterRenderer(scene)
meshes = time.process_time() - cpu
renderer.render(state, np.arange(1), cameras, b.allocate_images(cameras, 1))
print(time.process_time() - cpu, time.perf_counter() - wall, meshes)
"""


def start_part(_rounds: int) -> list[dict[str, Any]]:
    """First use (nothing cached) and warm start (kernel and meshes on disk), beyond imports, in fresh processes."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        here = os.path.abspath(__file__)
        os.symlink(here, os.path.join(folder, "benchmarks_rendering.py"))
        caches = {
            "NUMBA_CACHE_DIR": os.path.join(folder, "numba"),
            "FLEET_GYM_CACHE_DIR": os.path.join(folder, "meshes"),
        }
        for label in ("first use", "warm start", "warm start"):
            output = subprocess.run(
                [sys.executable, "-c", _START], env={**os.environ, **caches, "PYTHONPATH": folder}, check=True,
                capture_output=True, text=True,
            ).stdout.split()  # fmt: skip
            cpu, wall, meshes = (float(word) for word in output)
            rows.append({"start": label, "cpu_s": cpu, "wall_s": wall, "meshes_cpu_s": meshes})
            print(f"{label}: {cpu:.2f} s CPU ({meshes:.2f} s of it for meshes), {wall:.2f} s wall", flush=True)
    return rows


PARTS = {"images": images_part, "env": env_part, "threads": threads_part, "start": start_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=sorted(PARTS), help="measure this part only")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else 6
    results = {name: part(rounds) for name, part in PARTS.items() if arguments.part in (None, name)}
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
