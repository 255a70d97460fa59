"""From commanded motion to wheel motors: the inverse kinematics of wheeled bases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from fleet_gym.world.robots import RobotModel, Wheels
from fleet_gym.world.urdf import UrdfGeometry


@dataclass(frozen=True)
class Wheel:
    """A driven wheel.

    Attributes:
        joint: PyBullet joint index.
        left: distance to the left of the centre line, m, the model's `track_factor` included; negative on the right.
        ahead: distance ahead of the fixed axle, m; 0 unless it is steered.
        gain: joint speed over rolling speed, rad/m.
    """

    joint: int
    left: float
    ahead: float
    gain: float


@dataclass(frozen=True)
class WheelDrive:
    """Motors of one robot slot.

    Attributes:
        wheels: the driven wheels, left then right.
        torque: limit of each wheel motor, N m.
        friction: anisotropic friction of each wheel's link.
        steering: steering joint indices, (left, right) or empty.
        steering_torque: limits of the steering motors, N m.
        track: effective distance between left and right wheels, m.
        wheelbase: m, 0 without steering.
    """

    wheels: tuple[Wheel, ...]
    torque: float
    friction: tuple[float, float, float]
    steering: tuple[int, ...]
    steering_torque: tuple[float, ...]
    track: float
    wheelbase: float

    @cached_property
    def joints(self) -> tuple[int, ...]:
        """Joints of `wheels`."""
        return tuple(wheel.joint for wheel in self.wheels)

    @cached_property
    def torques(self) -> tuple[float, ...]:
        """Limits of the motors of `wheels`, N m."""
        return (self.torque,) * len(self.wheels)

    def targets(self, speed: float, turn: float) -> tuple[list[float], list[float]]:
        """Returns wheel joint speeds, rad/s, and steering angles (left, right or none), rad.

        Args:
            speed: m/s, along the driving direction at the centre of the (rear) axle.
            turn: turn rate, rad/s; with steering, the angle of a single wheel in the middle, rad.
        """
        angles: list[float] = []
        if self.steering:
            slope = math.tan(turn)
            turn = speed * slope / self.wheelbase
            # Each wheel's axle points at the same centre of rotation.
            angles = [
                math.atan2(self.wheelbase * slope, self.wheelbase - side * self.track / 2 * slope) for side in (1, -1)
            ]
            return [self._joint_speed(wheel, speed, turn) for wheel in self.wheels], angles
        return [(speed - turn * wheel.left) * wheel.gain for wheel in self.wheels], angles

    def _joint_speed(self, wheel: Wheel, speed: float, turn: float) -> float:
        along = speed - turn * wheel.left
        # A steered wheel rolls along its own heading, which has a part across the car.
        rolling = math.copysign(math.hypot(along, turn * wheel.ahead), along) if wheel.ahead else along
        return rolling * wheel.gain


def wheel_drive(model: RobotModel, geometry: UrdfGeometry) -> WheelDrive | None:
    """Returns the drive of a robot, None for an arm.

    Args:
        model: as `robot_model` returns it.
        geometry: of its URDF.

    Raises:
        ValueError: when physics dynamics cannot drive it.
    """
    if model.drive is None:
        return None
    if model.drive == "omnidirectional":
        raise ValueError(
            f"robot {model.name!r}: physics dynamics drives differential and Ackermann bases; an omnidirectional one "
            "needs mecanum rollers, which no wheel of a URDF has: use dynamics='kinematic'"
        )
    if model.wheels is None:
        raise ValueError(
            f"robot {model.name!r}: physics dynamics needs to know its wheels: pass "
            "RobotModel(drive=..., wheels=Wheels(left=..., right=..., radius=..., track=...))"
        )
    return _drive(model.wheels, geometry)


def _drive(wheels: Wheels, geometry: UrdfGeometry) -> WheelDrive:
    track = wheels.track * wheels.track_factor

    def wheel(joint: int, side: int) -> Wheel:
        radius = wheels.radius + geometry.joints[joint].margin
        steered = geometry.hangs_from(joint, wheels.steering)
        return Wheel(joint, side * track / 2, wheels.wheelbase if steered else 0.0, wheels.sign / radius)

    return WheelDrive(
        wheels=tuple([wheel(joint, 1) for joint in wheels.left] + [wheel(joint, -1) for joint in wheels.right]),
        torque=wheels.max_torque,
        friction=wheels.friction,
        steering=wheels.steering,
        steering_torque=tuple(geometry.joints[joint].effort or wheels.max_torque for joint in wheels.steering),
        track=track,
        wheelbase=wheels.wheelbase,
    )
