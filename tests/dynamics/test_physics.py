"""Physics dynamics: frames, arms, joints, and bodies that take no part."""

import math
from dataclasses import replace

import numpy as np
import pytest
from physics_worlds import (
    PARCEL,
    PILLAR,
    client_id,
    drive,
    make_sample,
    make_scene,
    tilt_degrees,
)

from fleet_gym._pybullet import pybullet
from fleet_gym.dynamics.physics_frames import mass_centre_to_root, root_to_mass_centre, rotate
from fleet_gym.world.robots import RobotModel, robot_model
from fleet_gym.world.scene import Scene

FIRST = np.array([0])


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


@pytest.mark.parametrize(
    ("robots", "bodies", "near"), [(["kuka_iiwa", "kuka_iiwa"], [], 0.15), (["kuka_iiwa"], [PILLAR], 0.35)]
)
def test_arms_touch_arms_and_obstacles(make, robots, bodies, near):
    """Neither has a base that moves, but an arm's links collide."""
    scene = make_scene(robots, bodies)
    dynamics = make(scene)
    for distance, expected in ((near, True), (3.0, False)):
        places = [(distance * index, 0.0, 0.0) for index in range(len(robots))]
        dynamics.reset(FIRST, make_sample(scene, places, [(distance, 0.0)] * len(bodies)))
        list(drive(dynamics, np.zeros((len(robots), 0)), 1))
        assert dynamics.state.in_collision[0].tolist() == [expected] * len(robots)


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
