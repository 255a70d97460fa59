"""Kinematic dynamics: commanded velocities come true, within acceleration limits, until something is in the way.

Within a control step each robot's body twist is constant, so its path is an arc of a circle with a closed form. There
is no mass and no wheel slip: robots are discs or boxes on the ground, obstacles are their outlines.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleet_gym._validation import finite_float, one_of
from fleet_gym.dynamics.base import Moves
from fleet_gym.dynamics.kinematic_kernel import (
    ACKERMANN,
    COLLIDES,
    DIFFERENTIAL,
    OMNIDIRECTIONAL,
    PARAMETERS,
    STATIC,
    step_worlds,
)
from fleet_gym.dynamics.obstacle_grid import (
    BOUND,
    BOX,
    COS,
    CYLINDER,
    HALF_X,
    HALF_Y,
    HIGH,
    KIND,
    LOW,
    OBSTACLE_COLUMNS,
    SIN,
    Obstacles,
    X,
    Y,
)
from fleet_gym.dynamics.route_kernel import MOVE_COLUMNS
from fleet_gym.world.robots import box_of
from fleet_gym.world.scene import BodySpec, Scene
from fleet_gym.world.state import FleetState, WorldSample

COLLISION_RESPONSES = ("stop", "report")
_DRIVE_CODES = {
    None: STATIC,
    "differential": DIFFERENTIAL,
    "omnidirectional": OMNIDIRECTIONAL,
    "ackermann": ACKERMANN,
}


class _Contacts(NamedTuple):
    """Whom each robot touched in the last step, and room for those of the next one.

    The kernel only reads what is current: a step that an interrupt ends before its result is kept leaves it whole.

    Attributes:
        partners: (n,) robots and obstacles touched.
        start: (E, R) where a robot's partners begin.
        number: (E, R) how many it has.
        next_start: (E, R) scratch.
        next_number: (E, R) scratch.
    """

    partners: NDArray[np.int64]
    start: NDArray[np.int64]
    number: NDArray[np.int64]
    next_start: NDArray[np.int64]
    next_number: NDArray[np.int64]

    def followed_by(self, partners: NDArray[np.int64]) -> _Contacts:
        """What is current after a step that has filled the scratch and returned `partners`."""
        return _Contacts(partners, self.next_start, self.next_number, self.start, self.number)


@dataclass(frozen=True)
class SavedWorlds:
    """What `KinematicDynamics.save` returns: state, commanded twists and contacts of some worlds."""

    state: FleetState
    twist: NDArray[np.float64]
    partners: NDArray[np.int64]
    partner_start: NDArray[np.int64]
    partner_count: NDArray[np.int64]


class KinematicDynamics:
    """`Dynamics` without a physics engine, for all worlds at once.

    Accelerations are bounded per control step. With ``collision_response="stop"`` a translation ends at first contact
    and motion away is free; a disc's rotation goes on, that of a box ends, too. ``"report"`` lets robots pass through
    each other and only says so. Contact is swept along the chord of each arc, with the arc's sagitta as margin, so
    nothing is tunnelled through. Who passes above or below somebody does not touch him.

    Args:
        scene: what is in each world; obstacles and markers only.
        num_envs: E.
        control_dt: s per control step.
        collision_response: ``"stop"`` or ``"report"``.
        contact_margin: m, a gap up to this is contact.
        ignored_robots: slots that touch nothing and are touched by nobody.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a bad argument, a free body, or a car without wheelbase.
    """

    def __init__(
        self,
        scene: Scene,
        num_envs: int,
        *,
        control_dt: float,
        collision_response: str = "stop",
        contact_margin: float = 0.0,
        ignored_robots: Collection[int] = (),
    ) -> None:
        self.control_dt = finite_float("control_dt", control_dt, minimum=0.0, exclusive=True)
        self._respond = one_of("collision_response", collision_response, COLLISION_RESPONSES) == "stop"
        free = [body.name for body in scene.bodies if body.kind == "free"]
        if free:
            raise ValueError(f"scene: expected obstacles and markers in kinematic dynamics, got free bodies {free}")
        meshes = [
            body.name for body in scene.bodies if body.kind == "ground" or (body.collides and body.shape.triangles)
        ]
        if meshes:
            raise ValueError(
                "scene: expected boxes, cylinders and spheres as obstacles of kinematic dynamics (meshes as markers), "
                f"got {meshes}"
            )
        self.state = FleetState.allocate(num_envs, scene)
        self.command_limits = command_limits(scene)
        self._margin = finite_float("contact_margin", contact_margin, minimum=0.0)
        self._parameters = _parameter_table(scene)
        self._parameters[list(ignored_robots), COLLIDES] = 0.0
        # The last commanded twist in the body frame: (vx, vy, omega), or (v, 0, steering angle) for Ackermann.
        self._twist = np.zeros((num_envs, scene.num_robots, 3))
        self._colliding = np.flatnonzero([body.collides for body in scene.bodies])
        self._outline = _outline_table([scene.bodies[b] for b in self._colliding])
        self._obstacles = Obstacles.allocate(num_envs, len(self._outline))
        everybody = (num_envs, scene.num_robots)
        start, count, next_start, next_count = np.zeros((4, *everybody), dtype=np.int64)
        self._contacts = _Contacts(np.zeros(1, dtype=np.int64), start, count, next_start, next_count)
        self._no_moves = Moves(
            np.zeros((1, 1, len(MOVE_COLUMNS))),
            np.zeros(everybody, dtype=np.bool_),
            np.zeros(everybody, dtype=np.bool_),
        )
        # Compiles the kernels now: under a memory profiler that starts later, compiling would take minutes.
        self.step(np.zeros((num_envs, scene.num_robots, scene.action_size)), np.zeros(num_envs, dtype=np.bool_))

    def step(self, commands: NDArray[np.float64], active: NDArray[np.bool_], moves: Moves | None = None) -> None:
        """Advances the active worlds by one control step, see `Dynamics.step`."""
        state, moves, contacts = self.state, moves or self._no_moves, self._contacts
        partners = step_worlds(
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
            self._respond,
            self._margin,
            moves.moves,
            moves.follows,
            moves.blocked,
            *contacts,
            state.in_collision,
            state.collision_starts,
        )
        self._contacts = contacts.followed_by(partners)

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
        self._contacts.number[worlds] = 0
        self._place_obstacles(worlds)

    def save(self, worlds: NDArray[np.intp]) -> SavedWorlds:
        """Copies the given worlds; `restore` is exact at any time."""
        return SavedWorlds(
            self.state.take(worlds),
            self._twist[worlds].copy(),
            self._contacts.partners.copy(),
            self._contacts.start[worlds].copy(),
            self._contacts.number[worlds].copy(),
        )

    def restore(self, worlds: NDArray[np.intp], saved: SavedWorlds) -> None:
        """Brings back what `save` returned."""
        self.state.put(worlds, saved.state)
        self._twist[worlds] = saved.twist
        # Behind the present ones; the next step leaves out what nobody refers to.
        before = self._contacts.partners
        self._contacts = self._contacts._replace(partners=np.concatenate([before, saved.partners]))
        self._contacts.number[worlds] = 0
        self._contacts.start[worlds] = saved.partner_start + len(before)
        self._contacts.number[worlds] = saved.partner_count
        self._place_obstacles(worlds)

    def contacts(self, world: int) -> NDArray[np.int64]:
        """Returns who touched whom in the last step, see `Dynamics.contacts`."""
        start, count = self._contacts.start[world], self._contacts.number[world]
        robots = np.repeat(np.arange(len(count)), count)
        # Each robot's entries are consecutive, but those of the robots need not follow each other.
        within = np.arange(len(robots)) - np.repeat(np.cumsum(count) - count, count)
        partners = self._contacts.partners[np.repeat(start, count) + within]
        obstacles = partners >= len(count)
        partners[obstacles] = len(count) + self._colliding[partners[obstacles] - len(count)]
        return np.stack([robots, partners], axis=-1)

    def adopt(self, old: KinematicDynamics, robots: NDArray[np.intp], bodies: NDArray[np.intp]) -> None:
        """Takes over velocities and contacts, see `Dynamics.adopt`."""
        rows = np.flatnonzero(robots >= 0)
        kept = robots[rows]
        for name in ("linear_velocity", "angular_velocity", "in_collision"):
            getattr(self.state, name)[0, rows] = getattr(old.state, name)[0, kept]
        self._twist[0, rows] = old._twist[0, kept]
        new_of = np.full(old.state.num_robots + old.state.body_position.shape[1], -1)
        new_of[kept] = rows
        there = np.flatnonzero(bodies >= 0)
        new_of[old.state.num_robots + bodies[there]] = self.state.num_robots + there
        pairs = new_of[old.contacts(0)]
        self._set_contacts(pairs[(pairs >= 0).all(axis=1)])

    def _set_contacts(self, pairs: NDArray[np.int64]) -> None:
        """Replaces the contacts of the one world by `pairs` as `contacts` returns them."""
        num_robots = self.state.num_robots
        pairs = np.sort(pairs, axis=1)  # a robot may have moved behind another one
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        place_of = np.zeros(num_robots + self.state.body_position.shape[1], dtype=np.int64)
        place_of[:num_robots] = np.arange(num_robots)
        place_of[num_robots + self._colliding] = num_robots + np.arange(len(self._colliding))
        self._contacts = self._contacts._replace(partners=np.append(place_of[pairs[:, 1]], 0))
        count = np.bincount(pairs[:, 0], minlength=num_robots)
        self._contacts.number[0], self._contacts.start[0] = count, np.cumsum(count) - count

    def close(self) -> None:
        """Nothing to free."""

    def _place_obstacles(self, worlds: NDArray[np.intp]) -> None:
        rows_of = np.ix_(worlds, self._colliding)
        orientation = self.state.body_orientation[rows_of]
        z, w = orientation[..., 2], orientation[..., 3]
        rows = np.repeat(self._outline[None], len(worlds), axis=0)
        rows[..., [X, Y]] = self.state.body_position[rows_of][..., :2]
        rows[..., COS], rows[..., SIN] = w * w - z * z, 2 * w * z
        rows[..., [LOW, HIGH]] += self.state.body_position[rows_of][..., 2:]
        self._obstacles.rows[worlds] = rows
        self._obstacles.active[worlds] = self.state.body_active[rows_of]
        self._obstacles = self._obstacles.indexed(worlds)


def command_limits(scene: Scene) -> NDArray[np.float64]:
    """(R, A) largest magnitude of each robot's command channels, 0 where it has none; m/s, rad/s, rad."""
    limits = np.zeros((scene.num_robots, scene.action_size))
    for row, robot in zip(limits, scene.robots, strict=True):
        row[: len(robot.command_limits)] = robot.command_limits
    return limits


