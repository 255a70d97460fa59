"""FleetState: the truth about every robot and body of every world, as plain arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fleet_gym.world.scene import Scene

Allocator = Callable[..., NDArray[Any]]

#: Direction to the light, its RGB, and the ambient, diffuse and specular coefficients of PyBullet's getCameraImage.
DEFAULT_LIGHT = (-50.0, 30.0, 100.0, 1.0, 1.0, 1.0, 0.6, 0.35, 0.05)


@dataclass(frozen=True)
class FleetState:
    """State of E worlds x R robots and B bodies; written in place by dynamics only, read by everything else.

    The last five arrays say how a world looks; no dynamics touches them, they are for whoever randomises appearance.

    Each world has its own frame: origin at the arena's centre on the ground, z up; m, rad, s. Arrays are C-contiguous,
    made once by `allocate` and never rebound, so that views stay valid and workers can share the memory.

    Attributes:
        position: (E, R, 3) float64, m. Origin of the URDF root link (not PyBullet's centre-of-mass frame).
        orientation: (E, R, 4) float64, unit quaternion xyzw of the root link.
        linear_velocity: (E, R, 3) float64, m/s, of the root link's origin, world axes.
        angular_velocity: (E, R, 3) float64, rad/s, world axes.
        joint_position: (E, R, J) float64, rad or m: movable joints in PyBullet's order, padded with zeros.
        joint_velocity: (E, R, J) float64, rad/s or m/s.
        in_collision: (E, R) bool, touched another robot or an obstacle during this step.
        collision_starts: (E,) int64, pairs whose contact began during this step.
        active: (E, R) bool, False for robots that take no part (neither drawn nor touched).
        body_position: (E, B, 3) float64, m: obstacles, free bodies, goal markers, in `Scene.bodies` order.
        body_orientation: (E, B, 4) float64, xyzw.
        body_active: (E, B) bool.
        color: (E, G, 4) float32, RGBA factors on the colours of ground, robots and bodies (G = 1 + R + B things,
            numbered as in segmentation images); 1: as loaded, alpha 0: invisible.
        texture: (E, G) int32, index into `Scene.textures` of the image shown instead of a thing's own; -1: its own.
        visible: (E, G) bool, False hides a thing from cameras and from nothing else.
        light: (E, 9) float64: direction to the light (world axes, any length), its RGB, and the ambient, diffuse and
            specular coefficients.
        camera_jitter: (E, C, 6) float64 for each of `Scene.cameras`: translation, m, and rotation vector, rad, both in
            the camera's axes (x forward, y left, z up).
    """

    position: NDArray[np.float64]
    orientation: NDArray[np.float64]
    linear_velocity: NDArray[np.float64]
    angular_velocity: NDArray[np.float64]
    joint_position: NDArray[np.float64]
    joint_velocity: NDArray[np.float64]
    in_collision: NDArray[np.bool_]
    collision_starts: NDArray[np.int64]
    active: NDArray[np.bool_]
    body_position: NDArray[np.float64]
    body_orientation: NDArray[np.float64]
    body_active: NDArray[np.bool_]
    color: NDArray[np.float32]
    texture: NDArray[np.int32]
    visible: NDArray[np.bool_]
    light: NDArray[np.float64]
    camera_jitter: NDArray[np.float64]

    @classmethod
    def allocate(cls, num_envs: int, scene: Scene, alloc: Allocator = np.zeros) -> FleetState:
        """Allocates the state of `num_envs` worlds of `scene`, at rest at the origin with unit quaternions.

        Args:
            num_envs: E.
            scene: gives R, J and B.
            alloc: called as ``alloc(shape, dtype=...)``; must return zeroed C-contiguous memory.
        """
        e, r, j, b = num_envs, scene.num_robots, scene.max_joints, scene.num_bodies
        things = 1 + r + b
        state = cls(
            position=alloc((e, r, 3), dtype=np.float64),
            orientation=alloc((e, r, 4), dtype=np.float64),
            linear_velocity=alloc((e, r, 3), dtype=np.float64),
            angular_velocity=alloc((e, r, 3), dtype=np.float64),
            joint_position=alloc((e, r, j), dtype=np.float64),
            joint_velocity=alloc((e, r, j), dtype=np.float64),
            in_collision=alloc((e, r), dtype=np.bool_),
            collision_starts=alloc((e,), dtype=np.int64),
            active=alloc((e, r), dtype=np.bool_),
            body_position=alloc((e, b, 3), dtype=np.float64),
            body_orientation=alloc((e, b, 4), dtype=np.float64),
            body_active=alloc((e, b), dtype=np.bool_),
            color=alloc((e, things, 4), dtype=np.float32),
            texture=alloc((e, things), dtype=np.int32),
            visible=alloc((e, things), dtype=np.bool_),
            light=alloc((e, 9), dtype=np.float64),
            camera_jitter=alloc((e, len(scene.cameras), 6), dtype=np.float64),
        )
        state.orientation[..., 3] = 1.0
        state.body_orientation[..., 3] = 1.0
        state.active[:] = True
        state.color[:] = 1.0
        state.texture[:] = -1
        state.visible[:] = True
        state.light[:] = DEFAULT_LIGHT
        return state

    @property
    def num_envs(self) -> int:
        """E, the number of worlds."""
        return int(self.position.shape[0])

    @property
    def num_robots(self) -> int:
        """R, the number of robots in each world."""
        return int(self.position.shape[1])

    def rows(self, worlds: slice) -> FleetState:
        """Returns a view of a slice of worlds (no copy)."""
        return FleetState(*(getattr(self, field.name)[worlds] for field in fields(self)))

    def take(self, worlds: NDArray[np.intp]) -> FleetState:
        """Returns a copy of the given worlds."""
        return FleetState(*(getattr(self, field.name)[worlds].copy() for field in fields(self)))

    def put(self, worlds: NDArray[np.intp], source: FleetState) -> None:
        """Writes the rows of `source` over the given worlds, in place."""
        for field in fields(self):
            getattr(self, field.name)[worlds] = getattr(source, field.name)

    def yaw(self) -> NDArray[np.float64]:
        """Yaw of the root links, (E, R) rad in (-pi, pi]: rotation about +z of the link's x axis seen from above."""
        x, y, z, w = np.moveaxis(self.orientation, -1, 0)
        return np.asarray(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


@dataclass(frozen=True)
class WorldSample:
    """Initial conditions of n worlds, drawn by a task and placed by dynamics. Robots start at rest.

    Attributes:
        position: (n, R, 3) float64, m, root link origin in the world's frame.
        orientation: (n, R, 4) float64, unit xyzw.
        active: (n, R) bool.
        body_position: (n, B, 3) float64, m.
        body_orientation: (n, B, 4) float64, unit xyzw.
        body_active: (n, B) bool.
    """

    position: NDArray[np.float64]
    orientation: NDArray[np.float64]
    active: NDArray[np.bool_]
    body_position: NDArray[np.float64]
    body_orientation: NDArray[np.float64]
    body_active: NDArray[np.bool_]


def yaw_quaternion(yaw: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit quaternions xyzw of rotations by `yaw` (rad) about +z: shape ``yaw.shape + (4,)``."""
    out = np.zeros((*np.shape(yaw), 4))
    out[..., 2] = np.sin(np.asarray(yaw) / 2)
    out[..., 3] = np.cos(np.asarray(yaw) / 2)
    return out
