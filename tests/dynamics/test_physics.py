"""Physics dynamics: contacts, frames, arms, bodies that come and go, bad input, lifetimes."""

import gc
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from physics_worlds import (
    BALL,
    CRATE,
    GOAL,
    PARCEL,
    PILLAR,
    client_id,
    drive,
    make_sample,
    make_scene,
    open_clients,
    rows_as_bytes,
    tilt_degrees,
)

from fleet_gym._pybullet import DirectClient, pybullet
from fleet_gym.dynamics.physics import PhysicsDynamics, substeps
from fleet_gym.dynamics.physics_frames import mass_centre_to_root, root_to_mass_centre, rotate
from fleet_gym.dynamics.physics_world import PhysicsWorld
from fleet_gym.world.robots import RobotModel, robot_model
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import yaw_quaternion

FIRST = np.array([0])


@pytest.fixture
def make():
    """Makes dynamics that are closed after the test."""
    made = []

    def build(scene, num_envs=1, control_dt=0.1, **kwargs):
        made.append(PhysicsDynamics(scene, num_envs, control_dt=control_dt, **kwargs))
        return made[-1]

    yield build
    for dynamics in made:
        dynamics.close()


def record_every_contact(monkeypatch):
    """Makes worlds also look at every contact of every substep; returns the list of pairs found per control step."""
    original, found = PhysicsWorld.advance, []

    def advance(self, substeps, pairs):
        p = pybullet()
        number = {body.id: index for index, body in enumerate(self._bodies)}
        robots = len(self._slots)
        touched, everything = set(), set()
        for _ in range(substeps):
            touched.update(original(self, 1, pairs))
            for point in p.getContactPoints(physicsClientId=self._id):
                pair = tuple(sorted((number.get(point[1], -1), number.get(point[2], -1))))
                if 0 <= pair[0] < robots and point[9] > 0:
                    everything.add(pair)
        found.append(everything)
        return sorted(touched)

    monkeypatch.setattr(PhysicsWorld, "advance", advance)
    return found


# --- contact ---


def test_a_head_on_crash_is_flagged_once_and_only_for_those_in_it(make):
    scene = make_scene(["husky", "husky", "diffbot"])
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(-1.0, 0.0, 0.0), (1.0, 0.0, math.pi), (0.0, 3.0, 0.0)]))
    flags, starts, gaps = [], [], []
    for state in drive(dynamics, [(0.5, 0.0), (0.5, 0.0), (0.2, 0.0)], 20):
        flags.append(state.in_collision[0].copy())
        starts.append(int(state.collision_starts[0]))
        gaps.append(state.position[0, 1, 0] - state.position[0, 0, 0])
    flags = np.array(flags)
    first = int(flags[:, 0].argmax())
    # The bodies are 1.0074 m long: noses meet when the root links are that far apart, at 1 m/s of closing speed.
    assert gaps[first - 1] > 1.0074 > gaps[first] - 0.02
    assert not flags[:first].any()
    assert flags[first:, :2].all()
    assert not flags[:, 2].any()
    assert sum(starts) == 1
    assert starts[first] == 1


def test_a_contact_that_ended_can_begin_again(make):
    scene = make_scene(["diffbot"], [PILLAR])
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)], [(0.8, 0.0)]))
    starts = 0
    for speed, steps in ((0.5, 12), (-0.5, 8), (0.5, 20)):
        starts += sum(int(state.collision_starts[0]) for state in drive(dynamics, [(speed, 0.0)], steps))
    assert starts == 2


def test_rattling_contacts_begin_once(make):
    """A husky kicks the ball ahead of it again and again; within 0.1 s that is one contact."""
    scene = make_scene(["husky"], [BALL])
    dynamics = make(scene, control_dt=1 / 240)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)], [(0.9, 0.0)]))
    touching, starts = [], 0
    for count, state in enumerate(drive(dynamics, [(0.8, 0.2)], 480)):
        if state.in_collision[0, 0]:
            touching.append(count)
        starts += int(state.collision_starts[0])
    gaps = np.diff(touching)
    assert starts == 1 + np.count_nonzero(gaps > 24)
    assert starts < 1 + np.count_nonzero(gaps > 1)


