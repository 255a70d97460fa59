"""The compiled loops of the rasterizer: cull, choose a level of detail, rasterise, shade.

Pixel (row r, column c) is sampled at its corner, as TinyRenderer does: column c at c, row r at r from the top, in
units in which the image is W wide and the last row lies on the lower border. Coordinates are float64, because edges
set up in float32 leave holes between triangles; the depth buffer holds 1/w in float32, larger is nearer.

All arrays are flat: views made in an inner loop would be reference counted there. Indices of hot loops are unsigned,
because numba looks for negative ones at every access otherwise.
"""
# Compiled functions carry no annotations: numba derives the types, and mypy has nothing to check in them.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from fleet_gym._numba import compiled_inner, compiled_like_numpy

#: Direction to the light, its colour, ambient, diffuse and specular coefficients.
LIGHT_COLUMNS = 9


@compiled_inner
def set_up_shape(eye, axes, tile, lens, frames, frame, local, k, lights, light, matrices, directions, model):
    """Composes shape -> link -> world -> camera -> pixels for shape k into `matrices` (rows x*w, y*w, w).

    Also turns the light direction and the world's z axis into the shape's axes: `directions`, 6 per shape.
    """
    for i in range(3):
        for j in range(4):
            value = 0.0
            for s in range(3):
                value += frames[frame + 4 * i + s] * local[12 * k + 4 * s + j]
            model[4 * i + j] = value
        model[4 * i + 3] += frames[frame + 4 * i + 3]
    for j in range(3):
        value = 0.0
        for i in range(3):
            value += lights[light + i] * model[4 * i + j]
        directions[6 * k + j] = value
        directions[6 * k + 3 + j] = model[8 + j]
    for i in range(3):
        model[4 * i + 3] -= eye[3 * tile + i]
    width, height = lens[2], lens[3]
    for j in range(4):
        x, y, w = 0.0, 0.0, 0.0
        for i in range(3):
            x += axes[9 * tile + i] * model[4 * i + j]
            y += axes[9 * tile + 3 + i] * model[4 * i + j]
            w -= axes[9 * tile + 6 + i] * model[4 * i + j]
        matrices[12 * k + j] = (x * lens[0] + w) * 0.5 * width
        matrices[12 * k + 4 + j] = (height - 1.0) * w - (y * lens[1] + w) * 0.5 * height
        matrices[12 * k + 8 + j] = w


