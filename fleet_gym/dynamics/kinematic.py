"""Kinematic dynamics: commanded velocities come true, within acceleration limits, until something is in the way.

Within a control step each robot's body twist is constant, so its path is an arc of a circle with a closed form. There
is no mass and no wheel slip: robots are discs on the ground, obstacles are their outlines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled
from fleet_gym._validation import finite_float, one_of
from fleet_gym.dynamics.collisions import BOX, CYLINDER, mark_touching, sweep_world
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState, WorldSample

COLLISION_RESPONSES = ("stop", "report")
_STATIC, _DIFFERENTIAL, _OMNIDIRECTIONAL, _ACKERMANN = range(4)
_DRIVE_CODES = {
    None: _STATIC,
    "differential": _DIFFERENTIAL,
    "omnidirectional": _OMNIDIRECTIONAL,
    "ackermann": _ACKERMANN,
}
#: Columns of the per-robot parameter table the kernels read.
_DRIVE, _ACCELERATION, _TURN_ACCELERATION, _FORWARD_YAW, _AXLE_OFFSET, _WHEELBASE, _RADIUS = range(7)


class KinematicDynamics:
    """`Dynamics` without a physics engine, for all worlds at once.

    Accelerations are bounded per control step. With ``collision_response="stop"`` a translation ends at first contact
    while rotation goes on and motion away is free; ``"report"`` lets robots pass through each other and only says so.
    Contact is swept along the chord of each arc, with the arc's sagitta as margin, so nothing is tunnelled through.
    """

    def __init__(self, scene: Scene, num_envs: int, *, control_dt: float, collision_response: str = "stop") -> None:
        self.control_dt = finite_float("control_dt", control_dt, minimum=0.0, exclusive=True)
        self._respond = one_of("collision_response", collision_response, COLLISION_RESPONSES) == "stop"
        free = [body.name for body in scene.bodies if body.kind == "free"]
        if free:
            raise ValueError(f"scene: expected obstacles and markers in kinematic dynamics, got free bodies {free}")
        self.state = FleetState.allocate(num_envs, scene)
        self.command_limits = command_limits(scene)
        self._parameters = _parameter_table(scene)
        # The last commanded twist in the body frame: (vx, vy, omega), or (v, 0, steering angle) for Ackermann.
        self._twist = np.zeros((num_envs, scene.num_robots, 3))
        self._outline = _outline_table(scene)
        self._collides = np.array([body.collides for body in scene.bodies], dtype=np.bool_)
        self._obstacles = np.zeros((num_envs, scene.num_bodies, 6))
        self._obstacle_active = np.zeros((num_envs, scene.num_bodies), dtype=np.bool_)
        self._contact = np.zeros((num_envs, scene.num_robots, scene.num_robots + scene.num_bodies), dtype=np.bool_)
        # Compiles the kernels now: under a memory profiler that starts later, compiling would take minutes.
        self.step(np.zeros((num_envs, scene.num_robots, scene.action_size)), np.zeros(num_envs, dtype=np.bool_))

    def step(self, commands: NDArray[np.float64], active: NDArray[np.bool_]) -> None:
        """Advances the active worlds by one control step, see `Dynamics.step`."""
        state = self.state
        _step_worlds(
            commands,
            active,
            self.control_dt,
            self._parameters,
            self._twist,
            state.position,
            state.orientation,
            state.linear_velocity,
            state.angular_velocity,
            state.active,
            self._obstacles,
            self._obstacle_active,
            self._respond,
            self._contact,
            state.in_collision,
            state.collision_starts,
        )

    def reset(self, worlds: NDArray[np.intp], sample: WorldSample) -> None:
        """Places worlds at rest, see `Dynamics.reset`. Overlaps of the sample are reported by the first step."""
        state = self.state
        state.position[worlds] = sample.position
        state.orientation[worlds] = sample.orientation
        state.active[worlds] = sample.active
        state.body_position[worlds] = sample.body_position
        state.body_orientation[worlds] = sample.body_orientation
        state.body_active[worlds] = sample.body_active
        for array in (state.linear_velocity, state.angular_velocity, state.joint_position, state.joint_velocity):
            array[worlds] = 0.0
        state.in_collision[worlds] = False
        state.collision_starts[worlds] = 0
        self._twist[worlds] = 0.0
        self._contact[worlds] = False
        self._place_obstacles(worlds)

    def save(self, worlds: NDArray[np.intp]) -> tuple[FleetState, NDArray[np.float64], NDArray[np.bool_]]:
        """Copies the given worlds; `restore` is exact at any time."""
        return self.state.take(worlds), self._twist[worlds].copy(), self._contact[worlds].copy()

    def restore(
        self, worlds: NDArray[np.intp], saved: tuple[FleetState, NDArray[np.float64], NDArray[np.bool_]]
    ) -> None:
        """Brings back what `save` returned."""
        state, self._twist[worlds], self._contact[worlds] = saved
        self.state.put(worlds, state)
        self._place_obstacles(worlds)

    def close(self) -> None:
        """Nothing to free."""

    def _place_obstacles(self, worlds: NDArray[np.intp]) -> None:
        orientation = self.state.body_orientation[worlds]
        self._obstacles[worlds] = self._outline
        self._obstacles[worlds, :, 1:3] = self.state.body_position[worlds, :, :2]
        self._obstacles[worlds, :, 3] = 2.0 * np.arctan2(orientation[..., 2], orientation[..., 3])
        self._obstacle_active[worlds] = self.state.body_active[worlds] & self._collides


def command_limits(scene: Scene) -> NDArray[np.float64]:
    """(R, A) largest magnitude of each robot's command channels, 0 where it has none; m/s, rad/s, rad."""
    limits = np.zeros((scene.num_robots, scene.action_size))
    for row, robot in zip(limits, scene.robots, strict=True):
        row[: len(robot.command_limits)] = robot.command_limits
    return limits