def test_nearly_touching_is_not_touching(make):
    """PyBullet lists contact points before shapes meet."""
    scene = make_scene(["diffbot", "diffbot"])
    dynamics = make(scene)
    apart = 2 * scene.robots[0].footprint_radius + 0.001
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0), (apart, 0.0, 0.0)]))
    for state in drive(dynamics, np.zeros((2, 2)), 3):
        assert pybullet().getContactPoints(1, 2, physicsClientId=client_id(dynamics))
        assert not state.in_collision.any()


@pytest.mark.parametrize("spec", [PILLAR, CRATE])
def test_obstacles_stop_a_robot_and_do_not_move(make, spec):
    scene = make_scene(["diffbot"], [spec])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], [(1.0, 0.0)])
    dynamics.reset(FIRST, sample)
    list(drive(dynamics, [(1.0, 0.0)], 15))
    assert dynamics.state.in_collision[0, 0]
    assert dynamics.state.position[0, 0, 0] < 1.0 - 0.29 - 0.19
    np.testing.assert_array_equal(dynamics.state.body_position, sample.body_position)


@pytest.mark.parametrize("spec", [PARCEL, BALL])
def test_free_bodies_are_pushed(make, spec):
    scene = make_scene(["husky"], [spec])
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)], [(1.0, 0.0)]))
    collided = [bool(state.in_collision[0, 0]) for state in drive(dynamics, [(0.8, 0.0)], 15)]
    assert any(collided)
    assert not collided[0]
    assert dynamics.state.body_position[0, 0, 0] > 1.3
    assert dynamics.state.body_position[0, 0, 2] == pytest.approx(spec.shape.height / 2, abs=0.02)


def test_markers_are_driven_through(make):
    scene = make_scene(["diffbot"], [GOAL])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], [(0.5, 0.0)])
    dynamics.reset(FIRST, sample)
    for state in drive(dynamics, [(1.0, 0.0)], 15):
        assert not state.in_collision.any()
    assert dynamics.state.position[0, 0, 0] > 1.0
    np.testing.assert_array_equal(dynamics.state.body_position, sample.body_position)


def test_flags_agree_with_every_contact_of_every_substep(make, monkeypatch):
    """Only pairs in reach are asked about; that must not miss any."""
    found = record_every_contact(monkeypatch)
    scene = make_scene(["husky", "r2d2", "racecar"], [PILLAR, PARCEL, GOAL, CRATE])
    dynamics = make(scene)
    rng = np.random.default_rng(5)
    touching = 0
    for _ in range(5):
        spots = 1.1 * np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)])[rng.permutation(9)]
        robots = [(*spot, rng.uniform(-3, 3)) for spot in spots[:3]]
        dynamics.reset(FIRST, make_sample(scene, robots, spots[3:7]))
        commands = rng.choice([-1.0, 1.0], (3, 2)) * dynamics.command_limits
        for state in drive(dynamics, commands, 10):
            pairs = found.pop()
            expected = np.zeros(3, dtype=bool)
            expected[[i for pair in pairs for i in pair if i < 3]] = True
            np.testing.assert_array_equal(state.in_collision[0], expected)
            touching += len(pairs)
    assert touching > 10


def test_contact_is_seen_at_full_speed_over_long_control_steps(make, monkeypatch):
    found = record_every_contact(monkeypatch)
    scene = make_scene(["racecar", "racecar"], [PILLAR])
    dynamics = make(scene, control_dt=0.5)
    dynamics.reset(FIRST, make_sample(scene, [(-4.0, 0.0, 0.0), (4.0, 0.05, math.pi)], [(0.0, 2.0)]))
    seen = []
    for state in drive(dynamics, [(2.0, 0.0), (2.0, 0.0)], 6):
        assert state.in_collision[0].tolist() == [bool(found[-1])] * 2
        seen.append(bool(found[-1]))
    assert any(seen)
    assert not seen[0]


