"""Occupancy grids: images of any depth are read alike, and a grid is put up as a whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fleet_gym import MultiRobotSimulationCore
from fleet_gym.simulation_map import occupied_pixels
from fleet_gym.simulation_world import Occupancy

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


def test_what_is_no_image_is_named(tmp_path, monkeypatch):
    Image.fromarray(GREY).save(tmp_path / "map.png")
    whole = (tmp_path / "map.png").read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)
    for name in ("half.png", "map.png", "no\0name.png", "nowhere.png", "."):
        with pytest.raises(ValueError, match=r"image: expected a readable image file, got '.*' \(.+\)"):
            occupied_pixels(tmp_path / name, 128)


def test_a_grid_of_thousands_of_boxes_goes_up_beside_hundreds_of_robots(monkeypatch):
    with MultiRobotSimulationCore(arena_size=200.0) as sim:
        sim.spawn_grid("diffbot", 200, spacing=1.0)
        compared, gap = [], Occupancy.obstacle_gap
        monkeypatch.setattr(Occupancy, "obstacle_gap", lambda *arguments: compared.append(1) or gap(*arguments))
        cells = np.zeros((400, 400), dtype=bool)
        cells[::8, ::8] = True
        cells[150:250, 150:250] = False
        assert len(sim.add_occupancy_grid(cells, resolution=0.5)) > 2000
        assert len(compared) == 200, "one comparison with all boxes for each robot"


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
