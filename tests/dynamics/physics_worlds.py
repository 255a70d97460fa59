"""Scenes and samples shared by the tests of physics dynamics."""

from dataclasses import fields

import numpy as np

from fleet_gym._pybullet import pybullet
from fleet_gym.world.robots import robot_models
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import WorldSample, yaw_quaternion

PILLAR = BodySpec("pillar", "obstacle", Shape("cylinder", (0.3, 0.3, 1.0)))
CRATE = BodySpec("crate", "obstacle", Shape("box", (0.6, 0.4, 0.5)))
PARCEL = BodySpec("parcel", "free", Shape("box", (0.3, 0.3, 0.3)), mass=2.0)
BALL = BodySpec("ball", "free", Shape("sphere", (0.15, 0.15, 0.15)), mass=1.0)
GOAL = BodySpec("goal", "marker", Shape("cylinder", (0.2, 0.2, 0.02)))


def make_scene(robots, bodies=()):
    return Scene(robot_models(list(robots), len(robots)), tuple(bodies))


def make_sample(scene, robots, bodies=(), num_worlds=1):
    """Robots as (x, y, yaw), standing; bodies as (x, y), standing; the same in all worlds."""
    position = np.array([[x, y, model.base_height] for (x, y, _), model in zip(robots, scene.robots, strict=True)])
    yaw = np.array([yaw for _, _, yaw in robots], dtype=float)
    body_position = np.array(
        [[x, y, spec.shape.height / 2] for (x, y), spec in zip(bodies, scene.bodies, strict=True)]
    ).reshape(-1, 3)
    upright = yaw_quaternion(np.zeros(len(bodies)))

    def tile(array):
        return np.repeat(array[None], num_worlds, axis=0)

    return WorldSample(
        position=tile(position),
        orientation=tile(yaw_quaternion(yaw)),
        active=np.ones((num_worlds, len(robots)), dtype=bool),
        body_position=tile(body_position),
        body_orientation=tile(upright),
        body_active=np.ones((num_worlds, len(bodies)), dtype=bool),
    )


def drive(dynamics, commands, steps, worlds=None):
    """Steps with constant commands (R, A); yields the state after each step."""
    state = dynamics.state
    active = np.zeros(state.num_envs, dtype=bool)
    active[slice(None) if worlds is None else worlds] = True
    batch = np.broadcast_to(np.asarray(commands, dtype=float), (state.num_envs, *dynamics.command_limits.shape))
    for _ in range(steps):
        dynamics.step(batch.copy(), active)
        yield state


def rows_as_bytes(state, world):
    """Everything the state says about a world, to the last bit."""
    return b"".join(np.ascontiguousarray(getattr(state, f.name)[world]).tobytes() for f in fields(state))


def tilt_degrees(state):
    """(E, R) angle between each root link's z axis and the vertical."""
    x, y = state.orientation[..., 0], state.orientation[..., 1]
    return np.degrees(np.arccos(np.clip(1.0 - 2.0 * (x * x + y * y), -1.0, 1.0)))


def open_clients():
    """Ids of the PyBullet clients of this process."""
    p = pybullet()
    return {client for client in range(1024) if p.isConnected(client)}


def client_id(dynamics, world=0):
    return dynamics._worlds[world]._id
