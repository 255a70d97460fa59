import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path
from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.select import make_renderer
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.cameras import Camera
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import FleetState, yaw_quaternion

ALL = ("rgb", "depth", "segmentation")
HUSKY = RobotModel("husky", f"{pybullet_data_path()}/husky/husky.urdf", num_joints=4)
KUKA = RobotModel("kuka", f"{pybullet_data_path()}/kuka_iiwa/model.urdf", drive=None, num_joints=7)
BOX = BodySpec("box", "obstacle", Shape("box", (0.4, 0.6, 0.8)), (0.2, 0.4, 0.8, 1.0))
MARKER = BodySpec("goal", "marker", Shape("cylinder", (0.5, 0.5, 0.02)), (0.1, 0.9, 0.1, 1.0))
SCENE = Scene((HUSKY, KUKA), (BOX, MARKER))
SIDE = Camera("side", 96, 72, position=(-3, -3, 2), target=(0, 0, 0.3), modalities=ALL)


@pytest.fixture(scope="module")
def renderer():
    renderer = TinyRenderer(SCENE)
    yield renderer
    renderer.close()


def two_worlds():
    state = FleetState.allocate(2, SCENE)
    state.position[:, 0] = [[0.0, 0.5, 0.13], [-0.5, 0.0, 0.13]]
    state.position[:, 1] = [[0.5, -1.0, 0.0], [1.0, 1.0, 0.0]]
    state.orientation[:, 0] = yaw_quaternion(np.array([0.4, -2.0]))
    state.joint_position[:, 1, :7] = [[0.1, 0.4, 0.2, -1.0, 0.3, 0.5, 0.0], [1.0, -0.4, 0.2, 1.0, 0.3, 0.5, 0.9]]
    state.body_position[:, 0] = [[1.0, 1.2, 0.4], [0.0, -1.2, 0.4]]
    state.body_position[:, 1] = [[-1.0, 0.5, 0.01], [0.4, 1.5, 0.01]]
    state.body_active[:] = True
    return state


def draw(renderer, state, worlds, cameras):
    out = allocate_images(cameras, len(worlds))
    renderer.render(state, np.array(worlds), cameras, out)
    return out


def test_picture_is_that_of_a_client_of_ones_own(renderer):
    state = two_worlds()
    ours = draw(renderer, state, [0, 1], [SIDE])
    p, client = pybullet(), DirectClient()
    client.load_urdf("plane.urdf")
    bodies = [client.load_urdf(robot.urdf, useFixedBase=True) for robot in SCENE.robots]
    box = p.createVisualShape(p.GEOM_BOX, halfExtents=[0.2, 0.3, 0.4], rgbaColor=BOX.color, physicsClientId=client.id)
    disc = p.createVisualShape(
        p.GEOM_CYLINDER, radius=0.5, length=0.02, rgbaColor=MARKER.color, physicsClientId=client.id
    )
    bodies += [p.createMultiBody(baseVisualShapeIndex=shape, physicsClientId=client.id) for shape in (box, disc)]
    for world in range(2):
        kuka_inertial = p.getDynamicsInfo(bodies[1], -1, physicsClientId=client.id)[3:5]
        kuka = p.multiplyTransforms(state.position[world, 1], state.orientation[world, 1], *kuka_inertial)
        poses = [
            (state.position[world, 0], state.orientation[world, 0]),
            kuka,
            *zip(state.body_position[world], state.body_orientation[world], strict=True),
        ]
        for body, pose in zip(bodies, poses, strict=True):
            p.resetBasePositionAndOrientation(body, *pose, physicsClientId=client.id)
        for joint in range(7):
            p.resetJointState(bodies[1], joint, state.joint_position[world, 1, joint], physicsClientId=client.id)
        view = p.computeViewMatrix(SIDE.position, SIDE.target, [0, 0, 1])
        projection = p.computeProjectionMatrixFOV(SIDE.fov, SIDE.width / SIDE.height, SIDE.near, SIDE.far)
        _, _, rgba, z, segmentation = p.getCameraImage(
            SIDE.width, SIDE.height, view, projection, shadow=0, physicsClientId=client.id,
            renderer=p.ER_TINY_RENDERER, flags=p.ER_SEGMENTATION_MASK_OBJECT_AND_LINKINDEX,
        )  # fmt: skip
        # View matrices are float64 here and float32 there: a handful of border pixels may differ.
        assert (ours["side_segmentation"][world] == segmentation).mean() > 0.999
        assert np.abs(ours["side"][world].astype(int) - rgba[..., :3]).mean() < 0.2
        metres = 50 * 0.05 / (50 - 49.95 * z.astype(float))
        hit = (segmentation >= 0) & (ours["side_segmentation"][world] == segmentation)
        assert np.median(np.abs(ours["side_depth"][world] - metres)[hit]) < 1e-3
    client.close()


