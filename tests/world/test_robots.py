import math
import pickle
from dataclasses import replace

import pytest

from fleet_gym.world.robots import RobotModel, Wheels, known_robots, robot_model, robot_models

BOX = '<collision><origin xyz="0 0 0.2"/><geometry><box size="0.6 0.8 0.2"/></geometry></collision>'


@pytest.fixture
def cart(tmp_path):
    """A URDF of two wheels, 0.1 m ahead of the root link, under a box."""

    def wheel(name, y):
        return (
            f'<link name="{name}"><collision><geometry><sphere radius="0.1"/></geometry></collision></link>'
            f'<joint name="{name}_joint" type="continuous"><parent link="base"/><child link="{name}"/>'
            f'<origin xyz="0.1 {y} 0.1"/><axis xyz="0 1 0"/></joint>'
        )

    path = tmp_path / "cart.urdf"
    path.write_text(f'<robot name="cart"><link name="base">{BOX}</link>{wheel("l", 0.3)}{wheel("r", -0.3)}</robot>')
    return str(path)


def wheels(**changes):
    return Wheels(**{"left": (0,), "right": (1,), "radius": 0.1, "track": 0.6, **changes})


def test_known_robots():
    assert known_robots() == ("diffbot", "husky", "kuka_iiwa", "panda", "r2d2", "racecar")


@pytest.mark.parametrize(
    ("name", "footprint", "base_height", "height", "joints"),
    [
        ("husky", math.hypot(1.0074, 0.5709) / 2, 0.001, 0.14493 + 0.12498 + 0.2675 / 2 + 0.001, 4),
        ("racecar", None, 0.001, 0.05 + 0.075 + 0.05 + 0.001, 6),
        ("r2d2", None, 0.471, 0.471 + 0.3 + 0.1214 + 0.04, 8),
        ("diffbot", 0.201, 0.0, 0.131, 2),
        ("kuka_iiwa", None, 0.001, None, 7),
        ("panda", None, 0.001, None, 9),
    ],
)
def test_models_are_measured(name, footprint, base_height, height, joints):
    """Closed forms from the shapes in the URDFs; 1 mm is PyBullet's margin around the wheels."""
    model = robot_model(name)
    assert model.name == name
    if footprint is not None:
        assert model.footprint_radius == pytest.approx(footprint, abs=1e-4)
    assert model.base_height == pytest.approx(base_height, abs=1e-4)
    if height is not None:
        assert model.height == pytest.approx(height, abs=1e-4)
    assert model.num_joints == joints
    assert model.axle_offset == pytest.approx(0.0, abs=1e-6)


def test_r2d2_footprint_reaches_to_the_tip_of_its_gripper_and_racecars_to_its_front_wheels():
    assert robot_model("r2d2").footprint_radius == pytest.approx(0.514, abs=0.001)
    # wheels: 0.325 + 0.05 ahead, 0.1 + 0.045 to the side; the camera does not stick out as far
    reach = math.hypot(0.375, 0.145)
    assert reach <= robot_model("racecar").footprint_radius <= 0.39 + 0.0165 + 0.012


def test_arms_have_no_drive():
    assert robot_model("kuka_iiwa").drive is None
    assert robot_model("panda").command_limits == ()
    assert robot_model("racecar").command_limits == (2.0, 0.34)
    assert robot_model("husky").command_limits == (1.0, 1.0)
    omnidirectional = RobotModel(name="o", urdf="o.urdf", drive="omnidirectional", max_speed=2.0, max_turn_rate=3.0)
    assert omnidirectional.command_limits == (2.0, 2.0, 3.0)


def test_models_are_picklable_hashable_and_stable():
    for name in known_robots():
        model = robot_model(name)
        assert pickle.loads(pickle.dumps(model)) == model
        assert robot_model(model) == model
        assert len({model, robot_model(name)}) == 1


def test_paths_become_differential_bases_without_wheels(cart, tmp_path, monkeypatch):
    model = robot_model(cart)
    assert (model.name, model.drive, model.wheels, model.urdf) == ("cart", "differential", None, cart)
    assert model.footprint_radius == pytest.approx(0.5)
    assert (model.base_height, model.height) == pytest.approx((0.0, 0.3))
    monkeypatch.chdir(tmp_path)
    assert robot_model("cart.urdf") == model
    assert robot_model(tmp_path / "cart.urdf") == model
    assert robot_model("laikago/laikago.urdf").num_joints == 12  # of pybullet_data


def test_names_are_not_shadowed_by_files_of_the_working_directory(cart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "husky").mkdir()
    (tmp_path / "husky" / "husky.urdf").write_text("not a robot")
    assert robot_model("husky").num_joints == 4


def test_models_with_few_figures_are_completed_and_given_figures_kept(cart):
    model = robot_model(RobotModel(name="cart", urdf=cart, wheels=wheels()))
    assert model.footprint_radius == pytest.approx(0.5)
    assert model.axle_offset == pytest.approx(0.1, abs=1e-6)
    assert model.num_joints == 2
    given = RobotModel(
        name="cart", urdf=cart, footprint_radius=0.7, height=0.5, base_height=0.02, axle_offset=0.05, wheels=wheels()
    )
    completed = robot_model(given)
    assert completed == replace(given, num_joints=2, footprint_bounds=completed.footprint_bounds)
    # seen along -x, the right wheel is on the left, and the axle behind the root link
    backwards = RobotModel(name="c", urdf=cart, forward_yaw=math.pi, wheels=wheels(left=(1,), right=(0,), sign=-1))
    assert robot_model(backwards).axle_offset == pytest.approx(-0.1, abs=1e-6)


