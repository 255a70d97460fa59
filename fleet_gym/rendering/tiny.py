"""PyBullet's own software renderer: the reference picture, and the only one that knows every shape PyBullet knows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path, quiet_descriptors
from fleet_gym.rendering.assets import TextureStore
from fleet_gym.rendering.meshes import obj_texture
from fleet_gym.rendering.raster_core import unit_light
from fleet_gym.rendering.views import CameraView, camera_views, check_finite, check_textures, check_worlds
from fleet_gym.world.cameras import Camera, projection_matrix, view_matrices
from fleet_gym.world.forward_kinematics import FleetKinematics
from fleet_gym.world.scene import GROUND_BODY, BodySpec, Scene
from fleet_gym.world.state import FleetState

# Beyond every far plane one would choose, and exact in float32.
_HIDDEN_POSITION = (0.0, 0.0, -(2.0**20))
_UPRIGHT = (0.0, 0.0, 0.0, 1.0)
#: TinyRenderer's depth buffer where nothing was hit: the largest float32 below 1.
BACKGROUND_DEPTH = np.float32(0.99999994)


class TinyRenderer:
    """Draws with PyBullet's TinyRenderer, from one render-only client re-posed to the world being drawn.

    Args:
        scene: what to draw; all its bodies are loaded once, here.

    Raises:
        ValueError: a robot or texture of the scene cannot be read.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._kinematics = FleetKinematics(scene.robots)
        self._client = DirectClient()
        self._closed = False
        p = pybullet()
        loaded = [self._client.load_urdf("plane.urdf")]
        loaded += [self._client.load_urdf(robot.urdf, useFixedBase=True) for robot in scene.robots]
        self._robots = loaded[1:]
        self._bodies = [_load_body(self._client.id, body) for body in scene.bodies]
        # Segmentation images carry PyBullet's body numbers, which count from 0 in loading order.
        assert loaded + self._bodies == list(range(GROUND_BODY, GROUND_BODY + len(loaded) + len(self._bodies)))
        self._inertial = [p.getDynamicsInfo(body, -1, physicsClientId=self._client.id)[3:5] for body in self._robots]
        textures = _Textures(self._client.id, scene.textures)
        self._looks = [_Look(self._client.id, body, textures) for body in loaded + self._bodies]
        self._joints = [_movable_joints(self._client.id, body) for body in self._robots]

    def render(
        self,
        state: FleetState,
        worlds: NDArray[np.intp],
        cameras: Sequence[Camera],
        out: Mapping[str, NDArray[Any]],
    ) -> None:
        """Draws the given worlds through the given cameras into `out`; see `fleet_gym.rendering.base.Renderer`.

        Raises:
            ValueError: an output does not fit, a mount does not exist, a pose to draw is not finite, or a light or
                texture number makes no sense.
            ClosedEnvironmentError: after `close`.
        """
        if self._closed:
            raise ClosedEnvironmentError("TinyRenderer.render was called after close()")
        indices = check_worlds(worlds, state.num_envs)
        check_finite(state, indices)
        check_textures(state, indices, len(self._scene.textures))
        unit_light(state.light[indices])
        frames = self._kinematics.frames(state, indices)
        views = camera_views(self._scene, state, indices, frames, cameras, out)
        matrices = [(view, view_matrices(view.eye, view.axes), projection_matrix(view.camera)) for view in views]
        for row, world in enumerate(indices):
            self._pose(state, int(world))
            for view, view_matrix, projection in matrices:
                self._draw(view, row, view_matrix[row], projection, state.light[world])

    def close(self) -> None:
        """Closes the render-only client; calling it again does nothing."""
        self._closed = True
        self._client.close()

    def _pose(self, state: FleetState, world: int) -> None:
        p = pybullet()
        client = self._client.id
        visible = state.visible[world]
        for look, factors, texture in zip(self._looks, state.color[world], state.texture[world], strict=True):
            look.apply(factors, int(texture))
        ground = (0.0, 0.0, 0.0) if visible[0] else _HIDDEN_POSITION
        p.resetBasePositionAndOrientation(GROUND_BODY, ground, _UPRIGHT, physicsClientId=client)
        for robot, body in enumerate(self._robots):
            position, orientation = _HIDDEN_POSITION, _UPRIGHT
            if state.active[world, robot] and visible[1 + robot]:
                # PyBullet places the centre of mass, state holds the root link.
                position, orientation = p.multiplyTransforms(
                    state.position[world, robot], state.orientation[world, robot], *self._inertial[robot]
                )
            p.resetBasePositionAndOrientation(body, position, orientation, physicsClientId=client)
            joints = self._joints[robot]
            if joints:
                values = [[q] for q in state.joint_position[world, robot, : len(joints)].tolist()]
                p.resetJointStatesMultiDof(body, joints, values, physicsClientId=client)
        for index, body in enumerate(self._bodies):
            position, orientation = _HIDDEN_POSITION, _UPRIGHT
            if state.body_active[world, index] and visible[1 + len(self._robots) + index]:
                position, orientation = state.body_position[world, index], state.body_orientation[world, index]
            p.resetBasePositionAndOrientation(body, position, orientation, physicsClientId=client)

    def _draw(
        self,
        view: CameraView,
        row: int,
        view_matrix: NDArray[np.float64],
        projection: NDArray[np.float64],
        light: NDArray[np.float64],
    ) -> None:
        p = pybullet()
        camera = view.camera
        flags = p.ER_NO_SEGMENTATION_MASK
        if view.segmentation is not None:
            flags = p.ER_SEGMENTATION_MASK_OBJECT_AND_LINKINDEX
        _, _, rgba, z, segmentation = p.getCameraImage(
            camera.width,
            camera.height,
            viewMatrix=view_matrix.T.ravel().tolist(),
            projectionMatrix=projection.T.ravel().tolist(),
            shadow=0,
            lightDirection=light[:3].tolist(),
            lightColor=light[3:6].tolist(),
            lightAmbientCoeff=float(light[6]),
            lightDiffuseCoeff=float(light[7]),
            lightSpecularCoeff=float(light[8]),
            renderer=p.ER_TINY_RENDERER,
            flags=flags,
            physicsClientId=self._client.id,
        )
        if view.rgb is not None:
            view.rgb[row] = rgba[..., :3]
        if view.depth is not None:
            view.depth[row] = metric_depth(z, camera.near, camera.far)
        if view.segmentation is not None:
            view.segmentation[row] = segmentation