@compiled_inner
def project_vertices(positions, first, count, m, k, points, capacity):
    """Transforms positions by the 3x4 matrix k of `m` into `points`: all x, then all y, then all 1/w."""
    m0, m1, m2, m3 = m[12 * k], m[12 * k + 1], m[12 * k + 2], m[12 * k + 3]
    m4, m5, m6, m7 = m[12 * k + 4], m[12 * k + 5], m[12 * k + 6], m[12 * k + 7]
    m8, m9, m10, m11 = m[12 * k + 8], m[12 * k + 9], m[12 * k + 10], m[12 * k + 11]
    source, stride, rows = np.uint64(first), np.uint64(len(positions) // 3), np.uint64(capacity)
    for c in range(count):
        i = np.uint64(c)
        x = np.float64(positions[source + i])
        y = np.float64(positions[source + stride + i])
        z = np.float64(positions[source + stride + stride + i])
        s = 1.0 / (m8 * x + m9 * y + m10 * z + m11)
        points[i] = (m0 * x + m1 * y + m2 * z + m3) * s
        points[rows + i] = (m4 * x + m5 * y + m6 * z + m7) * s
        points[rows + rows + i] = s


@compiled_inner
def clip_at_near(positions, triangles, first, last, m, k, near, points, capacity, clipped, source, corner):
    """Cuts triangles at the near plane; returns how many remain.

    Writes their corners to `points`, corner indices to `clipped` (4 per triangle) and the number of the triangle each
    comes from to `source`.
    """
    stride = len(positions) // 3
    count = np.int64(0)
    free = np.int64(0)
    for t in range(first, last):
        for j in range(3):
            v = triangles[4 * t + j] + triangles[4 * t + 3]
            for i in range(3):
                value = m[12 * k + 4 * i + 3]
                for axis in range(3):
                    value += m[12 * k + 4 * i + axis] * positions[axis * stride + v]
                corner[3 * j + i] = value
        kept = free
        for j in range(3):
            a, b = 3 * j, 3 * ((j + 1) % 3)
            aw, bw = corner[a + 2], corner[b + 2]
            if aw >= near:
                points[kept] = corner[a] / aw
                points[capacity + kept] = corner[a + 1] / aw
                points[2 * capacity + kept] = 1.0 / aw
                kept += 1
            if (aw >= near) != (bw >= near):
                s = (near - aw) / (bw - aw)
                points[kept] = (corner[a] + s * (corner[b] - corner[a])) / near
                points[capacity + kept] = (corner[a + 1] + s * (corner[b + 1] - corner[a + 1])) / near
                points[2 * capacity + kept] = 1.0 / near
                kept += 1
        for j in range(free + 1, kept - 1):
            clipped[4 * count] = free
            clipped[4 * count + 1] = j
            clipped[4 * count + 2] = j + 1
            source[count] = t
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
    x_last = np.float64(width - 1)
    y_first, y_last = np.float64(row0), np.float64(row1 - 1)
    ys, zs = np.uint64(capacity), np.uint64(2 * capacity)
    for t in range(first, last):
        corner = np.uint64(4 * t)
        i0 = np.uint64(triangles[corner])
        i1 = np.uint64(triangles[corner + np.uint64(1)])
        i2 = np.uint64(triangles[corner + np.uint64(2)])
        x0, x1, x2 = points[i0], points[i1], points[i2]
        y0, y1, y2 = points[ys + i0], points[ys + i1], points[ys + i2]
        area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
        if not area < 0.0:  # rows count downwards, so that front faces have a negative area
            continue
        top = np.ceil(max(min(y0, min(y1, y2)), y_first))
        bottom = np.floor(min(max(y0, max(y1, y2)), y_last))
        if not top <= bottom:
            continue
        left = np.ceil(max(min(x0, min(x1, x2)), 0.0))
        right = np.floor(min(max(x0, max(x1, x2)), x_last))
        if not left <= right:
            continue
        z0 = points[zs + i0]
        z1, z2 = points[zs + i1] - z0, points[zs + i2] - z0
        inverse = 1.0 / area
        dzdx = (z1 * (y2 - y0) - z2 * (y1 - y0)) * inverse
        dzdy = (z2 * (x1 - x0) - z1 * (x2 - x0)) * inverse
        zc = z0 - x0 * dzdx - y0 * dzdy
        # Sorted by y, so that two triangles compute a shared edge from the same end with the same rounding: no holes.
        if y0 > y1:
            x0, y0, x1, y1 = x1, y1, x0, y0
        if y1 > y2:
            x1, y1, x2, y2 = x2, y2, x1, y1
        if y0 > y1:
            x0, y0, x1, y1 = x1, y1, x0, y0
        long_slope = (x2 - x0) / (y2 - y0)
        upper_slope = (x1 - x0) / (y1 - y0) if y1 > y0 else 0.0
        lower_slope = (x2 - x1) / (y2 - y1) if y2 > y1 else 0.0
        long_is_left = x1 > x0 + (y1 - y0) * long_slope
        number = np.int32(drawn_count)
        step = np.float32(dzdx)
        noted = False
        y = top
        while y <= bottom:
            xa = x0 + (y - y0) * long_slope
            xb = x1 + (y - y1) * lower_slope
            if y <= y1:
                xb = x0 + (y - y0) * upper_slope if y1 > y0 else x1
            if not long_is_left:
                xa, xb = xb, xa
            begin, end = np.ceil(max(xa, 0.0)), np.floor(min(xb, x_last))
            if begin <= end:
                noted = True
                z = np.float32(zc + y * dzdy + begin * dzdx)
                base = np.uint64((np.int64(y) - row0) * width + np.int64(begin))
                n = np.int64(end - begin) + 1
                if n < 8:
                    for _ in range(n):
                        if z >= depth[base]:
                            depth[base] = z
                            ids[base] = number
                        z += step
                        base += np.uint64(1)
                else:
                    for c in range(n):
                        i = base + np.uint64(c)
                        value = z + np.float32(np.int32(c)) * step
                        nearest = depth[i]
                        depth[i] = value if value >= nearest else nearest
                        ids[i] = number if value >= nearest else ids[i]
            y += 1.0
        if noted:
            drawn[2 * drawn_count] = source[t] if cut else t
            drawn[2 * drawn_count + 1] = shape
            drawn_count += 1
    return drawn_count


@compiled_inner
def edge_functions(m, k, positions, triangles, t, edges, corner):
    """Homogeneous edge functions of a triangle: barycentric weights times a common factor, linear in the pixel.

    Weight of corner i at column c and row r is ``edges[3*i] * c + edges[3*i+1] * r + edges[3*i+2]``.
    """
    stride = len(positions) // 3
    for j in range(3):
        v = triangles[4 * t + j] + triangles[4 * t + 3]
        x, y, z = positions[v], positions[stride + v], positions[2 * stride + v]
        for i in range(3):
            row = 12 * k + 4 * i
            corner[3 * j + i] = m[row] * x + m[row + 1] * y + m[row + 2] * z + m[row + 3]
    for j in range(3):
        a, b = 3 * ((j + 1) % 3), 3 * ((j + 2) % 3)
        edges[3 * j] = corner[a + 1] * corner[b + 2] - corner[a + 2] * corner[b + 1]
        edges[3 * j + 1] = corner[a + 2] * corner[b] - corner[a] * corner[b + 2]
        edges[3 * j + 2] = corner[a] * corner[b + 1] - corner[a + 1] * corner[b]


@compiled_inner
def brightness(nx, ny, nz, directions, k, lights, light):
    """Directional part of TinyRenderer's lighting of a surface with the normal (nx, ny, nz), of any length.

    Diffuse is n.l; specular the square of the z component of the mirrored light direction (world axes).
    """
    square = nx * nx + ny * ny + nz * nz
    if square == 0.0:
        return 0.0
    scale = 1.0 / math.sqrt(square)
    d = 6 * k
    nl = (nx * directions[d] + ny * directions[d + 1] + nz * directions[d + 2]) * scale
    up = (nx * directions[d + 3] + ny * directions[d + 4] + nz * directions[d + 5]) * scale
    mirrored = max(0.0, 2.0 * nl * up - lights[light + 2])
    return lights[light + 7] * max(0.0, nl) + lights[light + 8] * mirrored * mirrored


@compiled_inner
def texel_run(ua, ub, va, vb, da, db, first, tw, th, c, n, run):
    """Fills `run` with the texel numbers of n pixels from column `c` on: nearest texel, repeated.

    Texture coordinates are ``(ua * x + ub) / (da * x + db)`` and the same with v.
    """
    middle = da * (c + 0.5 * n) + db
    if abs(da) * n <= 1e-9 * abs(middle):
        # Level cameras see level ground at one distance per row: texture coordinates step evenly, in 0.32 fixed point.
        whole = 4294967296.0
        s = 1.0 / middle
        u, v, du, dv = (ua * c + ub) * s, (va * c + vb) * s, ua * s, va * s
        u_fixed, v_fixed = np.int64((u - np.floor(u)) * whole), np.int64((v - np.floor(v)) * whole)
        u_step, v_step = np.int64((du - np.floor(du)) * whole), np.int64((dv - np.floor(dv)) * whole)
        for i in range(n):
            run[np.uint64(i)] = (
                first + (((v_fixed & 0xFFFFFFFF) * th) >> 32) * tw + (((u_fixed & 0xFFFFFFFF) * tw) >> 32)
            )
            u_fixed += u_step
            v_fixed += v_step
        return
    twf, thf, start = np.float64(tw), np.float64(th), np.int32(first)
    for i in range(n):
        x = np.float64(c) + np.float64(np.int32(i))
        s = 1.0 / (da * x + db)
        u, v = (ua * x + ub) * s, (va * x + vb) * s
        tx = min(np.floor((u - np.floor(u)) * twf), twf - 1.0)
        ty = min(np.floor((v - np.floor(v)) * thf), thf - 1.0)
        # On a sliver seen edge-on the divisor can be zero; NaN must not become an index.
        tx = tx if tx >= 0.0 else 0.0
        ty = ty if ty >= 0.0 else 0.0
        run[np.uint64(i)] = start + np.int32(ty * twf + tx)


@compiled_inner
def shade_tile(
    ids, row0, rows, width, meshes, rgba, colors, texture, texture_first, textures, lights, light, scratch, rgb, out
):  # fmt: skip
    """Colours every pixel of a band from the id buffer into `rgb`, from index `out` on, run by run of one triangle."""
    positions, triangles, normals, normal_indices, uvs, uv_indices, _lods, _lod_error = meshes
    texels, texture_table = textures
    _points, _clipped, _source, drawn, matrices, directions, edges, table, run = scratch
    corner = edges[9:]
    seen = edges[30:]  # what `table` was made from; kept from tile to tile
    table_normal, table_shape, edges_of = np.int64(-1), np.int64(-1), np.int64(-1)
    three, one, two, byte = np.uint64(3), np.uint64(1), np.uint64(2), np.uint32(255)
    for line in range(rows):
        r = np.float64(row0 + line)
        c = np.int64(0)
        while c < width:
            i = np.uint64(line * width + c)
            number = ids[i]
            n = np.int64(1)
            i += one
            while c + n < width and ids[i] == number:
                n += 1
                i += one
            o = np.uint64(out + 3 * (line * width + c))
            start = c
            c += n
            if number < 0:
                for _ in range(3 * n):
                    rgb[o] = 255
                    o += one
                continue
            t, k = np.int64(drawn[2 * number]), np.int64(drawn[2 * number + 1])
            n0, n1, n2 = normal_indices[3 * t], normal_indices[3 * t + 1], normal_indices[3 * t + 2]
            flat = n0 == n1 and n1 == n2
            image = np.int64(texture[texture_first + k])
            if uv_indices[3 * t] < 0:
                image = np.int64(-1)
            color = colors + 4 * k
            if flat and not (image >= 0 and table_normal == n0 and table_shape == k):
                nx, ny, nz = normals[3 * n0], normals[3 * n0 + 1], normals[3 * n0 + 2]
                directed = brightness(np.float64(nx), np.float64(ny), np.float64(nz), directions, k, lights, light)
                for channel in range(3):
                    factor = lights[light + 6] + directed * lights[light + 3 + channel]
                    own = np.float64(rgba[color + channel])
                    if image < 0:
                        table[768 + channel] = np.uint8(min(255.0, factor * np.floor(min(255.0, 255.0 * own))))
                    elif factor != seen[channel] or own != seen[3 + channel]:
                        seen[channel], seen[3 + channel] = factor, own
                        for level in range(256):
                            base = np.floor(min(255.0, own * np.float64(level)))
                            table[256 * channel + level] = np.uint8(min(255.0, factor * base))
                if image >= 0:
                    table_normal, table_shape = np.int64(n0), k
            if flat and image < 0:
                red, green, blue = table[768], table[769], table[770]
                for _ in range(n):
                    rgb[o] = red
                    rgb[o + one] = green
                    rgb[o + two] = blue
                    o += three
                continue
            if edges_of != number:
                edge_functions(matrices, k, positions, triangles, t, edges, corner)
                edges_of = np.int64(number)
            e0, e1, e2 = edges[1] * r + edges[2], edges[4] * r + edges[5], edges[7] * r + edges[8]
            if image >= 0:
                t0, t1, t2 = 2 * uv_indices[3 * t], 2 * uv_indices[3 * t + 1], 2 * uv_indices[3 * t + 2]
                u0, u1, u2 = np.float64(uvs[t0]), np.float64(uvs[t1]), np.float64(uvs[t2])
                v0, v1, v2 = np.float64(uvs[t0 + 1]), np.float64(uvs[t1 + 1]), np.float64(uvs[t2 + 1])
                texel_run(
                    u0 * edges[0] + u1 * edges[3] + u2 * edges[6], u0 * e0 + u1 * e1 + u2 * e2,
                    v0 * edges[0] + v1 * edges[3] + v2 * edges[6], v0 * e0 + v1 * e1 + v2 * e2,
                    edges[0] + edges[3] + edges[6], e0 + e1 + e2,
                    texture_table[3 * image], texture_table[3 * image + 1], texture_table[3 * image + 2], start, n, run,
                )  # fmt: skip
            if flat:
                for j in range(n):
                    texel = texels[np.uint32(run[np.uint64(j)])]
                    rgb[o] = table[texel & byte]
                    rgb[o + one] = table[((texel >> np.uint32(8)) & byte) + np.uint32(256)]
                    rgb[o + two] = table[((texel >> np.uint32(16)) & byte) + np.uint32(512)]
                    o += three
                continue
            ax, ay, az = np.float64(normals[3 * n0]), np.float64(normals[3 * n0 + 1]), np.float64(normals[3 * n0 + 2])
            bx, by, bz = np.float64(normals[3 * n1]), np.float64(normals[3 * n1 + 1]), np.float64(normals[3 * n1 + 2])
            cx, cy, cz = np.float64(normals[3 * n2]), np.float64(normals[3 * n2 + 1]), np.float64(normals[3 * n2 + 2])
            red_own, green_own, blue_own = (
                np.float64(rgba[color]), np.float64(rgba[color + 1]), np.float64(rgba[color + 2])
            )  # fmt: skip
            texel = np.uint32(0xFFFFFF)
            ambient = lights[light + 6]
            for j in range(n):
                x = np.float64(start + j)
                a, b, d = edges[0] * x + e0, edges[3] * x + e1, edges[6] * x + e2
                sign = 1.0 if a + b + d >= 0.0 else -1.0
                nx, ny, nz = a * ax + b * bx + d * cx, a * ay + b * by + d * cy, a * az + b * bz + d * cz
                directed = brightness(sign * nx, sign * ny, sign * nz, directions, k, lights, light)
                if image >= 0:
                    texel = texels[np.uint32(run[np.uint64(j)])]
                red = np.floor(min(255.0, red_own * np.float64(texel & byte)))
                green = np.floor(min(255.0, green_own * np.float64((texel >> np.uint32(8)) & byte)))
                blue = np.floor(min(255.0, blue_own * np.float64((texel >> np.uint32(16)) & byte)))
                rgb[o] = np.uint8(min(255.0, (ambient + directed * lights[light + 3]) * red))
                rgb[o + one] = np.uint8(min(255.0, (ambient + directed * lights[light + 4]) * green))
                rgb[o + two] = np.uint8(min(255.0, (ambient + directed * lights[light + 5]) * blue))
                o += three


@compiled_like_numpy
def draw_tiles(
    start, step, bands, eye, axes, lens, frames, frames_per_world, visible, things, lights, meshes, shapes, colors,
    shape_textures, textures, lod_pixels, depth, ids, scratch, rgb, metres, segmentation,
):  # fmt: skip
    """Draws tiles ``start, start + step, ...`` of n worlds x `bands` bands of rows through one camera.

    `lights`, `colors` and `shape_textures` have one row per world, or one row for all. `rgb`, `metres` and
    `segmentation` are flat images, or empty when they are not wanted.
    """
    scale_x, scale_y, near, far = lens[0], lens[1], lens[4], lens[5]
    width, height = np.int64(lens[2]), np.int64(lens[3])
    positions, triangles, _normals, _normal_indices, _uvs, _uv_indices, lods, lod_error = meshes
    shape_lods, shape_frame, shape_thing, local, sphere, shape_segmentation = shapes
    points, clipped, source, drawn, matrices, directions, edges, _table, _run = scratch
    model = edges[18:]
    capacity = len(points) // 3
    count_shapes = len(shape_frame)
    margin_x, margin_y = math.sqrt(scale_x * scale_x + 1.0), math.sqrt(scale_y * scale_y + 1.0)
    focal = 0.5 * lens[3] * scale_y
    for item in range(start, (len(eye) // 3) * bands, step):
        tile, band = item // bands, item % bands
        row0, row1 = band * height // bands, (band + 1) * height // bands
        light = LIGHT_COLUMNS * tile if len(lights) > LIGHT_COLUMNS else 0
        color = 4 * count_shapes * tile if len(colors) > 4 * count_shapes else 0
        pixels = (row1 - row0) * width
        clear = np.float32(1.0 / far)
        for i in range(pixels):
            depth[np.uint64(i)] = clear
        for i in range(pixels):
            ids[np.uint64(i)] = -1
        count = np.int64(0)
        for k in range(count_shapes):
            if visible[things * tile + shape_thing[k]] == 0 or colors[color + 4 * k + 3] == 0.0:
                continue
            f = 12 * (frames_per_world * tile + shape_frame[k])
            radius = sphere[4 * k + 3]
            x, y, w = 0.0, 0.0, 0.0
            for i in range(3):
                value = frames[f + 4 * i + 3] - eye[3 * tile + i]
                for j in range(3):
                    value += frames[f + 4 * i + j] * sphere[4 * k + j]
                x += axes[9 * tile + i] * value
                y += axes[9 * tile + 3 + i] * value
                w -= axes[9 * tile + 6 + i] * value
            if w + radius <= near or w - radius >= far:
                continue
            if abs(x) * scale_x - w > radius * margin_x or abs(y) * scale_y - w > radius * margin_y:
                continue
            per_metre = focal / max(w - radius, near)  # pixels, at its nearest point
            if radius * per_metre < lod_pixels * 0.5:
                continue
            lod = shape_lods[2 * k + 1] - 1
            while lod > shape_lods[2 * k] and lod_error[lod] * per_metre > lod_pixels:
                lod -= 1
            set_up_shape(eye, axes, tile, lens, frames, f, local, k, lights, light, matrices, directions, model)
            v0, v1, t0, t1 = lods[4 * lod], lods[4 * lod + 1], lods[4 * lod + 2], lods[4 * lod + 3]
            cut, faces = False, triangles
            if w - radius < near:
                t1 = clip_at_near(
                    positions, triangles, t0, t1, matrices, k, near, points, capacity, clipped, source, edges
                )
                t0, cut, faces = np.int64(0), True, clipped
            else:
                project_vertices(positions, v0, v1 - v0, matrices, k, points, capacity)
            count = raster_triangles(
                faces, t0, t1, source, cut, points, capacity, depth, ids, width, row0, row1, drawn, count, k
            )
        out = (tile * height + row0) * width
        if len(rgb) > 0:
            texture_first = count_shapes * tile if len(shape_textures) > count_shapes else 0
            shade_tile(
                ids, row0, row1 - row0, width, meshes, colors, color, shape_textures, texture_first, textures, lights,
                light, scratch, rgb, 3 * out,
            )  # fmt: skip
        if len(metres) > 0:
            far_metres = np.float32(far)
            for i in range(pixels):
                j = np.uint64(i)
                metres[np.uint64(out) + j] = far_metres if ids[j] < 0 else np.float32(1.0) / depth[j]
        if len(segmentation) > 0:
            for i in range(pixels):
                number = ids[np.uint64(i)]
                value = np.int32(-1)
                if number >= 0:
                    value = shape_segmentation[drawn[2 * number + 1]]
                segmentation[np.uint64(out) + np.uint64(i)] = value
