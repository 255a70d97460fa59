"""Planar range sensors: rays around every robot, against robots and obstacles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled_inner, compiled_like_numpy
from fleet_gym.world.neighbors import GRID_FROM, build_grid
from fleet_gym.world.robots import box_of
from fleet_gym.world.scene import BodySpec, Scene
from fleet_gym.world.state import FleetState

#: Columns of a target: centre x, y (m), radius of the circle around it (m), half length and half width of a box (m,
#: 0 for a disc), cosine and sine of its yaw.
_COLUMNS = _X, _Y, _BOUND, _HALF_X, _HALF_Y, _COS, _SIN = tuple(range(7))


@compiled_inner
def _mixed(value: int) -> int:
    """A well-mixed 64-bit number of another one (the finaliser of SplitMix64)."""
    v = np.uint64(value)
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return v ^ (v >> np.uint64(31))  # type: ignore[no-any-return] # np.uint64; int() would lose it


@compiled_inner
def _normal(key: int, counter: int) -> float:
    """A standard normal number that depends on its arguments only (Box and Muller)."""
    step = np.uint64(0x9E3779B97F4A7C15)
    first = _mixed(np.uint64(key) + step * np.uint64(2 * counter + 1))
    second = _mixed(np.uint64(key) + step * np.uint64(2 * counter + 2))
    u = (np.float64(first >> np.uint64(11)) + 1.0) / 9007199254740993.0
    v = np.float64(second >> np.uint64(11)) / 9007199254740992.0
    return float(np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v))


@compiled_like_numpy
def ray_range(dx: float, dy: float, cos: float, sin: float, target: NDArray[np.float64]) -> float:
    """Distance along a ray to a target, m: 0 from inside, inf where it misses.

    Args:
        dx: target's centre relative to the ray's origin, m.
        dy: the same.
        cos: direction of the ray.
        sin: the same.
        target: (7,), see `_COLUMNS`.
    """
    if target[_HALF_X] == 0.0:
        along, across = cos * dx + sin * dy, cos * dy - sin * dx
        inside = target[_BOUND] * target[_BOUND] - across * across
        if inside < 0.0:
            return np.inf
        root = np.sqrt(inside)
        if along + root < 0.0:
            return np.inf
        return float(max(along - root, 0.0))
    box_cos, box_sin = target[_COS], target[_SIN]
    px, py = -(box_cos * dx + box_sin * dy), -(box_cos * dy - box_sin * dx)
    vx, vy = box_cos * cos + box_sin * sin, box_cos * sin - box_sin * cos
    enter, leave = 0.0, np.inf
    for p, v, half in ((px, vx, target[_HALF_X]), (py, vy, target[_HALF_Y])):
        if v == 0.0:
            if abs(p) > half:
                return np.inf
            continue
        near, far = (-half - p) / v, (half - p) / v
        enter, leave = max(enter, min(near, far)), min(leave, max(near, far))
    return float(enter) if enter <= leave else np.inf


@compiled_inner
def _see(
    x: float,
    y: float,
    heading: float,
    target: NDArray[np.float64],
    max_range: float,
    ranges: NDArray[np.float64],
) -> None:
    """Shortens the rays that meet a target."""
    num_rays = ranges.shape[0]
    dx, dy = target[_X] - x, target[_Y] - y
    distance = np.sqrt(dx * dx + dy * dy)
    if distance - target[_BOUND] > max_range:
        return
    step = 2.0 * np.pi / num_rays
    first, last = 0, num_rays - 1
    if distance > target[_BOUND]:
        # Only rays within the angle the target is seen under, one more on either side for rounding.
        bearing = np.arctan2(dy, dx) - heading
        half = np.arcsin(target[_BOUND] / distance)
        first, last = int(np.ceil((bearing - half) / step - 1e-6)), int(np.floor((bearing + half) / step + 1e-6))
    for k in range(first, last + 1):
        angle = heading + k * step
        ray = k % num_rays
        ranges[ray] = min(ranges[ray], ray_range(dx, dy, np.cos(angle), np.sin(angle), target))


@compiled_like_numpy
def scan(
    position: NDArray[np.float64],
    heading: NDArray[np.float64],
    robots: NDArray[np.float64],
    active: NDArray[np.bool_],
    obstacles: NDArray[np.float64],
    obstacle_active: NDArray[np.bool_],
    max_range: float,
    noise: float,
    noise_key: NDArray[np.int64],
    noise_step: NDArray[np.int64],
    column: int,
    observation: NDArray[np.float32],
) -> None:
    """Writes the ranges of all rays of all robots into their columns of the observation.

    Ray k points at 2 pi k / n from the driving direction, counterclockwise, from the root link's origin.

    Args:
        position: (E, R, 3) m.
        heading: (E, R) rad.
        robots: (R, 6) m: radius about the root link's origin, and of a box its half length and width, its centre's
            x and y in the root link's frame, and the driving direction's angle in it (rad).
        active: (E, R).
        obstacles: (E, B, 7), see `_COLUMNS`.
        obstacle_active: (E, >= B).
        max_range: m, also what a ray says that meets nothing.
        noise: standard deviation, m.
        noise_key: (E,) what the noise of an episode depends on.
        noise_step: (E,) step of the episode.
        column: first one.
        observation: (E, R, D), n columns from `column` on are set.
    """
    num_envs, num_robots = active.shape
    num_rays = observation.shape[2] - column
    ranges, targets = np.empty(num_rays), np.zeros((num_robots, 7))
    for r in range(num_robots):
        targets[r, _HALF_X], targets[r, _HALF_Y] = robots[r, 1], robots[r, 2]
        targets[r, _BOUND] = np.hypot(robots[r, 1], robots[r, 2]) if robots[r, 1] > 0.0 else robots[r, 0]
    header, start = np.empty(5), np.empty(num_robots + 2, dtype=np.int64)
    cell_of, order = np.empty(num_robots, dtype=np.int64), np.empty(num_robots, dtype=np.int64)
    widest = 0.0
    for r in range(num_robots):
        widest = max(widest, robots[r, 0])
    for e in range(num_envs):
        for r in range(num_robots):
            targets[r, _X], targets[r, _Y] = position[e, r, 0], position[e, r, 1]
            if robots[r, 1] > 0.0:
                yaw = heading[e, r] - robots[r, 5]
                cos, sin = np.cos(yaw), np.sin(yaw)
                targets[r, _X] += cos * robots[r, 3] - sin * robots[r, 4]
                targets[r, _Y] += sin * robots[r, 3] + cos * robots[r, 4]
                targets[r, _COS], targets[r, _SIN] = cos, sin
        use_grid = num_robots >= GRID_FROM
        if use_grid:
            build_grid(position[e], active[e], max_range + widest, 1.0, header, cell_of, start, order)
        for r in range(num_robots):
            for k in range(num_rays):
                ranges[k] = max_range
            x, y = position[e, r, 0], position[e, r, 1]
            if use_grid and cell_of[r] >= 0:
                columns, rows = int(header[3]), int(header[4])
                row = cell_of[r] // columns
                left, right = max(cell_of[r] - row * columns - 1, 0), min(cell_of[r] - row * columns + 1, columns - 1)
                for near in range(max(row - 1, 0), min(row + 1, rows - 1) + 1):
                    for n in range(start[near * columns + left], start[near * columns + right + 1]):
                        if order[n] != r:
                            _see(x, y, heading[e, r], targets[order[n]], max_range, ranges)
            elif not use_grid:
                for other in range(num_robots):
                    if other != r and active[e, other]:
                        _see(x, y, heading[e, r], targets[other], max_range, ranges)
            for b in range(obstacles.shape[1]):
                if obstacle_active[e, b]:
                    _see(x, y, heading[e, r], obstacles[e, b], max_range, ranges)
            for k in range(num_rays):
                value = ranges[k]
                if noise > 0.0 and value < max_range:
                    counter = (noise_step[e] * num_robots + r) * num_rays + k
                    value = min(max(value + noise * _normal(noise_key[e], counter), 0.0), max_range)
                observation[e, r, column + k] = value


class Lidar:
    """The range sensors of one scene.

    Args:
        scene: robots.
        obstacles: the first bodies of the scene.
        num_rays: of each robot.
        max_range: m.
        noise: standard deviation of a range, m.
    """

    def __init__(
        self, scene: Scene, obstacles: tuple[BodySpec, ...], num_rays: int, max_range: float, noise: float
    ) -> None:
        self.num_rays, self._max_range, self._noise = num_rays, max_range, noise
        self._robots = np.array([(r.footprint_radius, *box_of(r), r.forward_yaw) for r in scene.robots])
        self._forward_yaw = np.array([robot.forward_yaw for robot in scene.robots])
        self._outline = np.zeros((len(obstacles), len(_COLUMNS)))
        for row, body in zip(self._outline, obstacles, strict=True):
            row[_BOUND] = body.shape.bounding_radius
            if body.shape.kind == "box":
                row[[_HALF_X, _HALF_Y]] = body.shape.size[0] / 2, body.shape.size[1] / 2

    def observe(
        self,
        state: FleetState,
        noise_key: NDArray[np.int64],
        noise_step: NDArray[np.int64],
        observation: NDArray[np.float32],
    ) -> None:
        """Fills the last columns of the observation (n, R, D) of n worlds."""
        count = len(self._outline)
        obstacles = np.repeat(self._outline[None], state.num_envs, axis=0)
        z, w = state.body_orientation[:, :count, 2], state.body_orientation[:, :count, 3]
        obstacles[..., [_X, _Y]] = state.body_position[:, :count, :2]
        obstacles[..., _COS], obstacles[..., _SIN] = w * w - z * z, 2 * w * z
        scan(
            state.position,
            state.yaw() + self._forward_yaw,
            self._robots,
            state.active,
            obstacles,
            state.body_active,
            self._max_range,
            self._noise,
            noise_key,
            noise_step,
            observation.shape[2] - self.num_rays,
            observation,
        )
