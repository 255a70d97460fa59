"""Oriented boxes: gaps and times of contact against plain NumPy, and what follows for robots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collision_reference import Mover, entry, gap

from fleet_gym.dynamics.footprints import NO_CONTACT, mover_entry, mover_gap
from fleet_gym.dynamics.kinematic import KinematicDynamics
from fleet_gym.world.robots import RobotModel, robot_model
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import WorldSample, yaw_quaternion

CORNERS = np.array([-1 - 1j, 1 - 1j, 1 + 1j, -1 + 1j])
BOX = RobotModel(
    "box", "none", height=0.5, max_speed=2.0, max_acceleration=50.0, max_turn_rate=3.0, max_turn_acceleration=90.0,
    footprint="box", footprint_bounds=(-0.5, -0.2, 0.5, 0.2),
)  # fmt: skip


def random_mover(rng):
    length, width = rng.uniform(0.2, 0.8, 2)
    ahead, left = rng.uniform(-0.3, 0.3, 2)
    radius, turn = rng.uniform(0, 0.1), rng.uniform(-1, 1)
    corners = ahead + 1j * left + length * CORNERS.real + 1j * width * CORNERS.imag
    if rng.random() < 0.3:
        length = width = ahead = left = turn = 0.0
        radius, corners = rng.uniform(0.1, 0.5), [0j]
    x, y, yaw, dx, dy = rng.uniform([-1.5, -1.5, -3, -1, -1], [1.5, 1.5, 3, 1, 1])
    extent = np.hypot(abs(ahead) + length, abs(left) + width)
    row = np.array([x, y, yaw, dx, dy, turn, length, width, ahead, left, radius, extent])
    return row, Mover(corners, radius, x + 1j * y, yaw, dx + 1j * dy, turn)


def test_gaps_and_times_of_contact_equal_the_numpy_reference():
    rng = np.random.default_rng(0)
    met = apart = 0
    for _ in range(400):
        (a, ref_a), (b, ref_b) = random_mover(rng), random_mover(rng)
        at_a, at_b = rng.random(2)
        distance, nx, ny = mover_gap(a, at_a, b, at_b)
        assert distance == pytest.approx(gap(ref_a, at_a, ref_b, at_b)[0], abs=1e-12)
        assert np.hypot(nx, ny) == pytest.approx(1.0)
        stop_a, stop_b = rng.choice([1.0, rng.random()], 2)
        limit = rng.choice([1e-6, 0.1])
        t, expected = mover_entry(a, stop_a, b, stop_b, limit), entry(ref_a, stop_a, ref_b, stop_b, limit)
        assert t == pytest.approx(NO_CONTACT if expected is None else expected, abs=1e-9)
        met += expected is not None and expected > 0
        apart += distance > 0
    assert met > 50
    assert apart > 100


def drive(robots, poses, commands, *, bodies=(), places=(), steps=1, **kwargs):
    """The dynamics of one world after so many steps."""
    robots, num_robots = tuple(robots), len(poses)
    poses, places = np.array(poses, float), np.reshape(places, (-1, 3))
    position, body_position = np.zeros((1, num_robots, 3)), np.zeros((1, len(bodies), 3))
    position[0, :, :2], body_position[0, :, :2] = poses[:, :2], places[:, :2]
    dynamics = KinematicDynamics(Scene(robots, tuple(bodies)), 1, control_dt=0.1, **kwargs)
    sample = WorldSample(
        position,
        yaw_quaternion(poses[None, :, 2]),
        np.ones((1, num_robots), bool),
        body_position,
        yaw_quaternion(places[None, :, 2]),
        np.ones((1, len(bodies)), bool),
    )
    dynamics.reset(np.arange(1), sample)
    for _ in range(steps):
        dynamics.step(np.array([commands], float), np.ones(1, bool))
    return dynamics


def test_long_robots_pass_where_discs_would_not_and_stop_nose_to_nose():
    # Side by side, 0.45 m between centre lines: the boxes are 0.4 m wide, the discs around them 1.08 m.
    side_by_side = drive((BOX, BOX), [(-2, 0, 0), (2, 0.45, np.pi)], [(2, 0), (2, 0)], steps=20)
    np.testing.assert_allclose(side_by_side.state.position[0, :, 0], (2, -2))
    assert not side_by_side.state.in_collision.any()
    discs = tuple(replace(BOX, footprint="circle") for _ in range(2))
    assert drive(discs, [(-2, 0, 0), (2, 0.45, np.pi)], [(2, 0), (2, 0)], steps=20).state.in_collision.all()
    head_on = drive((BOX, BOX), [(-2, 0, 0), (2, 0.1, np.pi)], [(2, 0), (2, 0)], steps=20)
    np.testing.assert_allclose(head_on.state.position[0, :, 0], (-0.5, 0.5), atol=2e-6)
    assert head_on.state.in_collision.all()


def test_a_turn_ends_where_a_corner_meets_a_wall_and_backing_out_is_free():
    wall = BodySpec("wall", "obstacle", Shape("box", (10, 0.2, 1)))
    turned = drive((BOX,), [(0, 0, 0)], [(0, 1.0)], bodies=[wall], places=[(0, 0.4, 0)], steps=10)
    yaw = turned.state.yaw()[0, 0]
    # Where the front left corner is 0.3 m to the side: 0.5 sin(yaw) + 0.2 cos(yaw) = 0.3.
    assert 0.5 * np.sin(yaw) + 0.2 * np.cos(yaw) == pytest.approx(0.3, abs=2e-6)
    assert turned.state.in_collision[0, 0]
    assert turned.state.angular_velocity[0, 0, 2] == 0.0
    assert turned.contacts(0).tolist() == [[0, 1]]
    turned.step(np.array([[(0.0, -1.0)]]), np.ones(1, bool))
    assert turned.state.yaw()[0, 0] == pytest.approx(yaw - 0.1)
    for _ in range(10):
        turned.step(np.array([[(-1.0, 0.0)]]), np.ones(1, bool))
    assert not turned.state.in_collision[0, 0]


def test_a_box_that_turns_in_its_own_place_pushes_nobody_and_is_not_entered():
    # The neighbour is within the disc around the box, but beside it, until the box turns.
    neighbour = RobotModel("disc", "none", footprint_radius=0.2, height=0.5)
    start = [(0, 0, 0), (0, 0.45, 0)]
    resting = drive((BOX, neighbour), start, [(0, 0), (0, 0)])
    assert not resting.state.in_collision.any()
    turning = drive((BOX, neighbour), start, [(0, 3.0), (0, 0)], steps=10)
    assert turning.state.in_collision.all()
    np.testing.assert_array_equal(turning.state.position[0, 1, :2], start[1][:2])
    row = np.array([0, 0, turning.state.yaw()[0, 0], 0, 0, 0, 0.5, 0.2, 0, 0, 0.0, 0.6])
    other = np.array([0, 0.45, 0, 0, 0, 0, 0, 0, 0, 0, 0.2, 0.0])
    assert 0 <= mover_gap(row, 0.0, other, 0.0)[0] < 2e-6


def test_nobody_overlaps_however_crowded():
    rng = np.random.default_rng(4)
    robots = [replace(BOX, footprint_bounds=(-0.4, -0.2, 0.6, 0.2), footprint_radius=0.0) for _ in range(30)]
    poses = [(1.3 * (k % 6), 1.3 * (k // 6), rng.uniform(-3, 3)) for k in range(30)]
    dynamics = drive(robots, poses, np.zeros((30, 2)))
    state, ones = dynamics.state, np.ones(1, bool)
    rows = np.zeros((30, 12))
    rows[:, 6:10] = 0.5, 0.2, 0.1, 0.0

    def smallest_gap():
        rows[:, :2], rows[:, 2] = state.position[0, :, :2], state.yaw()[0]
        return min(mover_gap(rows[i], 0.0, rows[j], 0.0)[0] for i in range(30) for j in range(i))

    while smallest_gap() < 0:  # what overlaps when placed may leave
        dynamics.step(np.array([rng.uniform(-2, 2, (30, 2))]), ones)
    touched = 0
    for _ in range(60):
        dynamics.step(rng.uniform(-3, 3, (1, 30, 2)), ones)
        touched += int(state.in_collision.sum())
        assert smallest_gap() > -1e-7
    assert touched > 100


def test_box_models_are_measured_and_need_their_bounds():
    husky = robot_model("husky", footprint="box")
    low_x, low_y, high_x, high_y = husky.footprint_bounds
    # Wheels of 0.17775 m and margins at +-0.256 m and +-0.2854 m; bumpers reach further ahead.
    assert (low_x, high_x) == pytest.approx((-0.5037, 0.5037), abs=1e-3)
    assert (low_y, high_y) == pytest.approx((-0.3436, 0.3436), abs=1e-3)
    assert husky.footprint_radius == pytest.approx(np.hypot(high_x, high_y))
    assert robot_model(husky, footprint="circle") == robot_model("husky")
    assert robot_model(husky, footprint="box") == husky
    with pytest.raises(ValueError, match=r"robot\.footprint: expected one of 'circle', 'box', got 'square'"):
        robot_model("husky", footprint="square")
    with pytest.raises(ValueError, match=r"footprint_bounds: expected low x, low y, high x, high y in m, got \(1\.0"):
        replace(husky, footprint_bounds=(1.0, 0.0, 0.5, 1.0))
    with pytest.raises(ValueError, match="footprint_bounds: expected those of the box, got none"):
        KinematicDynamics(Scene((RobotModel("b", "none", footprint="box"),)), 1, control_dt=0.1)


@pytest.mark.parametrize("speed", [20.0, 2e3, 5e4, 5e5])
@pytest.mark.parametrize("start", [-3.0, -3.3, -7.1])
def test_no_box_is_too_fast_for_a_thin_wall_or_another_box(speed, start):
    fast = replace(BOX, max_speed=speed, max_acceleration=1e9)
    wall = BodySpec("wall", "obstacle", Shape("box", (0.02, 10, 1)))
    steps = 4 if speed < 100 else 1
    stopped = drive((fast,), [(start, 0, 0)], [(speed, 0)], bodies=[wall], places=[(0, 0, 0)], steps=steps)
    assert stopped.state.position[0, 0, 0] == pytest.approx(-0.51, abs=1e-5)
    assert stopped.state.in_collision[0, 0]
    head_on = drive((fast, fast), [(start, 0, 0), (-start, 0.1, np.pi)], [(speed, 0)] * 2, steps=steps)
    np.testing.assert_allclose(head_on.state.position[0, :, 0], (-0.5, 0.5), atol=1e-4)


def test_who_begins_inside_a_wall_does_not_leave_it_through_the_other_side():
    fast = replace(BOX, max_speed=2e3, max_acceleration=1e9)
    wall = BodySpec("wall", "obstacle", Shape("box", (0.02, 10, 1)))
    inside = drive((fast,), [(-0.4, 0, 0)], [(2e3, 0)], bodies=[wall], places=[(0, 0, 0)])
    assert inside.state.position[0, 0, 0] == -0.4
