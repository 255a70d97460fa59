"""A scene's shapes, and how n of its worlds stand and look: what the rasterizer and the GL renderer draw from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering.meshes import Mesh, mesh_from_arrays
from fleet_gym.rendering.raster_core import PlacedShape, Target, WorldBatch, build_tables, unit_light
from fleet_gym.rendering.shapes import VisualShape, as_rows, urdf_shapes
from fleet_gym.rendering.views import CameraView, camera_views, check_finite, check_textures, check_worlds
from fleet_gym.world.cameras import Camera, projection_matrix, quaternion_matrix
from fleet_gym.world.forward_kinematics import FleetKinematics, Frames
from fleet_gym.world.scene import GROUND_BODY, BodySpec, Scene
from fleet_gym.world.state import FleetState
from fleet_gym.world.triangles import Triangles


def segmentation_value(body: int, link: int) -> int:
    """PyBullet's ``body + ((link + 1) << 24)``, for link index `link` counted from the root as 0."""
    return body + (link << 24)


def scene_shapes(scene: Scene, kinematics: FleetKinematics) -> list[PlacedShape]:
    """Returns the shapes of a scene: ground, robots, bodies; frames in the same order."""
    ground = urdf_shapes(os.path.join(pybullet_data_path(), "plane.urdf"))
    placed = [PlacedShape(shape, 0, 0, segmentation_value(GROUND_BODY, shape.link)) for shape in ground]
    for robot, model in enumerate(scene.robots):
        body = scene.robot_segmentation_id(robot)
        first = 1 + int(kinematics.offsets[robot])
        placed += [
            PlacedShape(shape, first + shape.link, 1 + robot, segmentation_value(body, shape.link))
            for shape in urdf_shapes(model.urdf)
        ]
    for index, body_spec in enumerate(scene.bodies):
        body = scene.body_segmentation_id(index)
        frame = 1 + kinematics.num_frames + index
        placed.append(PlacedShape(body_shape(body_spec), frame, 1 + scene.num_robots + index, body))
    return placed


def body_shape(body: BodySpec) -> VisualShape:
    """Returns the drawn form of an obstacle, free body or marker."""
    size = body.shape.size
    local = as_rows(np.eye(3, 4))
    if body.shape.triangles is not None:
        return VisualShape("mesh", (1.0, 1.0, 1.0), "", 0, local, body.color, _drawn(body.shape.triangles))
    if body.shape.kind == "box":
        return VisualShape("box", size, "", 0, local, body.color)
    if body.shape.kind == "cylinder":
        return VisualShape("cylinder", (size[0], size[2]), "", 0, local, body.color)
    return VisualShape("sphere", (size[0],), "", 0, local, body.color)


@lru_cache(maxsize=64)
def _drawn(triangles: Triangles) -> Mesh:
    # The same object for equal triangles, so that bodies of one shape share one packed mesh.
    return mesh_from_arrays(triangles.vertices, triangles.indices, triangles.normals)


class SceneBatcher:
    """Turns states of a scene into what is to be drawn.

    Args:
        scene: the scene.
        lod: whether to build levels of detail.

    Attributes:
        tables: the scene's shapes.

    Raises:
        ValueError: a mesh or texture of the scene cannot be read.
        UndrawableShapeError: the scene has a shape only PyBullet can draw.
    """

    def __init__(self, scene: Scene, *, lod: bool) -> None:
        self._scene = scene
        self._kinematics = FleetKinematics(scene.robots)
        things = 1 + scene.num_robots + scene.num_bodies
        placed = scene_shapes(scene, self._kinematics)
        self.tables = build_tables(placed, things, lod=lod, extra_textures=scene.textures)

    def prepare(
        self,
        state: FleetState,
        worlds: NDArray[np.intp],
        cameras: Sequence[Camera],
        out: Mapping[str, NDArray[Any]],
    ) -> tuple[WorldBatch, list[Target]]:
        """Checks the arguments of a `Renderer.render` call and returns what it asks for.

        Raises:
            ValueError: an output does not fit, a mount does not exist, a pose to draw is not finite, or a light or
                texture number makes no sense.
        """
        indices = check_worlds(worlds, state.num_envs)
        check_finite(state, indices)
        check_textures(state, indices, len(self._scene.textures))
        links = self._kinematics.frames(state, indices)
        views = camera_views(self._scene, state, indices, links, cameras, out)
        return self._batch(state, indices, links), [target_of(view) for view in views]

    def _batch(self, state: FleetState, indices: NDArray[np.int64], links: Frames) -> WorldBatch:
        scene, num_links = self._scene, self._kinematics.num_frames
        frames = np.empty((len(indices), 1 + num_links + scene.num_bodies, 3, 4))
        frames[:, 0] = np.eye(3, 4)
        frames[:, 1 : 1 + num_links] = links.transforms
        if scene.num_bodies:
            bodies = frames[:, 1 + num_links :]
            bodies[..., :3] = quaternion_matrix(state.body_orientation[indices])
            bodies[..., 3] = state.body_position[indices]
        visible = state.visible[indices]
        visible[:, 1 : 1 + scene.num_robots] &= state.active[indices]
        visible[:, 1 + scene.num_robots :] &= state.body_active[indices]
        tables = self.tables
        color, texture = state.color[indices], state.texture[indices]
        light = unit_light(state.light[indices])
        # Cut off as TinyRenderer's are: there, a product above 1 would begin again at black.
        rgba = tables.rgba if (color == 1.0).all() else np.clip(tables.rgba * color[:, tables.thing], 0.0, 1.0)
        return WorldBatch(
            frames,
            visible.astype(np.uint8),
            light[:1] if (light == light[:1]).all() else light,
            rgba,
            tables.texture if (texture < 0).all() else self._textures(texture),
        )

    def _textures(self, chosen: NDArray[np.int32]) -> NDArray[np.int32]:
        tables = self.tables
        numbers = np.array([*tables.extra_textures, -1], dtype=np.int32)  # index -1 is not used, but must exist
        of_shape = chosen[:, tables.thing]
        return np.where(of_shape >= 0, numbers[of_shape], tables.texture).astype(np.int32)


def target_of(view: CameraView) -> Target:
    """Returns what the kernel needs to know of a camera."""
    camera = view.camera
    projection = projection_matrix(camera)
    lens = np.array([projection[0, 0], projection[1, 1], camera.width, camera.height, camera.near, camera.far])
    return Target(view.eye, view.axes, lens, view.rgb, view.depth, view.segmentation)
