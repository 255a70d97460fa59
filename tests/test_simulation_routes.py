"""Routes against closed forms: exact arrival, and the same motion whatever the step's size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fleet_gym.dynamics.base import Moves
from fleet_gym.dynamics.kinematic import KinematicDynamics
from fleet_gym.dynamics.route_kernel import profile, profile_time
from fleet_gym.simulation_routes import Routes
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import WorldSample, yaw_quaternion

NAN = math.nan
EVERYWHERE = np.ones(1, dtype=bool)


def model(drive="differential", **fields):
    defaults = {"footprint_radius": 0.2, "height": 0.5, "max_speed": 1.5, "max_turn_rate": 2.0}
    return RobotModel("test", "unused.urdf", drive, **{**defaults, **fields})


class World:
    """One kinematic world whose robots follow routes."""

    def __init__(self, robots, dt, bodies=(), body_poses=(), poses=None):
        self.dt = dt
        self.dynamics = KinematicDynamics(Scene(tuple(robots), tuple(bodies)), 1, control_dt=dt)
        self.routes = Routes(robots, lambda row, rng: np.array([*rng.uniform(-5, 5, 2), NAN]))
        poses = np.zeros((len(robots), 3)) if poses is None else np.array(poses, float)
        position, body_position = np.zeros((1, len(robots), 3)), np.zeros((1, len(bodies), 3))
        position[0, :, :2] = poses[:, :2]
        body_position[0, :, :2] = np.reshape(body_poses, (-1, 2))
        yaw = poses[None, :, 2] - [robot.forward_yaw for robot in robots]
        sample = WorldSample(
            position,
            yaw_quaternion(yaw),
            np.ones((1, len(robots)), bool),
            body_position,
            yaw_quaternion(np.zeros((1, len(bodies)))),
            np.ones((1, len(bodies)), bool),
        )
        self.dynamics.reset(np.arange(1), sample)
        self.commands = np.zeros((1, len(robots), self.dynamics.command_limits.shape[1]))

    def run(self, seconds):
        """The trajectory: x, y, yaw after each step."""
        way = []
        for _ in range(round(seconds / self.dt)):
            self.routes.prepare()
            self.dynamics.step(self.commands, EVERYWHERE, self.routes.plan(self.dt, self.dynamics.state))
            self.routes.after_step(self.dt)
            state = self.dynamics.state
            way.append([*state.position[0, 0, :2], state.yaw()[0, 0]])
        return np.array(way)


@pytest.mark.parametrize("distance", [0.0, 0.01, -0.5, 0.9, 1.0, -7.3])
def test_a_profile_is_the_integral_of_a_speed_within_its_limits(distance):
    speed, acceleration = 1.2, 0.8
    total = profile_time(distance, speed, acceleration)
    t = np.linspace(0, total, 20_001)
    position, velocity = np.array([profile(distance, speed, acceleration, s) for s in t]).T
    assert profile(distance, speed, acceleration, total) == (distance, 0.0)
    assert np.abs(velocity).max() <= speed + 1e-12
    if distance:
        assert np.abs(np.diff(velocity) / np.diff(t)).max() <= acceleration * (1 + 1e-6)
        integral = np.concatenate([[0], np.cumsum((velocity[1:] + velocity[:-1]) / 2 * np.diff(t))])
        np.testing.assert_allclose(position, integral, atol=1e-6)


@pytest.mark.parametrize("robot", [model(), model("omnidirectional"), model(axle_offset=-0.15, forward_yaw=0.7)])
@pytest.mark.parametrize("goal", [(3, 4, 1.0), (-2, 0.5, NAN), (0, 0, 2.5), (1e-7, 0, NAN)])
def test_goals_are_reached_exactly_and_at_rest(robot, goal):
    world = World([robot], 0.1, poses=[(0.2, -0.1, 0.3)])
    world.routes.follow(0, np.array([goal], dtype=float))
    way = world.run(14)
    np.testing.assert_allclose(way[-1, :2], goal[:2], atol=1e-12)
    if not math.isnan(goal[2]):
        np.testing.assert_allclose(math.remainder(way[-1, 2] + robot.forward_yaw - goal[2], 2 * np.pi), 0, atol=1e-12)
    state = world.dynamics.state
    assert not state.linear_velocity.any()
    assert not state.angular_velocity.any()
    assert world.routes.target(0) is None


@pytest.mark.parametrize("offset", [0.1, -0.1])
@pytest.mark.parametrize("ahead", [-0.02, 0.0, 0.05, 0.1, 0.15])
def test_nobody_turns_round_for_a_goal_beside_his_axle(offset, ahead):
    world = World([model(axle_offset=offset)], 0.02)
    world.routes.follow(0, np.array([(ahead, 0.0, NAN)]))
    way = world.run(4)
    np.testing.assert_allclose(way[-1, :2], (ahead, 0.0), atol=1e-12)
    if ahead >= min(0.0, offset):
        np.testing.assert_allclose(way[:, 2], 0.0, atol=1e-12)
        steps = np.diff(way[:, 0], prepend=0.0)
        assert np.abs(steps).sum() == pytest.approx(abs(ahead), abs=1e-9)


@pytest.mark.parametrize("drive", ["differential", "omnidirectional"])
def test_motion_does_not_depend_on_the_step_size(drive):
    path = np.array([(2, 0, NAN), (2, 1, 1.0), (0, 0, NAN), (-0.3, 0.2, 0.0)], dtype=float)
    ways = {}
    for dt in (0.02, 0.1, 0.5):
        world = World([model(drive, axle_offset=0.1)], dt)
        world.routes.follow(0, path, repeats=True)
        ways[dt] = world.run(40)
    np.testing.assert_allclose(ways[0.02][4::5], ways[0.1], atol=1e-9)
    np.testing.assert_allclose(ways[0.1][4::5], ways[0.5], atol=1e-9)


def test_a_differential_base_turns_then_drives_and_takes_the_time_it_must():
    robot = model(max_acceleration=1.0, max_turn_acceleration=2.0)
    world = World([robot], 0.01)
    world.routes.follow(0, np.array([(0.0, 3.0, NAN)]))
    way = world.run(6)
    turn, drive = profile_time(np.pi / 2, 2.0, 2.0), profile_time(3.0, 1.5, 1.0)
    turning = round(turn / 0.01)
    assert np.abs(way[: turning - 1, :2]).max() < 1e-12
    assert np.abs(way[:, 0]).max() < 1e-12, "straight"
    there = np.flatnonzero(way[:, 1] >= 3.0 - 1e-12)[0]
    assert there * 0.01 == pytest.approx(turn + drive, abs=0.011)


def test_speeds_are_those_of_the_motion():
    world = World([model("omnidirectional")], 0.001, poses=[(0, 0, 0.4)])
    world.routes.follow(0, np.array([(2.0, 1.0, -1.0)]))
    way = world.run(1.0)
    state = world.dynamics.state
    np.testing.assert_allclose(state.linear_velocity[0, 0, :2], (way[-1, :2] - way[-2, :2]) / 0.001, atol=2e-3)
    np.testing.assert_allclose(state.angular_velocity[0, 0, 2], (way[-1, 2] - way[-2, 2]) / 0.001, atol=2e-3)


def test_who_is_blocked_waits_and_arrives_once_the_way_is_free():
    world = World([model(), model()], 0.1, poses=[(0, 0, 0), (2, 0, np.pi / 2)])
    world.routes.follow(0, np.array([(4.0, 0.0, NAN)]))
    way = world.run(6)
    assert way[-1, 0] == pytest.approx(1.6, abs=1e-4)
    assert world.dynamics.state.in_collision[0].all()
    world.commands[0, 1, 0] = 1.0  # the other one drives away
    way = world.run(6)
    assert way[-1, 0] == pytest.approx(4.0, abs=1e-9)


def test_a_random_walk_is_its_seed_and_leaves_what_blocks_it():
    pillar = BodySpec("pillar", "obstacle", Shape("cylinder", (1.0, 1.0, 1.0)))
    ways = []
    for _ in range(2):
        world = World([model()], 0.1, [pillar], [(0, 0)], poses=[(-3, 0, 0)])
        world.routes.walk(0, (7, 0))
        ways.append(world.run(300))
    assert np.array_equal(*ways)
    late = ways[0][-1000:, :2]
    assert np.ptp(late, axis=0).min() > 2.0, "it still walks"


def test_moves_stay_out_of_the_way_of_commands():
    dynamics = KinematicDynamics(Scene((model(), model())), 1, control_dt=0.1)
    moves = Moves(np.zeros((1, 2, 8)), np.array([[False, True]]), np.zeros((1, 2), bool))
    moves.moves[0, 1, 0] = 0.5
    dynamics.state.position[0, 1, 1] = 2.0
    dynamics.step(np.full((1, 2, 2), [1.0, 0.0]), EVERYWHERE, moves)
    assert dynamics.state.position[0, 1, 0] == 0.5
    assert dynamics.state.position[0, 0, 0] == pytest.approx(0.01)  # 1 m/s^2 for 0.1 s
