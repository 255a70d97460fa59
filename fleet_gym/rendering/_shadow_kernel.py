"""The compiled loop of `fleet_gym.rendering.shadows`."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from fleet_gym._numba import compiled_like_numpy


@compiled_like_numpy
def darken(eye, axes, lens, depth, light_eye, light_axes, light_lens, light_depth, bias, rgb, dark):
    """Copies pixels of `dark` over `rgb` where the light sees something nearer; all images (n, H, W[, 3])."""
    count, height, width = depth.shape
    size = light_depth.shape[1]
    for n in range(count):
        for r in range(height):
            y = ((height - 1.0 - r) / (0.5 * height) - 1.0) / lens[1]
            for c in range(width):
                w = np.float64(depth[n, r, c])
                if w >= lens[5]:
                    continue
                x = (c / (0.5 * width) - 1.0) / lens[0]
                a, b, d = 0.0, 0.0, 0.0
                for i in range(3):
                    # Pixel to world, and at once world to light.
                    point = eye[n, i] + w * (x * axes[n, 0, i] + y * axes[n, 1, i] - axes[n, 2, i]) - light_eye[n, i]
                    a += light_axes[n, 0, i] * point
                    b += light_axes[n, 1, i] * point
                    d -= light_axes[n, 2, i] * point
                column = np.int64(np.floor((a * light_lens[0] / d + 1.0) * 0.5 * size + 0.5))
                row = np.int64(np.floor(size - 1.0 - (b * light_lens[1] / d + 1.0) * 0.5 * size + 0.5))
                if 0 <= column < size and 0 <= row < size and light_depth[n, row, column] < d - bias:
                    rgb[n, r, c, 0] = dark[n, r, c, 0]
                    rgb[n, r, c, 1] = dark[n, r, c, 1]
                    rgb[n, r, c, 2] = dark[n, r, c, 2]
