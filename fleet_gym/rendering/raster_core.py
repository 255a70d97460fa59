"""The rasterizer around its compiled loops: tables of a scene, buffers, threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from fleet_gym._validation import positive_int
from fleet_gym.rendering.assets import MeshTables, TextureStore, mesh_chain, pack_meshes
from fleet_gym.rendering.meshes import Mesh
from fleet_gym.rendering.shapes import VisualShape
from fleet_gym.world.state import DEFAULT_LIGHT

#: A simplified mesh is used where it is at most this far, in pixels, from the full one.
LOD_PIXELS = 0.5
#: Larger images are drawn in bands of rows, whose depth and id buffers the processor's caches hold.
_PIXELS_PER_BAND = 1280 * 360


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
        rgba: (1, K, 4) float32, colours within 0..1.
        texture: (1, K) int32, -1 without.
        textures: texels and table, see `TextureStore.astuple`.
        num_things: G.
        extra_textures: image numbers of the scene's own textures.
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
    extra_textures: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlacedShape:
    """A shape and where it belongs: frame index, thing index, segmentation value."""

    shape: VisualShape
    frame: int
    thing: int
    segmentation: int


def build_tables(
    placed: Sequence[PlacedShape], num_things: int, *, lod: bool = True, extra_textures: Sequence[str] = ()
) -> ShapeTables:
    """Loads and packs the meshes and textures of the given shapes; equal geometry is kept once.

    Args:
        placed: the shapes.
        num_things: G.
        lod: whether to build levels of detail.
        extra_textures: image files to pack as well.

    Raises:
        ValueError: a mesh, or an extra texture, cannot be read.
    """
    keys: dict[tuple[Any, ...], int] = {}
    chains: list[Sequence[tuple[Mesh, float]]] = []
    textures, mesh_of = TextureStore(), []
    for entry in placed:
        key = (entry.shape.kind, entry.shape.size, entry.shape.file, id(entry.shape.mesh))
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
    rgba = np.array([[entry.shape.rgba for entry in placed]], dtype=np.float32).reshape(1, -1, 4)
    rgba[..., :3] = np.clip(rgba[..., :3], 0.0, 1.0)  # negative ones would come out as any byte
    return ShapeTables(
        meshes=meshes,
        lods=ranges[mesh_of] if mesh_of else np.zeros((0, 2), dtype=np.int64),
        frame=np.array([entry.frame for entry in placed], dtype=np.int64),
        thing=np.array([entry.thing for entry in placed], dtype=np.int64),
        local=local,
        sphere=np.column_stack([moved, radius]),
        segmentation=np.array([entry.segmentation for entry in placed], dtype=np.int64).astype(np.int32),
        rgba=rgba,
        texture=np.array([texture], dtype=np.int32).reshape(1, -1),
        extra_textures=tuple(textures.require_file(path) for path in extra_textures),
        textures=textures.astuple(),
        num_things=num_things,
    )


@dataclass(frozen=True)
class WorldBatch:
    """How n worlds stand and look.

    Attributes:
        frames: (n, F, 3, 4) float64, frame to world, m.
        visible: (n, G) uint8.
        light: (n or 1, 9) float64: unit direction to the light, RGB, ambient, diffuse and specular coefficients.
        rgba: (n or 1, K, 4) float32.
        texture: (n or 1, K) int32, -1 without.
    """

    frames: NDArray[np.float64]
    visible: NDArray[np.uint8]
    light: NDArray[np.float64]
    rgba: NDArray[np.float32]
    texture: NDArray[np.int32]


@dataclass(frozen=True)
class Target:
    """One camera in n worlds and the arrays its images go to.

    Attributes:
        eye: (n, 3) float64, m.
        axes: (n, 3, 3) float64, rows right, up, backward.
        lens: (6,) float64: horizontal and vertical focal length in half images, width, height, near and far in m.
        rgb: (n, H, W, 3) uint8, or None.
        depth: (n, H, W) float32, m, or None.
        segmentation: (n, H, W) int32, or None.
    """

    eye: NDArray[np.float64]
    axes: NDArray[np.float64]
    lens: NDArray[np.float64]
    rgb: NDArray[np.uint8] | None = None
    depth: NDArray[np.float32] | None = None
    segmentation: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """n, height, width."""
        return len(self.eye), int(self.lens[3]), int(self.lens[2])


def unit_light(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns light rows (n, 9) with directions of unit length.

    Raises:
        ValueError: a direction has no length, a number is not finite, or a colour or coefficient is negative.
    """
    length = np.sqrt((light[:, :3] ** 2).sum(axis=-1, keepdims=True))
    if not (np.isfinite(light).all() and (length > 0).all() and (light[:, 3:] >= 0).all()):
        raise ValueError(
            "light: expected finite numbers, directions of positive length, and colours and coefficients >= 0, "
            f"got {light.tolist()}"
        )
    return np.concatenate([light[:, :3] / length, light[:, 3:]], axis=1)


