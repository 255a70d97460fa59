"""The compiled loops of the rasterizer: cull, choose a level of detail, rasterise, shade.

Pixel (row r, column c) is sampled at its corner, as TinyRenderer does: column c at c, row r at r from the top, in
units in which the image is W wide and the last row lies on the lower border. Coordinates are float64, because edges
set up in float32 leave holes between triangles; the depth buffer holds 1/w in float32, larger is nearer.

All arrays are flat: views made in an inner loop would be reference counted there. Element access is that of
`fleet_gym._numba_intrinsics`: row, number of columns, column. NumPy's would do, and would take longer to compile.
"""
# Compiled functions carry no annotations: numba derives the types, and mypy has nothing to check in them.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from fleet_gym._numba import compiled_inner, compiled_like_numpy
from fleet_gym._numba_intrinsics import (
    along,
    byte_of,
    ceil,
    det2,
    dot3,
    dot_at,
    floor,
    load,
    maximum,
    minimum,
    number,
    part_of,
    select,
    store,
    whole,
)

#: Direction to the light, its colour, ambient, diffuse and specular coefficients.
LIGHT_COLUMNS = 9


@compiled_inner
def set_up_shape(eye, axes, tile, lens, frames, f, local, k, lights, light, matrices, directions):
    """Composes shape -> link -> world -> camera -> pixels for shape k into `matrices` (rows x*w, y*w, w).

    Also turns the light direction and the world's z axis into the shape's axes: `directions`, 8 per shape.
    """
    scale_x, scale_y = number(lens, 0, 0, 0), number(lens, 0, 0, 1)
    half_width, height = 0.5 * number(lens, 0, 0, 2), number(lens, 0, 0, 3)
    half_height, last_row = 0.5 * height, height - 1.0
    for j in range(4):
        # Column j of shape -> world, its translation from the eye.
        x, y, z = number(local, k, 12, j), number(local, k, 12, j + 4), number(local, k, 12, j + 8)
        m0 = dot_at(frames, f, 12, 0, x, y, z)
        m1 = dot_at(frames, f, 12, 4, x, y, z)
        m2 = dot_at(frames, f, 12, 8, x, y, z)
        store(directions, k, 8, j, dot_at(lights, light, 9, 0, m0, m1, m2))
        store(directions, k, 8, j + 4, m2)
        if j == 3:
            m0 += number(frames, f, 12, 3)
            m1 += number(frames, f, 12, 7)
            m2 += number(frames, f, 12, 11)
            m0 -= number(eye, tile, 3, 0)
            m1 -= number(eye, tile, 3, 1)
            m2 -= number(eye, tile, 3, 2)
        right = dot_at(axes, tile, 9, 0, m0, m1, m2)
        up = dot_at(axes, tile, 9, 3, m0, m1, m2)
        w = -dot_at(axes, tile, 9, 6, m0, m1, m2)
        store(matrices, k, 12, j, along(w, right, scale_x) * half_width)
        store(matrices, k, 12, j + 4, det2(last_row, along(w, up, scale_y), half_height, w))
        store(matrices, k, 12, j + 8, w)


@compiled_inner
def project_vertices(positions, first, count, m, k, points, capacity):
    """Transforms positions by the 3x4 matrix k of `m` into `points`: all x, then all y, then all 1/w."""
    stride = len(positions) // 3
    m0, m1, m2, m3 = number(m, k, 12, 0), number(m, k, 12, 1), number(m, k, 12, 2), number(m, k, 12, 3)
    m4, m5, m6, m7 = number(m, k, 12, 4), number(m, k, 12, 5), number(m, k, 12, 6), number(m, k, 12, 7)
    m8, m9, m10, m11 = number(m, k, 12, 8), number(m, k, 12, 9), number(m, k, 12, 10), number(m, k, 12, 11)
    for i in range(count):
        v = first + i
        x, y, z = number(positions, 0, stride, v), number(positions, 1, stride, v), number(positions, 2, stride, v)
        s = 1.0 / (dot3(m8, m9, m10, x, y, z) + m11)
        store(points, 0, capacity, i, (dot3(m0, m1, m2, x, y, z) + m3) * s)
        store(points, 1, capacity, i, (dot3(m4, m5, m6, x, y, z) + m7) * s)
        store(points, 2, capacity, i, s)


