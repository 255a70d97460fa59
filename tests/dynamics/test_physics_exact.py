"""A reset forgets everything: same sample and commands, same floats."""

import pickle

import numpy as np
import pytest
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
    rows_as_bytes,
)

from fleet_gym._pybullet import pybullet
from fleet_gym.dynamics.physics import PhysicsDynamics
from fleet_gym.world.state import yaw_quaternion

BODIES = (PILLAR, CRATE, GOAL, PARCEL, BALL)
SPOTS = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)], dtype=float)


def random_sample(scene, rng, num_worlds):
    """Crowded worlds: whatever drives a metre runs into something."""
    sample = make_sample(
        scene, [(0.0, 0.0, 0.0)] * scene.num_robots, [(0.0, 0.0)] * scene.num_bodies, num_worlds=num_worlds
    )
    for world in range(num_worlds):
        order = rng.permutation(len(SPOTS))
        spacing = 1.3 * scene.footprint_radius.mean() + 0.25
        sample.position[world, :, :2] = spacing * SPOTS[order[: scene.num_robots]]
        sample.body_position[world, :, :2] = spacing * SPOTS[order[-scene.num_bodies :]]
    sample.orientation[:] = yaw_quaternion(rng.uniform(-3, 3, sample.active.shape))
    sample.active[:] = rng.random(sample.active.shape) < 0.9
    sample.body_active[:] = rng.random(sample.body_active.shape) < 0.8
    return sample


def commands_for(dynamics, rng):
    return rng.uniform(-1, 1, (dynamics.state.num_envs, *dynamics.command_limits.shape)) * dynamics.command_limits


def mess_up(dynamics, rng):
    """Drives all worlds somewhere else, some of them not at all, and returns whether anything collided."""
    num_worlds = dynamics.state.num_envs
    dynamics.reset(np.arange(num_worlds), random_sample(dynamics.test_scene, rng, num_worlds))
    commands = commands_for(dynamics, rng)
    collided = False
    for _ in range(rng.integers(0, 9)):
        dynamics.step(commands, rng.random(num_worlds) < 0.8)
        collided |= bool(dynamics.state.in_collision.any())
    return collided


def rollout(dynamics, world, sample, commands):
    """Bytes of a world after its reset and after each step; the other worlds stand still."""
    dynamics.reset(np.array([world]), sample)
    seen = [rows_as_bytes(dynamics.state, world)]
    active = np.arange(dynamics.state.num_envs) == world
    for command in commands:
        batch = np.zeros((dynamics.state.num_envs, *command.shape))
        batch[world] = command
        dynamics.step(batch, active)
        seen.append(rows_as_bytes(dynamics.state, world))
    return seen


def make_dynamics(scene, num_envs):
    dynamics = PhysicsDynamics(scene, num_envs, control_dt=0.1)
    dynamics.test_scene = scene
    return dynamics


@pytest.mark.parametrize("robots", [("husky", "husky", "husky"), ("r2d2", "racecar", "diffbot", "panda")])
def test_resets_are_bit_exact_whatever_happened_before_and_however_many_worlds_there_are(robots):
    rng = np.random.default_rng(1)
    scene = make_scene(robots, BODIES)
    alone, among_three = make_dynamics(scene, 1), make_dynamics(scene, 3)
    sample = random_sample(scene, rng, 1)
    commands = np.repeat(commands_for(alone, rng), 10, axis=0)
    expected = rollout(alone, 0, sample, commands)
    collided = False
    for repeat in range(12):
        dynamics = alone if repeat % 2 else among_three
        world = int(rng.integers(dynamics.state.num_envs))
        collided |= mess_up(dynamics, rng)
        assert rollout(dynamics, world, sample, commands) == expected, f"repeat {repeat}"
    assert collided
    alone.close()
    among_three.close()


def test_neighbours_that_move_and_reset_meanwhile_change_nothing():
    rng = np.random.default_rng(2)
    scene = make_scene(["husky", "diffbot"], BODIES)
    dynamics = make_dynamics(scene, 3)
    sample = random_sample(scene, rng, 1)
    commands = np.repeat(commands_for(dynamics, rng)[:1], 8, axis=0)
    expected = rollout(dynamics, 1, sample, commands)
    dynamics.reset(np.array([0, 1, 2]), random_sample(scene, rng, 3))
    dynamics.reset(np.array([1]), sample)
    seen = [rows_as_bytes(dynamics.state, 1)]
    for count, command in enumerate(commands):
        batch = commands_for(dynamics, rng)
        batch[1] = command
        if count % 3 == 1:
            dynamics.reset(np.array([2, 0]), random_sample(scene, rng, 2))
        dynamics.step(batch, np.array([count % 2 == 0, True, True]))
        seen.append(rows_as_bytes(dynamics.state, 1))
    assert seen == expected
    dynamics.close()


def test_worlds_that_are_not_stepped_stay_as_they_are():
    scene = make_scene(["diffbot"])
    dynamics = PhysicsDynamics(scene, 2, control_dt=0.1)
    dynamics.reset(np.arange(2), make_sample(scene, [(0.0, 0.0, 0.0)], num_worlds=2))
    list(drive(dynamics, [(1.0, 0.5)], 3))
    before = rows_as_bytes(dynamics.state, 0)
    list(drive(dynamics, [(1.0, 0.5)], 3, worlds=[1]))
    assert rows_as_bytes(dynamics.state, 0) == before
    assert rows_as_bytes(dynamics.state, 1) != before
    dynamics.close()