# --- bodies and robots that take no part ---


def test_inactive_robots_and_bodies_are_not_there(make):
    scene = make_scene(["diffbot", "husky"], [PILLAR, PARCEL])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0), (1.0, 0.0, 1.0)], [(2.0, 0.0), (2.5, 0.0)])
    sample.active[0, 1] = False
    sample.body_active[:] = False
    dynamics.reset(FIRST, sample)
    for state in drive(dynamics, [(1.0, 0.0), (1.0, 1.0)], 40):
        assert not state.in_collision.any()
    assert dynamics.state.position[0, 0, 0] > 3.0
    np.testing.assert_array_equal(dynamics.state.position[0, 1], sample.position[0, 1])
    np.testing.assert_array_equal(dynamics.state.orientation[0, 1], sample.orientation[0, 1])
    np.testing.assert_array_equal(dynamics.state.body_position, sample.body_position)
    for array in (dynamics.state.linear_velocity, dynamics.state.angular_velocity, dynamics.state.joint_velocity):
        assert not array[0, 1].any()


def test_parked_robots_do_not_fall_for_ever(make):
    scene = make_scene(["diffbot", "husky"])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0), (1.0, 0.0, 1.0)])
    sample.active[0, 1] = False
    dynamics.reset(FIRST, sample)
    list(drive(dynamics, np.zeros((2, 2)), 10))
    velocity, _ = pybullet().getBaseVelocity(2, physicsClientId=client_id(dynamics))
    assert abs(velocity[2]) < 2 * 9.81 * 0.1


def test_what_was_inactive_is_back_after_the_next_reset(make):
    scene = make_scene(["diffbot"], [PILLAR])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], [(1.0, 0.0)])
    gone = replace(sample, body_active=np.zeros((1, 1), dtype=bool))
    for chosen, expected in ((gone, False), (sample, True), (gone, False)):
        dynamics.reset(FIRST, chosen)
        list(drive(dynamics, [(1.0, 0.0)], 15))
        assert bool(dynamics.state.in_collision[0, 0]) is expected


# --- frames and poses ---


@pytest.mark.parametrize("name", ["husky", "r2d2", "racecar", "diffbot"])
def test_robots_stand_where_base_height_says(make, name):
    scene = make_scene([name])
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(0.3, -0.2, 0.5)]))
    list(drive(dynamics, [(0.0, 0.0)], 10))
    # A husky sinks 2.5 mm: its URDF makes its tyres soft.
    np.testing.assert_allclose(dynamics.state.position[0, 0], [0.3, -0.2, scene.robots[0].base_height], atol=0.003)
    np.testing.assert_allclose(dynamics.state.yaw()[0, 0], 0.5, atol=0.01)
    assert np.abs(dynamics.state.linear_velocity).max() < 0.01


def test_velocity_is_that_of_the_root_link_not_of_the_centre_of_mass(make):
    """diffbot's centre of mass is 3 cm behind its root link, which its axle is above."""
    scene = make_scene(["diffbot"])
    dynamics = make(scene, control_dt=1 / 60)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)]))
    list(drive(dynamics, [(0.0, 2.0)], 60))
    assert np.abs(dynamics.state.linear_velocity).max() < 0.005
    assert np.abs(dynamics.state.position[0, 0, :2]).max() < 0.005
    list(drive(dynamics, [(0.6, 1.5)], 40))
    before = None
    for state in drive(dynamics, [(0.6, 1.5)], 20):
        if before is not None:
            moved = (state.position[0, 0] - before[0]) * 60
            np.testing.assert_allclose(moved, (state.linear_velocity[0, 0] + before[1]) / 2, atol=0.01)
        before = state.position[0, 0].copy(), state.linear_velocity[0, 0].copy()