@compiled_inner
def set_up_corners(positions, triangles, t, m, k, corner):
    """Transforms the corners of triangle t by the 3x4 matrix k of `m` into `corner`: x*w, y*w, w of each."""
    stride = len(positions) // 3
    for j in range(3):
        v = whole(triangles, t, 4, j) + whole(triangles, t, 4, 3)
        x, y, z = number(positions, 0, stride, v), number(positions, 1, stride, v), number(positions, 2, stride, v)
        for i in range(3):
            row = 3 * k + i
            turned = dot_at(m, row, 4, 0, x, y, z)
            store(corner, j, 3, i, turned + number(m, row, 4, 3))


@compiled_inner
def clip_at_near(positions, triangles, first, last, m, k, near, points, capacity, clipped, source, corner):
    """Cuts triangles at the near plane; returns how many remain.

    Writes their corners to `points`, corner indices to `clipped` (4 per triangle) and the number of the triangle each
    comes from to `source`.
    """
    count, free = 0, 0
    for t in range(first, last):
        set_up_corners(positions, triangles, t, m, k, corner)
        kept = free
        for j in range(3):
            b = (j + 1) % 3
            ax, ay, aw, bw = (
                number(corner, j, 3, 0),
                number(corner, j, 3, 1),
                number(corner, j, 3, 2),
                number(corner, b, 3, 2),
            )
            store(points, 0, capacity, kept, ax / aw)
            store(points, 1, capacity, kept, ay / aw)
            store(points, 2, capacity, kept, 1.0 / aw)
            kept += np.int64(aw >= near)
            s = (near - aw) / (bw - aw)
            store(points, 0, capacity, kept, along(ax, s, number(corner, b, 3, 0) - ax) / near)
            store(points, 1, capacity, kept, along(ay, s, number(corner, b, 3, 1) - ay) / near)
            store(points, 2, capacity, kept, 1.0 / near)
            kept += np.int64((aw >= near) != (bw >= near))
        for j in range(free + 1, kept - 1):
            store(clipped, count, 4, 0, free)
            store(clipped, count, 4, 1, j)
            store(clipped, count, 4, 2, j + 1)
            store(source, 0, 0, count, t)
            count += 1
        free = kept
    return count