def test_state_after_reset_is_the_sample_at_rest_and_contacts_are_gone():
    scene = make_scene(["husky", "husky"], [PILLAR])
    dynamics = PhysicsDynamics(scene, 1, control_dt=0.1)
    crash = make_sample(scene, [(0.0, 0.0, 0.0), (1.2, 0.0, 3.1)], [(0.0, 1.2)])
    dynamics.reset(np.array([0]), crash)
    list(drive(dynamics, [(1.0, 0.0), (1.0, 0.0)], 8))
    assert dynamics.state.in_collision.all()
    apart = make_sample(scene, [(-3.0, 0.0, 0.4), (3.0, 0.0, -0.4)], [(0.0, 4.0)])
    dynamics.reset(np.array([0]), apart)
    state = dynamics.state
    for name in ("position", "orientation", "active", "body_position", "body_orientation", "body_active"):
        np.testing.assert_array_equal(getattr(state, name), getattr(apart, name))
    for name in ("linear_velocity", "angular_velocity", "joint_position", "joint_velocity"):
        assert not getattr(state, name).any()
    assert not state.in_collision.any()
    assert not state.collision_starts.any()
    points = pybullet().getContactPoints(physicsClientId=client_id(dynamics))
    assert {point[1] for point in points} | {point[2] for point in points} <= {0, 1, 2}  # wheels on the ground
    assert not [point for point in points if 0 not in (point[1], point[2])]
    list(drive(dynamics, [(0.0, 0.0), (0.0, 0.0)], 2))
    assert not state.in_collision.any()
    dynamics.close()


def test_what_follows_a_restore_is_always_the_same():
    rng = np.random.default_rng(3)
    scene = make_scene(["husky", "racecar"], BODIES)
    dynamics = make_dynamics(scene, 2)
    dynamics.reset(np.arange(2), random_sample(scene, rng, 2))
    list(drive(dynamics, [(0.8, 0.5), (1.0, 0.3)], 7))
    at_save = rows_as_bytes(dynamics.state, 1)
    saved = pickle.loads(pickle.dumps(dynamics.save(np.array([1]))))
    seen = []
    for repeat in range(4):
        mess_up(dynamics, rng)
        world = repeat % 2  # a snapshot fits any world of the scene
        dynamics.restore(np.array([world]), saved)
        assert rows_as_bytes(dynamics.state, world) == at_save
        list(drive(dynamics, [(0.3, -0.5), (1.0, 0.3)], 6, worlds=[world]))
        seen.append(rows_as_bytes(dynamics.state, world))
    assert len(set(seen)) == 1
    dynamics.close()


def test_a_restored_world_goes_on_as_the_saved_one_did():
    scene = make_scene(["husky"])
    dynamics = PhysicsDynamics(scene, 1, control_dt=0.1)
    dynamics.reset(np.array([0]), make_sample(scene, [(0.0, 0.0, 0.0)]))
    list(drive(dynamics, [(1.0, 0.3)], 10))
    saved = dynamics.save(np.array([0]))
    list(drive(dynamics, [(1.0, 0.3)], 5))
    position, speed = dynamics.state.position.copy(), dynamics.state.linear_velocity.copy()
    dynamics.restore(np.array([0]), saved)
    list(drive(dynamics, [(1.0, 0.3)], 5))
    np.testing.assert_allclose(dynamics.state.position, position, atol=0.01)
    np.testing.assert_allclose(dynamics.state.linear_velocity, speed, atol=0.05)
    dynamics.close()


def test_a_snapshot_taken_right_after_a_reset_continues_exactly():
    scene = make_scene(["husky", "diffbot"], BODIES)
    rng = np.random.default_rng(4)
    dynamics = make_dynamics(scene, 1)
    dynamics.reset(np.array([0]), random_sample(scene, rng, 1))
    saved = dynamics.save(np.array([0]))
    list(drive(dynamics, [(1.0, 0.3), (0.5, -1.0)], 8))
    expected = rows_as_bytes(dynamics.state, 0)
    dynamics.restore(np.array([0]), saved)
    list(drive(dynamics, [(1.0, 0.3), (0.5, -1.0)], 8))
    assert rows_as_bytes(dynamics.state, 0) == expected
    dynamics.close()


def test_the_number_of_clients_a_process_holds_changes_nothing(extra_clients):
    scene = make_scene(["husky"], [PILLAR])
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], [(1.5, 0.0)])
    seen = []
    held = []
    for _ in range(3):
        dynamics = PhysicsDynamics(scene, 1, control_dt=0.1)
        dynamics.reset(np.array([0]), sample)
        list(drive(dynamics, [(1.0, 0.2)], 12))
        assert dynamics.state.in_collision.any()
        seen.append(rows_as_bytes(dynamics.state, 0))
        held.append(dynamics)
    assert len(set(seen)) == 1
    for dynamics in held:
        dynamics.close()
    assert extra_clients() == 0