def test_fixed_arms_stand_at_their_root_link(make):
    """PyBullet reports the kuka's base 0.12 m off its root link."""
    scene = make_scene(["kuka_iiwa"])
    dynamics = make(scene)
    sample = make_sample(scene, [(1.0, 2.0, 0.5)])
    dynamics.reset(FIRST, sample)
    first_joint = pybullet().getLinkState(1, 0, physicsClientId=client_id(dynamics))[4]
    height = scene.robots[0].base_height + 0.1575  # lbr_iiwa_joint_1's origin in the URDF
    np.testing.assert_allclose(first_joint, (1.0, 2.0, height), atol=1e-6)
    np.testing.assert_array_equal(dynamics.state.position, sample.position)


def test_arms_hold_their_joints(make):
    scene = make_scene(["kuka_iiwa", "panda"])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0), (2.0, 0.0, 1.0)])
    assert dynamics.command_limits.shape == (2, 0)
    dynamics.reset(FIRST, sample)
    for state in drive(dynamics, np.zeros((2, 0)), 20):
        assert np.abs(state.joint_position).max() < 0.02
        np.testing.assert_array_equal(state.position, sample.position)
        assert not state.linear_velocity.any()
        assert not state.in_collision.any()


def test_an_arm_and_a_car_share_a_world(make):
    scene = make_scene(["racecar", "panda"])
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(-1.0, 0.0, 0.0), (0.5, 0.0, 0.0)]))
    list(drive(dynamics, [(1.0, 0.0), (0.0, 0.0)], 15))
    assert dynamics.state.in_collision[0].tolist() == [True, True]


def test_joints_start_where_their_limits_come_nearest_to_zero(make, tmp_path):
    urdf = tmp_path / "stiff.urdf"
    inertial = '<inertial><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>'
    box = f'{inertial}<collision><geometry><box size=".1 .1 .1"/></geometry></collision>'
    urdf.write_text(
        f'<robot name="stiff"><link name="base">{box}</link><link name="tip">{box}</link>'
        '<joint name="hinge" type="revolute"><parent link="base"/><child link="tip"/><origin xyz="0 0 1"/>'
        '<axis xyz="0 0 1"/><limit lower="0.4" upper="1" effort="10" velocity="1"/></joint></robot>'
    )
    model = robot_model(RobotModel(name="stiff", urdf=str(urdf), drive=None))
    scene = Scene((model,))
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)]))
    assert dynamics.state.joint_position[0, 0, 0] == pytest.approx(0.4)
    list(drive(dynamics, np.zeros((1, 0)), 10))
    assert dynamics.state.joint_position[0, 0, 0] == pytest.approx(0.4, abs=0.01)


def test_joints_that_are_not_driven_are_held_and_wheels_turn(make):
    """r2d2's neck and gripper would swing otherwise."""
    scene = make_scene(["r2d2"])
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)]))
    list(drive(dynamics, [(0.5, 0.5)], 15))
    joints = dynamics.state.joint_position[0, 0]
    assert np.abs(joints[:4]).min() > 1.0
    assert np.abs(joints[4:]).max() < 0.02
    speed = dynamics.state.joint_velocity[0, 0, :4]
    assert (speed < 0).all()  # a positive joint speed drives an r2d2 backwards


def test_a_gripper_that_hits_something_yields_and_comes_back(make):
    scene = make_scene(["r2d2"], [PILLAR])
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)], [(0.0, 1.5)]))
    for state in drive(dynamics, [(1.0, 0.0)], 20):
        assert tilt_degrees(state).max() < 5.0
    assert state.in_collision[0, 0]
    assert state.joint_position[0, 0, 4] < -0.1  # the gripper's slide
    list(drive(dynamics, [(-1.0, 0.0)], 20))
    assert dynamics.state.joint_position[0, 0, 4] == pytest.approx(0.0, abs=0.02)


