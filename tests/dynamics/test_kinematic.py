"""Kinematic motion against closed forms, collisions against brute force and attempts to tunnel."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym.dynamics import kinematic
from fleet_gym.dynamics.kinematic import KinematicDynamics
from fleet_gym.world.robots import RobotModel, Wheels
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import WorldSample, yaw_quaternion

DT = 0.1
CYLINDER = BodySpec("pillar", "obstacle", Shape("cylinder", (0.4, 0.4, 1.0)))
BOX = BodySpec("crate", "obstacle", Shape("box", (1.0, 0.6, 1.0)))
EVERYWHERE = np.ones(1, dtype=bool)


def robot(**fields):
    defaults = {
        "urdf": "unused.urdf",
        "footprint_radius": 0.3,
        "base_height": 0.1,
        "height": 0.5,
        "num_joints": 0,
        "max_speed": 2.0,
        "max_turn_rate": 3.0,
        "max_acceleration": 1e6,
        "max_turn_acceleration": 1e6,
    }
    return RobotModel("test", **{**defaults, **fields})


def sample(poses, bodies=()):
    """One world; poses and bodies are rows of x, y, yaw."""
    poses, bodies = np.reshape(np.array(poses, float), (-1, 3)), np.reshape(np.array(bodies, float), (-1, 3))
    position, body_position = np.zeros((1, len(poses), 3)), np.zeros((1, len(bodies), 3))
    position[0, :, :2], body_position[0, :, :2] = poses[:, :2], bodies[:, :2]
    return WorldSample(
        position,
        yaw_quaternion(poses[None, :, 2]),
        np.ones((1, len(poses)), bool),
        body_position,
        yaw_quaternion(bodies[None, :, 2]),
        np.ones((1, len(bodies)), bool),
    )


def world(robots, poses, bodies=(), body_poses=(), **kwargs):
    scene = Scene(tuple(robots), tuple(bodies))
    dynamics = KinematicDynamics(scene, 1, control_dt=DT, **kwargs)
    dynamics.reset(np.arange(1), sample(poses, body_poses))
    return dynamics


def drive(dynamics, commands, steps=1):
    for _ in range(steps):
        dynamics.step(np.array([commands], dtype=float), EVERYWHERE)
    return dynamics.state


def yaw_of(state):
    return state.yaw()[0]


@pytest.mark.parametrize("heading", [0.0, 1.0, -2.5])
@pytest.mark.parametrize(("v", "omega"), [(1.0, 0.0), (1.0, 1e-12), (0.7, 1.3), (-0.5, 2.0), (0.0, 2.0)])
def test_a_unicycle_drives_the_arc_of_its_closed_form(v, omega, heading):
    state = drive(world([robot()], [(0.5, -0.25, heading)]), [(v, omega)], steps=10)
    time, turned = 10 * DT, omega * 10 * DT
    if abs(omega) < 1e-6:
        ahead, left = v * time, v * omega * time * time / 2
    else:
        ahead, left = v / omega * np.sin(turned), v / omega * (1 - np.cos(turned))
    cos, sin = np.cos(heading), np.sin(heading)
    expected = [0.5 + cos * ahead - sin * left, -0.25 + sin * ahead + cos * left]
    np.testing.assert_allclose(state.position[0, 0, :2], expected, atol=1e-9)
    end = heading + turned
    np.testing.assert_allclose(yaw_of(state)[0], np.arctan2(np.sin(end), np.cos(end)), atol=1e-9)
    np.testing.assert_allclose(state.linear_velocity[0, 0], [v * np.cos(end), v * np.sin(end), 0], atol=1e-9)
    np.testing.assert_allclose(state.angular_velocity[0, 0], [0, 0, omega], atol=1e-12)


def test_an_omnidirectional_base_turns_while_it_slides():
    model = robot(drive="omnidirectional")
    state = drive(world([model], [(0, 0, 0.4)]), [(0.8, -0.6, 1.5)], steps=7)
    # The integral of a rotating constant vector, in complex numbers.
    turned = 1.5 * 7 * DT
    expected = (0.8 - 0.6j) * np.exp(0.4j) * (np.exp(1j * turned) - 1) / 1.5j
    np.testing.assert_allclose(state.position[0, 0, :2], [expected.real, expected.imag], atol=1e-9)


def test_a_car_circles_at_the_radius_of_its_steering_angle():
    wheels = Wheels(left=(0,), right=(1,), radius=0.05, track=0.2, steering=(2, 3), wheelbase=0.5)
    model = robot(drive="ackermann", wheels=wheels, max_steering=0.6)
    state = drive(world([model], [(0, 0, 0)]), [(1.0, 0.3)], steps=20)
    radius = 0.5 / np.tan(0.3)
    angle = 1.0 / radius * 20 * DT
    expected = [radius * np.sin(angle), radius * (1 - np.cos(angle))]
    np.testing.assert_allclose(state.position[0, 0, :2], expected, atol=1e-9)


def test_a_robot_turns_about_its_axle_not_its_origin():
    state = drive(world([robot(axle_offset=-0.2)], [(0, 0, 0)]), [(0.0, 1.0)], steps=5)
    # The axle stays at (-0.2, 0); the origin circles about it.
    expected = [-0.2 + 0.2 * np.cos(0.5), 0.2 * np.sin(0.5)]
    np.testing.assert_allclose(state.position[0, 0, :2], expected, atol=1e-9)
    velocity = [-0.2 * np.sin(0.5), 0.2 * np.cos(0.5), 0]
    np.testing.assert_allclose(state.linear_velocity[0, 0], velocity, atol=1e-9)


def test_a_robot_drives_along_its_forward_axis():
    state = drive(world([robot(forward_yaw=np.pi / 2)], [(0, 0, 0)]), [(1.0, 0.0)], steps=10)
    np.testing.assert_allclose(state.position[0, 0, :2], [0, 1], atol=1e-9)
    np.testing.assert_allclose(yaw_of(state), [0], atol=1e-12)


def test_acceleration_limits_bound_the_change_of_velocity_per_step():
    dynamics = world([robot(max_acceleration=2.0, max_turn_acceleration=5.0)], [(0, 0, 0)])
    speeds = [drive(dynamics, [(1.0, 1.0)]).linear_velocity[0, 0].copy() for _ in range(7)]
    np.testing.assert_allclose(np.linalg.norm(speeds, axis=1), [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0], atol=1e-9)
    assert drive(dynamics, [(-1.0, 0.0)]).linear_velocity[0, 0] @ speeds[-1] > 0, "a step command does not reverse"


def test_resting_worlds_stay_as_they_are():
    scene = Scene((robot(),))
    dynamics = KinematicDynamics(scene, 2, control_dt=DT)
    both = sample([(0, 0, 0)])
    dynamics.reset(np.arange(2), WorldSample(*(np.repeat(a, 2, axis=0) for a in vars(both).values())))
    commands = np.full((2, 1, 2), 0.5)
    dynamics.step(commands, np.ones(2, bool))
    frozen = dynamics.state.take(np.array([1]))
    dynamics.step(commands, np.array([True, False]))
    assert np.array_equal(dynamics.state.position[1], frozen.position[0])
    assert np.array_equal(dynamics.state.linear_velocity[1], frozen.linear_velocity[0])
    assert dynamics.state.position[0, 0, 0] > dynamics.state.position[1, 0, 0]


def test_a_head_on_meeting_ends_in_contact_and_motion_away_is_free():
    dynamics = world([robot(), robot()], [(-1, 0, 0), (1, 0, np.pi)])
    starts = 0
    for _ in range(10):
        state = drive(dynamics, [(2.0, 0), (2.0, 0)])
        starts += state.collision_starts[0]
    np.testing.assert_allclose(state.position[0, :, 0], [-0.3, 0.3], atol=1e-5)
    assert state.in_collision[0].all()
    assert starts == 1, "a lasting contact starts once"
    assert not state.linear_velocity[0].any()
    state = drive(dynamics, [(-1.0, 0), (2.0, 0)])
    np.testing.assert_allclose(state.position[0, 0, 0], -0.4, atol=1e-5)


def test_the_one_who_drives_away_is_not_held_by_the_one_who_follows():
    dynamics = world([robot(), robot()], [(0, 0, 0), (-0.61, 0, 0)])
    state = drive(dynamics, [(1.0, 0), (2.0, 0)], steps=5)
    np.testing.assert_allclose(state.position[0, 0, 0], 0.5, atol=1e-9)
    assert state.position[0, 0, 0] - state.position[0, 1, 0] >= 0.6


def test_rotation_goes_on_in_contact():
    dynamics = world([robot()], [(-0.7, 0, 0)], [CYLINDER], [(0, 0, 0)])
    state = drive(dynamics, [(2.0, 1.0)])
    assert state.in_collision[0, 0]
    np.testing.assert_allclose(yaw_of(state), [0.1], atol=1e-9)


@pytest.mark.parametrize("offset", np.linspace(-0.5, 0.5, 11))
def test_nobody_tunnels_through_a_robot(offset):
    """At 60 m/s two robots would swap places within one step; their discs meet for every offset here."""
    fast = robot(max_speed=60.0)
    dynamics = world([fast, fast], [(-2, offset, 0), (2, 0, np.pi)])
    state = drive(dynamics, [(60.0, 0), (60.0, 0)])
    gap = np.hypot(*(state.position[0, 0, :2] - state.position[0, 1, :2]))
    assert state.in_collision[0].all()
    assert state.position[0, 0, 0] < state.position[0, 1, 0]
    np.testing.assert_allclose(gap, 0.6, atol=1e-5)


@pytest.mark.parametrize("body", [CYLINDER, BOX])
@pytest.mark.parametrize("angle", np.linspace(0, np.pi, 7))
def test_nobody_tunnels_through_an_obstacle(body, angle):
    start = (-3 * np.cos(angle), -3 * np.sin(angle), angle)
    dynamics = world([robot(max_speed=100.0)], [start], [body], [(0, 0, 0.3)])
    state = drive(dynamics, [(100.0, 0)])
    assert state.in_collision[0, 0]
    assert state.position[0, 0, :2] @ np.array(start[:2]) > 0, "it is still on its side"


def test_reports_only_when_asked_to():
    dynamics = world([robot(), robot()], [(-1, 0, 0), (1, 0, np.pi)], collision_response="report")
    state = drive(dynamics, [(2.0, 0), (2.0, 0)], steps=4)
    assert state.in_collision[0].all()
    state = drive(dynamics, [(2.0, 0), (2.0, 0)], steps=10)
    assert not state.in_collision[0].any()
    np.testing.assert_allclose(state.position[0, :, 0], [1.8, -1.8], atol=1e-9)


def test_an_overlap_from_the_start_is_reported_and_can_be_left():
    dynamics = world([robot(), robot()], [(0, 0, 0), (0.4, 0, 0)])
    state = drive(dynamics, [(0, 0), (0, 0)])
    assert state.in_collision[0].all()
    assert state.collision_starts[0] == 1
    state = drive(dynamics, [(0, 0), (2.0, 0)], steps=2)
    assert not state.in_collision[0].any()


@pytest.mark.parametrize("response", ["stop", "report"])
@pytest.mark.parametrize("shape", [{}, {"footprint": "box", "footprint_bounds": (-0.3, -0.2, 0.3, 0.2)}])
def test_an_overlap_that_the_first_step_ends_is_reported_by_it(response, shape):
    robots = [robot(max_speed=20.0, **shape) for _ in range(3)]
    poses = [(0, 0, 0), (0.45, 0, 0), (0.6, 5.0, 0)]
    dynamics = world(robots, poses, [CYLINDER], [(0, 5, 0)], collision_response=response)
    state = drive(dynamics, [(0, 0), (10.0, 0), (10.0, 0)])
    assert state.position[0, 1, 0] > 1.4, "it has left"
    assert state.in_collision[0].all()
    assert state.collision_starts[0] == 2
    assert dynamics.contacts(0).tolist() == [[0, 1], [2, 3]]
    state = drive(dynamics, [(0, 0), (1.0, 0), (1.0, 0)])
    assert not state.in_collision[0].any()


def test_a_step_that_an_interrupt_ends_leaves_contacts_whole(monkeypatch):
    poses = [(0.5 * k, 0, 0) for k in range(40)]
    dynamics = world([robot() for _ in poses], poses)
    still = [(0, 0)] * len(poses)
    drive(dynamics, [(0, 0)] + [(2.0, 0)] * 39)
    few = dynamics.contacts(0)
    compiled = kinematic.step_worlds

    def interrupted(*arguments):
        compiled(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(kinematic, "step_worlds", interrupted)
    dynamics.state.position[0, :, :2] = 0.0
    with pytest.raises(KeyboardInterrupt):
        drive(dynamics, still)
    assert np.array_equal(dynamics.contacts(0), few)
    monkeypatch.undo()
    assert drive(dynamics, still).collision_starts[0] == 40 * 39 // 2 - len(few)
    assert len(dynamics.contacts(0)) == 40 * 39 // 2


def test_markers_and_inactive_bodies_are_not_touched():
    marker = BodySpec("goal", "marker", Shape("cylinder", (0.4, 0.4, 0.01)))
    dynamics = world([robot()], [(-1, 0, 0)], [marker, CYLINDER], [(0, 0, 0), (0, 0, 0)])
    placed = sample([(-1, 0, 0)], [(0, 0, 0), (0, 0, 0)])
    placed.body_active[0, 1] = False
    dynamics.reset(np.arange(1), placed)
    state = drive(dynamics, [(2.0, 0)], steps=10)
    np.testing.assert_allclose(state.position[0, 0, :2], [1, 0], atol=1e-9)


def brute_force_overlaps(state, radius, boxes):
    """Deepest overlap of discs with discs and boxes, by sampling the boxes' outlines finely."""
    position = state.position[0, :, :2]
    deepest = -np.inf
    for i in range(len(position)):
        for j in range(i):
            deepest = max(deepest, 2 * radius - np.hypot(*(position[i] - position[j])))
    for x, y, yaw in boxes:
        cos, sin = np.cos(yaw), np.sin(yaw)
        local = (position - [x, y]) @ np.array([[cos, -sin], [sin, cos]])
        half = np.array(BOX.shape.size[:2]) / 2
        outside = np.maximum(np.abs(local) - half, 0)
        deepest = max(deepest, (radius - np.hypot(*outside.T)).max())
    return deepest


