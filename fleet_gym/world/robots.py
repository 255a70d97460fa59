"""Robot models: what a URDF does not say about driving it, each figure with its source."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym._validation import finite_float, non_negative_int, one_of, positive_int
from fleet_gym.world.urdf import UrdfGeometry, inspect_urdf

Drive = Literal["differential", "omnidirectional", "ackermann"]
_DRIVES = ("differential", "omnidirectional", "ackermann")
Footprint = Literal["circle", "box"]


@dataclass(frozen=True)
class Wheels:
    """The driven wheels of a robot, as physics dynamics needs them.

    Attributes:
        left: PyBullet joint indices of the left wheels, seen along the driving direction.
        right: the same for the right wheels.
        radius: wheel radius, m (dynamics adds the margin PyBullet puts around cylinders and meshes).
        track: distance between left and right wheels, m.
        steering: steering joint indices (left, right), Ackermann only; a positive angle steers to the left.
        wheelbase: distance between axles, m, Ackermann only.
        sign: +1, or -1 where a positive joint velocity drives backwards.
        max_torque: motor limit per wheel, N m (PyBullet's ``force`` of a velocity motor).
        track_factor: effective over geometric track: skid steering turns less than the geometry says.
        friction: factors on each wheel's friction along the axes of its link; low along the axle where wheels are
            to skid sideways.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    radius: float
    track: float
    steering: tuple[int, ...] = ()
    wheelbase: float = 0.0
    sign: float = 1.0
    max_torque: float = 20.0
    track_factor: float = 1.0
    friction: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        for name in ("left", "right", "steering"):
            indices = tuple(non_negative_int(f"wheels.{name}", i) for i in _sequence(f"wheels.{name}", self))
            object.__setattr__(self, name, indices)
        if not self.left or not self.right:
            raise ValueError(f"wheels: expected joints on both sides, got left={self.left!r}, right={self.right!r}")
        joints = self.left + self.right + self.steering
        if len(set(joints)) != len(joints):
            raise ValueError(f"wheels: expected each joint once, got {joints!r}")
        if len(self.steering) not in (0, 2):
            raise ValueError(f"wheels.steering: expected no joint or (left, right), got {self.steering!r}")
        for name in ("radius", "track", "max_torque", "track_factor"):
            _set_float(self, f"wheels.{name}", minimum=0.0, exclusive=True)
        _set_float(self, "wheels.wheelbase", minimum=0.0)
        if self.sign not in (1, -1):
            raise ValueError(f"wheels.sign: expected 1 or -1, got {self.sign!r}")
        friction = [finite_float("wheels.friction", f, minimum=0.0) for f in _sequence("wheels.friction", self)]
        if len(friction) != 3:
            raise ValueError(f"wheels.friction: expected three factors, got {self.friction!r}")
        object.__setattr__(self, "friction", tuple(friction))


@dataclass(frozen=True)
class RobotModel:
    """A robot type. Immutable and picklable; `robot_model` makes one from a name or a URDF path.

    Figures a URDF can be measured for may be left at 0: `robot_model` fills them in. ``FleetVectorEnv`` and whatever
    else takes a robot does so by itself.

    Attributes:
        name: registry name, or the file's stem.
        urdf: path of the URDF; absolute in what `robot_model` returns.
        drive: kind of base, None for an arm.
        footprint_radius: radius of the circle about the root link's origin that holds all collision shapes, and a box
            footprint's corners, m; 0: measured.
        base_height: z of the root link's origin when the robot stands on the ground, m; 0: measured.
        height: top of the robot above the ground when it stands, m; 0: measured.
        num_joints: movable joints (neither fixed nor spherical), PyBullet's order; 0: counted.
        max_speed: m/s, along the driving direction (and sideways for omnidirectional bases).
        max_turn_rate: rad/s (differential, omnidirectional).
        max_steering: rad (Ackermann).
        max_acceleration: m/s^2.
        max_turn_acceleration: rad/s^2 (for Ackermann: of the steering angle's rate, rad/s).
        forward_yaw: angle from the root link's x axis to the driving direction, rad.
        axle_offset: position of the centre of rotation (rear axle of an Ackermann base) along the driving direction
            from the root link's origin, m; 0: measured where `wheels` says which joints are wheels.
        wheels: needed by physics dynamics, not by kinematic dynamics (except for an Ackermann base's wheelbase).
        footprint: ``"circle"`` or ``"box"``, as which the robot collides in kinematic dynamics.
        footprint_bounds: (low x, low y, high x, high y) of a box footprint in the root link's frame, m; empty:
            measured.
    """

    name: str
    urdf: str
    drive: Drive | None = "differential"
    footprint_radius: float = 0.0
    base_height: float = 0.0
    height: float = 0.0
    num_joints: int = 0
    max_speed: float = 1.0
    max_turn_rate: float = 1.0
    max_steering: float = 0.5
    max_acceleration: float = 1.0
    max_turn_acceleration: float = 2.0
    forward_yaw: float = 0.0
    axle_offset: float = 0.0
    wheels: Wheels | None = None
    footprint: Footprint = "circle"
    footprint_bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"robot name: expected a non-empty string, got {self.name!r}")
        if not isinstance(self.urdf, (str, os.PathLike)) or not os.fspath(self.urdf):
            raise TypeError(f"robot urdf: expected a path, got {self.urdf!r}")
        object.__setattr__(self, "urdf", os.fspath(self.urdf))
        if self.drive is not None and self.drive not in _DRIVES:
            raise ValueError(f"robot drive: expected one of {_DRIVES} or None, got {self.drive!r}")
        for name in ("max_speed", "max_turn_rate", "max_steering", "max_acceleration", "max_turn_acceleration"):
            _set_float(self, f"robot.{name}", minimum=0.0, exclusive=True)
        for name in ("footprint_radius", "height"):
            _set_float(self, f"robot.{name}", minimum=0.0)
        for name in ("base_height", "forward_yaw", "axle_offset"):
            _set_float(self, f"robot.{name}")
        if self.max_steering >= math.pi / 2:
            raise ValueError(f"robot.max_steering: expected less than pi/2 rad, got {self.max_steering!r}")
        object.__setattr__(self, "num_joints", non_negative_int("robot.num_joints", self.num_joints))
        self._check_wheels()
        self._check_footprint()

    def _check_footprint(self) -> None:
        one_of("robot.footprint", self.footprint, get_args(Footprint))
        bounds = _sequence("robot.footprint_bounds", self)
        bounds = tuple(finite_float("robot.footprint_bounds", bound) for bound in bounds)
        if bounds and (len(bounds) != 4 or bounds[0] >= bounds[2] or bounds[1] >= bounds[3]):
            raise ValueError(f"robot.footprint_bounds: expected low x, low y, high x, high y in m, got {bounds!r}")
        object.__setattr__(self, "footprint_bounds", bounds)
        if self.footprint == "box" and bounds:
            corner = math.hypot(max(map(abs, bounds[::2])), max(map(abs, bounds[1::2])))
            object.__setattr__(self, "footprint_radius", max(self.footprint_radius, corner))

    def _check_wheels(self) -> None:
        wheels = self.wheels
        if wheels is not None and not isinstance(wheels, Wheels):
            raise TypeError(f"robot wheels: expected Wheels or None, got {wheels!r}")
        if self.drive == "ackermann" and (wheels is None or not wheels.steering or wheels.wheelbase == 0.0):
            raise ValueError(
                "robot wheels: expected Wheels with steering joints and a wheelbase > 0 m for an Ackermann drive, "
                f"got {wheels!r}"
            )

    @property
    def command_limits(self) -> tuple[float, ...]:
        """Largest value of each command channel: (v, omega), (vx, vy, omega) or (v, steering); empty for an arm."""
        if self.drive == "differential":
            return (self.max_speed, self.max_turn_rate)
        if self.drive == "omnidirectional":
            return (self.max_speed, self.max_speed, self.max_turn_rate)
        if self.drive == "ackermann":
            return (self.max_speed, self.max_steering)
        return ()