class _Look:
    """Colours and textures of one body's shapes, and which it carries now.

    Args:
        client: where it is.
        body: its number.
        textures: of the client.
    """

    def __init__(self, client: int, body: int, textures: _Textures) -> None:
        self._client, self._body, self._textures = client, body, textures
        self._colors: list[tuple[int, int, NDArray[np.float64]]] = []
        self._covered: list[tuple[int, int, str]] = []
        shapes_of_link: dict[int, int] = {}
        for shape in pybullet().getVisualShapeData(body, physicsClientId=client):
            number = shapes_of_link.get(shape[1], 0)
            shapes_of_link[shape[1]] = number + 1
            self._colors.append((shape[1], number, np.array(shape[7])))
            own = _own_texture(shape)
            if own is not None:
                self._covered.append((shape[1], number, own))
        self._factors = np.ones(4, dtype=np.float32)
        self._texture = -1

    def apply(self, factors: NDArray[np.float32], texture: int) -> None:
        """Recolours and covers the body if it does not look so already."""
        p = pybullet()
        if texture != self._texture:
            for link, number, own in self._covered:
                image = self._textures.chosen[texture] if texture >= 0 else self._textures.load(own)
                p.changeVisualShape(
                    self._body, link, shapeIndex=number, textureUniqueId=image, physicsClientId=self._client
                )
            self._texture = texture
        if not (factors == self._factors).all():
            for link, number, rgba in self._colors:
                color = np.clip(rgba * factors, 0.0, 1.0).tolist()
                p.changeVisualShape(self._body, link, shapeIndex=number, rgbaColor=color, physicsClientId=self._client)
            self._factors = factors.copy()


class _Textures:
    """Images in a client, each file once.

    Attributes:
        chosen: PyBullet's numbers of the scene's textures.
    """

    def __init__(self, client: int, paths: Sequence[str]) -> None:
        self._client = client
        self._numbers = {"": -1}
        for path in paths:
            TextureStore().require_file(path)
        self.chosen = [self.load(path) for path in paths]

    def load(self, path: str) -> int:
        """PyBullet's number of an image file; -1, which removes a texture, for ``""``."""
        if path not in self._numbers:
            with quiet_descriptors():
                self._numbers[path] = int(pybullet().loadTexture(path, physicsClientId=self._client))
        return self._numbers[path]


def _own_texture(shape: Sequence[Any]) -> str | None:
    """Image of a shape of ``getVisualShapeData`` that another can cover, ``""`` without one, None if none can.

    What has no texture coordinates of its own, the rasterizer does not cover either.
    """
    if shape[2] == pybullet().GEOM_BOX:
        return ""
    name = shape[4].decode(errors="replace")
    for path in (name, os.path.join(pybullet_data_path(), name)):
        if name.lower().endswith(".obj") and os.path.isfile(path):
            texture = obj_texture(path)
            return texture if os.path.isfile(texture) else None
    return None


def metric_depth(z: NDArray[np.float32], near: float, far: float) -> NDArray[np.float64]:
    """Turns PyBullet's depth buffer (0 at near, 1 at far) into m along the view axis, `far` where nothing was hit."""
    depth = far * near / (far - (far - near) * z.astype(np.float64))
    return np.where(z >= BACKGROUND_DEPTH, far, depth)


def _movable_joints(client: int, body: int) -> list[int]:
    p = pybullet()
    kinds = [p.getJointInfo(body, j, physicsClientId=client)[2] for j in range(p.getNumJoints(body, client))]
    return [j for j, kind in enumerate(kinds) if kind not in (p.JOINT_FIXED, p.JOINT_SPHERICAL)]


def _load_body(client: int, body: BodySpec) -> int:
    p = pybullet()
    size = body.shape.size
    shape: dict[str, Any]
    if body.shape.triangles is not None:
        triangles = body.shape.triangles
        shape = {
            "shapeType": p.GEOM_MESH,
            "vertices": triangles.vertices.tolist(),
            "indices": triangles.indices.ravel().tolist(),
            "normals": triangles.normals.tolist(),
        }
    elif body.shape.kind == "box":
        shape = {"shapeType": p.GEOM_BOX, "halfExtents": [side / 2 for side in size]}
    elif body.shape.kind == "cylinder":
        shape = {"shapeType": p.GEOM_CYLINDER, "radius": size[0], "length": size[2]}
    else:
        shape = {"shapeType": p.GEOM_SPHERE, "radius": size[0]}
    visual = p.createVisualShape(**shape, rgbaColor=body.color, physicsClientId=client)
    return int(p.createMultiBody(baseVisualShapeIndex=visual, physicsClientId=client))