def test_a_crowd_never_overlaps():
    """Random commands in a crowded arena, every step checked pair by pair."""
    rng = np.random.default_rng(5)
    num_robots = 12
    boxes = [(0, 0, 0.5), (2, 1, 1.1), (-2, -1, -0.4)]
    grid = [(x, y, rng.uniform(-3, 3)) for x in (-3, -1, 1, 3) for y in (-3, 3.0, 2.0)]
    dynamics = world([robot()] * num_robots, grid, [BOX, *(BodySpec(n, "obstacle", BOX.shape) for n in "ab")], boxes)
    touched = 0
    for _ in range(300):
        towards_middle = -dynamics.state.position[0, :, :2]
        bearing = np.arctan2(towards_middle[:, 1], towards_middle[:, 0]) - yaw_of(dynamics.state)
        turn = np.arctan2(np.sin(bearing), np.cos(bearing)) * 2 + rng.normal(0, 1, num_robots)
        commands = np.stack([rng.uniform(-0.5, 2, num_robots), np.clip(turn, -3, 3)], axis=-1)
        state = drive(dynamics, commands)
        touched += state.in_collision.sum()
        assert brute_force_overlaps(state, 0.3, boxes) <= 1e-9
    assert touched > 100, "the crowd is meant to be crowded"