#: What may stand for a robot, see `robot_model`.
RobotLike: TypeAlias = str | os.PathLike[str] | RobotModel


def _sequence(name: str, owner: Any) -> Sequence[Any]:
    value = getattr(owner, name.split(".")[1])
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name}: expected a sequence, got {value!r}")
    return value


def _set_float(owner: Any, name: str, **bounds: Any) -> None:
    field = name.split(".")[1]
    object.__setattr__(owner, field, finite_float(name, getattr(owner, field), **bounds))


# Joint indices, wheel radii and distances are read off the URDFs. Torques, track factors and friction are tuned so that
# in physics dynamics v comes true within 5 % and omega within 8 % up to 0.5 m/s and 0.5 rad/s, measured with PyBullet
# 3.2.7 at 240 Hz on plane.urdf (tests/dynamics/test_physics_speeds.py holds them to it).
_STOCK = {
    # 1 m/s is the Husky A200 data sheet's top speed; accelerations are husky_control's (control.yaml: 3 m/s^2,
    # 6 rad/s^2). That file allows 2 rad/s: on contact physics skid steering falls behind from about 1 rad/s.
    "husky": RobotModel(
        name="husky",
        urdf="husky/husky.urdf",
        max_speed=1.0,
        max_turn_rate=1.0,
        max_acceleration=3.0,
        max_turn_acceleration=6.0,
        wheels=Wheels(
            left=(2, 4),
            right=(3, 5),
            radius=0.17775,
            track=0.5708,
            max_torque=30.0,
            track_factor=1.1,
            friction=(1.0, 0.1, 1.0),
        ),
    ),
    # The car of mit-racecar: 2 m/s and 0.34 rad are its joystick's limits (racecar-v2/joy_teleop.yaml), 0.325 m its
    # wheelbase (racecar_simulator/params.yaml). 3.2 rad/s is the steering rate of the F1TENTH vehicle, the same chassis
    # class (f1tenth_gym, sv_max); effort 10 N m of its URDF limits the wheels; 2 m/s^2 keeps it from sliding.
    "racecar": RobotModel(
        name="racecar",
        urdf="racecar/racecar.urdf",
        drive="ackermann",
        max_speed=2.0,
        max_steering=0.34,
        max_acceleration=2.0,
        max_turn_acceleration=3.2,
        wheels=Wheels(
            left=(2, 5),
            right=(3, 7),
            steering=(4, 6),
            radius=0.05,
            track=0.245,
            wheelbase=0.325,
            max_torque=10.0,
        ),
    ),
    # No such machine exists: limits are what its small wheels hold upright. It drives along +y, where its gripper
    # points; with 20 N m and more per wheel it falls over.
    "r2d2": RobotModel(
        name="r2d2",
        urdf="r2d2.urdf",
        max_speed=1.0,
        max_turn_rate=1.0,
        forward_yaw=math.pi / 2,
        wheels=Wheels(
            left=(6, 7),
            right=(2, 3),
            radius=0.035,
            track=0.44,
            sign=-1.0,
            max_torque=4.0,
            track_factor=1.07,
            friction=(1.0, 1.0, 0.1),
        ),
    ),
    "kuka_iiwa": RobotModel(name="kuka_iiwa", urdf="kuka_iiwa/model.urdf", drive=None),
    "panda": RobotModel(name="panda", urdf="franka_panda/panda.urdf", drive=None),
}
_ASSETS = Path(__file__).resolve().parent.parent / "assets"
_BUNDLED = {
    # Made for this package: speeds of a small indoor base; 2 m/s^2 is half of what lifts its wheels.
    "diffbot": RobotModel(
        name="diffbot",
        urdf=str(_ASSETS / "diffbot.urdf"),
        max_speed=1.0,
        max_turn_rate=2.0,
        max_acceleration=2.0,
        max_turn_acceleration=6.0,
        wheels=Wheels(left=(0,), right=(1,), radius=0.05, track=0.26, max_torque=2.0),
    ),
}


