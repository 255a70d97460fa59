"""What PyBullet keeps per cycle of common calls, in DIRECT mode. The table of docs/memory-profiling.md.

    python benchmarks/pybullet_leaks.py --out pybullet_leaks.json
    python benchmarks/pybullet_leaks.py --only "loadURDF r2d2, removeBody" "saveState"

Each case runs in a process of its own: a warm-up of a tenth, then ten readings of the C heap and of Python's blocks;
the figures are slopes over the last seven.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path, quiet_descriptors
from fleet_gym.testing import assert_no_leak

Cycle = Callable[[], object]


def reload_by_remove(path: str, **options: object) -> Callable[[], Cycle]:
    def make() -> Cycle:
        p, client = pybullet(), DirectClient()

        def cycle() -> None:
            p.removeBody(client.load_urdf(path, **options), physicsClientId=client.id)

        return cycle

    return make


def reload_by_reset_simulation() -> Cycle:
    p, client = pybullet(), DirectClient()

    def cycle() -> None:
        with quiet_descriptors():
            p.resetSimulation(physicsClientId=client.id)
            p.setAdditionalSearchPath(pybullet_data_path(), physicsClientId=client.id)
        client.load_urdf("r2d2.urdf")

    return cycle


def shape_only() -> Cycle:
    p, client = pybullet(), DirectClient()
    return lambda: p.createCollisionShape(p.GEOM_BOX, halfExtents=[1, 1, 1], physicsClientId=client.id)


def shape_body_remove() -> Cycle:
    p, client = pybullet(), DirectClient()

    def cycle() -> None:
        shape = p.createCollisionShape(p.GEOM_BOX, halfExtents=[1, 1, 1], physicsClientId=client.id)
        p.removeBody(p.createMultiBody(1, shape, physicsClientId=client.id), physicsClientId=client.id)

    return cycle


def body_of_shared_shape() -> Cycle:
    p, client = pybullet(), DirectClient()
    shape = p.createCollisionShape(p.GEOM_BOX, halfExtents=[1, 1, 1], physicsClientId=client.id)
    return lambda: p.removeBody(p.createMultiBody(1, shape, physicsClientId=client.id), physicsClientId=client.id)


def texture() -> Cycle:
    from PIL import Image

    p, client = pybullet(), DirectClient()
    path = Path(tempfile.mkdtemp()) / "texture.png"
    Image.new("RGB", (512, 512), (200, 30, 30)).save(path)
    return lambda: p.loadTexture(str(path), physicsClientId=client.id)


def state(removed: bool) -> Callable[[], Cycle]:
    def make() -> Cycle:
        p, client = pybullet(), DirectClient()
        client.load_urdf("plane.urdf")
        for x in range(3):
            client.load_urdf("r2d2.urdf", basePosition=[2 * x, 0, 0.5])

        def cycle() -> None:
            saved = p.saveState(physicsClientId=client.id)
            if removed:
                p.removeState(saved, physicsClientId=client.id)

        return cycle

    return make


def client(closed: bool) -> Callable[[], Cycle]:
    def make() -> Cycle:
        p = pybullet()

        def cycle() -> None:
            with quiet_descriptors():
                number = p.connect(p.DIRECT)
            if closed:
                p.disconnect(number)

        return cycle

    return make


def inverse_kinematics(function: str) -> Callable[[], Cycle]:
    def make() -> Cycle:
        p, client = pybullet(), DirectClient()
        arm = client.load_urdf("kuka_iiwa/model.urdf", useFixedBase=True)
        if function == "calculateInverseKinematics":
            return lambda: p.calculateInverseKinematics(arm, 6, [0.3, 0.2, 0.5], physicsClientId=client.id)
        targets = [[0.3, 0.2, 0.5]]
        return lambda: p.calculateInverseKinematics2(arm, [6], targets, physicsClientId=client.id)

    return make


def with_robot(call: str) -> Callable[[], Cycle]:
    def make() -> Cycle:
        p, client = pybullet(), DirectClient()
        client.load_urdf("plane.urdf")
        body = client.load_urdf("r2d2.urdf", basePosition=[0, 0, 0.5])
        joints = list(range(p.getNumJoints(body, physicsClientId=client.id)))
        saved = p.saveState(physicsClientId=client.id)
        calls: dict[str, Cycle] = {
            "stepSimulation": lambda: p.stepSimulation(physicsClientId=client.id),
            "restoreState": lambda: p.restoreState(stateId=saved, physicsClientId=client.id),
            "getJointStates": lambda: p.getJointStates(body, joints, physicsClientId=client.id),
            "getCameraImage": lambda: p.getCameraImage(64, 48, renderer=p.ER_TINY_RENDERER, physicsClientId=client.id),
            "getContactPoints": lambda: p.getContactPoints(physicsClientId=client.id),
        }
        return calls[call]

    return make


CASES: dict[str, tuple[int, Callable[[], Cycle]]] = {
    "loadURDF r2d2, removeBody": (300, reload_by_remove("r2d2.urdf")),
    "loadURDF kuka_iiwa, removeBody": (100, reload_by_remove("kuka_iiwa/model.urdf")),
    "loadURDF plane, removeBody": (500, reload_by_remove("plane.urdf")),
    "loadURDF sphere_small, removeBody": (500, reload_by_remove("sphere_small.urdf")),
    "resetSimulation, loadURDF r2d2": (100, reload_by_reset_simulation),
    "createCollisionShape box": (3000, shape_only),
    "createCollisionShape box, createMultiBody, removeBody": (3000, shape_body_remove),
    "createMultiBody of one shape, removeBody": (3000, body_of_shared_shape),
    "loadTexture, the same PNG of 512 x 512": (200, texture),
    "saveState": (300, state(removed=False)),
    "saveState, removeState": (300, state(removed=True)),
    "connect": (50, client(closed=False)),
    "connect, disconnect": (50, client(closed=True)),
    "calculateInverseKinematics": (2000, inverse_kinematics("calculateInverseKinematics")),
    "calculateInverseKinematics2": (2000, inverse_kinematics("calculateInverseKinematics2")),
    "stepSimulation": (3000, with_robot("stepSimulation")),
    "restoreState": (1000, with_robot("restoreState")),
    "getJointStates": (3000, with_robot("getJointStates")),
    "getCameraImage (tiny)": (200, with_robot("getCameraImage")),
    "getContactPoints": (3000, with_robot("getContactPoints")),
}


def measure(name: str) -> dict[str, float]:
    cycles, make = CASES[name]
    # Limits nothing exceeds: the figures are wanted, whatever they are.
    found = assert_no_leak(make(), cycles, max_native_bytes=sys.float_info.max, max_blocks=sys.float_info.max)
    return {"cycles": cycles, "native_bytes": found.native_bytes, "blocks": found.blocks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="CASE", help="cases to run")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case)))
        return
    figures = {}
    print(f"{'cycle':56}{'cycles':>8}{'native bytes':>14}{'blocks':>8}")
    for name in arguments.only:
        command = [sys.executable, __file__, "--case", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures[name] = row = json.loads(done.stdout.strip().splitlines()[-1])
        leaks = row["native_bytes"] > 512 or row["blocks"] > 0.9
        print(f"{name:56}{row['cycles']:8}{row['native_bytes']:14.0f}{row['blocks']:8.2f}{'  leak' * leaks}")
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
