import dataclasses
import json

import numpy as np
import pytest

from fleet_gym._pybullet import pybullet, pybullet_data_path
from fleet_gym.world.cameras import (
    Camera,
    camera_poses,
    cameras_from_specs,
    projection_matrix,
    quaternion_matrix,
    validate_cameras,
    view_matrices,
)
from fleet_gym.world.forward_kinematics import FleetKinematics
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState

FIXED = {"name": "a", "width": 8, "height": 6, "position": (0, 0, 1), "target": (1, 0, 0)}


def make(**changes):
    return Camera(**{**FIXED, **changes})


def husky():
    return RobotModel("husky", f"{pybullet_data_path()}/husky/husky.urdf", num_joints=4)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"name": "a_depth"}, ValueError, "_depth"),
        ({"name": "a_segmentation"}, ValueError, "_segmentation"),
        ({"name": "../a"}, ValueError, "file name"),
        ({"name": "a/b"}, ValueError, "file name"),
        ({"name": ""}, ValueError, "file name"),
        ({"name": ".."}, ValueError, "file name"),
        ({"name": "a" * 101}, ValueError, "file name"),
        ({"name": 3}, TypeError, "string"),
        ({"width": 0}, ValueError, "width"),
        ({"width": -4}, ValueError, "width"),
        ({"width": True}, TypeError, "width"),
        ({"height": 6.0}, TypeError, "height"),
        ({"height": 10**6}, ValueError, "height"),
        ({"render_every": 0}, ValueError, "render_every"),
        ({"render_every": False}, TypeError, "render_every"),
        ({"fov": 0}, ValueError, "fov"),
        ({"fov": 180}, ValueError, "fov"),
        ({"fov": float("nan")}, ValueError, "fov"),
        ({"fov": "60"}, TypeError, "fov"),
        ({"near": 0}, ValueError, "near"),
        ({"near": 2, "far": 2}, ValueError, "far"),
        ({"far": float("inf")}, ValueError, "far"),
        ({"position": None}, ValueError, "position"),
        ({"target": None}, ValueError, "target"),
        ({"position": (1, 0, 0)}, ValueError, "target"),
        ({"position": (0, 0)}, ValueError, "position"),
        ({"position": (0, 0, "1")}, TypeError, "position"),
        ({"position": 3.0}, TypeError, "position"),
        ({"mount": 0}, ValueError, "mount"),
        ({"offset": (1, 0, 0)}, ValueError, "offset"),
        ({"position": None, "target": None, "mount": -1}, ValueError, "mount"),
        ({"position": None, "target": None, "mount": True}, TypeError, "mount"),
        ({"position": None, "target": None, "mount": (0, 1)}, TypeError, "mount"),
        ({"position": None, "target": None, "mount": (0, "a", "b")}, TypeError, "mount"),
        ({"position": None, "target": None, "mount": 0, "rotation": (0, 0, 0, 0)}, ValueError, "rotation"),
        ({"modalities": ()}, ValueError, "modalities"),
        ({"modalities": ("rgb", "rgb")}, ValueError, "modalities"),
        ({"modalities": ("color",)}, ValueError, "modalities"),
        ({"modalities": "rgb"}, TypeError, "modalities"),
    ],
)
def test_bad_arguments_are_named(changes, error, words):
    with pytest.raises(error, match=words):
        make(**changes)


def test_specs_survive_json_and_hash():
    camera = Camera("front", np.int64(8), 6, mount=(1, "base_link"), rotation=(0, 0, 2, 0), modalities=["rgb", "depth"])
    assert camera.rotation == (0.0, 0.0, 1.0, 0.0)
    assert camera.mount_robot == 1
    assert camera.mount_link == "base_link"
    assert camera.keys == (("front", "rgb"), ("front_depth", "depth"))
    again = Camera.from_spec(json.loads(json.dumps(camera.to_dict())))
    assert again == camera
    assert hash(again) == hash(camera)
    assert Camera.from_spec(camera) is camera
    assert dataclasses.replace(make(), name="b").name == "b"


def test_spec_errors_name_the_key():
    with pytest.raises(ValueError, match="widht"):
        Camera.from_spec({**FIXED, "widht": 3})
    with pytest.raises(ValueError, match="height"):
        Camera.from_spec({"name": "a", "width": 3})
    with pytest.raises(TypeError, match="mapping"):
        Camera.from_spec(3)
    with pytest.raises(TypeError, match="sequence"):
        cameras_from_specs(FIXED)
    with pytest.raises(ValueError, match=r"different name.*'a'"):
        cameras_from_specs([FIXED, make()])
    assert cameras_from_specs([FIXED, make(name="b")]) == (make(), make(name="b"))


