"""``getCameraImage`` of a PyBullet client of one's own, drawn by the rasterizer."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleet_gym._pybullet import pybullet, pybullet_data_path
from fleet_gym._validation import finite_float, finite_floats, flag, non_negative_int, positive_int
from fleet_gym.rendering.meshes import Mesh, heightfield_mesh, mesh_from_arrays
from fleet_gym.rendering.raster_core import PlacedShape, RasterCore, Target, WorldBatch, build_tables, unit_light
from fleet_gym.rendering.scene_batch import segmentation_value
from fleet_gym.rendering.shapes import RGBA, ShapeKind, UndrawableShapeError, VisualShape, as_rows
from fleet_gym.rendering.tiny import BACKGROUND_DEPTH
from fleet_gym.world.cameras import MAX_SIDE, quaternion_matrix
from fleet_gym.world.state import DEFAULT_LIGHT

logger = logging.getLogger("fleet_gym.rendering")

_MESH, _HEIGHTFIELD = 5, 9  # geometryType of pybullet.getVisualShapeData
_BODY_TYPE, _SOFT = 10, 3  # of pybullet.getDynamicsInfo
_ORTHONORMAL = 1e-4  # PyBullet's matrices are float32
_MOST_CLIENTS = 2**31 - 1  # PyBullet takes a C int

CameraImage = tuple[int, int, NDArray[np.uint8], NDArray[np.float32], NDArray[np.int32]]
_KINDS: dict[int, ShapeKind] = {2: "sphere", 3: "box", 4: "cylinder", 5: "mesh", 6: "plane", 7: "capsule"}


def attach(client: int = 0, *, threads: int = 1, lod: bool = True) -> AttachedCamera:
    """Returns a stand-in for ``pybullet.getCameraImage`` on a client you have loaded yourself.

    ``getCameraImage(width, height, view, projection)`` of the returned object takes the arguments and returns the
    layout of PyBullet's, many times faster than its TinyRenderer::

        camera = fleet_gym.rendering.attach(client)
        width, height, rgba, depth, segmentation = camera.getCameraImage(320, 240, view, projection)

    Bodies loaded, removed or recoloured later are noticed. PyBullet does not tell what is in meshes made from arrays
    and height fields: `AttachedCamera.describe_mesh` and `AttachedCamera.describe_heightfield` do. With those not
    described and with soft bodies, images come from TinyRenderer, with one warning. Capsules of MJCF files and textures
    set at run time are drawn as PyBullet describes them.

    Args:
        client: ``physicsClientId``.
        threads: how many threads share an image.
        lod: draw simplified meshes where the difference is below half a pixel.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: there is no such client, or `threads` is not positive.
    """
    return AttachedCamera(client, threads=threads, lod=lod)


@dataclass(frozen=True)
class _View:
    """What one call of ``getCameraImage`` asks for, checked; `light` is (9,), as a row of `FleetState.light`."""

    width: int
    height: int
    view: NDArray[np.float64]
    projection: NDArray[np.float64]
    light: NDArray[np.float64]
    light_distance: float
    shadow: int
    flags: int

    @property
    def near_far(self) -> tuple[float, float]:
        """Of a perspective projection, m; 0 where it has none (a far plane that float32 cannot tell from infinity)."""
        near, far = (
            0.0 if self.projection[2, 2] == side else float(self.projection[2, 3] / (self.projection[2, 2] - side))
            for side in (1.0, -1.0)
        )
        return near, far

    @property
    def undrawable(self) -> str:
        """Why the rasterizer cannot draw it, or ""."""
        if self.shadow > 0:
            return "shadow=1"
        lens = self.projection.copy()
        lens[[0, 1, 2, 2], [0, 1, 2, 3]] = 0.0
        lens[3, 2] += 1.0
        near, far = self.near_far
        if np.abs(lens).max() > 1e-6 or min(self.projection[0, 0], self.projection[1, 1]) <= 0.0 or not 0 < near < far:
            return "a projection matrix that is not a centred perspective with 0 < near < far"
        turn = self.view[:3, :3]
        skewed = np.abs((turn[:, None] * turn[None]).sum(axis=-1) - np.eye(3)).max() > _ORTHONORMAL
        if skewed or np.linalg.det(turn) < 0.0 or (self.view[3] != (0.0, 0.0, 0.0, 1.0)).any():
            return "a view matrix that does not just turn and move"
        return ""


class AttachedCamera:
    """Draws what a PyBullet client holds; made by `attach`."""

    def __init__(self, client: int, *, threads: int, lod: bool) -> None:
        self._client = non_negative_int("client", client)
        if self._client > _MOST_CLIENTS or not pybullet().isConnected(self._client):
            raise ValueError(f"client: expected the id of a connected PyBullet client, got {client!r}")
        self._threads, self._lod = positive_int("threads", threads), flag("lod", lod)
        self._core: RasterCore | None = None
        self._seen: tuple[_Body, ...] | None = None
        self._reason = ""
        self._warned: set[str] = set()
        self._described: dict[tuple[int, int], Mesh] = {}

    def refresh(self) -> None:
        """Reads mesh and texture files again where they have changed, at the next image."""
        self._seen = None

    def describe_mesh(
        self,
        body: int,
        vertices: ArrayLike,
        indices: ArrayLike,
        *,
        link: int = -1,
        normals: ArrayLike | None = None,
        uvs: ArrayLike | None = None,
        texture: str = "",
    ) -> None:
        """Says what is in a mesh made from arrays, with the arguments of ``pybullet.createVisualShape``.

        Args:
            body: its body.
            vertices: (V, 3), m.
            indices: (F, 3) or flat.
            link: its link.
            normals: (V, 3), or None for flat triangles.
            uvs: (V, 2), v upwards.
            texture: image path.

        Raises:
            ValueError: the arrays do not fit.
        """
        self._described[body, link] = mesh_from_arrays(
            np.asarray(vertices),
            np.asarray(indices),
            None if normals is None else np.asarray(normals),
            None if uvs is None else np.asarray(uvs),
            texture,
        )
        self.refresh()

    def describe_heightfield(
        self, body: int, heights: ArrayLike, rows: int, columns: int, scale: Sequence[float] = (1.0, 1.0, 1.0)
    ) -> None:
        """Says what is in a height field, with the arguments of ``pybullet.createCollisionShape``.

        Args:
            body: its body.
            heights: ``heightfieldData``, rows * columns numbers, x fastest.
            rows: ``numHeightfieldRows``, grid points along x.
            columns: ``numHeightfieldColumns``, grid points along y.
            scale: ``meshScale``.

        Raises:
            ValueError: the number of heights is another.
        """
        values = np.asarray(heights, dtype=np.float64).ravel()
        if values.size != rows * columns:
            raise ValueError(f"heights: expected rows * columns = {rows * columns} numbers, got {values.size}")
        # Bullet puts the middle of the heights at the origin.
        grid = (values.reshape(columns, rows) - (values.min() + values.max()) / 2) * scale[2]
        self._described[body, -1] = heightfield_mesh(grid, (scale[0], scale[1]))
        self.refresh()

    def close(self) -> None:
        """Frees its buffers; calling it again does nothing. The client stays as it is."""
        if self._core is not None:
            self._core.close()
            self._core = None
        self.refresh()

    def getCameraImage(
        self,
        width: int,
        height: int,
        viewMatrix: Sequence[float] | None = None,
        projectionMatrix: Sequence[float] | None = None,
        lightDirection: Sequence[float] = DEFAULT_LIGHT[:3],
        lightColor: Sequence[float] = DEFAULT_LIGHT[3:6],
        lightDistance: float = -1.0,
        shadow: int = 0,
        lightAmbientCoeff: float = DEFAULT_LIGHT[6],
        lightDiffuseCoeff: float = DEFAULT_LIGHT[7],
        lightSpecularCoeff: float = DEFAULT_LIGHT[8],
        renderer: int = 0,
        flags: int = 0,
        projectiveTextureView: Sequence[float] | None = None,
        projectiveTextureProj: Sequence[float] | None = None,
        physicsClientId: int | None = None,
    ) -> CameraImage:
        """Returns width, height, RGBA (H, W, 4) uint8, depth buffer (H, W) float32 and segmentation (H, W) int32.

        Args:
            width: pixels.
            height: pixels.
            viewMatrix: 16 numbers, as ``pybullet.computeViewMatrix`` returns them.
            projectionMatrix: 16 numbers, as ``pybullet.computeProjectionMatrixFOV`` returns them.
            lightDirection: towards the light.
            lightColor: RGB.
            lightDistance: only shadows depend on it.
            shadow: 1 draws with PyBullet's renderer, which alone has these shadows.
            lightAmbientCoeff: as in PyBullet; negative for its default, as the next two.
            lightDiffuseCoeff: as in PyBullet.
            lightSpecularCoeff: as in PyBullet.
            renderer: not looked at.
            flags: ``ER_SEGMENTATION_MASK_OBJECT_AND_LINKINDEX`` puts links into the segmentation,
                ``ER_NO_SEGMENTATION_MASK`` leaves it at -1.
            projectiveTextureView: not looked at.
            projectiveTextureProj: not looked at.
            physicsClientId: if given, the client this camera is attached to.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: a size, matrix or light is not usable, or the client is another one.
        """
        if physicsClientId is not None and physicsClientId != self._client:
            raise ValueError(f"physicsClientId: expected {self._client}, attached to, got {physicsClientId!r}")
        coefficients = zip(
            ("lightAmbientCoeff", "lightDiffuseCoeff", "lightSpecularCoeff"),
            (lightAmbientCoeff, lightDiffuseCoeff, lightSpecularCoeff),
            DEFAULT_LIGHT[6:],
            strict=True,
        )
        light = np.array(
            [
                *finite_floats("lightDirection", lightDirection, 3),
                *finite_floats("lightColor", lightColor, 3, minimum=0.0),
                *(own if finite_float(name, value) < 0 else float(value) for name, value, own in coefficients),
            ]
        )
        wanted = _View(
            positive_int("width", width, MAX_SIDE),
            positive_int("height", height, MAX_SIDE),
            _matrix("viewMatrix", viewMatrix),
            _matrix("projectionMatrix", projectionMatrix),
            light,
            finite_float("lightDistance", lightDistance),
            shadow,
            flags,
        )
        reason = wanted.undrawable or self._update()
        if reason or self._core is None:
            return self._fall_back(reason, wanted)
        return self._draw(self._core, wanted)

    def _update(self) -> str:
        """Loads what is new in the client; returns why it cannot be drawn, or "".

        PyBullet gives the number of a body that is gone to the next one, so that numbers alone tell nothing.
        """
        seen = _bodies_of(self._client)
        if seen == self._seen:
            return self._reason
        self.close()
        try:
            placed, frame = [], 0
            for body in seen:
                placed += _shapes_of(self._client, body, frame, self._described)
                frame += 1 + body.joints
            tables = build_tables([replace(shape, thing=0) for shape in placed], 1, lod=self._lod)
        except UndrawableShapeError as error:
            self._seen, self._reason = seen, str(error)
            return self._reason
        self._core = RasterCore(tables, threads=self._threads, lod=self._lod)
        self._seen, self._reason = seen, ""
        return ""

    def _frames(self) -> NDArray[np.float64]:
        p = pybullet()
        positions, orientations = [], []
        for body in self._seen or ():
            centre = p.getBasePositionAndOrientation(body.number, physicsClientId=self._client)
            poses = [p.multiplyTransforms(*centre, *p.invertTransform(*body.inertial))]
            if body.joints:
                states = p.getLinkStates(
                    body.number, range(body.joints), computeForwardKinematics=True, physicsClientId=self._client
                )
                poses += [link[4:6] for link in states]
            positions += [pose[0] for pose in poses]
            orientations += [pose[1] for pose in poses]
        frames = np.empty((1, len(positions), 3, 4))
        frames[0, :, :, :3] = quaternion_matrix(np.array(orientations, dtype=np.float64).reshape(-1, 4))
        frames[0, :, :, 3] = np.array(positions, dtype=np.float64).reshape(-1, 3)
        return frames

    def _draw(self, core: RasterCore, wanted: _View) -> CameraImage:
        p = pybullet()
        width, height, projection = wanted.width, wanted.height, wanted.projection
        near, far = wanted.near_far
        lens = np.array([projection[0, 0], projection[1, 1], width, height, near, far])
        axes = wanted.view[:3, :3]
        eye = -(axes * wanted.view[:3, 3:]).sum(axis=0)
        rgb = np.empty((1, height, width, 3), dtype=np.uint8)
        metres = np.empty((1, height, width), dtype=np.float32)
        segmentation = np.full((1, height, width), -1, dtype=np.int32)
        target = Target(eye[None], axes[None], lens, rgb, metres, segmentation)
        if wanted.flags & p.ER_NO_SEGMENTATION_MASK:
            target = replace(target, segmentation=None)
        tables, light = core.tables, unit_light(wanted.light[None])
        batch = WorldBatch(self._frames(), np.ones((1, 1), dtype=np.uint8), light, tables.rgba, tables.texture)
        core.draw(target, batch)
        rgba = np.full((height, width, 4), 255, dtype=np.uint8)
        rgba[..., :3] = rgb[0]
        if not wanted.flags & p.ER_SEGMENTATION_MASK_OBJECT_AND_LINKINDEX:
            segmentation = np.where(segmentation >= 0, segmentation & 0xFFFFFF, segmentation).astype(np.int32)
        return width, height, rgba, depth_buffer(metres[0], near, far), segmentation[0]

    def _fall_back(self, reason: str, wanted: _View) -> CameraImage:
        if reason not in self._warned:
            self._warned.add(reason)
            logger.warning("getCameraImage is drawn by PyBullet's TinyRenderer, because of %s", reason)
        p, light = pybullet(), wanted.light
        return p.getCameraImage(  # type: ignore[no-any-return]
            wanted.width, wanted.height, wanted.view.T.ravel().tolist(), wanted.projection.T.ravel().tolist(),
            lightDirection=light[:3].tolist(), lightColor=light[3:6].tolist(), lightDistance=wanted.light_distance,
            shadow=wanted.shadow, lightAmbientCoeff=float(light[6]), lightDiffuseCoeff=float(light[7]),
            lightSpecularCoeff=float(light[8]), flags=wanted.flags, renderer=p.ER_TINY_RENDERER,
            physicsClientId=self._client,
        )  # fmt: skip


def depth_buffer(metres: NDArray[np.float32], near: float, far: float) -> NDArray[np.float32]:
    """Turns m along the view axis into PyBullet's depth buffer: 0 at near, 1 at far."""
    buffer = far / (far - near) * (1.0 - near / metres.astype(np.float64))
    return np.asarray(np.minimum(buffer, BACKGROUND_DEPTH), dtype=np.float32)