@compiled_inner
def raster_triangles(
    triangles, first, last, source, cut, points, capacity, depth, ids, width, row0, row1, drawn, drawn_count, shape
):
    """Rasterises triangles into the depth and id buffers; returns the new length of the list of drawn triangles.

    Args:
        triangles: corner indices into `points`, 4 numbers per triangle of which the last is not read.
        first: first triangle.
        last: one past the last.
        source: number of the triangle each one comes from, if `cut`; else triangle t is number t.
        cut: whether the triangles come from `clip_at_near`.
        points: all x, all y, all 1/w.
        capacity: length of each of the three.
        depth: float32, nearest 1/w so far, `width` per row.
        ids: int32, index into `drawn` of what is nearest.
        width: of the image.
        row0: image row of the buffers' first row.
        row1: one past their last.
        drawn: triangle number and shape number of each triangle that may cover a pixel.
        drawn_count: entries in use.
        shape: shape number to note.
    """
    x_last, y_first, y_last = np.float64(width - 1), np.float64(row0), np.float64(row1 - 1)
    for t in range(first, last):
        i0, i1, i2 = whole(triangles, t, 4, 0), whole(triangles, t, 4, 1), whole(triangles, t, 4, 2)
        x0, x1, x2 = number(points, 0, capacity, i0), number(points, 0, capacity, i1), number(points, 0, capacity, i2)
        y0, y1, y2 = number(points, 1, capacity, i0), number(points, 1, capacity, i1), number(points, 1, capacity, i2)
        x10, x20, y10, y20 = x1 - x0, x2 - x0, y1 - y0, y2 - y0
        area = det2(x10, x20, y10, y20)
        if not area < 0.0:  # rows count downwards, so that front faces have a negative area
            continue
        top = ceil(maximum(minimum(y0, minimum(y1, y2)), y_first))
        bottom = floor(minimum(maximum(y0, maximum(y1, y2)), y_last))
        if not top <= bottom:
            continue
        left = ceil(maximum(minimum(x0, minimum(x1, x2)), 0.0))
        right = floor(minimum(maximum(x0, maximum(x1, x2)), x_last))
        if not left <= right:
            continue
        z0 = number(points, 2, capacity, i0)
        z1, z2 = number(points, 2, capacity, i1) - z0, number(points, 2, capacity, i2) - z0
        inverse = 1.0 / area
        dzdx = det2(z1, z2, y10, y20) * inverse
        dzdy = det2(z2, z1, x20, x10) * inverse
        zc = z0 - x0 * dzdx - y0 * dzdy
        # Sorted by y, so that two triangles compute a shared edge from the same end with the same rounding: no holes.
        turned = y0 > y1
        x0, y0, x1, y1 = select(turned, x1, x0), select(turned, y1, y0), select(turned, x0, x1), select(turned, y0, y1)
        turned = y1 > y2
        x1, y1, x2, y2 = select(turned, x2, x1), select(turned, y2, y1), select(turned, x1, x2), select(turned, y1, y2)
        turned = y0 > y1
        x0, y0, x1, y1 = select(turned, x1, x0), select(turned, y1, y0), select(turned, x0, x1), select(turned, y0, y1)
        long_slope, upper_slope = (x2 - x0) / (y2 - y0), (x1 - x0) / (y1 - y0)
        lower_slope = select(y2 > y1, (x2 - x1) / (y2 - y1), 0.0)
        upper_end = select(y1 > y0, y1, -1.0)  # without an upper edge every row is below it
        long_is_left = x1 > along(x0, y1 - y0, long_slope)
        step, drawn_number = np.float32(dzdx), np.int32(drawn_count)
        for row in range(np.int64(top), np.int64(bottom) + 1):
            y = np.float64(row)
            from_top = y - y0
            xa = along(x0, from_top, long_slope)
            xb = select(y <= upper_end, along(x0, from_top, upper_slope), along(x1, y - y1, lower_slope))
            begin = ceil(maximum(select(long_is_left, xa, xb), 0.0))
            end = floor(minimum(select(long_is_left, xb, xa), x_last))
            if not begin <= end:
                continue
            z = np.float32(zc + y * dzdy + begin * dzdx)
            base = (row - row0) * width + np.int64(begin)
            n = np.int64(end - begin) + 1
            if n < 8:
                for i in range(n):
                    if z >= load(depth, base, 1, i):
                        store(depth, base, 1, i, z)
                        store(ids, base, 1, i, drawn_number)
                    z += step
                continue
            for i in range(n):
                value = z + np.float32(np.int32(i)) * step
                nearest = load(depth, base, 1, i)
                in_front = value >= nearest
                store(depth, base, 1, i, select(in_front, value, nearest))
                store(ids, base, 1, i, select(in_front, drawn_number, load(ids, base, 1, i)))
        store(drawn, drawn_count, 2, 0, select(cut, whole(source, 0, 0, select(cut, t, 0)), t))
        store(drawn, drawn_count, 2, 1, shape)
        drawn_count += 1
    return drawn_count


@compiled_inner
def edge_functions(corner, edges):
    """Homogeneous edge functions of a triangle: barycentric weights times a common factor, linear in the pixel.

    Weight of corner i at column c and row r is ``edges[3*i] * c + edges[3*i+1] * r + edges[3*i+2]``; `corner` is as
    `set_up_corners` leaves it.
    """
    for j in range(3):
        a, b = (j + 1) % 3, (j + 2) % 3
        ax, ay, aw = number(corner, a, 3, 0), number(corner, a, 3, 1), number(corner, a, 3, 2)
        bx, by, bw = number(corner, b, 3, 0), number(corner, b, 3, 1), number(corner, b, 3, 2)
        store(edges, j, 3, 0, det2(ay, aw, by, bw))
        store(edges, j, 3, 1, det2(aw, ax, bw, bx))
        store(edges, j, 3, 2, det2(ax, ay, bx, by))


