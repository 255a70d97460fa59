"""What is commanded comes true on contact physics, and nothing falls over."""

import math

import numpy as np
import pytest
from physics_worlds import drive, make_sample, make_scene, tilt_degrees

from fleet_gym.dynamics.physics import PhysicsDynamics
from fleet_gym.world.robots import robot_model
from fleet_gym.world.state import yaw_quaternion

CONTROL_DT = 0.1
HEADINGS = (0.0, 0.7, 2.1)
TWISTS = {"straight": (0.5, 0.0), "in place": (0.0, 0.5), "curve": (0.5, 0.5)}
CASES = [
    (name, twist)
    for name in ("husky", "r2d2", "racecar", "diffbot")
    for twist in TWISTS
    if (name, twist) != ("racecar", "in place")
]


def command_for(model, speed, turn):
    if model.drive == "ackermann":
        return speed, math.atan(turn * model.wheels.wheelbase / speed)
    return speed, turn


@pytest.mark.parametrize(("name", "twist"), CASES)
def test_commanded_twist_comes_true_over_headings(name, twist):
    """Mean of two seconds, after one of settling: v within 5 %, omega within 8 %."""
    speed, turn = TWISTS[twist]
    scene = make_scene([name])
    model = scene.robots[0]
    worlds = np.arange(len(HEADINGS))
    sample = make_sample(scene, [(0.0, 0.0, 0.0)], num_worlds=len(HEADINGS))
    sample.orientation[:, 0] = yaw_quaternion(np.array(HEADINGS))
    dynamics = PhysicsDynamics(scene, len(HEADINGS), control_dt=CONTROL_DT)
    dynamics.reset(worlds, sample)
    speeds, headings = [], []
    for state in drive(dynamics, [command_for(model, speed, turn)], 30):
        heading = state.yaw()[:, 0] + model.forward_yaw
        velocity = state.linear_velocity[:, 0]
        speeds.append(velocity[:, 0] * np.cos(heading) + velocity[:, 1] * np.sin(heading))
        headings.append(heading)
        assert tilt_degrees(state).max() < 3.0
    turned = np.unwrap(np.array(headings), axis=0)
    measured_turn = (turned[29] - turned[9]) / 2.0
    np.testing.assert_allclose(np.mean(speeds[10:], axis=0), speed, atol=0.05 * 0.5)
    np.testing.assert_allclose(measured_turn, turn, atol=0.08 * 0.5)
    assert not dynamics.state.in_collision.any()
    dynamics.close()


@pytest.mark.parametrize("name", ["husky", "r2d2", "racecar", "diffbot"])
@pytest.mark.parametrize("control_dt", [1 / 48, 0.25])
def test_full_reversals_do_not_tip_a_robot(name, control_dt):
    scene = make_scene([name])
    limits = np.array(scene.robots[0].command_limits)
    dynamics = PhysicsDynamics(scene, 1, control_dt=control_dt)
    dynamics.reset(np.array([0]), make_sample(scene, [(0.0, 0.0, 0.3)]))
    worst = 0.0
    for sign in (1, -1, 1):
        for state in drive(dynamics, [sign * limits], round(0.75 / control_dt)):
            worst = max(worst, tilt_degrees(state).max())
    assert worst < 5.0
    dynamics.close()


@pytest.mark.parametrize("name", ["husky", "racecar", "diffbot"])
def test_acceleration_limits_bound_the_change_of_speed(name):
    scene = make_scene([name])
    model = scene.robots[0]
    dynamics = PhysicsDynamics(scene, 1, control_dt=CONTROL_DT)
    dynamics.reset(np.array([0]), make_sample(scene, [(0.0, 0.0, 0.0)]))
    speed = [state.linear_velocity[0, 0, 0] for state in drive(dynamics, [(model.max_speed, 0.0)], 4)]
    bound = np.minimum(model.max_acceleration * CONTROL_DT * np.arange(1, 5), model.max_speed)
    assert (np.array(speed) <= bound * 1.1 + 0.02).all()
    assert speed[-1] > 0.7 * bound[-1]
    dynamics.close()


def test_steering_obeys_its_rate_limit_and_both_wheels_point_at_one_centre():
    scene = make_scene(["racecar"])
    model = robot_model("racecar")
    dynamics = PhysicsDynamics(scene, 1, control_dt=1 / 24)
    dynamics.reset(np.array([0]), make_sample(scene, [(0.0, 0.0, 0.0)]))
    # Movable joints in PyBullet's order: the rear wheels, then left hinge, left wheel, right hinge, right wheel.
    steps = [state.joint_position[0, 0, [2, 4]] for state in drive(dynamics, [(0.0, model.max_steering)], 6)]
    assert steps[0].max() <= 1.3 * model.max_turn_acceleration / 24
    left, right = steps[-1]
    assert left > model.max_steering > right > 0.0
    wheelbase, half_track = model.wheels.wheelbase, model.wheels.track / 2
    centre = wheelbase / math.tan(model.max_steering)
    assert wheelbase / math.tan(left) + half_track == pytest.approx(centre, abs=0.01)
    assert wheelbase / math.tan(right) - half_track == pytest.approx(centre, abs=0.01)
    dynamics.close()
