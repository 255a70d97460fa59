"""Occupancy grids: images of any depth are read alike, and a grid is put up as a whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fleet_gym import MultiRobotSimulationCore
from fleet_gym.simulation_map import occupied_pixels

GREY = np.array([[0, 127, 128], [255, 60, 200]], np.uint8)
OCCUPIED = (GREY < 128)[::-1]


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("grey.png", Image.fromarray(GREY)),
        ("grey.pgm", Image.fromarray(GREY)),
        ("deep.png", Image.fromarray(GREY.astype(np.uint16) * 257)),
        ("colour.png", Image.fromarray(GREY).convert("RGB")),
        ("palette.gif", Image.fromarray(GREY).convert("P")),
        ("bits.png", Image.fromarray(np.where(GREY < 128, 0, 255).astype(np.uint8)).convert("1")),
        ("clear.png", Image.fromarray(np.dstack([0 * GREY] * 3 + [np.where(GREY < 128, 255, 0).astype(np.uint8)]))),
    ],
)
def test_images_of_any_depth_say_the_same(tmp_path, name, image):
    image.save(tmp_path / name)
    np.testing.assert_array_equal(occupied_pixels(tmp_path / name, 128), OCCUPIED)


def test_an_image_of_floats_has_no_scale(tmp_path):
    Image.fromarray(GREY.astype(np.float32)).save(tmp_path / "floats.tiff")
    with pytest.raises(ValueError, match=r"image: expected whole grey values, got floats in .*floats\.tiff"):
        occupied_pixels(tmp_path / "floats.tiff", 128)


@pytest.mark.parametrize("physics", [False, True])
def test_a_grid_that_hits_a_robot_leaves_nothing_behind(physics):
    with MultiRobotSimulationCore(arena_size=20.0, physics=physics) as sim:
        robot = sim.spawn("diffbot", (2.0, 2.0))
        cells = np.eye(6, dtype=bool)
        with pytest.raises(ValueError, match=f"expected a free place, got .* where robot {robot} stands"):
            sim.add_occupancy_grid(cells, resolution=1.0, origin=(-0.5, -0.5))
        assert sim.obstacle_ids == ()
        assert len(sim.add_occupancy_grid(cells, resolution=1.0, origin=(3.0, -3.0))) == len(sim.obstacle_ids) == 6
        assert sim.add_occupancy_grid(~np.ones((2, 2), dtype=bool), resolution=1.0) == []
        sim.run_simulation(duration=0.2)
