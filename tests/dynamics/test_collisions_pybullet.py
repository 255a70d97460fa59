"""Who touches whom, against PyBullet's getClosestPoints on random scenes."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym._pybullet import DirectClient, pybullet
from fleet_gym.dynamics.kinematic import KinematicDynamics
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import WorldSample, yaw_quaternion

#: PyBullet's cylinders are hulls with a margin: gaps this close to the limit are not compared.
UNSURE = 0.004


def box_robot(rng, name):
    low, high = rng.uniform(-0.5, -0.05, 2), rng.uniform(0.05, 0.5, 2)
    return RobotModel(
        name, "none", height=rng.uniform(0.2, 0.6), footprint="box", footprint_bounds=(*low.tolist(), *high.tolist())
    )


def scene_of(rng, num_robots, num_boxes, num_cylinders, share_of_boxes=0.0):
    robots = tuple(
        box_robot(rng, f"box{n}")
        if n < share_of_boxes * num_robots
        else RobotModel(f"disc{n}", "none", footprint_radius=rng.uniform(0.1, 0.4), height=rng.uniform(0.2, 0.6))
        for n in range(num_robots)
    )
    shapes = [Shape("box", tuple(rng.uniform(0.2, 1.5, 3))) for _ in range(num_boxes)]
    for _ in range(num_cylinders):
        radius = rng.uniform(0.1, 0.6)
        shapes.append(Shape("cylinder", (radius, radius, rng.uniform(0.2, 1.0))))
    return Scene(robots, tuple(BodySpec(f"o{n}", "obstacle", shape) for n, shape in enumerate(shapes)))


def sample_of(rng, scene):
    robots, bodies = scene.num_robots, scene.num_bodies
    position, body_position = rng.uniform(-2, 2, (1, robots, 3)), rng.uniform(-2, 2, (1, bodies, 3))
    position[..., 2] = 0.0
    body_position[..., 2] = rng.uniform(0, 1.5, bodies)
    return WorldSample(
        position,
        yaw_quaternion(rng.uniform(-3, 3, (1, robots))),
        np.ones((1, robots), bool),
        body_position,
        yaw_quaternion(rng.uniform(-3, 3, (1, bodies))),
        np.ones((1, bodies), bool),
    )


def gaps_in_pybullet(scene, sample):
    """(i, k) -> distance, with k counted on over robots and bodies."""
    p, client = pybullet(), DirectClient()
    shapes, centres = [], []
    for robot, xyz, (_, _, z, w) in zip(scene.robots, sample.position[0], sample.orientation[0], strict=True):
        if robot.footprint == "circle":
            shapes.append(Shape("cylinder", (robot.footprint_radius, robot.footprint_radius, robot.height)))
            middle = 0j
        else:
            low_x, low_y, high_x, high_y = robot.footprint_bounds
            shapes.append(Shape("box", (high_x - low_x, high_y - low_y, robot.height)))
            middle = (low_x + high_x + 1j * (low_y + high_y)) / 2 * (w + 1j * z) ** 2
        centres.append(xyz + np.array([middle.real, middle.imag, robot.height / 2]))
    shapes += [body.shape for body in scene.bodies]
    centres += list(sample.body_position[0])
    turns = [*sample.orientation[0], *sample.body_orientation[0]]
    ids = []
    for shape, centre, turn in zip(shapes, centres, turns, strict=True):
        if shape.kind == "box":
            half = [s / 2 for s in shape.size]
            form = p.createCollisionShape(p.GEOM_BOX, halfExtents=half, physicsClientId=client.id)
        else:
            form = p.createCollisionShape(
                p.GEOM_CYLINDER, radius=shape.size[0], height=shape.size[2], physicsClientId=client.id
            )
        ids.append(p.createMultiBody(0, form, -1, centre, turn, physicsClientId=client.id))
    gaps = {}
    for i in range(scene.num_robots):
        for k in range(i + 1, len(ids)):
            points = p.getClosestPoints(ids[i], ids[k], 2.0, physicsClientId=client.id)
            gaps[i, k] = min((point[8] for point in points), default=np.inf)
    client.close()
    return gaps


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("boxes", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("num_robots", "margin"), [(12, 0.0), (60, 0.0), (12, 0.15)])
def test_contacts_are_those_of_pybullet(seed, num_robots, margin, boxes):
    rng = np.random.default_rng(seed)
    scene = scene_of(rng, num_robots, 8, 6, boxes)
    sample = sample_of(rng, scene)
    if margin:  # a margin counts in the plane only
        sample.body_position[..., 2] = 0.0
    dynamics = KinematicDynamics(scene, 1, control_dt=0.1, collision_response="report", contact_margin=margin)
    dynamics.reset(np.arange(1), sample)
    dynamics.step(np.zeros((1, num_robots, 2)), np.ones(1, bool))
    ours = {tuple(pair) for pair in dynamics.contacts(0).tolist()}
    compared = 0
    for pair, gap in gaps_in_pybullet(scene, sample).items():
        if abs(gap - margin) > UNSURE:
            assert (pair in ours) == (gap < margin), (pair, gap)
            compared += gap < margin
    assert compared >= 4
    assert dynamics.state.collision_starts[0] == len(ours)
    flagged = {i for pair in ours for i in pair if i < num_robots}
    assert set(np.flatnonzero(dynamics.state.in_collision[0]).tolist()) == flagged