def known_robots() -> tuple[str, ...]:
    """Names `robot_model` knows, sorted."""
    return tuple(sorted({**_STOCK, **_BUNDLED}))


def robot_model(robot: RobotLike, *, footprint: Footprint | None = None) -> RobotModel:
    """Returns the complete model of a robot: URDF found and measured, wheels checked against it.

    Args:
        robot: a name of `known_robots`; a URDF path, absolute, relative to the working directory or to
            ``pybullet_data``, taken as a differential base without known wheels (enough for kinematic dynamics); or a
            `RobotModel`, whose figures at 0 are measured.
        footprint: ``"circle"`` or ``"box"``; None: the model's own.

    Raises:
        TypeError: `robot` is something else.
        ValueError: unknown name, missing or unreadable URDF, or a model that contradicts its URDF.
    """
    if footprint is not None:
        model = robot_model(robot)
        if footprint == model.footprint:
            return model
        # A box may have widened it to its corners.
        radius = 0.0 if footprint == "circle" else model.footprint_radius
        return _completed(replace(model, footprint=footprint, footprint_radius=radius))
    if isinstance(robot, RobotModel):
        return _completed(replace(robot, urdf=_find_urdf(robot.urdf)))
    if not isinstance(robot, (str, os.PathLike)):
        raise TypeError(f"robot: expected a name, a URDF path or a RobotModel, got {robot!r}")
    path = os.fspath(robot)
    if path in _BUNDLED:
        return _completed(_BUNDLED[path])
    if path in _STOCK:
        model = _STOCK[path]
        return _completed(replace(model, urdf=os.path.join(pybullet_data_path(), model.urdf)))
    return _completed(RobotModel(name=Path(path).stem or path, urdf=_find_urdf(path)))