@compiled_inner
def brightness(nx, ny, nz, directions, k, lights, light):
    """Directional part of TinyRenderer's lighting of a surface with the normal (nx, ny, nz), of any length.

    Diffuse is n.l; specular the square of the z component of the mirrored light direction (world axes).
    """
    square = dot3(nx, ny, nz, nx, ny, nz)
    scale = 1.0 / math.sqrt(square)
    nl, up = dot_at(directions, k, 8, 0, nx, ny, nz) * scale, dot_at(directions, k, 8, 4, nx, ny, nz) * scale
    mirrored = maximum(0.0, 2.0 * nl * up - number(lights, light, 9, 2))
    strength = number(lights, light, 9, 7) * maximum(0.0, nl) + number(lights, light, 9, 8) * mirrored * mirrored
    return select(square > 0.0, strength, 0.0)


@compiled_inner
def lit(factor, own, texel):
    """A channel under the light: cut at 255 and rounded down where TinyRenderer does."""
    return minimum(255.0, factor * floor(minimum(255.0, own * np.float64(texel))))


@compiled_inner
def texel_run(ua, ub, va, vb, da, db, table, image, start, n, run):
    """Fills `run` with the texel numbers of n pixels from column `start` on: nearest texel, repeated.

    Texture coordinates are ``(ua * x + ub) / (da * x + db)`` and the same with v.
    """
    first, tw, th = whole(table, image, 3, 0), whole(table, image, 3, 1), whole(table, image, 3, 2)
    c, length = np.float64(start), np.float64(n)
    middle = along(db, da, along(c, 0.5, length))
    if abs(da) * length <= 1e-9 * abs(middle):
        # Level cameras see level ground at one distance per row: texture coordinates step evenly, in 0.32 fixed point.
        turn = 4294967296.0
        s = 1.0 / middle
        u, v, du, dv = along(ub, ua, c) * s, along(vb, va, c) * s, ua * s, va * s
        u_fixed, v_fixed = np.int64((u - floor(u)) * turn), np.int64((v - floor(v)) * turn)
        u_step, v_step = np.int64((du - floor(du)) * turn), np.int64((dv - floor(dv)) * turn)
        for i in range(n):
            store(run, 0, 0, i, first + part_of(v_fixed, th) * tw + part_of(u_fixed, tw))
            u_fixed += u_step
            v_fixed += v_step
        return
    twf, thf = np.float64(tw), np.float64(th)
    origin = np.int32(first)
    for i in range(n):
        x = c + np.float64(np.int32(i))
        s = 1.0 / along(db, da, x)
        u, v = along(ub, ua, x) * s, along(vb, va, x) * s
        # On a sliver seen edge-on the divisor can be zero; NaN must not become an index.
        tx = maximum(0.0, minimum(floor((u - floor(u)) * twf), twf - 1.0))
        ty = maximum(0.0, minimum(floor((v - floor(v)) * thf), thf - 1.0))
        store(run, 0, 0, i, origin + np.int32(along(tx, ty, twf)))


