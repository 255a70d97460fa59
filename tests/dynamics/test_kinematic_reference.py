"""The compiled step against the same motion written with NumPy, one array expression per line of the model."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym.dynamics.kinematic import KinematicDynamics
from fleet_gym.world.robots import RobotModel, Wheels
from fleet_gym.world.scene import Scene
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
    """Positions (complex), driving directions and commanded twists of E worlds of `FLEET`, without collisions."""

    def __init__(self, position, yaw):
        self.origin = position[..., 0] + 1j * position[..., 1]
        self.heading = yaw + [robot.forward_yaw for robot in FLEET]
        self.velocity, self.turn = np.zeros(yaw.shape, complex), np.zeros(yaw.shape)

    def step(self, commands, dt):
        drive = np.array([robot.drive or "" for robot in FLEET])
        offset = np.array([robot.axle_offset for robot in FLEET])
        acceleration = np.array([robot.max_acceleration for robot in FLEET])
        turn_acceleration = np.array([robot.max_turn_acceleration for robot in FLEET])
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