def box_of(model: RobotModel) -> tuple[float, float, float, float]:
    """Half length, half width and centre (x, y in the root link's frame) of a box footprint, m; zeros for a circle.

    Raises:
        ValueError: for a box without bounds.
    """
    if model.footprint == "circle":
        return 0.0, 0.0, 0.0, 0.0
    if not model.footprint_bounds:
        raise ValueError(f"robot {model.name!r}: footprint_bounds: expected those of the box, got none")
    low_x, low_y, high_x, high_y = model.footprint_bounds
    return (high_x - low_x) / 2, (high_y - low_y) / 2, (low_x + high_x) / 2, (low_y + high_y) / 2


def robot_models(robot: RobotLike | Sequence[RobotLike], num_robots: int) -> tuple[RobotModel, ...]:
    """Returns one model per robot slot.

    Args:
        robot: as for `robot_model`, the same in all slots, or a list or tuple with one entry per slot.
        num_robots: R, at least 1.

    Raises:
        TypeError: an entry of another type, or `num_robots` is no int.
        ValueError: no robot, a list of another length, or what `robot_model` raises.
    """
    count = positive_int("num_robots", num_robots)
    if isinstance(robot, (list, tuple)):
        if len(robot) != count:
            raise ValueError(f"robot: expected a list of num_robots = {count} entries, got {len(robot)}: {robot!r}")
        return tuple(map(robot_model, robot))
    return (robot_model(robot),) * count  # type: ignore[arg-type]


def _find_urdf(path: str) -> str:
    for candidate in (os.path.abspath(path), os.path.join(pybullet_data_path(), path)):
        if os.path.isfile(candidate):
            return candidate
    raise ValueError(f"robot: expected one of {', '.join(known_robots())}, or an existing URDF file, got {path!r}")


def _completed(model: RobotModel) -> RobotModel:
    geometry = inspect_urdf(model.urdf)
    count = len(geometry.movable)
    if model.num_joints not in (0, count):
        raise ValueError(
            f"robot {model.name!r}: num_joints: expected {count} as in {model.urdf!r}, got {model.num_joints}"
        )
    if geometry.footprint_radius == 0.0:
        raise ValueError(f"robot {model.name!r}: expected a URDF with collision shapes, got {model.urdf!r}")
    axle_offset = model.axle_offset
    if model.wheels is not None:
        _check_wheel_joints(model, model.wheels, geometry)
        axle_offset = axle_offset or _axle_offset(model, model.wheels, geometry)
    base_height = model.base_height or 0.0 - geometry.lowest
    return replace(
        model,
        footprint_radius=model.footprint_radius or geometry.footprint_radius,
        footprint_bounds=model.footprint_bounds or geometry.footprint_bounds,
        base_height=base_height,
        height=model.height or base_height + geometry.highest,
        num_joints=count,
        axle_offset=axle_offset,
    )


def _along_and_across(model: RobotModel, geometry: UrdfGeometry, joint: int) -> tuple[float, float]:
    """Where a joint is: along the driving direction and to the left of it, from the root link's origin, m."""
    x, y, _ = geometry.joints[joint].origin
    cos, sin = math.cos(model.forward_yaw), math.sin(model.forward_yaw)
    return cos * x + sin * y, cos * y - sin * x


def _check_wheel_joints(model: RobotModel, wheels: Wheels, geometry: UrdfGeometry) -> None:
    for joint in wheels.left + wheels.right + wheels.steering:
        if joint >= len(geometry.joints) or not geometry.joints[joint].movable:
            movable = {i: geometry.joints[i].name for i in geometry.movable}
            raise ValueError(f"robot {model.name!r}: wheels: expected movable joints of {movable}, got {joint}")
    for left, right in product(wheels.left, wheels.right):
        if _along_and_across(model, geometry, left)[1] <= _along_and_across(model, geometry, right)[1]:
            raise ValueError(
                f"robot {model.name!r}: wheels: expected left wheels to the left of right wheels, seen along "
                f"forward_yaw={model.forward_yaw:g}, got left joint {left} and right joint {right}"
            )


def _axle_offset(model: RobotModel, wheels: Wheels, geometry: UrdfGeometry) -> float:
    fixed = [i for i in wheels.left + wheels.right if not geometry.hangs_from(i, wheels.steering)]
    along = [_along_and_across(model, geometry, joint)[0] for joint in fixed]
    # PyBullet keeps URDF frames in single precision: a tenth of a micrometre is zero.
    return round(sum(along) / len(along), 7) + 0.0 if along else 0.0