@compiled_inner
def smooth_run(
    rgb, out, start, n, edges, f0, f1, f2, normals, n0, n1, n2, directions, k, lights, light, rgba, color, image,
    texels, run,
):  # fmt: skip
    """Colours n pixels of a triangle with three normals."""
    ax, ay, az = number(normals, n0, 3, 0), number(normals, n0, 3, 1), number(normals, n0, 3, 2)
    bx, by, bz = number(normals, n1, 3, 0), number(normals, n1, 3, 1), number(normals, n1, 3, 2)
    cx, cy, cz = number(normals, n2, 3, 0), number(normals, n2, 3, 1), number(normals, n2, 3, 2)
    red, green, blue = number(rgba, color, 4, 0), number(rgba, color, 4, 1), number(rgba, color, 4, 2)
    light_red, light_green, light_blue = (
        number(lights, light, 9, 3),
        number(lights, light, 9, 4),
        number(lights, light, 9, 5),
    )
    ambient = number(lights, light, 9, 6)
    e0, e1, e2 = number(edges, 0, 3, 0), number(edges, 1, 3, 0), number(edges, 2, 3, 0)
    texel = 0xFFFFFF
    for i in range(n):
        x = np.float64(start + i)
        a, b, c = along(f0, e0, x), along(f1, e1, x), along(f2, e2, x)
        sign = select(a + b + c >= 0.0, 1.0, -1.0)
        nx, ny, nz = dot3(a, b, c, ax, bx, cx), dot3(a, b, c, ay, by, cy), dot3(a, b, c, az, bz, cz)
        directed = brightness(sign * nx, sign * ny, sign * nz, directions, k, lights, light)
        if image >= 0:
            texel = whole(texels, 0, 0, whole(run, 0, 0, i))
        pixel = out + i
        store(rgb, pixel, 3, 0, lit(along(ambient, directed, light_red), red, byte_of(texel, 0)))
        store(rgb, pixel, 3, 1, lit(along(ambient, directed, light_green), green, byte_of(texel, 1)))
        store(rgb, pixel, 3, 2, lit(along(ambient, directed, light_blue), blue, byte_of(texel, 2)))