def test_a_caster_rolls_freely(make, tmp_path):
    """A robot pulling a braked caster would turn towards it."""
    wheel = (
        '<link name="{0}"><inertial><mass value="0.3"/>'
        '<inertia ixx="0.001" iyy="0.001" izz="0.001" ixy="0" ixz="0" iyz="0"/></inertial>'
        '<collision><geometry><sphere radius="0.1"/></geometry></collision>'
        '<contact><lateral_friction value="1"/></contact></link>'
        '<joint name="{0}_joint" type="continuous"><parent link="base"/><child link="{0}"/>'
        '<origin xyz="{1}"/><axis xyz="0 1 0"/></joint>'
    )
    urdf = tmp_path / "tricycle.urdf"
    urdf.write_text(
        '<robot name="tricycle"><link name="base"><inertial><origin xyz="-0.15 0 0.15"/><mass value="6"/>'
        '<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>'
        '<collision><origin xyz="-0.15 0 0.2"/><geometry><box size="0.5 0.3 0.05"/></geometry></collision></link>'
        + wheel.format("left", "0 0.2 0.1")
        + wheel.format("right", "0 -0.2 0.1")
        + wheel.format("caster", "-0.3 0.1 0.1")
        + "</robot>"
    )
    wheels = replace(robot_model("diffbot").wheels, radius=0.1, track=0.4, max_torque=5.0)
    scene = Scene((robot_model(RobotModel(name="tricycle", urdf=str(urdf), wheels=wheels)),))
    dynamics = make(scene)
    dynamics.reset(FIRST, make_sample(scene, [(0.0, 0.0, 0.0)]))
    list(drive(dynamics, [(0.5, 0.0)], 20))
    np.testing.assert_allclose(dynamics.state.joint_velocity[0, 0], 5.0, rtol=0.03)
    assert abs(dynamics.state.yaw()[0, 0]) < 0.02


def test_a_fallen_robot_is_seen_in_its_orientation(make):
    scene = make_scene(["r2d2"])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)])
    angle = math.radians(50.0)
    sample.orientation[0, 0] = (0.0, math.sin(angle / 2), 0.0, math.cos(angle / 2))
    sample.position[0, 0, 2] = 0.75
    dynamics.reset(FIRST, sample)
    list(drive(dynamics, [(0.0, 0.0)], 25))
    assert tilt_degrees(dynamics.state)[0, 0] > 60.0
    assert dynamics.state.position[0, 0, 2] < 0.4
    np.testing.assert_allclose(np.linalg.norm(dynamics.state.orientation[0, 0]), 1.0, atol=1e-9)


def test_frame_conversions_invert_each_other():
    rng = np.random.default_rng(6)

    def unit(*shape):
        q = rng.normal(size=(*shape, 4))
        return q / np.linalg.norm(q, axis=-1, keepdims=True)

    position, orientation = rng.normal(size=(5, 2, 3)), unit(5, 2)
    local_position, local_orientation = rng.normal(size=(2, 3)), unit(2)
    centre, axes = root_to_mass_centre(position, orientation, local_position, local_orientation)
    p = pybullet()
    for world, robot in np.ndindex(5, 2):
        expected = p.multiplyTransforms(
            position[world, robot], orientation[world, robot], local_position[robot], local_orientation[robot]
        )
        # PyBullet's own composition is good to single precision.
        np.testing.assert_allclose(centre[world, robot], expected[0], atol=1e-6)
        assert abs(np.dot(axes[world, robot], expected[1])) == pytest.approx(1.0, abs=1e-6)
    velocity, turn = rng.normal(size=(2, 5, 2, 3))
    root, root_axes, root_velocity = mass_centre_to_root(
        centre, axes, velocity, turn, local_position, local_orientation
    )
    np.testing.assert_allclose(root, position, atol=1e-12)
    np.testing.assert_allclose(np.abs((root_axes * orientation).sum(axis=-1)), 1.0, atol=1e-12)
    step = 1e-6  # where the root is a moment later, when the body turns about its centre of mass
    angle = np.linalg.norm(turn, axis=-1, keepdims=True) * step
    spin = np.concatenate(
        [turn / np.linalg.norm(turn, axis=-1, keepdims=True) * np.sin(angle / 2), np.cos(angle / 2)], -1
    )
    later = centre + velocity * step + rotate(spin, position - centre)
    np.testing.assert_allclose((later - position) / step, root_velocity, atol=1e-4)