def _parameter_table(scene: Scene) -> NDArray[np.float64]:
    table = np.zeros((scene.num_robots, len(PARAMETERS)))
    for row, robot in zip(table, scene.robots, strict=True):
        wheelbase = robot.wheels.wheelbase if robot.wheels is not None else 0.0
        if robot.drive == "ackermann" and wheelbase <= 0.0:
            raise ValueError(f"robot {robot.name!r}: an Ackermann drive needs wheels with a wheelbase > 0 m")
        row[:] = (
            _DRIVE_CODES[robot.drive],
            robot.max_acceleration,
            robot.max_turn_acceleration,
            np.cos(robot.forward_yaw),
            np.sin(robot.forward_yaw),
            robot.axle_offset,
            wheelbase,
            robot.footprint_radius,
            -robot.base_height,
            robot.height - robot.base_height,
            1.0,
            *box_of(robot),
        )
    return table


def _outline_table(bodies: Sequence[BodySpec]) -> NDArray[np.float64]:
    table = np.zeros((len(bodies), len(OBSTACLE_COLUMNS)))
    for row, body in zip(table, bodies, strict=True):
        is_box = body.shape.kind == "box"
        length, width, _ = body.shape.size
        row[KIND] = BOX if is_box else CYLINDER
        row[[HALF_X, HALF_Y]] = (length / 2, width / 2) if is_box else (length, length)
        row[BOUND] = body.shape.bounding_radius
        row[LOW], row[HIGH] = -body.shape.height / 2, body.shape.height / 2
    return table