@compiled_inner
def shade_tile(
    ids, row0, rows, width, meshes, rgba, colors, texture, texture_row, textures, lights, light, scratch, rgb, out
):  # fmt: skip
    """Colours every pixel of a band from the id buffer into `rgb`, from pixel `out` on, run by run of one triangle."""
    positions, triangles, normals, normal_indices, uvs, uv_indices, _lods, _lod_error = meshes
    texels, texture_table = textures
    _points, _clipped, _source, drawn, matrices, directions, edges, corner, seen, table, run = scratch
    # `seen` is what the three parts of `table` were made from; kept from tile to tile.
    table_normal, table_shape, edges_of = -1, -1, -1
    for line in range(rows):
        r = np.float64(row0 + line)
        end = 0
        while end < width:
            start = end
            drawn_number = load(ids, line, width, start)
            end = start + 1
            while end < width:
                if load(ids, line, width, end) != drawn_number:
                    break
                end += 1
            n, o = end - start, out + line * width + start
            if drawn_number < 0:
                for i in range(3 * n):
                    store(rgb, o, 3, i, 255)
                continue
            t, k = whole(drawn, drawn_number, 2, 0), whole(drawn, drawn_number, 2, 1)
            n0, n1, n2 = whole(normal_indices, t, 3, 0), whole(normal_indices, t, 3, 1), whole(normal_indices, t, 3, 2)
            flat = (n0 == n1) & (n1 == n2)
            image = select(whole(uv_indices, t, 3, 0) < 0, -1, whole(texture, texture_row, 1, k))
            color = colors + k
            if flat & ((image < 0) | (table_normal != n0) | (table_shape != k)):
                nx, ny, nz = number(normals, n0, 3, 0), number(normals, n0, 3, 1), number(normals, n0, 3, 2)
                directed = brightness(nx, ny, nz, directions, k, lights, light)
                for channel in range(3):
                    factor = along(number(lights, light, 9, 6), directed, number(lights, light, 9, channel + 3))
                    own = number(rgba, color, 4, channel)
                    if image < 0:
                        store(table, 3, 256, channel, lit(factor, own, 255))
                    elif (factor != number(seen, 0, 3, channel)) | (own != number(seen, 1, 3, channel)):
                        store(seen, 0, 3, channel, factor)
                        store(seen, 1, 3, channel, own)
                        for level in range(256):
                            store(table, channel, 256, level, lit(factor, own, level))
                table_normal, table_shape = select(image < 0, table_normal, n0), select(image < 0, table_shape, k)
            if flat & (image < 0):
                red, green, blue = load(table, 3, 256, 0), load(table, 3, 256, 1), load(table, 3, 256, 2)
                for pixel in range(o, o + n):
                    store(rgb, pixel, 3, 0, red)
                    store(rgb, pixel, 3, 1, green)
                    store(rgb, pixel, 3, 2, blue)
                continue
            if edges_of != drawn_number:
                set_up_corners(positions, triangles, t, matrices, k, corner)
                edge_functions(corner, edges)
                edges_of = np.int64(drawn_number)
            f0 = along(number(edges, 0, 3, 2), number(edges, 0, 3, 1), r)
            f1 = along(number(edges, 1, 3, 2), number(edges, 1, 3, 1), r)
            f2 = along(number(edges, 2, 3, 2), number(edges, 2, 3, 1), r)
            if image >= 0:
                a0, a1, a2 = number(edges, 0, 3, 0), number(edges, 1, 3, 0), number(edges, 2, 3, 0)
                t0, t1, t2 = whole(uv_indices, t, 3, 0), whole(uv_indices, t, 3, 1), whole(uv_indices, t, 3, 2)
                u0, u1, u2 = number(uvs, t0, 2, 0), number(uvs, t1, 2, 0), number(uvs, t2, 2, 0)
                v0, v1, v2 = number(uvs, t0, 2, 1), number(uvs, t1, 2, 1), number(uvs, t2, 2, 1)
                texel_run(
                    dot3(u0, u1, u2, a0, a1, a2), dot3(u0, u1, u2, f0, f1, f2),
                    dot3(v0, v1, v2, a0, a1, a2), dot3(v0, v1, v2, f0, f1, f2),
                    a0 + a1 + a2, f0 + f1 + f2, texture_table, image, start, n, run,
                )  # fmt: skip
            if flat:
                for i in range(n):
                    texel = whole(texels, 0, 0, whole(run, 0, 0, i))
                    pixel = o + i
                    store(rgb, pixel, 3, 0, load(table, 0, 256, byte_of(texel, 0)))
                    store(rgb, pixel, 3, 1, load(table, 1, 256, byte_of(texel, 1)))
                    store(rgb, pixel, 3, 2, load(table, 2, 256, byte_of(texel, 2)))
                continue
            smooth_run(
                rgb, o, start, n, edges, f0, f1, f2, normals, n0, n1, n2, directions, k, lights, light, rgba, color,
                image, texels, run,
            )  # fmt: skip


