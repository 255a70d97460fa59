"""Episode seeds: reproducible, independent of what failed, replayable."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fleet_gym.episode_seeds import EpisodeSeeds, expand_seed


def begin(seeds, values):
    worlds = np.arange(len(seeds.index))
    drawn, generators = seeds.draw(worlds, values)
    seeds.begin(worlds, drawn, generators)
    return drawn


def test_unseeded_episodes_follow_from_the_seed_and_fit_into_json():
    one, other = EpisodeSeeds(2), EpisodeSeeds(2)
    begin(one, [5, 6])
    begin(other, [5, 6])
    chain = [begin(one, [None, None]) for _ in range(3)]
    assert chain == [begin(other, [None, None]) for _ in range(3)]
    assert len({seed for pair in chain for seed in pair}) == 6
    assert all(json.loads(json.dumps(float(seed))) == seed for pair in chain for seed in pair)
    assert one.index.tolist() == [3, 3]


def test_a_draw_that_is_not_begun_changes_nothing():
    seeds = EpisodeSeeds(1)
    begin(seeds, [1])
    first = seeds.draw(np.array([0]), [None])[0]
    assert seeds.draw(np.array([0]), [None])[0] == first
    assert seeds.index.tolist() == [0]


def test_worlds_without_a_seed_start_from_entropy():
    assert begin(EpisodeSeeds(1), [None]) != begin(EpisodeSeeds(1), [None])


def test_seeds_expand_by_world():
    assert expand_seed(7, 3) == [7, 8, 9]
    assert expand_seed([4, None, 2], 3) == [4, None, 2]
    assert expand_seed(np.array([1, 2]), 2) == [1, 2]
    assert expand_seed(None, 2) == [None, None]
    with pytest.raises(ValueError, match="expected one seed per world, 3, got a list of 2"):
        expand_seed([1, 2], 3)
