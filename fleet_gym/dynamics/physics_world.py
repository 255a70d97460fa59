"""One world on contact physics: a PyBullet client, loaded once and reset exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fleet_gym._pybullet import DirectClient, pybullet
from fleet_gym.dynamics.physics_drive import WheelDrive, wheel_drive
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.urdf import UrdfGeometry, UrdfJoint, inspect_urdf

#: Substeps per second: PyBullet's own default, which its contact parameters are tuned for.
SUBSTEPS_PER_SECOND = 240
GRAVITY = 9.81  # m/s^2
# Force limit of the motors that hold joints whose URDF names no effort, N or N m.
_HOLDING_EFFORT = 100.0
# The same on a mobile base, at most: an r2d2 whose gripper is held with the URDF's 1000 N falls over when it touches
# an obstacle at 1 m/s, with 50 N the gripper slides in.
_YIELDING_EFFORT = 50.0
_UPRIGHT = (0.0, 0.0, 0.0, 1.0)
# Bullet's collision groups and masks: obstacles are never a pair with each other or the ground.
_ROBOT_OR_FREE, _OBSTACLE, _NOTHING = (1, -1), (2, ~2), (0, 0)


@dataclass(frozen=True)
class SlotPlan:
    """What a world needs to know about a robot slot; the same in all worlds.

    Attributes:
        model: the robot.
        geometry: of its URDF.
        drive: its motors, None for an arm.
    """

    model: RobotModel
    geometry: UrdfGeometry
    drive: WheelDrive | None

    @property
    def is_static(self) -> bool:
        """Whether its base is fixed to the world."""
        return self.drive is None


def plan_slot(model: RobotModel) -> SlotPlan:
    """Checks that physics can simulate a robot.

    Raises:
        ValueError: naming what is missing.
    """
    geometry = inspect_urdf(model.urdf)
    if model.num_joints != len(geometry.movable):
        raise ValueError(
            f"robot {model.name!r}: expected a model completed by robot_model(), with num_joints="
            f"{len(geometry.movable)}, got {model.num_joints}"
        )
    return SlotPlan(model, geometry, wheel_drive(model, geometry))


class _Body:
    """A robot, obstacle or free body in a client, parked until it is placed."""

    def __init__(
        self,
        body_id: int,
        num_links: int,
        *,
        is_static: bool,
        filter_when_active: tuple[int, int],
        parking: tuple[float, float, float],
    ) -> None:
        self.id = body_id
        self.links = range(-1, num_links)
        self.is_static = is_static
        self.filter_when_active = filter_when_active
        self.parking = parking
        self.active = False


class PhysicsWorld:
    """A client holding the ground, the robots and all bodies that collide, in this order.

    Bodies are numbered 0..K-1: robots first, then obstacles and free bodies. Nothing is loaded or removed after
    construction.

    Args:
        scene: what to load.
        slots: one per robot of the scene.

    Raises:
        ValueError: when a URDF cannot be loaded; the client is closed then.
    """

    def __init__(self, scene: Scene, slots: Sequence[SlotPlan]) -> None:
        self._slots = tuple(slots)
        self._driven: list[tuple[float, float] | None] = [None] * len(self._slots)
        self._client = DirectClient()
        self._id = self._client.id
        try:
            self._bodies = self._load(scene)
            self._rest = pybullet().saveState(physicsClientId=self._id)
        except BaseException:
            self._client.close()
            raise
        self._moving = [body for body in self._bodies if not body.is_static]

    def close(self) -> None:
        """Closes the client; calling it again does nothing."""
        self._client.close()

    def inertial_frame(self, body: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Centre of mass and principal axes in the root link's frame: (3,) m and (4,) xyzw."""
        info = pybullet().getDynamicsInfo(self._bodies[body].id, -1, physicsClientId=self._id)
        return info[3], info[4]

    def place(
        self,
        active: Sequence[bool],
        motion: Sequence[Sequence[float]],
        joints: Sequence[tuple[Sequence[float], Sequence[float]]] = (),
    ) -> None:
        """Sets the whole world, the same to the last bit whatever happened in it before.

        The order matters. Restoring the saved state alone leaves pairs of the broad phase behind, and with them cached
        contact impulses; setting a filter renews a link's pairs. Motor targets survive `restoreState`, and contacts of
        before are reported until collision detection runs.

        Args:
            active: (K,) False for bodies to be taken out of the world.
            motion: (K, 13) as in `read_motion`; velocities of static bodies are not looked at.
            joints: positions and velocities of each robot's movable joints; without them, at rest.
        """
        p, client = pybullet(), self._id
        p.restoreState(self._rest, physicsClientId=client)
        for body, is_active in zip(self._bodies, active, strict=True):
            body.active = is_active
            group, mask = body.filter_when_active if is_active else _NOTHING
            for link in body.links:
                p.setCollisionFilterGroupMask(body.id, link, group, mask, physicsClientId=client)
        for body, row in zip(self._bodies, motion, strict=True):
            if not body.active:
                self._park(body)
                continue
            p.resetBasePositionAndOrientation(body.id, row[:3], row[3:7], physicsClientId=client)
            if not body.is_static:
                p.resetBaseVelocity(body.id, row[7:10], row[10:], physicsClientId=client)
        for index, (positions, velocities) in enumerate(joints):
            self._set_joints(index, positions, velocities)
        self._driven = [None] * len(self._slots)
        for index in range(len(self._slots)):
            self.drive(index, 0.0, 0.0)
        p.performCollisionDetection(physicsClientId=client)

    def drive(self, robot: int, speed: float, turn: float) -> None:
        """Sets a robot's motor targets, see `WheelDrive.targets`; nothing to do for an arm, or to keep them."""
        drive = self._slots[robot].drive
        if drive is None or self._driven[robot] == (speed, turn):
            return
        self._driven[robot] = (speed, turn)
        p, body = pybullet(), self._bodies[robot].id
        speeds, angles = drive.targets(speed, turn)
        p.setJointMotorControlArray(
            body,
            drive.joints,
            p.VELOCITY_CONTROL,
            targetVelocities=speeds,
            forces=drive.torques,
            physicsClientId=self._id,
        )
        if angles:
            p.setJointMotorControlArray(
                body,
                drive.steering,
                p.POSITION_CONTROL,
                targetPositions=angles,
                forces=drive.steering_torque,
                physicsClientId=self._id,
            )

    def advance(self, substeps: int, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Simulates and returns those of `pairs` that touched in at least one substep.

        Args:
            substeps: of 1 / `SUBSTEPS_PER_SECOND` s.
            pairs: of body numbers to look at.
        """
        p, client = pybullet(), self._id
        for body in self._moving:
            if not body.active:
                self._park(body)  # it falls otherwise, ever faster
        watched = [(pair, self._bodies[pair[0]].id, self._bodies[pair[1]].id) for pair in pairs]
        touched: list[tuple[int, int]] = []
        step, contact_points = p.stepSimulation, p.getContactPoints
        for _ in range(substeps):
            step(client)
            if watched:
                quiet = []
                for entry in watched:
                    points = contact_points(entry[1], entry[2], physicsClientId=client)
                    # Points appear before shapes meet: only a force says that they did.
                    if points and any(point[9] > 0.0 for point in points):
                        touched.append(entry[0])
                    else:
                        quiet.append(entry)
                watched = quiet
        return touched

    def read_motion(self) -> list[tuple[float, ...]]:
        """Pose and velocity of each body that can move, robots first, centre-of-mass frame.

        Returns:
            13 numbers each: position, orientation xyzw, linear velocity, angular velocity.
        """
        p, client = pybullet(), self._id
        rows = []
        for body in self._moving:
            position, orientation = p.getBasePositionAndOrientation(body.id, physicsClientId=client)
            velocity, turn = p.getBaseVelocity(body.id, physicsClientId=client)
            rows.append((*position, *orientation, *velocity, *turn))
        return rows

    def read_joints(self, robot: int) -> Sequence[tuple[float, ...]]:
        """Position and velocity of each of a robot's movable joints, rad or m, and per s; more may follow them."""
        states: Sequence[tuple[float, ...]] = pybullet().getJointStates(
            self._bodies[robot].id, self._slots[robot].geometry.movable, physicsClientId=self._id
        )
        return states

    def _load(self, scene: Scene) -> list[_Body]:
        p, client = pybullet(), self._id
        p.setGravity(0.0, 0.0, -GRAVITY, physicsClientId=client)
        # Without deterministic pairs a reset is not exact; without the friction pyramid wheels' friction cannot differ
        # along and across the axle.
        p.setPhysicsEngineParameter(
            fixedTimeStep=1.0 / SUBSTEPS_PER_SECOND,
            deterministicOverlappingPairs=1,
            enableConeFriction=0,
            physicsClientId=client,
        )
        self._client.load_urdf("plane.urdf")
        places = _parking_places(body_reach(scene, self._slots))
        bodies = []
        for slot, place in zip(self._slots, places, strict=False):
            bodies.append(
                _Body(
                    self._load_robot(slot, place),
                    len(slot.geometry.joints),
                    is_static=slot.is_static,
                    filter_when_active=_ROBOT_OR_FREE,
                    parking=place,
                )
            )
        for spec, place in zip(solids(scene), places[len(bodies) :], strict=True):
            is_fixed = spec.kind != "free"
            bodies.append(
                _Body(
                    self._load_body(spec, place),
                    0,
                    is_static=is_fixed,
                    filter_when_active=_OBSTACLE if is_fixed else _ROBOT_OR_FREE,
                    parking=place,
                )
            )
        return bodies

    def _load_robot(self, slot: SlotPlan, place: tuple[float, float, float]) -> int:
        p, client = pybullet(), self._id
        body = self._client.load_urdf(
            slot.model.urdf, basePosition=place, useFixedBase=slot.is_static, flags=p.URDF_IGNORE_VISUAL_SHAPES
        )
        driven: tuple[int, ...] = ()
        if slot.drive is not None:
            wheels = tuple(wheel.joint for wheel in slot.drive.wheels)
            driven = wheels + slot.drive.steering
            if slot.drive.friction != (1.0, 1.0, 1.0):
                for joint in wheels:
                    p.changeDynamics(body, joint, anisotropicFriction=slot.drive.friction, physicsClientId=client)
        for index in slot.geometry.movable:
            spec = slot.geometry.joints[index]
            p.resetJointState(body, index, spec.rest_position, physicsClientId=client)
            if index not in driven:
                self._hold(body, index, spec, is_mobile=not slot.is_static)
        return body

    def _hold(self, body: int, index: int, joint: UrdfJoint, *, is_mobile: bool) -> None:
        """Holds a joint where it rests, or lets a caster roll: PyBullet brakes every joint unless told otherwise."""
        p, client = pybullet(), self._id
        if is_mobile and joint.rolls:
            p.setJointMotorControl2(body, index, p.VELOCITY_CONTROL, force=0.0, physicsClientId=client)
            return
        effort = joint.effort or _HOLDING_EFFORT
        p.setJointMotorControl2(
            body,
            index,
            p.POSITION_CONTROL,
            targetPosition=joint.rest_position,
            force=min(effort, _YIELDING_EFFORT) if is_mobile else effort,
            physicsClientId=client,
        )

    def _load_body(self, spec: BodySpec, place: tuple[float, float, float]) -> int:
        p, client = pybullet(), self._id
        size = spec.shape.size
        triangles = spec.shape.triangles
        if triangles is not None and spec.kind == "free":
            shape = p.createCollisionShape(
                p.GEOM_MESH, vertices=triangles.vertices.tolist(), physicsClientId=client
            )  # their convex hull: what moves cannot be hollow in PyBullet
        elif triangles is not None:
            shape = p.createCollisionShape(
                p.GEOM_MESH,
                vertices=triangles.vertices.tolist(),
                indices=triangles.indices.ravel().tolist(),
                flags=p.GEOM_FORCE_CONCAVE_TRIMESH,
                physicsClientId=client,
            )
        elif spec.shape.kind == "box":
            shape = p.createCollisionShape(p.GEOM_BOX, halfExtents=[s / 2 for s in size], physicsClientId=client)
        elif spec.shape.kind == "cylinder":
            shape = p.createCollisionShape(p.GEOM_CYLINDER, radius=size[0], height=size[2], physicsClientId=client)
        else:
            shape = p.createCollisionShape(p.GEOM_SPHERE, radius=size[0], physicsClientId=client)
        mass = spec.mass if spec.kind == "free" else 0.0
        return int(p.createMultiBody(mass, shape, -1, place, _UPRIGHT, physicsClientId=client))

    def _set_joints(self, robot: int, positions: Sequence[float], velocities: Sequence[float]) -> None:
        movable = self._slots[robot].geometry.movable
        if movable:
            pybullet().resetJointStatesMultiDof(
                self._bodies[robot].id,
                movable,
                targetValues=[[value] for value in positions],
                targetVelocities=[[value] for value in velocities],
                physicsClientId=self._id,
            )

    def _park(self, body: _Body) -> None:
        pybullet().resetBasePositionAndOrientation(body.id, body.parking, _UPRIGHT, physicsClientId=self._id)


def solids(scene: Scene) -> list[BodySpec]:
    """Bodies of a scene that exist in physics: all but markers, in the scene's order."""
    return [spec for spec in scene.bodies if spec.collides]


def body_reach(scene: Scene, slots: Sequence[SlotPlan]) -> list[float]:
    """(K,) radius about each body's origin that none of its shapes leaves, m: robots, then `solids`.

    Ground has none: touching it is no contact to report.
    """
    others = [-math.inf if spec.kind == "ground" else _bounding_sphere(spec.shape) for spec in solids(scene)]
    return [slot.geometry.reach for slot in slots] + others


def _bounding_sphere(shape: Shape) -> float:
    if shape.kind == "box":
        return math.hypot(*shape.size) / 2
    if shape.kind == "cylinder":
        return math.hypot(shape.size[0], shape.size[2] / 2)
    if shape.triangles is not None:
        return float((shape.triangles.vertices**2).sum(axis=1).max() ** 0.5)
    return shape.size[0]


def _parking_places(reach: Sequence[float]) -> list[tuple[float, float, float]]:
    """Places far below the ground where bodies touch neither it nor each other."""
    spacing = 2.0 * max((r for r in reach if math.isfinite(r)), default=0.0) + 1.0
    return [(0.0, 0.0, -1000.0 - spacing * index) for index in range(len(reach))]