def _parameter_table(scene: Scene) -> NDArray[np.float64]:
    table = np.zeros((scene.num_robots, 7))
    for row, robot in zip(table, scene.robots, strict=True):
        wheelbase = robot.wheels.wheelbase if robot.wheels is not None else 0.0
        if robot.drive == "ackermann" and wheelbase <= 0.0:
            raise ValueError(f"robot {robot.name!r}: an Ackermann drive needs wheels with a wheelbase > 0 m")
        row[:] = (
            _DRIVE_CODES[robot.drive],
            robot.max_acceleration,
            robot.max_turn_acceleration,
            robot.forward_yaw,
            robot.axle_offset,
            wheelbase,
            robot.footprint_radius,
        )
    return table


def _outline_table(scene: Scene) -> NDArray[np.float64]:
    table = np.zeros((scene.num_bodies, 6))
    for row, body in zip(table, scene.bodies, strict=True):
        if body.shape.kind == "box":
            row[0], row[4], row[5] = BOX, body.shape.size[0] / 2, body.shape.size[1] / 2
        else:
            row[0], row[4] = CYLINDER, body.shape.size[0]
    return table


@compiled
def _limit_twist(
    command: NDArray[np.float64], parameters: NDArray[np.float64], dt: float, twist: NDArray[np.float64]
) -> None:
    """Moves a robot's last twist towards its command, at most as far as its acceleration limits allow in `dt`."""
    drive = parameters[_DRIVE]
    vx, vy, turn = command[0], 0.0, command[1]
    if drive == _OMNIDIRECTIONAL:
        vy, turn = command[1], command[2]
    change_x, change_y = vx - twist[0], vy - twist[1]
    change = np.sqrt(change_x * change_x + change_y * change_y)
    limit = parameters[_ACCELERATION] * dt
    if change > limit:
        twist[0] += change_x * (limit / change)
        twist[1] += change_y * (limit / change)
    else:
        twist[0], twist[1] = vx, vy
    limit = parameters[_TURN_ACCELERATION] * dt
    twist[2] = min(max(turn, twist[2] - limit), twist[2] + limit)


@compiled
def _turn_rate(twist: NDArray[np.float64], parameters: NDArray[np.float64]) -> float:
    if parameters[_DRIVE] == _ACKERMANN:  # bicycle model about the rear axle
        return float(twist[0] * np.tan(twist[2]) / parameters[_WHEELBASE])
    return float(twist[2])


@compiled
def _wanted_motion(
    twist: NDArray[np.float64],
    omega: float,
    heading: float,
    axle_offset: float,
    dt: float,
    displacement: NDArray[np.float64],
) -> float:
    """Writes the displacement of the root link's origin under a constant twist and returns its arc's sagitta, m.

    The drive's centre moves by the integral of the rotating velocity; the origin lies `axle_offset` behind it.
    """
    angle = omega * dt
    half_sine = np.sin(angle / 2)
    if abs(angle) < 1e-9:
        along, across = dt, angle * dt / 2
    else:
        along, across = np.sin(angle) / omega, 2 * half_sine * half_sine / omega
    x = twist[0] * along - twist[1] * across
    y = twist[0] * across + twist[1] * along
    # offset * (h(heading) - h(heading + angle)) in the body frame at the start of the step
    x += axle_offset * 2 * half_sine * half_sine
    y -= axle_offset * np.sin(angle)
    cos, sin = np.cos(heading), np.sin(heading)
    displacement[0] = cos * x - sin * y
    displacement[1] = sin * x + cos * y
    if abs(omega) < 1e-9:
        return 0.0
    speed_y = twist[1] - axle_offset * omega
    turn_radius = np.sqrt(twist[0] * twist[0] + speed_y * speed_y) / abs(omega)
    quarter_sine = np.sin(min(abs(angle), 2 * np.pi) / 4)
    return float(2 * turn_radius * quarter_sine * quarter_sine)


