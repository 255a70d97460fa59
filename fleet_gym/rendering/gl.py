"""Drawing with OpenGL through EGL, for machines with a GPU (extra ``gl``); the rasterizer is faster on a CPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from fleet_gym.rendering.raster_core import LOD_PIXELS, ShapeTables, Target, WorldBatch
from fleet_gym.rendering.scene_batch import SceneBatcher
from fleet_gym.world.cameras import Camera
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState

# Rows of one column of tiles; what every driver allows as the height of a texture.
_MAX_ROWS = 16384
_INSTALL = "pip install 'fleet-gym[gl]', and a driver with EGL and OpenGL 4.3 (Debian: libegl1 libgl1 libegl-mesa0)"

_VERTEX = """
#version 430
struct Draw { mat4 clip; vec4 light; vec4 up; vec4 rgba; ivec4 image; };
layout(std430, binding = 0) readonly buffer Draws { Draw draws[]; };
layout(std430, binding = 2) readonly buffer Lights { float lights[]; };
in vec3 in_position;
in vec3 in_normal;
in vec2 in_uv;
in int in_draw;
out vec3 normal;
out vec2 uv;
flat out vec4 light;
flat out vec3 up;
flat out vec3 own;
flat out ivec4 image;
flat out vec3 light_color;
flat out vec3 coefficients;
void main() {
    gl_Position = draws[in_draw].clip * vec4(in_position, 1.0);
    normal = in_normal;
    uv = in_uv;
    light = draws[in_draw].light;
    up = draws[in_draw].up.xyz;
    own = draws[in_draw].rgba.rgb;
    image = draws[in_draw].image;
    int first = 9 * int(draws[in_draw].up.w);
    light_color = vec3(lights[first + 3], lights[first + 4], lights[first + 5]);
    coefficients = vec3(lights[first + 6], lights[first + 7], lights[first + 8]);
}
"""

# TinyRenderer's light, texel and rounding rules, as in the compiled loops of the rasterizer.
_FRAGMENT = """
#version 430
layout(std430, binding = 1) readonly buffer Texels { uint texels[]; };
in vec3 normal;
in vec2 uv;
flat in vec4 light;
flat in vec3 up;
flat in vec3 own;
flat in ivec4 image;
flat in vec3 light_color;
flat in vec3 coefficients;
layout(location = 0) out vec4 color;
layout(location = 1) out float metres;
layout(location = 2) out int segmentation;
void main() {
    vec3 n = normalize(normal);
    float nl = dot(n, light.xyz);
    float mirrored = max(0.0, 2.0 * nl * dot(n, up) - light.w);
    float directed = coefficients.y * max(0.0, nl) + coefficients.z * mirrored * mirrored;
    vec3 base = vec3(255.0);
    if (image.y > 0) {
        ivec2 texel = clamp(ivec2(fract(uv) * vec2(image.yz)), ivec2(0), image.yz - 1);
        uint packed_rgb = texels[image.x + texel.y * image.y + texel.x];
        base = vec3(packed_rgb & 255u, (packed_rgb >> 8) & 255u, (packed_rgb >> 16) & 255u);
    }
    base = floor(min(vec3(255.0), base * own + 1e-4));
    vec3 factor = coefficients.x + directed * light_color;
    color = vec4(floor(min(vec3(255.0), factor * base + 1e-3)) / 255.0, 1.0);
    metres = 1.0 / gl_FragCoord.w;
    segmentation = image.w;
}
"""

_BACKGROUND_VERTEX = """
#version 430
void main() {
    gl_Position = vec4(vec2(gl_VertexID & 1, gl_VertexID >> 1) * 4.0 - 1.0, 1.0, 1.0);
}
"""
_BACKGROUND_FRAGMENT = """
#version 430
uniform float far;
layout(location = 0) out vec4 color;
layout(location = 1) out float metres;
layout(location = 2) out int segmentation;
void main() { color = vec4(1.0); metres = far; segmentation = -1; }
"""


class GLRenderer:
    """Draws with OpenGL: all tiles of a camera in one column of viewports, read back at once.

    The context is made at the first drawing and belongs to that process and thread.

    Args:
        scene: what to draw.
        lod: draw simplified meshes where the difference is below half a pixel.

    Raises:
        ImportError: moderngl is not installed.
        ValueError: a mesh or texture of the scene cannot be read.
        UndrawableShapeError: the scene has a shape only PyBullet can draw.
    """

    def __init__(self, scene: Scene, *, lod: bool = True) -> None:
        self._moderngl = _moderngl()
        self._batcher = SceneBatcher(scene, lod=lod)
        self._lod = lod
        self._device: _Device | None = None
        self._owner = (-1, -1)
        self._closed = False

    def render(
        self,
        state: FleetState,
        worlds: NDArray[np.intp],
        cameras: Sequence[Camera],
        out: Mapping[str, NDArray[Any]],
    ) -> None:
        """Draws the given worlds through the given cameras into `out`; see `fleet_gym.rendering.base.Renderer`.

        Raises:
            ValueError: as `RasterRenderer.render`, or an image is higher than 16384 rows.
            RuntimeError: no context can be made, or the renderer is used in another process or thread than before.
            ClosedEnvironmentError: after `close`.
        """
        if self._closed:
            raise ClosedEnvironmentError("GLRenderer.render was called after close()")
        batch, targets = self._batcher.prepare(state, worlds, cameras, out)
        here = (os.getpid(), threading.get_ident())
        if self._device is not None and self._owner != here:
            raise RuntimeError(
                f"GLRenderer: a context belongs to the process and thread that made it, {self._owner}, got a call "
                f"from {here}; make a renderer in each process ('spawn' workers), and use it in one thread"
            )
        if self._device is None:
            self._device = _Device(self._moderngl, self._batcher.tables, LOD_PIXELS if self._lod else 0.0)
            self._owner = here
        for target in targets:
            self._device.draw(target, batch)

    @property
    def info(self) -> Mapping[str, Any]:
        """What the driver says of itself, after the first drawing."""
        return {} if self._device is None else dict(self._device.context.info)

    def close(self) -> None:
        """Frees the context; calling it again does nothing."""
        self._closed = True
        # In a forked child or another thread the context is not ours to touch.
        if self._device is not None and self._owner == (os.getpid(), threading.get_ident()):
            self._device.release()
        self._device = None


def _moderngl() -> ModuleType:
    try:
        import moderngl
    except ImportError as error:
        raise ImportError(f"renderer 'gl' needs moderngl: {_INSTALL}") from error
    module: ModuleType = moderngl  # typed or not, as it is installed or not
    return module


class _Device:
    """Context, programs and buffers of one scene."""

    def __init__(self, moderngl: ModuleType, tables: ShapeTables, lod_pixels: float) -> None:
        self._moderngl, self._tables, self._lod_pixels = moderngl, tables, lod_pixels
        try:
            self.context = moderngl.create_context(standalone=True, backend="egl", require=430)
        except Exception as error:  # moderngl raises bare Exception for a missing library or device
            raise RuntimeError(f"renderer 'gl': no OpenGL 4.3 context through EGL ({error}): {_INSTALL}") from error
        context = self.context
        self._program = context.program(vertex_shader=_VERTEX, fragment_shader=_FRAGMENT)
        background = context.program(vertex_shader=_BACKGROUND_VERTEX, fragment_shader=_BACKGROUND_FRAGMENT)
        self._programs = (self._program, background)
        self._far = background["far"]
        self._background = context.vertex_array(background, [])
        self._corners = context.buffer(_corners(tables).tobytes())
        texels, self._table = tables.textures
        self._texels = context.buffer(np.ascontiguousarray(texels).tobytes())
        self._framebuffer: Any = None

    def release(self) -> None:
        """Frees everything: of a program, the context frees the driver's part only."""
        self._release_target()
        for made in (self._background, self._corners, self._texels, *self._programs, self.context):
            made.release()

    def draw(self, target: Target, worlds: WorldBatch) -> None:
        """Draws n worlds through one camera, as many at a time as fit into one column."""
        count, height, _ = target.shape
        if height > _MAX_ROWS:
            raise ValueError(f"camera height: expected at most {_MAX_ROWS} rows with renderer 'gl', got {height}")
        step = max(1, _MAX_ROWS // height)
        for first in range(0, count, step):
            self._draw_column(target, worlds, np.arange(first, min(first + step, count)))

    def _draw_column(self, target: Target, worlds: WorldBatch, rows: NDArray[np.intp]) -> None:
        context, moderngl = self.context, self._moderngl
        _, height, width = target.shape
        tile, shape, lod = self._visible(target, worlds, rows)
        draws, lights = self._draw_records(target, worlds, rows, tile, shape)
        framebuffer = self._target(width, height * len(rows))
        framebuffer.use()
        framebuffer.depth_mask = True
        context.enable_only(moderngl.DEPTH_TEST)
        context.depth_func = "1"
        self._far.value = float(target.lens[5])
        framebuffer.viewport = (0, 0, width, height * len(rows))
        self._background.render(moderngl.TRIANGLES, vertices=3)
        if len(tile):
            triangles = self._tables.meshes.lods[lod]
            # Corner count, instances, first corner, first instance; moderngl strides by five numbers.
            commands = np.zeros((len(tile), 5), dtype=np.uint32)
            commands[:, 0] = 3 * (triangles[:, 3] - triangles[:, 2])
            commands[:, 1] = 1
            commands[:, 2] = 3 * triangles[:, 2]
            commands[:, 3] = np.arange(len(tile))
            self._run(commands, draws, lights, tile, width, height)
        self._read(framebuffer, target, rows)

    def _run(
        self,
        commands: NDArray[np.uint32],
        draws: NDArray[np.float32],
        lights: NDArray[np.float32],
        tile: NDArray[np.intp],
        width: int,
        height: int,
    ) -> None:
        context, moderngl = self.context, self._moderngl
        buffers = [context.buffer(a.tobytes()) for a in (commands, draws, lights, np.arange(len(tile), dtype=np.int32))]
        indirect, records, light, numbers = buffers
        records.bind_to_storage_buffer(0)
        self._texels.bind_to_storage_buffer(1)
        light.bind_to_storage_buffer(2)
        layout = [(self._corners, "3f 3f 2f", "in_position", "in_normal", "in_uv"), (numbers, "1i /i", "in_draw")]
        vertices = context.vertex_array(self._program, layout)
        context.enable_only(moderngl.DEPTH_TEST | moderngl.CULL_FACE)
        context.depth_func = "<="
        context.front_face = "cw"  # pictures are drawn upside down, so that they are read back first row on top
        for k in np.unique(tile):
            first, last = np.searchsorted(tile, [k, k + 1])
            context.viewport = (0, int(k) * height, width, height)
            vertices.render_indirect(indirect, moderngl.TRIANGLES, count=int(last - first), first=int(first))
        vertices.release()
        for buffer in buffers:
            buffer.release()

    def _visible(
        self, target: Target, worlds: WorldBatch, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
        """Tile, shape and level of everything that may be seen; the same tests as the rasterizer's."""
        tables, lens = self._tables, target.lens
        frames = worlds.frames[rows][:, tables.frame]
        centre = (frames[..., :3] * tables.sphere[:, None, :3]).sum(axis=-1) + frames[..., 3] - target.eye[rows, None]
        x, y, w = np.moveaxis((target.axes[rows, None] * centre[:, :, None, :]).sum(axis=-1), -1, 0)
        w = -w
        radius = tables.sphere[:, 3]
        pixels = 0.5 * lens[3] * lens[1] / np.maximum(w - radius, lens[4])
        rgba = worlds.rgba[np.minimum(rows, len(worlds.rgba) - 1)]
        seen = (worlds.visible[rows][:, tables.thing] > 0) & (rgba[..., 3] != 0)
        seen &= (w + radius > lens[4]) & (w - radius < lens[5]) & (radius * pixels >= 0.5 * self._lod_pixels)
        seen &= np.abs(x) * lens[0] - w <= radius * np.sqrt(lens[0] ** 2 + 1.0)
        seen &= np.abs(y) * lens[1] - w <= radius * np.sqrt(lens[1] ** 2 + 1.0)
        tile, shape = np.nonzero(seen)
        level = tables.lods[shape, 1] - 1
        while True:
            coarse = (level > tables.lods[shape, 0]) & (
                tables.meshes.lod_error[level] * pixels[tile, shape] > self._lod_pixels
            )
            if not coarse.any():
                return tile, shape, level
            level = level - coarse

    def _draw_records(
        self,
        target: Target,
        worlds: WorldBatch,
        rows: NDArray[np.intp],
        tile: NDArray[np.intp],
        shape: NDArray[np.intp],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What the shaders read: one record of 32 floats per draw, and the lights of the tiles."""
        tables, lens = self._tables, target.lens
        frame, local = worlds.frames[rows[tile], tables.frame[shape]], tables.local[shape]
        model = (frame[:, :, :3, None] * local[:, None, :, :]).sum(axis=2)
        model[..., 3] += frame[..., 3]
        camera = np.zeros((len(tile), 3, 4))
        shifted = model.copy()
        shifted[..., 3] -= target.eye[rows[tile]]
        camera[:] = (target.axes[rows[tile]][:, :, :, None] * shifted[:, None]).sum(axis=2)
        w, near, far = -camera[:, 2], lens[4], lens[5]
        clip = np.empty((len(tile), 4, 4))
        # OpenGL samples pixels at their centre, the other renderers at the lower left corner: half a pixel of shift.
        clip[:, 0] = camera[:, 0] * lens[0] + w / lens[2]
        clip[:, 1] = -(camera[:, 1] * lens[1] + w / lens[3])
        clip[:, 2] = w * (far + near) / (far - near)
        clip[:, 2, 3] -= 2.0 * far * near / (far - near)
        clip[:, 3] = w
        light = worlds.light[np.minimum(rows, len(worlds.light) - 1)]
        records = np.zeros((len(tile), 32), dtype=np.float32)
        records[:, :16] = clip.transpose(0, 2, 1).reshape(-1, 16)  # GLSL matrices are stored by column
        records[:, 16:19] = (light[tile][:, :3, None] * model[:, :, :3]).sum(axis=1)
        records[:, 19] = light[tile, 2]
        records[:, 20:23] = model[:, 2, :3]
        records[:, 23] = tile
        records[:, 24:28] = worlds.rgba[np.minimum(rows, len(worlds.rgba) - 1)][tile, shape]
        records[:, 28:].view(np.int32)[:] = self._images(worlds, rows, tile, shape)
        return records, light.astype(np.float32)

    def _images(
        self, worlds: WorldBatch, rows: NDArray[np.intp], tile: NDArray[np.intp], shape: NDArray[np.intp]
    ) -> NDArray[np.int32]:
        """First texel, width, height (0 without texture) and segmentation value of each draw."""
        tables = self._tables
        images = np.zeros((len(tile), 4), dtype=np.int32)
        first_triangle = tables.meshes.lods[tables.lods[shape, 0], 2]
        number = worlds.texture[np.minimum(rows, len(worlds.texture) - 1)][tile, shape]
        textured = (number >= 0) & (tables.meshes.uv_indices[first_triangle, 0] >= 0)
        images[textured, :3] = self._table[number[textured]]
        images[:, 3] = tables.segmentation[shape]
        return images

    def _target(self, width: int, rows: int) -> Any:
        if self._framebuffer is None or self._framebuffer.size != (width, rows):
            self._release_target()
            context = self.context
            attachments = [
                context.renderbuffer((width, rows), 4),
                context.renderbuffer((width, rows), 1, dtype="f4"),
                context.renderbuffer((width, rows), 1, dtype="i4"),
            ]
            self._framebuffer = context.framebuffer(attachments, context.depth_renderbuffer((width, rows)))
        return self._framebuffer

    def _release_target(self) -> None:
        if self._framebuffer is not None:
            for attachment in (*self._framebuffer.color_attachments, self._framebuffer.depth_attachment):
                attachment.release()
            self._framebuffer.release()

    def _read(self, framebuffer: Any, target: Target, rows: NDArray[np.intp]) -> None:
        outputs = ((target.rgb, 3, "f1"), (target.depth, 1, "f4"), (target.segmentation, 1, "i4"))
        for attachment, (array, components, dtype) in enumerate(outputs):
            if array is None:
                continue
            part = array[rows[0] : rows[-1] + 1]
            data = part if part.flags.c_contiguous else np.empty_like(part, order="C")
            framebuffer.read_into(data, components=components, attachment=attachment, dtype=dtype, alignment=1)
            if data is not part:
                part[...] = data


def _corners(tables: ShapeTables) -> NDArray[np.float32]:
    """(3 F, 8) position, normal and texture coordinate of every corner of every triangle."""
    meshes = tables.meshes
    corners = np.zeros((3 * len(meshes.triangles), 8), dtype=np.float32)
    corners[:, :3] = meshes.positions.T[(meshes.triangles[:, :3] + meshes.triangles[:, 3:]).ravel()]
    corners[:, 3:6] = meshes.normals[meshes.normal_indices.ravel()]
    textured = np.repeat(meshes.uv_indices[:, 0] >= 0, 3)
    corners[textured, 6:] = meshes.uvs[meshes.uv_indices.ravel()[textured]]
    return corners