# --- bad input ---


@pytest.mark.parametrize(("control_dt", "count"), [(1 / 240, 1), (0.1, 24), (1 / 60, 4), (0.05, 12), (1, 240)])
def test_control_steps_are_whole_substeps(control_dt, count):
    assert substeps(control_dt) == count


@pytest.mark.parametrize("control_dt", [0.101, 1 / 500, 1 / 241, 0.0, -0.1, math.nan, math.inf])
def test_other_control_steps_are_refused(control_dt):
    with pytest.raises(ValueError, match="control_dt: expected"):
        PhysicsDynamics(make_scene(["diffbot"]), 1, control_dt=control_dt)
    assert open_clients() == 0


@pytest.mark.parametrize("control_dt", ["0.1", None, True])
def test_control_steps_that_are_no_numbers_are_refused(control_dt):
    with pytest.raises(TypeError, match="control_dt: expected"):
        PhysicsDynamics(make_scene(["diffbot"]), 1, control_dt=control_dt)


def test_bad_arguments_name_what_was_expected():
    scene = make_scene(["diffbot"])
    with pytest.raises(ValueError, match="num_envs: expected an int >= 1, got 0"):
        PhysicsDynamics(scene, 0, control_dt=0.1)
    with pytest.raises(ValueError, match=r"collision_response: expected 'stop' .*kinematic"):
        PhysicsDynamics(scene, 1, control_dt=0.1, collision_response="report")
    with pytest.raises(ValueError, match="collision_response: expected one of"):
        PhysicsDynamics(scene, 1, control_dt=0.1, collision_response="bounce")
    assert open_clients() == 0


def test_robots_that_physics_cannot_drive_are_refused_naming_what_is_missing():
    mecanum = robot_model(RobotModel(name="mecanum", urdf="husky/husky.urdf", drive="omnidirectional"))
    with pytest.raises(ValueError, match=r"'mecanum'.*mecanum rollers"):
        PhysicsDynamics(Scene((mecanum,)), 1, control_dt=0.1)
    bare = robot_model("husky/husky.urdf")
    with pytest.raises(ValueError, match=r"RobotModel\(drive=..., wheels=Wheels\("):
        PhysicsDynamics(Scene((bare,)), 1, control_dt=0.1)
    incomplete = RobotModel(name="husky", urdf=robot_model("husky").urdf, wheels=robot_model("husky").wheels)
    with pytest.raises(ValueError, match=r"completed by robot_model\(\), with num_joints=4, got 0"):
        PhysicsDynamics(Scene((incomplete,)), 1, control_dt=0.1)
    assert open_clients() == 0


def test_limits_are_those_of_the_models(make):
    scene = make_scene(["husky", "racecar", "kuka_iiwa"])
    dynamics = make(scene)
    np.testing.assert_array_equal(dynamics.command_limits, [[1.0, 1.0], [2.0, 0.34], [0.0, 0.0]])


# --- lifetimes ---