def test_save_and_restore_are_exact():
    dynamics = world([robot(max_acceleration=1.0), robot()], [(-1, 0, 0), (0.5, 0.1, 3)], [BOX], [(0, 2, 0.2)])
    drive(dynamics, [(1.0, 0.5), (1.0, 0)], steps=3)
    saved = dynamics.save(np.arange(1))
    first = drive(dynamics, [(1.0, 0.5), (1.0, 0)], steps=9).take(np.arange(1))
    dynamics.restore(np.arange(1), saved)
    second = drive(dynamics, [(1.0, 0.5), (1.0, 0)], steps=9)
    for name, value in vars(first).items():
        assert np.array_equal(value, getattr(second, name)), name


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"collision_response: expected one of 'stop', 'report', got 'bounce'"):
        KinematicDynamics(Scene((robot(),)), 1, control_dt=DT, collision_response="bounce")
    with pytest.raises(ValueError, match=r"control_dt: expected a finite number > 0, got 0"):
        KinematicDynamics(Scene((robot(),)), 1, control_dt=0)
    free = BodySpec("ball", "free", Shape("sphere", (0.2, 0.2, 0.2)))
    with pytest.raises(ValueError, match="ball"):
        KinematicDynamics(Scene((robot(),), (free,)), 1, control_dt=DT)
