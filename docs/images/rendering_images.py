"""Draws the pictures of docs/rendering.md: ``python docs/images/rendering_images.py``."""

from pathlib import Path

import numpy as np
from PIL import Image

from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.cameras import Camera
from fleet_gym.world.robots import robot_model
from fleet_gym.world.scene import BodySpec, Scene, SceneBuilder, Shape
from fleet_gym.world.state import FleetState, yaw_quaternion

FOLDER = Path(__file__).parent
ROBOTS = {"husky": (-0.9, -0.9), "r2d2": (0.9, 0.6), "kuka_iiwa": (0.0, 1.0), "racecar": (0.6, -0.9)}


def fleet() -> tuple[Scene, FleetState]:
    """Four kinds of robots and three bodies, in six worlds."""
    builder = SceneBuilder(tuple(robot_model(name) for name in ROBOTS))
    builder.add_body(BodySpec("box", "obstacle", Shape("box", (0.5, 0.5, 0.5)), (0.85, 0.45, 0.2, 1.0)))
    builder.add_body(BodySpec("ball", "free", Shape("sphere", (0.25, 0.25, 0.25)), (0.2, 0.7, 0.3, 1.0)))
    builder.add_body(BodySpec("goal", "marker", Shape("cylinder", (0.3, 0.3, 0.02)), (0.9, 0.2, 0.3, 1.0)))
    builder.set_arena_size(5.0)
    scene = builder.build()
    state = FleetState.allocate(6, scene)
    for robot, (name, place) in enumerate(ROBOTS.items()):
        state.position[:, robot] = (*place, robot_model(name).base_height)
    state.orientation[:] = yaw_quaternion(np.array([0.4, 2.5, 0.0, 2.0]))
    state.joint_position[:, 2, :7] = (0.5, 0.6, 0.0, -1.2, 0.0, 0.8, 0.0)
    state.body_position[:] = [(1.8, -0.3, 0.25), (-0.1, 0.0, 0.25), (-1.2, 0.6, 0.01)]
    state.body_active[:] = True
    return scene, state


def draw(renderer: TinyRenderer | RasterRenderer, state: FleetState, camera: Camera, worlds: int = 1) -> np.ndarray:
    """Returns (n, H, W, 3) pictures."""
    images = allocate_images([camera], worlds)
    renderer.render(state, np.arange(worlds), [camera], images)
    renderer.close()
    return images[camera.name]


def main() -> None:
    """Draws them all."""
    scene, state = fleet()
    camera = Camera("c", 480, 360, position=(-2.6, -3.2, 2.0), target=(0.1, 0, 0.3))
    tiny = draw(TinyRenderer(scene), state, camera)[0]
    raster = draw(RasterRenderer(scene), state, camera)[0]
    difference = np.clip(np.abs(tiny.astype(int) - raster) * 4, 0, 255).astype(np.uint8)
    Image.fromarray(np.concatenate([tiny, raster, difference], axis=1)).save(
        FOLDER / "rendering-side-by-side.png", optimize=True
    )
    fine = draw(RasterRenderer(scene, supersample=2), state, camera)[0]
    state.light[:, 6:] = (0.35, 0.6, 0.1)
    shadows = draw(RasterRenderer(scene, supersample=2, shadows=True), state, camera)[0]
    Image.fromarray(np.concatenate([raster, fine, shadows], axis=1)).save(
        FOLDER / "rendering-options.png", optimize=True
    )
    rng = np.random.default_rng(7)
    state.color[1:, :, :3] = rng.uniform(0.3, 1.3, state.color[1:, :, :3].shape)
    state.light[1:, :3] = rng.normal(size=(5, 3)) + np.array([0, 0, 2])
    state.light[1:, 3:6] = rng.uniform(0.6, 1.2, (5, 3))
    state.visible[3:, 4:6] = rng.random((3, 2)) < 0.5
    small = Camera("c", 240, 180, position=(-2.6, -3.2, 2.0), target=(0.1, 0, 0.3))
    worlds = draw(RasterRenderer(scene, supersample=2), state, small, 6)
    rows = [np.concatenate(list(worlds[k : k + 3]), axis=1) for k in (0, 3)]
    Image.fromarray(np.concatenate(rows, axis=0)).save(FOLDER / "rendering-randomised.png", optimize=True)


if __name__ == "__main__":
    main()
