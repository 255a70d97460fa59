"""Physics dynamics: bad input and lifetimes."""

import gc
import math
import os

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from physics_worlds import (
    PARCEL,
    PILLAR,
    client_id,
    drive,
    make_sample,
    make_scene,
    rows_as_bytes,
)

from fleet_gym._pybullet import DirectClient, pybullet
from fleet_gym.dynamics.physics import PhysicsDynamics, substeps
from fleet_gym.world.robots import RobotModel, robot_model
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import yaw_quaternion

FIRST = np.array([0])


@pytest.mark.parametrize(("control_dt", "count"), [(1 / 240, 1), (0.1, 24), (1 / 60, 4), (0.05, 12), (1, 240)])
def test_control_steps_are_whole_substeps(control_dt, count):
    assert substeps(control_dt) == count


@pytest.mark.parametrize("control_dt", [0.101, 1 / 500, 1 / 241, 0.0, -0.1, math.nan, math.inf])
def test_other_control_steps_are_refused(control_dt, extra_clients):
    with pytest.raises(ValueError, match="control_dt: expected"):
        PhysicsDynamics(make_scene(["diffbot"]), 1, control_dt=control_dt)
    assert extra_clients() == 0


@pytest.mark.parametrize("control_dt", ["0.1", None, True])
def test_control_steps_that_are_no_numbers_are_refused(control_dt):
    with pytest.raises(TypeError, match="control_dt: expected"):
        PhysicsDynamics(make_scene(["diffbot"]), 1, control_dt=control_dt)


def test_bad_arguments_name_what_was_expected(extra_clients):
    scene = make_scene(["diffbot"])
    with pytest.raises(ValueError, match="num_envs: expected an int >= 1, got 0"):
        PhysicsDynamics(scene, 0, control_dt=0.1)
    with pytest.raises(ValueError, match=r"collision_response: expected 'stop' .*kinematic"):
        PhysicsDynamics(scene, 1, control_dt=0.1, collision_response="report")
    with pytest.raises(ValueError, match="collision_response: expected one of"):
        PhysicsDynamics(scene, 1, control_dt=0.1, collision_response="bounce")
    assert extra_clients() == 0


def test_robots_that_physics_cannot_drive_are_refused_naming_what_is_missing(extra_clients):
    mecanum = robot_model(RobotModel(name="mecanum", urdf="husky/husky.urdf", drive="omnidirectional"))
    with pytest.raises(ValueError, match=r"'mecanum'.*mecanum rollers"):
        PhysicsDynamics(Scene((mecanum,)), 1, control_dt=0.1)
    bare = robot_model("husky/husky.urdf")
    with pytest.raises(ValueError, match=r"RobotModel\(drive=..., wheels=Wheels\("):
        PhysicsDynamics(Scene((bare,)), 1, control_dt=0.1)
    incomplete = RobotModel(name="husky", urdf=robot_model("husky").urdf, wheels=robot_model("husky").wheels)
    with pytest.raises(ValueError, match=r"completed by robot_model\(\), with num_joints=4, got 0"):
        PhysicsDynamics(Scene((incomplete,)), 1, control_dt=0.1)
    assert extra_clients() == 0


def test_limits_are_those_of_the_models(make):
    scene = make_scene(["husky", "racecar", "kuka_iiwa"])
    dynamics = make(scene)
    np.testing.assert_array_equal(dynamics.command_limits, [[1.0, 1.0], [2.0, 0.34], [0.0, 0.0]])


def test_a_failed_construction_closes_the_clients_already_opened(monkeypatch, extra_clients):
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
    assert extra_clients() == 0


def test_close_twice_frees_clients_and_use_after_it_raises(extra_clients):
    scene = make_scene(["diffbot"])
    dynamics = PhysicsDynamics(scene, 2, control_dt=0.1)
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], num_worlds=2)
    dynamics.reset(np.arange(2), sample)
    saved = dynamics.save(np.arange(2))
    assert extra_clients() == 2
    dynamics.close()
    dynamics.close()
    assert extra_clients() == 0
    with pytest.raises(ClosedEnvironmentError, match="step"):
        dynamics.step(np.zeros((2, 1, 2)), np.ones(2, dtype=bool))
    with pytest.raises(ClosedEnvironmentError, match="reset"):
        dynamics.reset(np.arange(2), sample)
    with pytest.raises(ClosedEnvironmentError, match="restore"):
        dynamics.restore(np.arange(2), saved)
    assert dynamics.state.position.shape == (2, 1, 3)


def test_forgotten_dynamics_are_closed_by_the_garbage_collector(extra_clients):
    dynamics = PhysicsDynamics(make_scene(["diffbot"]), 2, control_dt=0.1)
    assert extra_clients() == 2
    del dynamics
    gc.collect()
    assert extra_clients() == 0


def test_many_lifetimes_leave_clients_and_descriptors_where_they_were(extra_clients):
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
    assert extra_clients() == 0


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