def test_segmentation_counts_ground_robots_bodies(renderer):
    ids = np.unique(draw(renderer, two_worlds(), [0], [SIDE])["side_segmentation"])
    bodies = set(np.unique(ids[ids >= 0] & 0xFFFFFF))
    expected = {0, SCENE.robot_segmentation_id(0), SCENE.robot_segmentation_id(1)}
    assert bodies == expected | {SCENE.body_segmentation_id(0), SCENE.body_segmentation_id(1)}
    links = {int(i) >> 24 for i in ids if i >= 0 and i & 0xFFFFFF == SCENE.robot_segmentation_id(1)}
    assert len(links) > 3  # several links of the arm, each under its own number


def test_rows_follow_the_worlds_asked_for(renderer):
    state = two_worlds()
    both = draw(renderer, state, [0, 1], [SIDE])
    swapped = draw(renderer, state, [1, 0, 1], [SIDE])
    for key, images in both.items():
        assert (swapped[key] == images[[1, 0, 1]]).all()
    assert (both["side"][0] != both["side"][1]).any()


def test_depth_and_first_row_on_top(renderer):
    state = two_worlds()
    state.active[:], state.body_active[:] = False, False
    down = Camera("down", 16, 16, position=(0, 0, 4), target=(0, 0, 0), modalities=ALL)
    level = Camera("level", 16, 16, position=(0, 0, 1), target=(1, 0, 1), far=30.0, modalities=ALL)
    out = draw(renderer, state, [0], [down, level])
    assert (out["down_segmentation"] == 0).all()  # the ground is body 0; inactive robots and bodies are gone
    np.testing.assert_allclose(out["down_depth"], 4.0, atol=2e-3)
    assert (out["level_segmentation"][0, :7] == -1).all()
    assert (out["level_depth"][0, :7] == 30.0).all()
    assert (out["level"][0, :7] == 255).all()
    assert (out["level_segmentation"][0, -4:] == 0).all()


def test_x_is_right_when_seen_from_above_with_y_up(renderer):
    state = two_worlds()
    state.active[:], state.body_active[:] = False, False
    state.body_active[:, 0] = True
    state.body_position[:, 0] = (0.8, 1.6, 0.4)
    down = Camera("down", 41, 41, position=(0, 0, 5), target=(0, 0, 0), modalities=("segmentation",))
    rows, columns = np.nonzero(draw(renderer, state, [0], [down])["down_segmentation"][0] > 0)
    assert columns.mean() > 22
    assert rows.mean() < 14


def test_joint_positions_turn_the_links(renderer):
    state = two_worlds()
    before = draw(renderer, state, [0], [SIDE])["side"]
    state.joint_position[0, 1, 1] += 1.0
    assert (draw(renderer, state, [0], [SIDE])["side"] != before).any()


def test_mounted_camera_moves_with_its_robot(renderer):
    state = two_worlds()
    state.position[0, 0] = (-3, 0, 0.13)
    state.orientation[0, 0] = yaw_quaternion(np.array(0.0))
    state.body_position[0, 0] = (-1, 0, 0.4)
    state.active[0, 1] = False
    front = Camera("front", 32, 32, mount=0, offset=(0.6, 0, 0.3), modalities=ALL)
    out = draw(renderer, state, [0], [front])
    assert out["front_segmentation"][0, 16, 16] == SCENE.body_segmentation_id(0)
    # From the lens at x = -2.4 to the box's face at x = -1.2.
    assert out["front_depth"][0, 16, 16] == pytest.approx(1.2, abs=2e-3)


def test_bad_calls_are_refused(renderer):
    state = two_worlds()
    with pytest.raises(ValueError, match="side_depth"):
        renderer.render(state, np.array([0]), [SIDE], {"side": np.zeros((1, 72, 96, 3), np.uint8)})
    images = allocate_images([SIDE], 1)
    with pytest.raises(ValueError, match="side_depth"):
        renderer.render(state, np.array([0]), [SIDE], {**images, "side_depth": np.zeros((1, 72, 96))})
    with pytest.raises(ValueError, match="worlds"):
        renderer.render(state, np.array([2]), [SIDE], images)
    with pytest.raises(TypeError, match="worlds"):
        renderer.render(state, np.array([0.0]), [SIDE], images)
    with pytest.raises(ValueError, match="mount"):
        draw(renderer, state, [0], [Camera("m", 8, 8, mount=2)])
    with pytest.raises(ValueError, match="nose"):
        draw(renderer, state, [0], [Camera("m", 8, 8, mount=(0, "nose"))])
    state.position[1, 1, 2] = np.nan
    with pytest.raises(ValueError, match=r"state\.position\[1, 1\]"):
        draw(renderer, state, [0, 1], [SIDE])
    draw(renderer, state, [0], [SIDE])
    state.active[1, 1] = False
    draw(renderer, state, [1], [SIDE])


def test_no_worlds_is_no_work(renderer):
    assert draw(renderer, two_worlds(), [], [SIDE])["side"].shape == (0, 72, 96, 3)


def test_close_twice_and_use_after():
    renderer = make_renderer("tiny", Scene((HUSKY,)))
    renderer.close()
    renderer.close()
    with pytest.raises(ClosedEnvironmentError):
        draw(renderer, FleetState.allocate(1, Scene((HUSKY,))), [0], [SIDE])
