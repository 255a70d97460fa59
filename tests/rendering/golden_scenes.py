"""The scenes of the golden images. Run this file to draw them anew after a wanted change, and look at what changed."""

from pathlib import Path

import numpy as np
from PIL import Image

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.world.cameras import Camera
from fleet_gym.world.forward_kinematics import load_tree
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import FleetState

FOLDER = Path(__file__).parent / "golden"
BODIES = (
    BodySpec("box", "obstacle", Shape("box", (0.5, 0.7, 0.9)), (0.2, 0.4, 0.8, 1.0)),
    BodySpec("can", "obstacle", Shape("cylinder", (0.3, 0.3, 0.8)), (0.9, 0.4, 0.2, 1.0)),
    BodySpec("ball", "free", Shape("sphere", (0.4, 0.4, 0.4)), (0.2, 0.9, 0.3, 1.0)),
)
# Name: robots with their places, renderer options, camera options.
SCENES = {
    "bodies": ((), {}, {}),
    "bodies-supersampled": ((), {"supersample": 2}, {}),
    "bodies-shadows": ((), {"shadows": True}, {}),
    "bodies-from-above": ((), {}, {"position": (0, 0, 5), "target": (0, 0, 0)}),
    "near-plane": ((), {}, {"position": (-0.5, -1.2, 0.05), "target": (0.5, 1, 0.1), "fov": 100.0}),
    "husky": ((("husky/husky.urdf", (0, 0, 0.13)),), {}, {}),
    "husky-full-mesh": ((("husky/husky.urdf", (0, 0, 0.13)),), {"lod": False}, {}),
    "r2d2": ((("r2d2.urdf", (0, 0, 0.48)),), {}, {}),
    "kuka-and-racecar": ((("kuka_iiwa/model.urdf", (0, 0, 0)), ("racecar/racecar.urdf", (0.6, -0.9, 0))), {}, {}),
    "mounted": (
        (("husky/husky.urdf", (-2.0, 0.0, 0.13)),),
        {},
        {"position": None, "target": None, "mount": 0, "offset": (0.6, 0.0, 0.4)},
    ),
}


def draw_scene(name: str) -> np.ndarray:
    """Returns the (120, 160, 3) uint8 picture of a scene."""
    placed, renderer_options, camera_options = SCENES[name]
    paths = [f"{pybullet_data_path()}/{urdf}" for urdf, _ in placed]
    robots = tuple(RobotModel(path, path, num_joints=load_tree(path).num_joints) for path in paths)
    view = {"position": (-1.9, -2.2, 1.5), "target": (0, 0, 0.3), **camera_options}
    camera = Camera("c", 160, 120, **view)
    scene = Scene(robots, () if robots and name != "mounted" else BODIES, arena_size=4.0, cameras=(camera,))
    state = FleetState.allocate(1, scene)
    for robot, (_, position) in enumerate(placed):
        state.position[0, robot] = position
    state.joint_position[:] = 0.4
    if scene.bodies:
        state.body_position[0] = [(0.9, -0.5, 0.45), (-0.7, 0.7, 0.4), (0.1, 0.1, 0.4)]
        state.body_active[:] = True
    renderer = RasterRenderer(scene, **renderer_options)
    out = allocate_images([camera], 1)
    renderer.render(state, np.arange(1), [camera], out)
    renderer.close()
    return out["c"][0]


if __name__ == "__main__":
    for scene_name in SCENES:
        Image.fromarray(draw_scene(scene_name)).save(FOLDER / f"{scene_name}.png", optimize=True)