def test_a_failed_construction_closes_the_clients_already_opened(monkeypatch):
    scene = make_scene(["diffbot"])
    original, calls = DirectClient.load_urdf, []

    def load_urdf(self, path, **kwargs):
        calls.append(path)
        if len(calls) == 6:  # the third world's robot
            raise ValueError("disk full")
        return original(self, path, **kwargs)

    monkeypatch.setattr(DirectClient, "load_urdf", load_urdf)
    with pytest.raises(ValueError, match="disk full"):
        PhysicsDynamics(scene, 4, control_dt=0.1)
    assert len(calls) == 6
    assert open_clients() == 0


def test_close_twice_frees_clients_and_use_after_it_raises():
    scene = make_scene(["diffbot"])
    dynamics = PhysicsDynamics(scene, 2, control_dt=0.1)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], num_worlds=2)
    dynamics.reset(np.arange(2), sample)
    saved = dynamics.save(np.arange(2))
    assert open_clients() == 2
    dynamics.close()
    dynamics.close()
    assert open_clients() == 0
    with pytest.raises(ClosedEnvironmentError, match="step"):
        dynamics.step(np.zeros((2, 1, 2)), np.ones(2, dtype=bool))
    with pytest.raises(ClosedEnvironmentError, match="reset"):
        dynamics.reset(np.arange(2), sample)
    with pytest.raises(ClosedEnvironmentError, match="restore"):
        dynamics.restore(np.arange(2), saved)
    assert dynamics.state.position.shape == (2, 1, 3)


def test_forgotten_dynamics_are_closed_by_the_garbage_collector():
    dynamics = PhysicsDynamics(make_scene(["diffbot"]), 2, control_dt=0.1)
    assert open_clients() == 2
    del dynamics
    gc.collect()
    assert open_clients() == 0


def test_many_lifetimes_leave_clients_and_descriptors_where_they_were():
    scene = make_scene(["diffbot"], [PILLAR])
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], [(2.0, 0.0)])
    before = None
    for _ in range(6):
        dynamics = PhysicsDynamics(scene, 1, control_dt=0.1)
        dynamics.reset(FIRST, sample)
        list(drive(dynamics, [(1.0, 0.0)], 1))
        dynamics.close()
        descriptors = len(os.listdir("/proc/self/fd"))
        assert before in (None, descriptors)
        before = descriptors
    assert open_clients() == 0


def test_a_forked_child_does_not_disconnect(make):
    scene = make_scene(["diffbot"])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)])
    dynamics.reset(FIRST, sample)
    list(drive(dynamics, [(1.0, 0.0)], 2))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client = client_id(dynamics)
            dynamics.close()
            gc.collect()
            status = 0 if pybullet().isConnected(client) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    list(drive(dynamics, [(1.0, 0.0)], 2))
    assert dynamics.state.position[0, 0, 0] > 0.1


def test_commands_and_samples_are_not_changed_and_arrays_are_never_rebound(make):
    scene = make_scene(["diffbot"], [PARCEL])
    dynamics = make(scene)
    state, position = dynamics.state, dynamics.state.position
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], [(1.0, 0.0)])
    copies = [array.copy() for array in vars(sample).values()]
    dynamics.reset(FIRST, sample)
    commands = np.array([[[0.5, 0.2]]])
    dynamics.step(commands, np.array([True]))
    for array, copy in zip(vars(sample).values(), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    np.testing.assert_array_equal(commands, [[[0.5, 0.2]]])
    assert dynamics.state is state
    assert state.position is position
    assert rows_as_bytes(state, 0)


def test_rotated_starts_are_kept(make):
    scene = make_scene(["diffbot"])
    dynamics = make(scene)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)])
    sample.orientation[0, 0] = yaw_quaternion(np.array(2.5))
    dynamics.reset(FIRST, sample)
    list(drive(dynamics, [(0.5, 0.0)], 10))
    np.testing.assert_allclose(dynamics.state.yaw()[0, 0], 2.5, atol=0.01)
    x, y, _ = dynamics.state.position[0, 0]
    assert math.atan2(y, x) == pytest.approx(2.5, abs=0.02)
