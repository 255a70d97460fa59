import numpy as np
import pytest

from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path
from fleet_gym.world.forward_kinematics import FleetKinematics, load_tree, numbers
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState

URDFS = [
    "husky/husky.urdf",
    "r2d2.urdf",
    "racecar/racecar.urdf",
    "kuka_iiwa/model.urdf",
    "franka_panda/panda.urdf",
    "humanoid/humanoid.urdf",  # spherical joints, and a NUL byte at its end
    "biped/biped2d_pybullet.urdf",  # blank lines before the XML declaration
    "bicycle/bike.urdf",  # commas between numbers
]


def model(urdf):
    path = f"{pybullet_data_path()}/{urdf}"
    return RobotModel(urdf, path, num_joints=load_tree(path).num_joints)


def random_state(robots, worlds, seed):
    rng = np.random.default_rng(seed)
    state = FleetState.allocate(worlds, Scene(tuple(robots)))
    state.position[:] = rng.normal(size=state.position.shape)
    quaternions = rng.normal(size=state.orientation.shape)
    state.orientation[:] = quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)
    state.joint_position[:] = rng.uniform(-1, 1, size=state.joint_position.shape)
    return state


def pybullet_frames(urdf, position, orientation, joints):
    """Frames of all links (L, 3, 4) and their names, from a body posed in PyBullet."""
    p, client = pybullet(), DirectClient()
    body = client.load_urdf(urdf)
    inertial = p.getDynamicsInfo(body, -1, physicsClientId=client.id)[3:5]
    base = p.multiplyTransforms(position, orientation, *inertial)
    p.resetBasePositionAndOrientation(body, *base, physicsClientId=client.id)
    names, poses = [p.getBodyInfo(body, physicsClientId=client.id)[0].decode()], [(position, orientation)]
    moving = 0
    for joint in range(p.getNumJoints(body, client.id)):
        info = p.getJointInfo(body, joint, physicsClientId=client.id)
        names.append(info[12].decode())
        if info[2] in (p.JOINT_REVOLUTE, p.JOINT_PRISMATIC):
            p.resetJointState(body, joint, joints[moving], physicsClientId=client.id)
            moving += 1
    for joint in range(p.getNumJoints(body, client.id)):
        state = p.getLinkState(body, joint, computeForwardKinematics=True, physicsClientId=client.id)
        poses.append(state[4:6])
    client.close()
    rotations = [np.array(p.getMatrixFromQuaternion(q)).reshape(3, 3) for _, q in poses]
    frames = [np.column_stack([r, x]) for r, (x, _) in zip(rotations, poses, strict=True)]
    return tuple(names), np.stack(frames)


@pytest.mark.parametrize("urdf", URDFS)
def test_link_frames_are_pybullets(urdf):
    robot = model(urdf)
    state = random_state([robot], 2, seed=3)
    frames = FleetKinematics([robot]).frames(state, np.array([1]))
    names, theirs = pybullet_frames(
        robot.urdf, state.position[1, 0], state.orientation[1, 0], state.joint_position[1, 0]
    )
    assert load_tree(robot.urdf).link_names == names
    np.testing.assert_allclose(frames.transforms[0], theirs, atol=1e-5)


def test_robots_of_different_kinds_keep_their_own_frames():
    robots = [model("kuka_iiwa/model.urdf"), model("husky/husky.urdf"), model("r2d2.urdf")]
    kinematics = FleetKinematics(robots)
    state = random_state(robots, 4, seed=8)
    together = kinematics.frames(state, np.array([3, 1]))
    assert together.transforms.shape == (2, kinematics.num_frames, 3, 4)
    for slot, robot in enumerate(robots):
        alone = FleetState.allocate(1, Scene((robot,)))
        alone.position[0, 0], alone.orientation[0, 0] = state.position[3, slot], state.orientation[3, slot]
        alone.joint_position[0, 0] = state.joint_position[3, slot, : robot.num_joints]
        first, last = kinematics.offsets[slot : slot + 2]
        single = FleetKinematics([robot]).frames(alone, np.array([0]))
        assert (together.transforms[0, first:last] == single.transforms[0]).all()
    assert kinematics.frame_index(1, "base_link") == kinematics.offsets[1] + 1  # under base_footprint
    assert kinematics.frame_index(1) == kinematics.offsets[1]
    with pytest.raises(ValueError, match="front_left_wheel_link"):
        kinematics.frame_index(1, "nose")


def test_no_robots_gives_no_frames():
    kinematics = FleetKinematics([])
    assert kinematics.frames(FleetState.allocate(2, Scene(())), np.array([0, 1])).transforms.shape == (2, 0, 3, 4)


def test_numbers_are_read_as_pybullet_reads_them():
    assert numbers("0.07, 1e-2 -.5", (0.0, 0.0, 0.0)) == (0.07, 0.01, -0.5)
    assert numbers("$(optenv X 0 1)", (9.0, 9.0, 9.0)) == (0.0, 0.0, 0.0, 1.0)
    assert numbers(None, (1.0, 2.0)) == (1.0, 2.0)
    assert numbers("1", (1.0, 2.0)) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not xml", "readable"),
        ("<sdf/>", "<robot>"),
        ("<robot/>", "one root"),
        ('<robot><link name="a"/><link name="b"/></robot>', "one root"),
        ('<robot><link name="a"/><joint name="j" type="fixed"><parent link="a"/></joint></robot>', "'j'"),
        (
            '<robot><link name="a"/><link name="b"/><joint name="j" type="floating"><parent link="a"/>'
            '<child link="b"/></joint></robot>',
            "'floating'",
        ),
        (
            '<robot><link name="r"/><link name="a"/><link name="b"/>'
            '<joint name="j" type="fixed"><parent link="a"/><child link="b"/></joint>'
            '<joint name="k" type="fixed"><parent link="b"/><child link="a"/></joint>'
            '<joint name="l" type="fixed"><parent link="r"/><child link="a"/></joint></robot>',
            "loop",
        ),
    ],
)
def test_broken_urdfs_are_refused_by_name(tmp_path, text, words):
    path = tmp_path / "broken.urdf"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        load_tree(str(path))
    assert "broken.urdf" in str(error.value)


def test_missing_urdf_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.urdf"):
        load_tree(str(tmp_path / "missing.urdf"))
