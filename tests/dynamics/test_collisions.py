"""Times of first contact against brute force: the same motion sampled in ten thousand steps."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym.dynamics.broad_phase import find_candidates
from fleet_gym.dynamics.collisions import NO_CONTACT, box_entry, disc_entry, sweep_world
from fleet_gym.dynamics.obstacle_grid import BOUND, BOX, COS, CYLINDER, HALF_X, HALF_Y, HIGH, KIND, SIN, Obstacles, X, Y

TIMES = np.linspace(0, 1, 10_001)
STEP = TIMES[1]


def first_time(distance, limit):
    """First sampled time at which `distance` is within `limit`, None if never."""
    within = np.flatnonzero(distance <= limit)
    return None if len(within) == 0 else TIMES[within[0]]


def test_disc_entry_is_the_first_time_of_contact():
    rng = np.random.default_rng(1)
    met = 0
    for _ in range(2000):
        qx, qy, wx, wy = rng.uniform(-2, 2, 4)
        limit = rng.uniform(0.1, 1.0)
        distance = np.hypot(qx + TIMES * wx, qy + TIMES * wy)
        expected = None if distance[0] <= limit else first_time(distance, limit)
        t = disc_entry(qx, qy, wx, wy, limit, 0.0, 1.0)
        if distance[0] <= limit:
            assert t == (0.0 if qx * wx + qy * wy < 0 else NO_CONTACT)
        elif expected is None:
            assert t == NO_CONTACT or np.hypot(qx + t * wx, qy + t * wy) == pytest.approx(limit)
        else:
            met += 1
            assert expected - STEP <= t <= expected
    assert met > 50


def test_box_entry_is_the_first_time_of_contact():
    rng = np.random.default_rng(2)
    met = 0
    for _ in range(800):
        qx, qy, wx, wy = rng.uniform(-3, 3, 4)
        half_x, half_y, limit = rng.uniform(0.1, 1.0, 3)
        outside_x = np.maximum(np.abs(qx + TIMES * wx) - half_x, 0)
        outside_y = np.maximum(np.abs(qy + TIMES * wy) - half_y, 0)
        distance = np.hypot(outside_x, outside_y)
        t = box_entry(qx, qy, wx, wy, half_x, half_y, limit, 1.0)
        if distance[0] <= limit:
            assert t in (0.0, NO_CONTACT)
            continue
        expected = first_time(distance, limit)
        if expected is None:
            grazed = np.hypot(max(abs(qx + t * wx) - half_x, 0), max(abs(qy + t * wy) - half_y, 0))
            assert t == NO_CONTACT or grazed == pytest.approx(limit, abs=1e-9)
        else:
            met += 1
            assert expected - STEP <= t <= expected + 1e-12
    assert met > 100


def one_world(obstacles, world):
    return [array[world] for array in obstacles]


def sweep(position, displacement, *, respond=True):
    n = len(position)
    position, displacement = np.array(position, float), np.array(displacement, float)
    reach = 0.5 + np.linalg.norm(displacement, axis=1) + 1e-3
    candidates, num_pairs, count = find_candidates(
        position,
        reach,
        np.zeros(n),
        np.ones(n),
        np.ones(n, bool),
        *one_world(Obstacles.allocate(1, 0), 0),
        0.0,
        np.zeros((1, 2), dtype=np.int64),
    )
    stop, touching = np.empty(n), np.zeros(count, dtype=bool)
    margin, radius = np.zeros(n), np.full(n, 0.5)
    discs_only = np.zeros((0, 12))
    sweep_world(
        position,
        displacement,
        margin,
        radius,
        discs_only,
        np.zeros((0, 10)),
        0.0,
        candidates,
        num_pairs,
        count,
        respond,
        stop,
        touching,
    )
    return stop, {tuple(pair) for pair in candidates[:count][touching].tolist()}


def test_who_was_stopped_is_an_obstacle_for_who_follows():
    # The first stops at the second, which stands; the third would have passed where the first used to be.
    stop, contact = sweep([(-2, 0), (0, 0), (-4, 0)], [(4, 0), (0, 0), (4, 0)])
    np.testing.assert_allclose(stop, [0.25, 1.0, 0.5], atol=1e-5)
    assert contact == {(0, 1), (0, 2)}


def test_crossing_paths_that_are_never_close_at_the_same_time_are_free():
    stop, contact = sweep([(-5, 0), (0, -1.5)], [(10, 0), (0, 10)])
    np.testing.assert_array_equal(stop, [1, 1])
    assert contact == set()


def test_no_order_of_robots_leaves_anybody_overlapping():
    rng = np.random.default_rng(3)
    for _ in range(200):
        position = np.array([(x, y) for x in (-3, -1.5, 0, 1.5, 3) for y in (-2, 0, 2)]) + rng.uniform(
            -0.2, 0.2, (15, 2)
        )
        displacement = rng.uniform(-6, 6, (15, 2))
        stop, _ = sweep(position, displacement)
        # Everybody's whole motion, not only its end.
        moving = position[:, None] + np.minimum(TIMES[None, ::50], stop[:, None])[..., None] * displacement[:, None]
        for i in range(15):
            for j in range(i):
                assert np.linalg.norm(moving[i] - moving[j], axis=1).min() >= 1 - 1e-9


def obstacle_distance(point, obstacle):
    away = (point[0] - obstacle[X] + 1j * (point[1] - obstacle[Y])) * (obstacle[COS] - 1j * obstacle[SIN])
    if obstacle[KIND] == CYLINDER:
        return abs(away) - obstacle[HALF_X]
    return np.hypot(max(abs(away.real) - obstacle[HALF_X], 0), max(abs(away.imag) - obstacle[HALF_Y], 0))


@pytest.mark.parametrize("count", [32, 400])
def test_cells_hide_no_obstacle(count):
    rng = np.random.default_rng(count)
    table = Obstacles.allocate(3, count)
    angle = rng.uniform(-np.pi, np.pi, (3, count))
    half = rng.uniform(0.05, 0.5, (3, count, 2))
    half[:, :6, 0] = 15.0  # walls across the whole map
    kind = rng.integers(0, 2, (3, count))
    kind[:, :6] = BOX
    half[kind == CYLINDER, 1] = half[kind == CYLINDER, 0]
    table.rows[..., KIND] = kind
    table.rows[..., [X, Y]] = rng.uniform(-10, 10, (3, count, 2))
    table.rows[..., COS], table.rows[..., SIN] = np.cos(angle), np.sin(angle)
    table.rows[..., [HALF_X, HALF_Y]] = half
    table.rows[..., BOUND] = np.where(kind == BOX, np.hypot(half[..., 0], half[..., 1]), half[..., 0])
    table.rows[..., HIGH] = 1.0
    table.active[:] = rng.random((3, count)) < 0.9
    table = table.indexed(np.array([2, 0]))
    found = 0
    for world in (0, 2):
        plain = table._replace(header=np.zeros((3, 5)))
        position, reach = rng.uniform(-14, 14, (100, 2)), rng.uniform(0.05, 2.0, 100)
        pairs = []
        for obstacles in (table, plain):
            candidates, num_pairs, total = find_candidates(
                position,
                reach,
                np.zeros(100),
                np.ones(100),
                np.ones(100, bool),
                *one_world(obstacles, world),
                0.01,
                np.zeros((1, 2), dtype=np.int64),
            )
            pairs.append({tuple(pair) for pair in candidates[num_pairs:total].tolist()})
            assert len(pairs[-1]) == total - num_pairs
        # Without cells only the circle around an obstacle is looked at.
        near = {
            (i, b) for i, b in pairs[1] if obstacle_distance(position[i], table.rows[world, b - 100]) <= reach[i] + 0.01
        }
        assert pairs[0] == near
        found += len(near)
    assert found > 100
    # What a robot looks at is what is near it.
    cells = table.header[0, 3] * table.header[0, 4]
    assert count / 4 <= cells <= count
    assert table.start[0, int(cells)] <= 8 * count
