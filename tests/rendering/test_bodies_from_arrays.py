"""Meshes and terrains given as arrays: drawn alike by both renderers, and there in physics."""

import numpy as np
import pytest

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.dynamics.kinematic import KinematicDynamics
from fleet_gym.dynamics.physics import PhysicsDynamics
from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.meshes import load_mesh
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.cameras import Camera
from fleet_gym.world.robots import robot_models
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import FleetState, WorldSample, yaw_quaternion

MODALITIES = ("rgb", "depth", "segmentation")
CAMERAS = [
    Camera("a", 640, 480, position=(3.0, -2.5, 2.5), target=(0.0, 0.0, 0.3), modalities=MODALITIES),
    Camera("b", 640, 480, position=(-2.0, -3.0, 1.0), target=(0.0, 0.0, 0.5), modalities=MODALITIES),
]


def hills():
    y, x = np.mgrid[0:21, 0:31]
    return 0.2 + 0.15 * np.sin(0.6 * x) * np.cos(0.5 * y)


def duck():
    mesh = load_mesh(f"{pybullet_data_path()}/duck.obj")
    return Shape.from_arrays(mesh.positions * 0.5, mesh.triangles)


def tent():
    return Shape.from_arrays(
        [[-0.4, -0.3, 0], [0.5, -0.3, 0], [0.1, 0.5, 0], [0, 0, 0.7]], [[0, 1, 3], [1, 2, 3], [2, 0, 3], [0, 2, 1]]
    )


@pytest.mark.parametrize(
    ("shape", "height"), [(Shape.from_heights(hills(), (0.1, 0.1)), 0.0), (duck(), 0.3), (tent(), 0.4)]
)
def test_both_renderers_draw_the_same(shape, height):
    scene = Scene((), (BodySpec("thing", "obstacle", shape, (0.8, 0.4, 0.3, 1.0)),))
    state = FleetState.allocate(1, scene)
    state.body_active[:] = True
    state.body_position[0, 0] = (0.1, -0.2, height)
    state.body_orientation[0, 0] = yaw_quaternion(np.array(0.4))
    images = []
    for renderer in (RasterRenderer(scene, lod=False), TinyRenderer(scene)):
        images.append(allocate_images(CAMERAS, 1))
        renderer.render(state, np.arange(1), CAMERAS, images[-1])
        renderer.close()
    ours, theirs = images
    for camera in CAMERAS:
        same = ours[f"{camera.name}_segmentation"] == theirs[f"{camera.name}_segmentation"]
        assert same.mean() >= 0.997
        assert (ours[f"{camera.name}_segmentation"] == scene.body_segmentation_id(0)).mean() > 0.01
        assert np.abs(ours[camera.name].astype(int) - theirs[camera.name]).mean() <= 1.0
        apart = np.abs(ours[f"{camera.name}_depth"] - theirs[f"{camera.name}_depth"])[same]
        assert np.percentile(apart, 99) <= 0.01


def test_many_bodies_of_one_shape_share_its_mesh():
    def vertices(count):
        scene = Scene((), tuple(BodySpec(f"d{i}", "obstacle", duck()) for i in range(count)))
        renderer = RasterRenderer(scene)
        return renderer._core.tables.meshes.positions.shape

    assert vertices(5) == vertices(1)


def physics(bodies, body_positions, start=(0.0, 0.0, 0.6)):
    scene = Scene(robot_models("husky", 1), bodies, arena_size=6.0)
    dynamics = PhysicsDynamics(scene, 1, control_dt=24 / 240)
    orientation = np.array([0.0, 0.0, 0.0, 1.0])
    dynamics.reset(
        np.array([0]),
        WorldSample(
            position=np.array([[start]]),
            orientation=orientation.reshape(1, 1, 4),
            active=np.ones((1, 1), dtype=bool),
            body_position=np.array([body_positions], dtype=np.float64),
            body_orientation=np.tile(orientation, (1, len(bodies), 1)),
            body_active=np.ones((1, len(bodies)), dtype=bool),
        ),
    )
    return dynamics


def run(dynamics, steps, command=(0.0, 0.0)):
    touched = False
    for _ in range(steps):
        dynamics.step(np.array([[command]]), np.array([True]))
        touched |= bool(dynamics.state.in_collision[0, 0])
    return touched


@pytest.mark.parametrize("kind", ["ground", "obstacle"])
def test_a_robot_comes_to_stand_on_a_terrain(kind):
    plateau = np.full((9, 9), 0.3)
    dynamics = physics((BodySpec("plateau", kind, Shape.from_heights(plateau, (0.5, 0.5))),), [(0, 0, 0)])
    touched = run(dynamics, 20, (0.3, 0.0))
    rest = dynamics.state.position[0, 0]
    assert rest[2] == pytest.approx(0.3 + robot_models("husky", 1)[0].base_height, abs=0.02)
    assert rest[0] > 0.2
    # Standing on an obstacle is a collision, standing on ground is none.
    assert touched == (kind == "obstacle")
    dynamics.close()


def test_a_mesh_stops_a_robot_and_a_free_one_falls():
    bodies = (BodySpec("tent", "obstacle", tent()), BodySpec("duck", "free", duck(), mass=2.0))
    dynamics = physics(bodies, [(1.6, 0.0, 0.0), (-1.5, 0.0, 1.0)], start=(0.0, 0.0, 0.15))
    assert run(dynamics, 30, (1.0, 0.0))
    assert dynamics.state.position[0, 0, 0] < 1.4
    assert dynamics.state.body_position[0, 1, 2] < 0.3
    np.testing.assert_array_equal(dynamics.state.body_position[0, 0], (1.6, 0.0, 0.0))
    dynamics.close()


def test_kinematic_dynamics_says_what_it_cannot_collide_with():
    robots = robot_models("husky", 1)
    for kind in ("obstacle", "ground"):
        with pytest.raises(ValueError, match="rock"):
            KinematicDynamics(Scene(robots, (BodySpec("rock", kind, tent()),)), 1, control_dt=0.1)
    KinematicDynamics(Scene(robots, (BodySpec("rock", "marker", tent()),)), 1, control_dt=0.1)