def _matrix(name: str, values: Sequence[float] | None) -> NDArray[np.float64]:
    if values is None or len(values) != 16:
        raise ValueError(f"{name}: expected 16 numbers, got {values!r}")
    matrix: NDArray[np.float64] = np.array(values, dtype=np.float64).reshape(4, 4).T
    if not np.isfinite(matrix).all():
        raise ValueError(
            f"{name}: expected finite numbers, got {values!r} (pybullet.computeViewMatrix gives NaN for a view along "
            "its up vector: pass another one)"
        )
    return matrix


@dataclass(frozen=True)
class _Body:
    """What PyBullet tells of a body: all that its picture depends on, besides its pose."""

    number: int
    joints: int
    soft: bool
    inertial: tuple[Sequence[float], Sequence[float]]
    shapes: tuple[tuple[Any, ...], ...]


def _bodies_of(client: int) -> tuple[_Body, ...]:
    p, bodies = pybullet(), []
    for index in range(p.getNumBodies(client)):
        number = p.getBodyUniqueId(index, physicsClientId=client)
        told = p.getDynamicsInfo(number, -1, physicsClientId=client)
        joints = p.getNumJoints(number, physicsClientId=client)
        shapes = tuple(p.getVisualShapeData(number, physicsClientId=client))
        bodies.append(_Body(number, joints, told[_BODY_TYPE] == _SOFT, told[3:5], shapes))
    return tuple(bodies)


