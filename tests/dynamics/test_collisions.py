"""Times of first contact against brute force: the same motion sampled in ten thousand steps."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym.dynamics.collisions import NO_CONTACT, box_entry, disc_entry, find_candidates, sweep_world

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


def sweep(position, displacement, *, respond=True):
    n = len(position)
    position, displacement = np.array(position, float), np.array(displacement, float)
    reach = 0.5 + np.linalg.norm(displacement, axis=1) + 1e-3
    nothing = np.zeros((0, 10))
    candidates, num_pairs, count = find_candidates(
        position,
        reach,
        np.zeros(n),
        np.ones(n),
        np.ones(n, bool),
        nothing,
        np.zeros(0, bool),
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
        nothing,
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
