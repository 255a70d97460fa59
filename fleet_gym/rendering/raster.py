"""The rasterizer: TinyRenderer's picture from compiled loops, with no physics client and no system library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering.assets import MeshTables, TextureStore, mesh_chain, pack_meshes
from fleet_gym.rendering.meshes import Mesh
from fleet_gym.rendering.shapes import VisualShape, as_rows, urdf_shapes
from fleet_gym.rendering.tiny import check_finite
from fleet_gym.rendering.views import CameraView, camera_views, check_worlds
from fleet_gym.world.cameras import Camera, quaternion_matrix
from fleet_gym.world.forward_kinematics import FleetKinematics
from fleet_gym.world.scene import GROUND_BODY, BodySpec, Scene
from fleet_gym.world.state import FleetState

#: Direction to the light, its colour, and the ambient, diffuse and specular coefficients of PyBullet's getCameraImage.
DEFAULT_LIGHT = (-50.0, 30.0, 100.0, 1.0, 1.0, 1.0, 0.6, 0.35, 0.05)
#: A simplified mesh is used where it is at most this far, in pixels, from the full one.
LOD_PIXELS = 0.5


@dataclass(frozen=True)
class ShapeTables:
    """All shapes of a world, with their meshes and textures, as the kernel reads them.

    Attributes:
        meshes: packed meshes.
        lods: (K, 2) int64, first and last level of each shape's mesh.
        frame: (K,) int64, index into the world's frames.
        thing: (K,) int64, index into the world's things (ground, robots, bodies): what is shown or hidden as one.
        local: (K, 3, 4) float64, shape to frame, m.
        sphere: (K, 4) float64, bounding sphere in the frame: centre and radius, m.
        segmentation: (K,) int32.
        rgba: (1, K, 4) float32.
        texture: (1, K) int32, -1 without.
        textures: texels and table, see `TextureStore.astuple`.
        num_things: G.
    """

    meshes: MeshTables
    lods: NDArray[np.int64]
    frame: NDArray[np.int64]
    thing: NDArray[np.int64]
    local: NDArray[np.float64]
    sphere: NDArray[np.float64]
    segmentation: NDArray[np.int32]
    rgba: NDArray[np.float32]
    texture: NDArray[np.int32]
    textures: tuple[NDArray[np.uint32], NDArray[np.int64]]
    num_things: int


@dataclass(frozen=True)
class PlacedShape:
    """A shape and where it belongs: frame index, thing index, segmentation value."""

    shape: VisualShape
    frame: int
    thing: int
    segmentation: int


def build_tables(placed: Sequence[PlacedShape], num_things: int, lod: bool = True) -> ShapeTables:
    """Loads and packs the meshes and textures of the given shapes; equal geometry is kept once."""
    keys: dict[tuple[Any, ...], int] = {}
    chains: list[Sequence[tuple[Mesh, float]]] = []
    textures, mesh_of = TextureStore(), []
    for entry in placed:
        key = (entry.shape.kind, entry.shape.size, entry.shape.file)
        if key not in keys:
            keys[key] = len(chains)
            chains.append(mesh_chain(entry.shape, lod))
        mesh_of.append(keys[key])
    meshes, ranges = pack_meshes(chains)
    spheres = [chain[0][0].bounding_sphere() for chain in chains]
    local = np.array([entry.shape.local for entry in placed], dtype=np.float64).reshape(-1, 3, 4)
    centre = np.array([spheres[m][0] for m in mesh_of]).reshape(-1, 3)
    radius = np.array([spheres[m][1] for m in mesh_of])
    moved = (local[:, :, :3] * centre[:, None, :]).sum(axis=-1) + local[:, :, 3]
    texture = [textures.add_file(chains[m][0][0].texture) for m in mesh_of]
    return ShapeTables(
        meshes=meshes,
        lods=ranges[mesh_of] if mesh_of else np.zeros((0, 2), dtype=np.int64),
        frame=np.array([entry.frame for entry in placed], dtype=np.int64),
        thing=np.array([entry.thing for entry in placed], dtype=np.int64),
        local=local,
        sphere=np.column_stack([moved, radius]),
        segmentation=np.array([entry.segmentation for entry in placed], dtype=np.int64).astype(np.int32),
        rgba=np.array([[entry.shape.rgba for entry in placed]], dtype=np.float32).reshape(1, -1, 4),
        texture=np.array([texture], dtype=np.int32).reshape(1, -1),
        textures=textures.astuple(),
        num_things=num_things,
    )


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
    if body.shape.kind == "box":
        return VisualShape("box", size, "", 0, local, body.color)
    if body.shape.kind == "cylinder":
        return VisualShape("cylinder", (size[0], size[2]), "", 0, local, body.color)
    return VisualShape("sphere", (size[0],), "", 0, local, body.color)


class RasterRenderer:
    """Draws with compiled loops on the CPU: TinyRenderer's picture, many times faster.

    Args:
        scene: what to draw.
        threads: how many threads share the images of a call; the bytes drawn do not depend on it.
        lod: draw simplified meshes where the difference is below half a pixel.
    """

    def __init__(self, scene: Scene, *, threads: int = 1, lod: bool = True) -> None:
        self._scene = scene
        self._kinematics = FleetKinematics(scene.robots)
        placed = scene_shapes(scene, self._kinematics)
        self._core = RasterCore(build_tables(placed, 1 + scene.num_robots + scene.num_bodies, lod), threads, lod)

    def render(
        self,
        state: FleetState,
        worlds: NDArray[np.intp],
        cameras: Sequence[Camera],
        out: Mapping[str, NDArray[Any]],
    ) -> None:
        """Draws the given worlds through the given cameras into `out`; see `fleet_gym.rendering.base.Renderer`.

        Raises:
            ValueError: an output does not fit, a mount does not exist, or a pose to draw is not finite.
            ClosedEnvironmentError: after `close`.
        """
        indices = check_worlds(worlds, state.num_envs)
        check_finite(state, indices)
        links = self._kinematics.frames(state, indices)
        views = camera_views(cameras, links, len(indices), self._scene.num_robots, out)
        frames = np.empty((len(indices), 1 + self._kinematics.num_frames + self._scene.num_bodies, 3, 4))
        frames[:, 0] = np.eye(3, 4)
        frames[:, 1 : 1 + self._kinematics.num_frames] = links.transforms
        if self._scene.num_bodies:
            bodies = frames[:, 1 + self._kinematics.num_frames :]
            bodies[..., :3] = quaternion_matrix(state.body_orientation[indices])
            bodies[..., 3] = state.body_position[indices]
        visible = np.ones((len(indices), 1 + self._scene.num_robots + self._scene.num_bodies), dtype=np.uint8)
        visible[:, 1 : 1 + self._scene.num_robots] = state.active[indices]
        visible[:, 1 + self._scene.num_robots :] = state.body_active[indices]
        for view in views:
            self._core.draw(view, frames, visible)

    def close(self) -> None:
        """Frees its buffers and threads; calling it again does nothing."""
        self._core.close()


class RasterCore:
    """Buffers, threads and tables around the kernel.

    Args:
        tables: what there is to draw.
        threads: at most this many threads share the images of a call.
        lod: whether simplified meshes may be drawn.
    """

    def __init__(self, tables: ShapeTables, threads: int = 1, lod: bool = True) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int):
            raise TypeError(f"threads: expected an int >= 1, got {threads!r}")
        if threads < 1:
            raise ValueError(f"threads: expected an int >= 1, got {threads!r}")
        self._tables = tables
        self._meshes = tuple(flat(array) for array in tables.meshes.astuple())
        arrays = (tables.lods, tables.frame, tables.thing, tables.local, tables.sphere, tables.segmentation)
        self._shapes = tuple(flat(array) for array in arrays)
        self._textures = tuple(flat(array) for array in tables.textures)
        self._threads = threads
        self._lod_pixels = LOD_PIXELS if lod else 0.0
        self._light = default_light()
        self._scratch: list[_Scratch] = []
        self._pool: ThreadPoolExecutor | None = None
        self._pool_pid = -1
        self._closed = False

    def draw(self, view: CameraView, frames: NDArray[np.float64], visible: NDArray[np.uint8]) -> None:
        """Draws n worlds through one camera.

        Args:
            view: camera, its poses and the arrays to fill.
            frames: (n, F, 3, 4) float64.
            visible: (n, G) uint8.
        """
        if self._closed:
            raise ClosedEnvironmentError("RasterRenderer.render was called after close()")
        count = len(view.eye)
        if count == 0:
            return
        wanted = {name: getattr(view, name) for name in ("rgb", "depth", "segmentation")}
        # The kernel writes into flat arrays; a strided output is drawn into a copy first.
        copies = {k: a.copy() for k, a in wanted.items() if a is not None and not a.flags.c_contiguous}
        if copies:
            self.draw(replace(view, **copies), frames, visible)
            for name, copy in copies.items():
                wanted[name][...] = copy
            return
        camera = view.camera
        bands = 1
        while count * bands < self._threads and camera.height // (bands + 1) >= 16:
            bands += 1
        threads = min(self._threads, count * bands)
        height = -(-camera.height // bands)
        while len(self._scratch) < threads:
            self._scratch.append(_Scratch(self._tables))
        arguments = self._arguments(view, frames, visible)
        if threads == 1:
            self._run(0, 1, bands, height, camera.width, arguments)
            return
        jobs = [
            self._executor().submit(self._run, k, threads, bands, height, camera.width, arguments)
            for k in range(threads)
        ]
        for job in jobs:
            job.result()

    def close(self) -> None:
        """Frees buffers and threads; calling it again does nothing."""
        self._closed = True
        self._scratch = []
        if self._pool is not None and self._pool_pid == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _executor(self) -> ThreadPoolExecutor:
        # A forked child inherits the object but not its threads.
        if self._pool is None or self._pool_pid != os.getpid():
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fleet_gym-raster")
            self._pool_pid = os.getpid()
        return self._pool

    def _arguments(
        self, view: CameraView, frames: NDArray[np.float64], visible: NDArray[np.uint8]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        camera, tables = view.camera, self._tables
        scale = 1.0 / np.tan(np.radians(camera.fov) / 2.0)
        lens = np.array(
            [scale * camera.height / camera.width, scale, camera.width, camera.height, camera.near, camera.far]
        )
        before = (
            flat(view.eye), flat(view.axes), lens, flat(frames), frames.shape[1], flat(visible), tables.num_things,
            flat(self._light), self._meshes, self._shapes, flat(tables.rgba), flat(tables.texture), self._textures,
            self._lod_pixels,
        )  # fmt: skip
        after = (
            np.zeros(0, np.uint8) if view.rgb is None else flat(view.rgb),
            np.zeros(0, np.float32) if view.depth is None else flat(view.depth),
            np.zeros(0, np.int32) if view.segmentation is None else flat(view.segmentation),
        )
        return before, after

    def _run(self, start: int, step: int, bands: int, height: int, width: int, arguments: Any) -> None:
        from fleet_gym.rendering import _raster_kernel

        draw_tiles: Any = _raster_kernel.draw_tiles
        before, after = arguments
        scratch = self._scratch[start]
        depth, ids = scratch.buffers(height, width)
        draw_tiles(start, step, bands, *before, depth, ids, (*scratch.arrays, scratch.run(width)), *after)


def default_light() -> NDArray[np.float64]:
    """(1, 9) float64: unit direction to the light, colour, ambient, diffuse and specular coefficients."""
    light = np.array([DEFAULT_LIGHT])
    light[:, :3] /= np.sqrt((light[:, :3] ** 2).sum(axis=-1, keepdims=True))
    return light


def flat(array: NDArray[Any]) -> NDArray[Any]:
    """One-dimensional view of a C-contiguous array (a copy of any other)."""
    return np.ascontiguousarray(array).reshape(-1)


class _Scratch:
    """Buffers of one thread, as large as the scene can need."""

    def __init__(self, tables: ShapeTables) -> None:
        lods = tables.meshes.lods
        counts = lods[tables.lods[:, 0]] if len(tables.lods) else np.zeros((1, 4), dtype=np.int64)
        vertices = int((counts[:, 1] - counts[:, 0]).max())
        triangles = counts[:, 3] - counts[:, 2]
        most = int(triangles.max())
        shapes = max(1, len(tables.lods))
        self.arrays = (
            np.empty(3 * (max(vertices, 4 * most) + 1)),  # a triangle cut at the near plane has up to 4 corners
            np.empty(4 * (2 * most + 1), dtype=np.int32),
            np.empty(2 * most + 1, dtype=np.int32),
            np.empty(2 * (2 * int(triangles.sum()) + 1), dtype=np.int32),
            np.empty(12 * shapes),
            np.empty(6 * shapes),
            np.full(9 + 9 + 12 + 6, np.nan),
            np.empty(3 * 256 + 3, dtype=np.uint8),
        )
        self._pixels = (np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int32))
        self._run = np.empty(0, dtype=np.int32)

    def buffers(self, height: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Depth and id buffers of at least this size."""
        if len(self._pixels[0]) < height * width:
            self._pixels = (np.empty(height * width, dtype=np.float32), np.empty(height * width, dtype=np.int32))
        return self._pixels

    def run(self, width: int) -> NDArray[np.int32]:
        """Texel numbers of one row."""
        if len(self._run) < width:
            self._run = np.empty(width, dtype=np.int32)
        return self._run