def test_mounts_are_checked_against_the_robots():
    robots = (husky(),)
    validate_cameras([make(), Camera("m", 8, 6, mount=(0, "base_link"))], robots)
    with pytest.raises(ValueError, match=r"0\.\.0"):
        validate_cameras([Camera("m", 8, 6, mount=1)], robots)
    with pytest.raises(ValueError, match="front_left_wheel_link"):
        validate_cameras([Camera("m", 8, 6, mount=(0, "nose"))], robots)


def test_projection_is_pybullets():
    camera = make(width=320, height=200, fov=47.0, near=0.2, far=12.0)
    theirs = pybullet().computeProjectionMatrixFOV(47.0, 320 / 200, 0.2, 12.0)
    np.testing.assert_allclose(projection_matrix(camera).T.ravel(), theirs, atol=1e-6)


def view_of(camera, frames=None, worlds=1):
    return view_matrices(*camera_poses(camera, frames, worlds))


def test_fixed_views_are_pybullets():
    rng = np.random.default_rng(5)
    for _ in range(50):
        eye, target = rng.normal(size=(2, 3)) * 3
        theirs = np.array(pybullet().computeViewMatrix(eye, target, [0, 0, 1])).reshape(4, 4).T
        views = view_of(make(position=tuple(eye), target=tuple(target)), worlds=3)
        assert views.shape == (3, 4, 4)
        np.testing.assert_allclose(views, np.broadcast_to(theirs, (3, 4, 4)), atol=2e-5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_vertical_views_have_y_up_where_pybullet_has_nan(sign):
    p = pybullet()
    eye, target = (0.5, 0.25, 3.0), (0.5, 0.25, 3.0 - sign)
    assert np.isnan(p.computeViewMatrix(eye, target, [0, 0, 1])).any()
    theirs = np.array(p.computeViewMatrix(eye, target, [0, 1, 0])).reshape(4, 4).T
    np.testing.assert_allclose(view_of(make(position=eye, target=target))[0], theirs, atol=1e-6)


def test_up_changes_at_one_degree():
    def right_of(degrees):
        tilt = np.radians(degrees)
        target = (0.0, np.sin(tilt), 3 - np.cos(tilt))
        return view_of(make(position=(0, 0, 3), target=target))[0, 0, :3]

    # Seen from above with the top of the picture towards +y, either way: no jump at the border along this direction.
    np.testing.assert_allclose(right_of(0.9), [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(right_of(1.1), [1, 0, 0], atol=1e-12)
    tilted = view_of(make(position=(0, 0, 3), target=(-np.sin(0.03), 0.0, 3 - np.cos(0.03))))
    np.testing.assert_allclose(tilted[0, 0, :3], [0, 1, 0], atol=1e-12)


def test_mounted_camera_looks_along_its_links_x():
    robots = (husky(), husky())
    state = FleetState.allocate(3, Scene(robots))
    rng = np.random.default_rng(2)
    state.position[:] = rng.normal(size=state.position.shape)
    quaternions = rng.normal(size=state.orientation.shape)
    state.orientation[:] = quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)
    worlds = np.array([2, 0])
    frames = FleetKinematics(robots).frames(state, worlds)
    camera = Camera("m", 8, 6, mount=1, offset=(0.4, 0.1, 0.2), rotation=(0.0, 0.1, 0.0, 0.9949874371066199))
    views = view_of(camera, frames, 2)
    for row, world in enumerate(worlds):
        rotation = quaternion_matrix(state.orientation[world, 1])
        eye = state.position[world, 1] + rotation @ np.array(camera.offset)
        turned = rotation @ quaternion_matrix(np.array(camera.rotation))
        theirs = pybullet().computeViewMatrix(eye, eye + turned[:, 0], turned[:, 2])
        np.testing.assert_allclose(views[row].T.ravel(), theirs, atol=1e-5)


def test_views_do_not_depend_on_the_number_of_worlds():
    robots = (husky(),)
    state = FleetState.allocate(7, Scene(robots))
    state.position[:] = np.random.default_rng(1).normal(size=state.position.shape)
    kinematics = FleetKinematics(robots)
    camera = Camera("m", 8, 6, mount=(0, "front_left_wheel_link"), rotation=(0.1, 0.2, 0.3, 0.9))
    together = view_of(camera, kinematics.frames(state, np.arange(7)), 7)
    for world in range(7):
        alone = view_of(camera, kinematics.frames(state, np.array([world])), 1)
        assert (alone[0] == together[world]).all()


@pytest.mark.parametrize(("argument", "value"), [("near", 1e-9), ("far", 1e9), ("fov", 1e-5), ("fov", 179.999)])
def test_views_that_no_depth_buffer_can_hold_are_refused(argument, value):
    with pytest.raises(ValueError, match=argument):
        Camera("c", 8, 8, position=(0, 0, 1), target=(0, 0, 0), **{argument: value})