def _shapes_of(
    client: int, seen: _Body, first_frame: int, described: Mapping[tuple[int, int], Mesh]
) -> list[PlacedShape]:
    body = seen.number
    name = pybullet().getBodyInfo(body, physicsClientId=client)[1].decode(errors="replace")
    if seen.soft:
        raise UndrawableShapeError(f"shape: cannot draw soft body {body} {name!r}")
    placed = []
    for entry in seen.shapes:
        link, geometry, dimensions, file = entry[1], entry[2], entry[3], entry[4].decode(errors="replace")
        kind, given = _KINDS.get(geometry), None
        if geometry in (_MESH, _HEIGHTFIELD) and not file and (body, link) in described:
            kind, given = "mesh", described[body, link]
        elif kind is None or (kind == "mesh" and not file):
            raise UndrawableShapeError(
                f"shape: cannot draw geometry of type {geometry} without a file (link {link} of body {body} {name!r})"
            )
        local = np.column_stack([quaternion_matrix(np.array(entry[6])), np.array(entry[5])])
        rgba: RGBA = (entry[7][0], entry[7][1], entry[7][2], entry[7][3])
        assert kind is not None
        if given is not None:
            scale = (1.0, 1.0, 1.0) if geometry == _HEIGHTFIELD else tuple(dimensions)
            shape = VisualShape("mesh", scale, "", link + 1, as_rows(local), rgba, given)
        elif kind == "mesh":
            shape = VisualShape("mesh", tuple(dimensions), _mesh_path(file), link + 1, as_rows(local), rgba)
        else:
            shape = VisualShape(kind, _size(kind, dimensions), "", link + 1, as_rows(local), rgba)
        placed.append(PlacedShape(shape, first_frame + link + 1, 0, segmentation_value(body, link + 1)))
    return placed


def _size(kind: ShapeKind, dimensions: Sequence[float]) -> tuple[float, ...]:
    if kind == "sphere":
        return (dimensions[0],)
    if kind in ("cylinder", "capsule"):
        return (dimensions[1], dimensions[0])  # PyBullet: length, radius
    return tuple(dimensions) if kind == "box" else ()


def _mesh_path(file: str) -> str:
    """PyBullet gives the name as it was passed: relative to the working folder or to a search path of the client."""
    for candidate in (file, os.path.join(pybullet_data_path(), file)):
        if os.path.isfile(candidate):
            if not candidate.lower().endswith((".obj", ".stl", ".dae")):
                raise UndrawableShapeError(f"mesh: cannot draw {file!r}")
            return os.path.abspath(candidate)
    raise UndrawableShapeError(f"mesh: cannot find {file!r}, which PyBullet found on a search path of its own")