def default_light() -> NDArray[np.float64]:
    """(1, 9) float64: PyBullet's light."""
    return unit_light(np.array([DEFAULT_LIGHT]))


class RasterCore:
    """Buffers, threads and tables around the kernel.

    Args:
        tables: what there is to draw.
        threads: at most this many threads share the images of a call.
        lod: whether simplified meshes may be drawn.
        supersample: 2 averages four samples per pixel of colour images.

    Raises:
        TypeError: `threads` is not an int.
        ValueError: `threads` is not positive or `supersample` is neither 1 nor 2.
    """

    def __init__(self, tables: ShapeTables, *, threads: int = 1, lod: bool = True, supersample: int = 1) -> None:
        if supersample not in (1, 2):
            raise ValueError(f"supersample: expected 1 or 2, got {supersample!r}")
        self.tables = tables
        self._meshes = tuple(flat(array) for array in tables.meshes.astuple())
        arrays = (tables.lods, tables.frame, tables.thing, tables.local, tables.sphere, tables.segmentation)
        self._shapes = tuple(flat(array) for array in arrays)
        self._textures = tuple(flat(array) for array in tables.textures)
        self._threads = positive_int("threads", threads)
        self._supersample = int(supersample)
        self._lod_pixels = LOD_PIXELS if lod else 0.0
        self._scratch: list[_Scratch] = []
        self._pool: ThreadPoolExecutor | None = None
        self._pool_pid = -1
        self._closed = False

    def draw(self, target: Target, worlds: WorldBatch) -> None:
        """Draws n worlds through one camera.

        Raises:
            ClosedEnvironmentError: after `close`.
        """
        if self._closed:
            raise ClosedEnvironmentError("the renderer was used after close()")
        if len(target.eye) == 0:
            return
        if self._supersample == 2 and target.rgb is not None:
            self._draw_supersampled(target, worlds)
            return
        self._draw_plain(target, worlds)

    def close(self) -> None:
        """Frees buffers and threads; calling it again does nothing."""
        self._closed = True
        self._scratch = []
        if self._pool is not None and self._pool_pid == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _draw_supersampled(self, target: Target, worlds: WorldBatch) -> None:
        n, height, width = target.shape
        lens = target.lens.copy()
        lens[2:4] *= 2
        fine = Target(
            target.eye,
            target.axes,
            lens,
            np.empty((n, 2 * height, 2 * width, 3), dtype=np.uint8),
            None if target.depth is None else np.empty((n, 2 * height, 2 * width), dtype=np.float32),
            None if target.segmentation is None else np.empty((n, 2 * height, 2 * width), dtype=np.int32),
        )
        self._draw_plain(fine, worlds)
        assert target.rgb is not None
        assert fine.rgb is not None
        total = fine.rgb.reshape(n, height, 2, width, 2, 3).sum(axis=(2, 4), dtype=np.uint16)
        target.rgb[...] = (total + 2) // 4
        # The sample a plain image would take: pixels are sampled at their lower left corner.
        if target.depth is not None and fine.depth is not None:
            target.depth[...] = fine.depth[:, 1::2, ::2]
        if target.segmentation is not None and fine.segmentation is not None:
            target.segmentation[...] = fine.segmentation[:, 1::2, ::2]

    def _draw_plain(self, target: Target, worlds: WorldBatch) -> None:
        wanted = {name: getattr(target, name) for name in ("rgb", "depth", "segmentation")}
        # The kernel writes into flat arrays; a strided output is drawn into a copy first.
        copies = {k: a.copy() for k, a in wanted.items() if a is not None and not a.flags.c_contiguous}
        if copies:
            self._draw_plain(replace(target, **copies), worlds)
            for name, copy in copies.items():
                wanted[name][...] = copy
            return
        count, height, width = target.shape
        bands = max(1, round(height * width / _PIXELS_PER_BAND))
        # Two tiles per thread and more, so that none gets all of the sky.
        while self._threads > 1 and count * bands < 2 * self._threads and height // (bands + 1) >= 16:
            bands += 1
        threads = min(self._threads, count * bands)
        # Taken away while they are in use: two threads may draw with one renderer.
        scratch = [self._take_scratch() for _ in range(threads)]
        try:
            self._share(scratch, bands, -(-height // bands) * width, width, self._arguments(target, worlds))
        finally:
            self._scratch.extend(scratch)

    def _take_scratch(self) -> _Scratch:
        try:
            return self._scratch.pop()
        except IndexError:
            return _Scratch(self.tables)

    def _share(self, scratch: list[_Scratch], bands: int, pixels: int, width: int, arguments: Any) -> None:
        """Draws with one thread per scratch, the calling one among them."""
        threads = len(scratch)
        if threads == 1:
            self._run(scratch[0], 0, 1, bands, pixels, width, arguments)
            return
        executor, jobs = self._executor(), []
        try:
            for k in range(1, threads):
                jobs.append(executor.submit(self._run, scratch[k], k, threads, bands, pixels, width, arguments))
            self._run(scratch[0], 0, threads, bands, pixels, width, arguments)
        finally:
            for job in jobs:  # they write into the caller's arrays
                job.result()

    def _executor(self) -> ThreadPoolExecutor:
        # A forked child inherits the object but not its threads.
        if self._pool is None or self._pool_pid != os.getpid():
            self._pool = ThreadPoolExecutor(self._threads - 1, thread_name_prefix="fleet_gym-raster")
            self._pool_pid = os.getpid()
        return self._pool

    def _arguments(self, target: Target, worlds: WorldBatch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        before = (
            flat(target.eye), flat(target.axes), target.lens, flat(worlds.frames), worlds.frames.shape[1],
            flat(worlds.visible), self.tables.num_things, flat(worlds.light), self._meshes, self._shapes,
            flat(worlds.rgba), flat(worlds.texture), self._textures, self._lod_pixels,
        )  # fmt: skip
        after = (
            np.zeros(0, np.uint8) if target.rgb is None else flat(target.rgb),
            np.zeros(0, np.float32) if target.depth is None else flat(target.depth),
            np.zeros(0, np.int32) if target.segmentation is None else flat(target.segmentation),
        )
        return before, after

    def _run(
        self, scratch: _Scratch, start: int, step: int, bands: int, pixels: int, width: int, arguments: Any
    ) -> None:
        from fleet_gym.rendering import _raster_kernel

        draw_tiles: Any = _raster_kernel.draw_tiles
        before, after = arguments
        depth, ids = scratch.buffers(pixels)
        draw_tiles(start, step, bands, *before, depth, ids, (*scratch.arrays, scratch.run(width)), *after)


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
            np.empty(8 * shapes),
            np.empty(9),
            np.empty(9),
            np.full(6, np.nan),
            np.empty(3 * 256 + 3, dtype=np.uint8),
        )
        self._pixels = (np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int32))
        self._run = np.empty(0, dtype=np.int32)

    def buffers(self, pixels: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Depth and id buffers of at least this size."""
        if len(self._pixels[0]) < pixels:
            self._pixels = (np.empty(pixels, dtype=np.float32), np.empty(pixels, dtype=np.int32))
        return self._pixels

    def run(self, width: int) -> NDArray[np.int32]:
        """Texel numbers of one row."""
        if len(self._run) < width:
            self._run = np.empty(width, dtype=np.int32)
        return self._run