@compiled
def _step_worlds(
    commands: NDArray[np.float64],
    active_worlds: NDArray[np.bool_],
    dt: float,
    parameters: NDArray[np.float64],
    twists: NDArray[np.float64],
    position: NDArray[np.float64],
    orientation: NDArray[np.float64],
    linear_velocity: NDArray[np.float64],
    angular_velocity: NDArray[np.float64],
    active: NDArray[np.bool_],
    obstacles: NDArray[np.float64],
    obstacle_active: NDArray[np.bool_],
    respond: bool,
    contacts: NDArray[np.bool_],
    in_collision: NDArray[np.bool_],
    collision_starts: NDArray[np.int64],
) -> None:
    num_envs, num_robots = active.shape
    displacement = np.zeros((num_robots, 2))
    heading = np.zeros(num_robots)
    omega = np.zeros(num_robots)
    sagitta = np.zeros(num_robots)
    stop = np.ones(num_robots)
    radius = np.empty(num_robots)
    plane = np.empty((num_robots, 2))
    for r in range(num_robots):
        radius[r] = parameters[r, _RADIUS]
    contact = np.zeros(contacts.shape[1:], dtype=np.bool_)
    for e in range(num_envs):
        if not active_worlds[e]:
            continue
        for r in range(num_robots):
            displacement[r, 0] = displacement[r, 1] = 0.0
            plane[r, 0], plane[r, 1] = position[e, r, 0], position[e, r, 1]
            omega[r] = sagitta[r] = 0.0
            if not active[e, r] or parameters[r, _DRIVE] == _STATIC:
                continue
            _limit_twist(commands[e, r], parameters[r], dt, twists[e, r])
            yaw = 2.0 * np.arctan2(orientation[e, r, 2], orientation[e, r, 3])
            heading[r] = yaw + parameters[r, _FORWARD_YAW]
            omega[r] = _turn_rate(twists[e, r], parameters[r])
            sagitta[r] = _wanted_motion(
                twists[e, r], omega[r], heading[r], parameters[r, _AXLE_OFFSET], dt, displacement[r]
            )
        contact[:] = False
        sweep_world(
            plane, displacement, sagitta, radius, active[e], obstacles[e], obstacle_active[e], respond, stop, contact
        )
        for r in range(num_robots):
            if not active[e, r] or parameters[r, _DRIVE] == _STATIC:
                continue
            for axis in range(2):
                plane[r, axis] += stop[r] * displacement[r, axis]
                position[e, r, axis] = plane[r, axis]
            if stop[r] < 1.0:  # what was stopped has lost its speed, but a steering angle stays
                twists[e, r, 0] = twists[e, r, 1] = 0.0
            heading[r] += omega[r] * dt
            yaw = heading[r] - parameters[r, _FORWARD_YAW]
            orientation[e, r, 0] = orientation[e, r, 1] = 0.0
            orientation[e, r, 2] = np.sin(yaw / 2)
            orientation[e, r, 3] = np.cos(yaw / 2)
            _set_velocity(
                twists[e, r], omega[r], heading[r], parameters[r, _AXLE_OFFSET], stop[r] < 1.0, linear_velocity[e, r]
            )
            angular_velocity[e, r, 2] = omega[r]
        mark_touching(plane, radius, active[e], obstacles[e], obstacle_active[e], contact)
        collision_starts[e] = _update_contacts(contact, contacts[e], in_collision[e])


@compiled
def _set_velocity(
    twist: NDArray[np.float64],
    omega: float,
    heading: float,
    axle_offset: float,
    stopped: bool,
    velocity: NDArray[np.float64],
) -> None:
    if stopped:
        velocity[:] = 0.0
        return
    vx, vy = twist[0], twist[1] - axle_offset * omega
    cos, sin = np.cos(heading), np.sin(heading)
    velocity[0] = cos * vx - sin * vy
    velocity[1] = sin * vx + cos * vy
    velocity[2] = 0.0


@compiled
def _update_contacts(contact: NDArray[np.bool_], previous: NDArray[np.bool_], in_collision: NDArray[np.bool_]) -> int:
    """Replaces last step's contacts by this step's, flags the robots in them and counts the pairs that are new."""
    num_robots = in_collision.shape[0]
    in_collision[:] = False
    starts = 0
    for i in range(num_robots):
        for j in range(contact.shape[1]):
            if contact[i, j]:
                in_collision[i] = True
                if j < num_robots:
                    in_collision[j] = True
                if not previous[i, j]:
                    starts += 1
            previous[i, j] = contact[i, j]
    return starts