@compiled_like_numpy
def draw_tiles(
    start, step, bands, eye, axes, lens, frames, frames_per_world, visible, things, lights, meshes, shapes, colors,
    shape_textures, textures, lod_pixels, depth, ids, scratch, rgb, metres, segmentation,
):  # fmt: skip
    """Draws tiles ``start, start + step, ...`` of n worlds x `bands` bands of rows through one camera.

    `lights`, `colors` and `shape_textures` have one row per world, or one row for all. `rgb`, `metres` and
    `segmentation` are flat images, or empty when they are not wanted.
    """
    scale_x, scale_y, image_height = number(lens, 0, 0, 0), number(lens, 0, 0, 1), number(lens, 0, 0, 3)
    width, height = np.int64(number(lens, 0, 0, 2)), np.int64(image_height)
    near, far = number(lens, 0, 0, 4), number(lens, 0, 0, 5)
    positions, triangles, _normals, _normal_indices, _uvs, _uv_indices, lods, lod_error = meshes
    shape_lods, shape_frame, shape_thing, local, sphere, shape_segmentation = shapes
    points, clipped, source, drawn, matrices, directions, _edges, corner, _seen, _table, _run = scratch
    capacity, shape_count = len(points) // 3, len(shape_frame)
    light_step = np.int64(len(lights) > LIGHT_COLUMNS)
    color_step = select(len(colors) > 4 * shape_count, shape_count, 0)
    texture_step = select(len(shape_textures) > shape_count, shape_count, 0)
    margin_x, margin_y = math.sqrt(along(1.0, scale_x, scale_x)), math.sqrt(along(1.0, scale_y, scale_y))
    focal = 0.5 * image_height * scale_y
    nothing = np.float32(1.0 / far)
    for item in range(start, (len(eye) // 3) * bands, step):
        tile = item // bands
        band = (item + tile) % bands  # the upper half is sky: no thread is to get that of every world
        row0, row1 = band * height // bands, (band + 1) * height // bands
        light, color = light_step * tile, color_step * tile
        pixels, out = (row1 - row0) * width, (tile * height + row0) * width
        for i in range(pixels):
            store(depth, 0, 0, i, nothing)
            store(ids, 0, 0, i, -1)
        count = 0
        for k in range(shape_count):
            if whole(visible, tile, things, whole(shape_thing, 0, 0, k)) == 0:
                continue
            if number(colors, color + k, 4, 3) == 0.0:
                continue
            f = frames_per_world * tile + whole(shape_frame, 0, 0, k)
            sx, sy, sz, radius = (
                number(sphere, k, 4, 0),
                number(sphere, k, 4, 1),
                number(sphere, k, 4, 2),
                number(sphere, k, 4, 3),
            )
            x = dot_at(frames, f, 12, 0, sx, sy, sz)
            y = dot_at(frames, f, 12, 4, sx, sy, sz)
            z = dot_at(frames, f, 12, 8, sx, sy, sz)
            x += number(frames, f, 12, 3) - number(eye, tile, 3, 0)
            y += number(frames, f, 12, 7) - number(eye, tile, 3, 1)
            z += number(frames, f, 12, 11) - number(eye, tile, 3, 2)
            w = -dot_at(axes, tile, 9, 6, x, y, z)
            nearest = w - radius
            if (w + radius <= near) | (nearest >= far):
                continue
            right = dot_at(axes, tile, 9, 0, x, y, z)
            up = dot_at(axes, tile, 9, 3, x, y, z)
            if (abs(right) * scale_x - w > radius * margin_x) | (abs(up) * scale_y - w > radius * margin_y):
                continue
            per_metre = focal / maximum(nearest, near)  # pixels, at its nearest point
            if radius * per_metre < lod_pixels * 0.5:
                continue
            lod = whole(shape_lods, k, 2, 1) - 1
            while number(lod_error, 0, 0, lod) * per_metre > lod_pixels:  # a full mesh has no error
                lod -= 1
            set_up_shape(eye, axes, tile, lens, frames, f, local, k, lights, light, matrices, directions)
            t0, t1 = whole(lods, lod, 4, 2), whole(lods, lod, 4, 3)
            cut, faces = nearest < near, triangles
            if cut:
                t1 = clip_at_near(
                    positions, triangles, t0, t1, matrices, k, near, points, capacity, clipped, source, corner
                )
                t0, faces = 0, clipped
            else:
                v0 = whole(lods, lod, 4, 0)
                project_vertices(positions, v0, whole(lods, lod, 4, 1) - v0, matrices, k, points, capacity)
            count = raster_triangles(
                faces, t0, t1, source, cut, points, capacity, depth, ids, width, row0, row1, drawn, count, k
            )
        if len(rgb) > 0:
            shade_tile(
                ids, row0, row1 - row0, width, meshes, colors, color, shape_textures, texture_step * tile, textures,
                lights, light, scratch, rgb, out,
            )  # fmt: skip
        if len(metres) > 0:
            far_metres = np.float32(far)
            for i in range(pixels):
                seen = np.float32(1.0) / load(depth, 0, 0, i)
                store(metres, out, 1, i, select(load(ids, 0, 0, i) < 0, far_metres, seen))
        if len(segmentation) > 0:
            for i in range(pixels):
                drawn_number = load(ids, 0, 0, i)
                value = -1
                if drawn_number >= 0:
                    value = whole(shape_segmentation, 0, 0, whole(drawn, drawn_number, 2, 1))
                store(segmentation, out, 1, i, value)
