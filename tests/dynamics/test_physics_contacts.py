"""Contacts: who touches whom, and when a collision begins."""

import math

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
)

from fleet_gym._pybullet import pybullet
from fleet_gym.dynamics.physics_world import PhysicsWorld

FIRST = np.array([0])


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
