"""Physics dynamics: wheels driven by motors on contact physics, one PyBullet client per world."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from fleet_gym._validation import finite_float, one_of, positive_int
from fleet_gym.dynamics.base import Moves
from fleet_gym.dynamics.physics_frames import mass_centre_to_root, root_to_mass_centre
from fleet_gym.dynamics.physics_world import (
    GRAVITY,
    SUBSTEPS_PER_SECOND,
    PhysicsWorld,
    body_reach,
    plan_slot,
    solids,
)
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState, WorldSample

# A contact that comes back within this time is the same contact, s: wheels and bumpers rattle.
_CONTACT_MEMORY = 0.1
# Speed a body may gain from a collision within a control step and still be watched in time, m/s.
_SHOVE = 1.0
_NEVER = 2**31


@dataclass(frozen=True)
class PhysicsSnapshot:
    """Copy of some worlds, made by `PhysicsDynamics.save`: plain arrays, picklable, tied to no client.

    Attributes:
        state: n rows of the public state.
        motion: (n, M, 13) poses and velocities of what can move, centre-of-mass frame.
        twist: (n, R, 2) last commands after acceleration limits.
        since_contact: (n, R, K) control steps since each pair touched.
    """

    state: FleetState
    motion: NDArray[np.float64]
    twist: NDArray[np.float64]
    since_contact: NDArray[np.int64]


class PhysicsDynamics:
    """`Dynamics` on PyBullet: velocity motors on wheels, 240 Hz substeps, gravity, friction and contact.

    Acceleration limits bound the change of command per control step; motors are told once per control step. Robots may
    slip, be pushed and fall. Bodies of kind ``"free"`` are pushed, ``"obstacle"`` never moves, ``"marker"`` is not in
    the physics at all. Arms (``drive=None``) stand on a fixed base and hold their joints.

    A reset is exact: the same sample followed by the same commands gives the same floats, whatever happened before and
    whatever other worlds do.

    Args:
        scene: what is in each world; robots as `robot_model` returns them.
        num_envs: E.
        control_dt: s per control step, a whole number of 1/240 s.
        collision_response: ``"stop"``; contact is physical here, so robots cannot pass through each other.

    Raises:
        ValueError: a bad argument, or a robot that lacks what physics needs. Clients already opened are closed.
    """

    def __init__(self, scene: Scene, num_envs: int, *, control_dt: float, collision_response: str = "stop") -> None:
        count = positive_int("num_envs", num_envs)
        self._substeps = substeps(control_dt)
        one_of("collision_response", collision_response, ("stop", "report"))
        if collision_response == "report":
            raise ValueError(
                "collision_response: expected 'stop' in physics dynamics, where contact is physical, got 'report' "
                "(dynamics='kinematic' has it)"
            )
        self.control_dt = float(control_dt)
        self.state = FleetState.allocate(count, scene)
        self._slots = tuple(plan_slot(model) for model in scene.robots)
        self.command_limits = np.zeros((scene.num_robots, scene.action_size))
        self._largest_change = np.zeros((scene.num_robots, scene.action_size))
        for robot, model in enumerate(scene.robots):
            size = len(model.command_limits)
            self.command_limits[robot, :size] = model.command_limits
            acceleration = (model.max_acceleration, model.max_turn_acceleration)[:size]
            self._largest_change[robot, :size] = np.multiply(acceleration, self.control_dt)
        self._allocate(scene, count)
        self._worlds: list[PhysicsWorld] = []
        try:
            for _ in range(count):
                self._worlds.append(PhysicsWorld(scene, self._slots))
            frames = [self._worlds[0].inertial_frame(robot) for robot in range(scene.num_robots)]
        except BaseException:
            self.close()
            raise
        self._local_position = np.array([position for position, _ in frames]).reshape(-1, 3)
        self._local_orientation = np.array([orientation for _, orientation in frames]).reshape(-1, 4)

    def _allocate(self, scene: Scene, num_envs: int) -> None:
        robots = scene.num_robots
        # Bodies of a client: robots, then what collides of the scene's bodies.
        self._solids = np.array([i for i, spec in enumerate(scene.bodies) if spec.collides], dtype=np.intp)
        free = [number for number, spec in enumerate(solids(scene)) if spec.kind == "free"]
        self._mobile = np.array([i for i, slot in enumerate(self._slots) if not slot.is_static], dtype=np.intp)
        self._free = self._solids[free]
        self._moving = np.concatenate([self._mobile, robots + np.array(free, dtype=np.intp)])
        self._joints_read = np.zeros((robots, scene.max_joints), dtype=np.bool_)
        self._rest_joints = np.zeros((robots, scene.max_joints))
        for rest, slot in zip(self._rest_joints, self._slots, strict=True):
            rest[: len(slot.geometry.movable)] = [slot.geometry.joints[i].rest_position for i in slot.geometry.movable]
        for robot, slot in enumerate(self._slots):
            self._joints_read[robot, : len(slot.geometry.movable)] = True
        self._reach = np.array(body_reach(scene, self._slots), dtype=np.float64)
        self._motion = np.zeros((num_envs, len(self._moving), 13))
        self._twist = np.zeros((num_envs, robots, scene.action_size))
        self._contact_memory = max(1, math.ceil(_CONTACT_MEMORY / self.control_dt - 1e-9))
        self._since_contact = np.full((num_envs, robots, len(self._reach)), _NEVER, dtype=np.int64)

    def step(self, commands: NDArray[np.float64], active: NDArray[np.bool_], moves: Moves | None = None) -> None:
        """Advances the active worlds by one control step, see `Dynamics.step`.

        Raises:
            ClosedEnvironmentError: after `close`.
            ValueError: for planned moves.
        """
        self._require_open("step")
        if moves is not None:
            raise ValueError(f"moves: expected None in physics dynamics, where motors move the robots, got {moves!r}")
        worlds = np.flatnonzero(active)
        wanted = np.where(self.state.active[worlds, :, None], commands[worlds], 0.0)
        last = self._twist[worlds]
        self._twist[worlds] = np.clip(wanted, last - self._largest_change, last + self._largest_change)
        self._record_contacts(worlds, self._advance(worlds))
        self._publish(worlds)

    def reset(self, worlds: NDArray[np.intp], sample: WorldSample) -> None:
        """Places worlds at rest, see `Dynamics.reset`: exact, and without contacts until the next step.

        Joints start at zero, or where their limits come nearest to it.

        Raises:
            ClosedEnvironmentError: after `close`.
        """
        self._require_open("reset")
        state = self.state
        for name in ("position", "orientation", "active", "body_position", "body_orientation", "body_active"):
            getattr(state, name)[worlds] = getattr(sample, name)
        for array in (state.linear_velocity, state.angular_velocity, state.joint_velocity, self._twist):
            array[worlds] = 0.0
        state.joint_position[worlds] = self._rest_joints
        state.in_collision[worlds] = False
        state.collision_starts[worlds] = 0
        self._since_contact[worlds] = _NEVER
        motion = self._motion_from_state(worlds)
        self._motion[worlds] = motion[:, self._moving]
        for world, active, rows in zip(worlds.tolist(), self._solid_active(worlds), motion, strict=True):
            self._worlds[world].place(active.tolist(), rows.tolist())

    def save(self, worlds: NDArray[np.intp]) -> PhysicsSnapshot:
        """Copies the given worlds.

        Poses, velocities, joints and contact counts are kept, PyBullet's contact impulses of the last substep are not:
        what follows a `restore` is always the same, to the last bit, but may part from what followed `save` by the
        small difference those impulses make. Right after `reset` both agree exactly.
        """
        return PhysicsSnapshot(
            self.state.take(worlds),
            self._motion[worlds].copy(),
            self._twist[worlds].copy(),
            self._since_contact[worlds].copy(),
        )

    def restore(self, worlds: NDArray[np.intp], saved: PhysicsSnapshot) -> None:
        """Brings back what `save` returned, also in other worlds or another instance of the same scene.

        Raises:
            ClosedEnvironmentError: after `close`.
        """
        self._require_open("restore")
        self.state.put(worlds, saved.state)
        self._motion[worlds] = saved.motion
        self._twist[worlds] = saved.twist
        self._since_contact[worlds] = saved.since_contact
        motion = self._motion_from_state(worlds)
        motion[:, self._moving] = saved.motion
        for world, active, rows in zip(worlds.tolist(), self._solid_active(worlds), motion, strict=True):
            joints = [self._joints(world, robot) for robot in range(len(self._slots))]
            self._worlds[world].place(active.tolist(), rows.tolist(), joints)

    def contacts(self, world: int) -> NDArray[np.int64]:
        """Returns pairs in contact, see `Dynamics.contacts`; one that rattles is in contact for a moment longer."""
        pairs = np.argwhere(self._since_contact[world] <= self._contact_memory)
        others = pairs[:, 1] >= len(self._slots)
        pairs[others, 1] = len(self._slots) + self._solids[pairs[others, 1] - len(self._slots)]
        return pairs.astype(np.int64)

    def adopt(self, old: PhysicsDynamics, robots: NDArray[np.intp], bodies: NDArray[np.intp]) -> None:
        """Takes over velocities, joints and contacts, see `Dynamics.adopt`."""
        rows = np.flatnonzero(robots >= 0)
        saved, before = self.save(np.array([0])), old.save(np.array([0]))
        saved.state.in_collision[0, rows] = before.state.in_collision[0, robots[rows]]
        for name in ("linear_velocity", "angular_velocity", "joint_position", "joint_velocity"):
            new, previous = getattr(saved.state, name), getattr(before.state, name)
            width = min(new.shape[-1], previous.shape[-1])
            new[0, rows, :width] = previous[0, robots[rows], :width]
        width = min(saved.twist.shape[-1], before.twist.shape[-1])
        saved.twist[0, rows, :width] = before.twist[0, robots[rows], :width]
        solid = self._bodies_in_client(robots, bodies, old)
        known = np.flatnonzero(solid >= 0)
        kept = np.flatnonzero(solid[: len(robots)] >= 0)
        saved.since_contact[0][np.ix_(kept, known)] = before.since_contact[0][np.ix_(solid[kept], solid[known])]
        row_of = {int(body): row for row, body in enumerate(old._moving)}
        for row, body in enumerate(self._moving.tolist()):
            if solid[body] >= 0:
                saved.motion[0, row] = before.motion[0, row_of[int(solid[body])]]
        self.restore(np.array([0]), saved)

    def _bodies_in_client(
        self, robots: NDArray[np.intp], bodies: NDArray[np.intp], old: PhysicsDynamics
    ) -> NDArray[np.intp]:
        """(K,) which body of `old`'s clients each body of this one's was, -1 for new ones."""
        number = {int(body): len(old._slots) + k for k, body in enumerate(old._solids)}
        rest = [number.get(int(bodies[body]), -1) for body in self._solids]
        return np.concatenate([robots, np.array(rest, dtype=np.intp)])

    def close(self) -> None:
        """Closes all clients; calling it again does nothing. `state` stays readable."""
        while self._worlds:
            self._worlds.pop().close()

    def _require_open(self, method: str) -> None:
        if not self._worlds:
            raise ClosedEnvironmentError(f"PhysicsDynamics.{method} was called after close()")

    def _advance(self, worlds: NDArray[np.intp]) -> list[list[tuple[int, int]]]:
        """Drives and simulates the given worlds, reads back motion and joints, returns the pairs that touched."""
        state, mobile = self.state, self._mobile.tolist()
        rows, first, second = np.nonzero(self._pairs_in_reach(worlds))
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        ends = np.searchsorted(rows, np.arange(len(worlds) + 1)).tolist()
        twists = self._twist[worlds][:, self._mobile].tolist()
        read: NDArray[np.bool_] = self._joints_read & state.active[worlds][:, :, None]
        jointed = np.asarray(read.any(axis=2)).tolist()
        touched, motion, joints = [], [], []
        for row, world in enumerate(worlds.tolist()):
            simulation = self._worlds[world]
            for robot, twist in zip(mobile, twists[row], strict=True):
                simulation.drive(robot, twist[0], twist[1])
            touched.append(simulation.advance(self._substeps, pairs[ends[row] : ends[row + 1]]))
            motion += simulation.read_motion()
            for robot, has_joints in enumerate(jointed[row]):
                if has_joints:
                    joints += [joint[:2] for joint in simulation.read_joints(robot)]
        self._motion[worlds] = np.array(motion).reshape(len(worlds), len(self._moving), 13)
        if joints:
            values = np.array(joints)
            for array, column in ((state.joint_position, 0), (state.joint_velocity, 1)):
                updated = array[worlds]
                updated[read] = values[:, column]
                array[worlds] = updated
        return touched

    def _record_contacts(self, worlds: NDArray[np.intp], touched: list[list[tuple[int, int]]]) -> None:
        self._since_contact[worlds] += 1
        self.state.in_collision[worlds] = False
        self.state.collision_starts[worlds] = 0
        for world, pairs in zip(worlds.tolist(), touched, strict=True):
            since, in_collision = self._since_contact[world], self.state.in_collision[world]
            for first, second in pairs:
                self.state.collision_starts[world] += int(since[first, second] > self._contact_memory)
                since[first, second] = 0
                in_collision[first] = True
                if second < len(in_collision):
                    in_collision[second] = True

    def _pairs_in_reach(self, worlds: NDArray[np.intp]) -> NDArray[np.bool_]:
        """(n, R, K) pairs that could touch within this step: asking PyBullet about the others would be a waste."""
        state, dt = self.state, self.control_dt
        robots = state.num_robots
        centre = np.concatenate([state.position[worlds], state.body_position[worlds][:, self._solids]], axis=1)
        speed = np.sqrt((self._motion[worlds, :, 7:10] ** 2).sum(axis=-1)).max(axis=1, initial=0.0)
        approach = 2.0 * dt * (speed + _SHOVE + GRAVITY * dt)
        distance = np.sqrt(((centre[:, :robots, None] - centre[:, None]) ** 2).sum(axis=-1))
        limit = self._reach[:robots, None] + self._reach + approach[:, None, None]
        active = self._solid_active(worlds)
        later = np.arange(robots)[:, None] < np.arange(len(self._reach))
        return np.asarray((distance <= limit) & active[:, :robots, None] & active[:, None] & later)

    def _solid_active(self, worlds: NDArray[np.intp]) -> NDArray[np.bool_]:
        return np.concatenate([self.state.active[worlds], self.state.body_active[worlds][:, self._solids]], axis=1)

    def _motion_from_state(self, worlds: NDArray[np.intp]) -> NDArray[np.float64]:
        """(n, K, 13) poses of all bodies of a client, centre-of-mass frame, at rest."""
        state, robots = self.state, self.state.num_robots
        motion = np.zeros((len(worlds), len(self._reach), 13))
        motion[:, :robots, :3], motion[:, :robots, 3:7] = root_to_mass_centre(
            state.position[worlds], state.orientation[worlds], self._local_position, self._local_orientation
        )
        motion[:, robots:, :3] = state.body_position[worlds][:, self._solids]
        motion[:, robots:, 3:7] = state.body_orientation[worlds][:, self._solids]
        return motion

    def _joints(self, world: int, robot: int) -> tuple[list[float], list[float]]:
        count = len(self._slots[robot].geometry.movable)
        state = self.state
        return state.joint_position[world, robot, :count].tolist(), state.joint_velocity[world, robot, :count].tolist()

    def _publish(self, worlds: NDArray[np.intp]) -> None:
        """Writes what PyBullet reported into the public state; rows of inactive robots and bodies stay as placed."""
        state, mobile = self.state, self._mobile
        motion = self._motion[worlds, : len(mobile)]
        turn = motion[..., 10:]
        position, orientation, velocity = mass_centre_to_root(
            motion[..., :3],
            motion[..., 3:7],
            motion[..., 7:10],
            turn,
            self._local_position[mobile],
            self._local_orientation[mobile],
        )
        shown = state.active[worlds][:, mobile]
        _write(state.position, worlds, mobile, shown, position)
        _write(state.orientation, worlds, mobile, shown, orientation)
        _write(state.linear_velocity, worlds, mobile, shown, velocity)
        _write(state.angular_velocity, worlds, mobile, shown, turn)
        free = self._motion[worlds, len(mobile) :]
        shown = state.body_active[worlds][:, self._free]
        _write(state.body_position, worlds, self._free, shown, free[..., :3])
        _write(state.body_orientation, worlds, self._free, shown, free[..., 3:7])


def substeps(control_dt: float) -> int:
    """Physics substeps in a control step.

    Raises:
        TypeError: when it is not a number.
        ValueError: when it is not a whole number of 1/240 s, at least one.
    """
    value = finite_float("control_dt", control_dt, minimum=0.0, exclusive=True) * SUBSTEPS_PER_SECOND
    count = round(value)
    if count < 1 or abs(value - count) > 1e-6:
        raise ValueError(
            f"control_dt: expected a whole number of 1/{SUBSTEPS_PER_SECOND} s in physics dynamics, "
            f"got {control_dt!r}; the nearest is {max(count, 1) / SUBSTEPS_PER_SECOND:.9g}"
        )
    return count


def _write(
    target: NDArray[np.float64],
    worlds: NDArray[np.intp],
    columns: NDArray[np.intp],
    mask: NDArray[np.bool_],
    values: NDArray[np.float64],
) -> None:
    """Sets ``target[worlds, columns]`` where `mask` (n, m) says so."""
    rows = worlds[:, None]
    target[rows, columns] = np.where(mask[..., None], values, target[rows, columns])
