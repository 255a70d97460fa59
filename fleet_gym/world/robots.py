"""Robot models: what a URDF does not say about driving it, each figure with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Drive = Literal["differential", "omnidirectional", "ackermann"]


@dataclass(frozen=True)
class Wheels:
    """The driven wheels of a robot, as physics dynamics needs them.

    Attributes:
        left: PyBullet joint indices of the left wheels, seen along the driving direction.
        right: the same for the right wheels.
        radius: wheel radius, m (PyBullet's collision margin of 1 mm is added by dynamics).
        track: distance between left and right wheels, m.
        steering: steering joint indices (left, right), Ackermann only.
        wheelbase: distance between axles, m, Ackermann only.
        sign: +1, or -1 where a positive joint velocity drives backwards.
        max_torque: motor limit per wheel, N m (PyBullet's ``force`` of a velocity motor).
        track_factor: effective over geometric track: skid steering turns less than the geometry says.
        friction: anisotropic friction per wheel link axis, low along the axle.
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


@dataclass(frozen=True)
class RobotModel:
    """A robot type. Immutable and picklable; `robot_model` makes one from a name or a URDF path.

    Attributes:
        name: registry name, or the file's stem.
        urdf: absolute path of the URDF.
        drive: kind of base, None for an arm.
        footprint_radius: radius of the circle about the root link's origin that holds all collision shapes, m.
        base_height: z of the root link's origin when the robot stands on the ground, m.
        height: top of the robot above the ground when it stands, m.
        num_joints: movable joints (neither fixed nor spherical), PyBullet's order.
        max_speed: m/s, along the driving direction (and sideways for omnidirectional bases).
        max_turn_rate: rad/s (differential, omnidirectional).
        max_steering: rad (Ackermann).
        max_acceleration: m/s^2.
        max_turn_acceleration: rad/s^2 (for Ackermann: of the steering angle's rate, rad/s).
        forward_yaw: angle from the root link's x axis to the driving direction, rad.
        axle_offset: position of the centre of rotation (rear axle of an Ackermann base) along the driving direction
            from the root link's origin, m.
        wheels: needed by physics dynamics, not by kinematic dynamics.
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
