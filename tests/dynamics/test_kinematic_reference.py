"""The compiled step against motion and collisions written with NumPy, one array expression per line of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collision_reference import Mover, sweep

from fleet_gym.dynamics.kinematic import KinematicDynamics
from fleet_gym.world.robots import RobotModel, Wheels
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import WorldSample, yaw_quaternion

WHEELS = Wheels(left=(0,), right=(1,), radius=0.05, track=0.2, steering=(2, 3), wheelbase=0.4)
FLEET = (
    RobotModel("a", "none", footprint_radius=0.2, height=0.4, max_speed=1.5, max_turn_rate=2.0),
    RobotModel("b", "none", "omnidirectional", footprint_radius=0.2, height=0.4, axle_offset=0.1, forward_yaw=0.5),
    RobotModel("c", "none", "ackermann", footprint_radius=0.2, height=0.4, axle_offset=-0.2, wheels=WHEELS),
    RobotModel("d", "none", None, footprint_radius=0.2, height=0.4),
    RobotModel("e", "none", footprint_radius=0.2, height=0.4, axle_offset=-0.1, max_turn_acceleration=9.0),
)


class Reference:
    """Positions (complex), driving directions and commanded twists of E worlds of robots, without collisions."""

    def __init__(self, position, yaw, fleet=FLEET):
        self.fleet = fleet
        self.origin = position[..., 0] + 1j * position[..., 1]
        self.heading = yaw + [robot.forward_yaw for robot in fleet]
        self.velocity, self.turn = np.zeros(yaw.shape, complex), np.zeros(yaw.shape)

    def step(self, commands, dt):
        drive = np.array([robot.drive or "" for robot in self.fleet])
        offset = np.array([robot.axle_offset for robot in self.fleet])
        acceleration = np.array([robot.max_acceleration for robot in self.fleet])
        turn_acceleration = np.array([robot.max_turn_acceleration for robot in self.fleet])
        wanted = commands[..., 0] + np.where(drive == "omnidirectional", 1j * commands[..., 1], 0)
        turn = np.where(drive == "omnidirectional", commands[..., 2], commands[..., 1])
        change = wanted - self.velocity
        self.velocity = self.velocity + change * np.minimum(1, acceleration * dt / np.maximum(np.abs(change), 1e-300))
        self.turn = np.clip(turn, self.turn - turn_acceleration * dt, self.turn + turn_acceleration * dt)
        self.velocity[..., drive == ""] = self.turn[..., drive == ""] = 0
        omega = np.where(drive == "ackermann", self.velocity.real * np.tan(self.turn) / WHEELS.wheelbase, self.turn)
        centre = self.origin + offset * np.exp(1j * self.heading)
        safe = np.where(omega == 0, 1, omega)
        arc = np.where(omega == 0, dt, (np.exp(1j * omega * dt) - 1) / (1j * safe))
        centre = centre + self.velocity * arc * np.exp(1j * self.heading)
        self.heading = self.heading + omega * dt
        self.origin = centre - offset * np.exp(1j * self.heading)
        self.speed = (self.velocity - 1j * offset * omega) * np.exp(1j * self.heading)
        self.omega = omega
        # How far the middle of each arc lies from its chord.
        self.sagitta = np.abs(self.velocity - 1j * offset * omega) / np.abs(safe) * (1 - np.cos(omega * dt / 2))


@pytest.mark.parametrize("dt", [0.05, 0.5])
def test_motion_equals_the_numpy_reference(dt):
    rng = np.random.default_rng(0)
    num_envs, num_robots = 6, len(FLEET)
    position, yaw = np.zeros((num_envs, num_robots, 3)), rng.uniform(-3, 3, (num_envs, num_robots))
    position[..., 0] = 1000.0 * np.arange(num_robots)  # nobody meets
    none = np.zeros((num_envs, 0), bool)
    sample = WorldSample(
        position,
        yaw_quaternion(yaw),
        np.ones((num_envs, num_robots), bool),
        np.zeros((num_envs, 0, 3)),
        np.zeros((num_envs, 0, 4)),
        none,
    )
    dynamics = KinematicDynamics(Scene(FLEET), num_envs, control_dt=dt)
    dynamics.reset(np.arange(num_envs), sample)
    reference = Reference(position, yaw)
    for _ in range(60):
        commands = rng.uniform(-1, 1, (num_envs, num_robots, 3)) * dynamics.command_limits
        dynamics.step(commands, np.ones(num_envs, bool))
        reference.step(commands, dt)
        state = dynamics.state
        place = state.position[..., 0] + 1j * state.position[..., 1]
        np.testing.assert_allclose(place, reference.origin, atol=2e-10)
        turned = state.yaw() + [robot.forward_yaw for robot in FLEET] - reference.heading
        np.testing.assert_allclose(np.exp(1j * turned), 1, atol=1e-12)
        velocity = state.linear_velocity[..., 0] + 1j * state.linear_velocity[..., 1]
        np.testing.assert_allclose(velocity, reference.speed, atol=1e-12)
        np.testing.assert_allclose(state.angular_velocity[..., 2], reference.omega, atol=1e-12)


ROOM = (
    BodySpec("marker", "marker", Shape("cylinder", (0.5, 0.5, 0.1))),
    BodySpec("box", "obstacle", Shape("box", (1.2, 0.5, 1.0))),
    BodySpec("pillar", "obstacle", Shape("cylinder", (0.3, 0.3, 1.0))),
    BodySpec("wall", "obstacle", Shape("box", (6.0, 0.1, 1.0))),
    BodySpec("shelf", "obstacle", Shape("box", (1.0, 1.0, 0.2))),
)
PLACES = np.array([(0, 0, 0), (2.2, 0.3, 0.5), (-1.1, 1.8, 0.5), (0, -1.5, 0.5), (0.5, 1.8, 0.55)])


def crowd(kind):
    """Twelve robots of all drives: discs, boxes or both."""
    robots = []
    for n in range(12):
        is_box = kind == "boxes" or (kind == "both" and n % 2 == 0)
        shape = {"footprint": "box", "footprint_bounds": (-0.2, -0.15, 0.4, 0.15)} if is_box else {}
        limits = {"max_acceleration": 15.0, "max_turn_acceleration": 20.0, "height": 0.3 + 0.05 * n}
        robots.append(replace(FLEET[n % len(FLEET)], **shape, **limits))
    return tuple(robots)


class World:
    """Stops and contacts of one world, from where its robots are before a step and what they want in it."""

    def __init__(self, fleet, yaws, margin):
        self.fleet, self.margin = fleet, margin
        self.obstacles, self.heights = [], []
        for n, yaw in enumerate(yaws):
            if n == 0:  # the marker
                continue
            (x, y, z), (length, width, height) = PLACES[n], ROOM[n].shape.size
            is_box = ROOM[n].shape.kind == "box"
            corners = rectangle(-length / 2, -width / 2, length / 2, width / 2) if is_box else [0]
            self.obstacles.append(Mover(corners, margin / 2 + (0 if is_box else length), x + 1j * y, yaw))
            self.heights.append((z - height / 2, z + height / 2))

    def sweep(self, origin, yaw, displacement, turn, sagitta, respond):
        movers = []
        for n, robot in enumerate(self.fleet):
            is_box = robot.footprint == "box"
            corners = rectangle(*robot.footprint_bounds) if is_box else [0]
            radius = self.margin / 2 + (0 if is_box else robot.footprint_radius)
            movers.append(Mover(corners, radius, origin[n], yaw[n], displacement[n], turn[n] if is_box else 0.0))
        reach = [np.abs(m.corners).max() + m.radius + np.abs(m.displacement) + 0.1 for m in movers + self.obstacles]
        places = np.array([mover.origin for mover in movers + self.obstacles])
        heights = [(0.0, robot.height) for robot in self.fleet] + self.heights
        count = len(self.fleet)
        pairs = [(i, count + b) for i in range(count) for b in range(len(self.obstacles))]
        pairs += [(i, j) for i in range(count) for j in range(i + 1, count)]
        pairs = [(i, j) for i, j in pairs if np.abs(places[i] - places[j]) < reach[i] + reach[j]]
        meet = [(i, j) for i, j in pairs if heights[i][0] <= heights[j][1] and heights[j][0] <= heights[i][1]]
        return sweep(movers + self.obstacles, sagitta, meet, respond)


def rectangle(low_x, low_y, high_x, high_y):
    return [low_x + 1j * low_y, high_x + 1j * low_y, high_x + 1j * high_y, low_x + 1j * high_y]


@pytest.mark.parametrize(
    ("kind", "response", "margin"),
    [("discs", "stop", 0.0), ("boxes", "stop", 0.0), ("both", "stop", 0.1), ("both", "report", 0.0)],
)
def test_collisions_equal_the_numpy_reference(kind, response, margin):
    rng = np.random.default_rng(3)
    num_envs, dt, fleet = 2, 0.1, crowd(kind)
    count = len(fleet)
    position, yaw = np.zeros((num_envs, count, 3)), rng.uniform(-3, 3, (num_envs, count))
    position[..., :2] = 0.9 * np.stack(np.meshgrid(np.arange(4), np.arange(3)), axis=-1).reshape(-1, 2) - (1.4, 0.8)
    body_yaw = rng.uniform(-3, 3, (num_envs, len(ROOM)))
    sample = WorldSample(
        position,
        yaw_quaternion(yaw),
        np.ones((num_envs, count), bool),
        np.tile(PLACES, (num_envs, 1, 1)),
        yaw_quaternion(body_yaw),
        np.ones((num_envs, len(ROOM)), bool),
    )
    dynamics = KinematicDynamics(
        Scene(fleet, ROOM), num_envs, control_dt=dt, collision_response=response, contact_margin=margin
    )
    dynamics.reset(np.arange(num_envs), sample)
    worlds = [World(fleet, yaws, margin) for yaws in body_yaw]
    state, before, contacts = dynamics.state, [set(), set()], 0
    is_box = np.array([robot.footprint == "box" for robot in fleet])
    steers = np.array([robot.drive == "ackermann" for robot in fleet])
    for step in range(8):
        # Each step from the same start, so that a difference shows and does not grow.
        reference = Reference(state.position, state.yaw(), fleet)
        reference.velocity = dynamics._twist[..., 0] + 1j * dynamics._twist[..., 1]
        reference.turn = dynamics._twist[..., 2].copy()
        origin, old_yaw = reference.origin.copy(), state.yaw()
        commands = rng.uniform(-1, 1, (num_envs, count, 3)) * dynamics.command_limits
        commands[..., 0] = np.abs(commands[..., 0])
        dynamics.step(commands, np.ones(num_envs, bool))
        reference.step(commands, dt)
        turn = reference.omega * dt
        for e, world in enumerate(worlds):
            wanted = reference.origin[e] - origin[e]
            stop, touching = world.sweep(
                origin[e], old_yaw[e], wanted, turn[e], reference.sagitta[e], response == "stop"
            )
            stop = stop[:count]
            place = state.position[e, :, 0] + 1j * state.position[e, :, 1]
            np.testing.assert_allclose(place, origin[e] + stop * wanted, atol=1e-9, err_msg=f"step {step}")
            turned = old_yaw[e] + np.where(is_box, stop, 1.0) * turn[e] - state.yaw()[e]
            np.testing.assert_allclose(np.exp(1j * turned), 1, atol=1e-9)
            moving = stop == 1.0
            velocity = state.linear_velocity[e, :, 0] + 1j * state.linear_velocity[e, :, 1]
            np.testing.assert_allclose(velocity, np.where(moving, reference.speed[e], 0), atol=1e-9)
            np.testing.assert_allclose(
                dynamics._twist[e, :, 2], np.where(moving | ~is_box | steers, reference.turn[e], 0), atol=1e-12
            )
            pairs = {(i, j + (j >= count)) for i, j in touching}  # bodies count the marker, too
            assert {tuple(pair) for pair in dynamics.contacts(e).tolist()} == pairs
            assert state.collision_starts[e] == len(pairs - before[e])
            assert set(np.flatnonzero(state.in_collision[e])) == {n for pair in pairs for n in pair if n < count}
            before[e], contacts = pairs, contacts + len(pairs)
    assert contacts > 30
