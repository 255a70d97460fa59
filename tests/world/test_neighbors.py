"""Neighbours against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym.world.neighbors import candidate_pairs, nearest_targets


@pytest.mark.parametrize("k", [0, 1, 3, 9])
def test_nearest_targets_are_sorted_by_gap(k):
    rng = np.random.default_rng(0)
    position, targets = rng.uniform(-5, 5, (2, 4, 3)), rng.uniform(-5, 5, (2, 7, 3))
    radius, active = rng.uniform(0.1, 2, 7), rng.random((2, 7)) > 0.2
    out = np.full((2, 4, k), -7)
    nearest_targets(position, targets, radius, active, False, out)
    for e in range(2):
        for i in range(4):
            gap = np.linalg.norm(targets[e, :, :2] - position[e, i, :2], axis=1) - radius
            order = [j for j in np.argsort(gap) if active[e, j]][:k]
            assert out[e, i].tolist() == order + [-1] * (k - len(order))


def test_a_robot_is_not_its_own_neighbour():
    position = np.zeros((1, 3, 3))
    position[0, :, 0] = [0, 1, 3]
    out = np.empty((1, 3, 2), dtype=np.int64)
    nearest_targets(position, position, np.full(3, 0.2), np.ones((1, 3), bool), True, out)
    assert out[0].tolist() == [[1, 2], [0, 2], [1, 0]]


def test_candidate_pairs_are_all_overlapping_discs():
    rng = np.random.default_rng(1)
    position, reach, active = rng.uniform(-4, 4, (60, 2)), rng.uniform(0.1, 2.5, 60), rng.random(60) > 0.1
    expected = [
        [i, j]
        for i in range(60)
        for j in range(i + 1, 60)
        if active[i] and active[j] and np.linalg.norm(position[i] - position[j]) <= reach[i] + reach[j]
    ]
    assert len(expected) > 240, "more than the first allocation holds"
    assert candidate_pairs(position, reach, active).tolist() == expected
