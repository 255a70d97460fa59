"""Neighbours against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym.world.neighbors import GRID_FROM, candidate_pairs, nearest_targets


@pytest.mark.parametrize("k", [0, 1, 3, 9])
@pytest.mark.parametrize("num_targets", [1, 7, GRID_FROM, 300])
@pytest.mark.parametrize("spread", [(5, 5), (40, 0.0), (0.0, 0.0), (1000, 3)])
def test_nearest_targets_are_sorted_by_gap(k, num_targets, spread):
    rng = np.random.default_rng(0)
    scale = np.array([*spread, 1.0])
    position, targets = rng.uniform(-2, 2, (2, 4, 3)) * scale, rng.uniform(-1, 1, (2, num_targets, 3)) * scale
    radius, active = rng.uniform(0.1, 2, num_targets), rng.random((2, num_targets)) > 0.2
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


@pytest.mark.parametrize("num_robots", [2, 20, GRID_FROM, 200])
@pytest.mark.parametrize("reach", [0.05, 1.0, 30.0])
def test_candidate_pairs_are_all_overlapping_discs(num_robots, reach):
    rng = np.random.default_rng(1)
    position, active = rng.uniform(-4, 4, (num_robots, 2)), rng.random(num_robots) > 0.1
    reach = rng.uniform(0.1, 1.0, num_robots) * reach
    expected = [
        [i, j]
        for i in range(num_robots)
        for j in range(i + 1, num_robots)
        if active[i] and active[j] and np.linalg.norm(position[i] - position[j]) <= reach[i] + reach[j]
    ]
    pairs, count = candidate_pairs(position, reach, active, np.zeros((1, 2), dtype=np.int64))
    assert sorted(pairs[:count].tolist()) == expected


def test_a_position_that_is_not_a_number_is_nobodys_neighbour():
    position = np.random.default_rng(2).uniform(-4, 4, (1, 100, 3))
    position[0, 7, 0] = np.nan
    out = np.empty((1, 100, 3), dtype=np.int64)
    nearest_targets(position, position, np.full(100, 0.2), np.ones((1, 100), bool), True, out)
    assert (out[0, 7] == -1).all()
    assert 7 not in out
    assert (out[0, :7] >= 0).all()


def test_one_robot_far_away_does_not_ask_for_more_cells():
    position = np.random.default_rng(3).uniform(-4, 4, (1, 100, 3))
    position[0, 0] = 1e12
    out = np.empty((1, 100, 1), dtype=np.int64)
    nearest_targets(position, position, np.full(100, 0.2), np.ones((1, 100), bool), True, out)
    distance = np.linalg.norm(position[0, :, None, :2] - position[0, None, :, :2], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (out[0, :, 0] == distance.argmin(axis=1)).all()