def test_lists_give_one_model_per_slot():
    assert robot_models("husky", 2) == (robot_model("husky"),) * 2
    assert [m.name for m in robot_models(["husky", robot_model("r2d2"), "diffbot"], 3)] == ["husky", "r2d2", "diffbot"]
    with pytest.raises(ValueError, match=r"robot: expected a list of num_robots = 3 entries, got 2"):
        robot_models(["husky", "r2d2"], 3)
    with pytest.raises(ValueError, match="num_robots: expected an int >= 1, got 0"):
        robot_models("husky", 0)
    with pytest.raises(TypeError, match="num_robots"):
        robot_models("husky", 2.0)


def test_unknown_names_and_missing_files_list_what_is_known(tmp_path):
    for robot in ("huskey", "none.urdf", str(tmp_path / "none.urdf"), str(tmp_path), ""):
        with pytest.raises((ValueError, TypeError), match=r"robot"):
            robot_model(robot)
    with pytest.raises(ValueError, match=r"diffbot, husky, kuka_iiwa, panda, r2d2, racecar.* got 'huskey'"):
        robot_model("huskey")
    with pytest.raises(ValueError, match=r"existing URDF file, got 'my.urdf'"):
        robot_model(RobotModel(name="mine", urdf="my.urdf"))


@pytest.mark.parametrize("robot", [None, 3, {"name": "husky"}, b"husky"])
def test_other_types_are_refused(robot):
    with pytest.raises(TypeError, match="robot: expected a name, a URDF path or a RobotModel, got"):
        robot_model(robot)


def test_models_that_contradict_their_urdf_are_refused(cart, tmp_path):
    with pytest.raises(ValueError, match=r"num_joints: expected 2 .* got 5"):
        robot_model(RobotModel(name="cart", urdf=cart, num_joints=5))
    with pytest.raises(ValueError, match=r"expected movable joints of .*l_joint.*, got 7"):
        robot_model(RobotModel(name="cart", urdf=cart, wheels=wheels(right=(7,))))
    with pytest.raises(ValueError, match=r"left wheels to the left .* left joint 1 and right joint 0"):
        robot_model(RobotModel(name="cart", urdf=cart, wheels=wheels(left=(1,), right=(0,))))
    bodiless = tmp_path / "ghost.urdf"
    bodiless.write_text('<robot name="ghost"><link name="base"/></robot>')
    with pytest.raises(ValueError, match="expected a URDF with collision shapes"):
        robot_model(bodiless)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": ""}, ValueError, "robot name"),
        ({"urdf": ""}, TypeError, "robot urdf"),
        ({"urdf": 3}, TypeError, "robot urdf"),
        ({"drive": "tracks"}, ValueError, "robot drive: expected one of .* got 'tracks'"),
        ({"max_speed": 0.0}, ValueError, "robot.max_speed"),
        ({"max_turn_rate": -1.0}, ValueError, "robot.max_turn_rate"),
        ({"max_acceleration": math.nan}, ValueError, "robot.max_acceleration"),
        ({"max_turn_acceleration": "fast"}, TypeError, "robot.max_turn_acceleration"),
        ({"max_steering": 1.6}, ValueError, "robot.max_steering: expected less than pi/2"),
        ({"footprint_radius": -0.1}, ValueError, "robot.footprint_radius"),
        ({"height": math.inf}, ValueError, "robot.height"),
        ({"forward_yaw": math.nan}, ValueError, "robot.forward_yaw"),
        ({"num_joints": -1}, ValueError, "robot.num_joints"),
        ({"num_joints": True}, TypeError, "robot.num_joints"),
        ({"wheels": {"left": 1}}, TypeError, "robot wheels: expected Wheels or None"),
        ({"drive": "ackermann"}, ValueError, "wheelbase > 0 m for an Ackermann drive"),
        ({"drive": "ackermann", "wheels": wheels()}, ValueError, "steering joints and a wheelbase"),
    ],
)
def test_bad_figures_of_a_model_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        RobotModel(**{"name": "r", "urdf": "r.urdf", **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"left": ()}, ValueError, "wheels: expected joints on both sides"),
        ({"left": 0}, TypeError, "wheels.left: expected a sequence"),
        ({"left": "01"}, TypeError, "wheels.left: expected a sequence"),
        ({"left": (0.5,)}, TypeError, "wheels.left"),
        ({"left": (-1,)}, ValueError, "wheels.left"),
        ({"right": (0,)}, ValueError, "expected each joint once"),
        ({"steering": (2,)}, ValueError, r"wheels.steering: expected no joint or \(left, right\)"),
        ({"radius": 0.0}, ValueError, "wheels.radius"),
        ({"track": -1.0}, ValueError, "wheels.track"),
        ({"wheelbase": -1.0}, ValueError, "wheels.wheelbase"),
        ({"sign": 2}, ValueError, "wheels.sign: expected 1 or -1, got 2"),
        ({"max_torque": 0}, ValueError, "wheels.max_torque"),
        ({"track_factor": 0}, ValueError, "wheels.track_factor"),
        ({"friction": (1.0, 1.0)}, ValueError, "wheels.friction: expected three factors"),
        ({"friction": (1.0, -1.0, 1.0)}, ValueError, "wheels.friction"),
    ],
)
def test_bad_figures_of_wheels_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        wheels(**changes)


def test_lists_from_a_configuration_file_become_tuples():
    made = wheels(left=[0], right=[1], steering=[2, 3], friction=[1, 0.1, 1], wheelbase=1)
    assert made == wheels(steering=(2, 3), friction=(1.0, 0.1, 1.0), wheelbase=1.0)
    assert hash(made)
