import logging

import numpy as np
import pytest

import fleet_gym.rendering
from fleet_gym._pybullet import DirectClient, pybullet
from fleet_gym.rendering.attached import AttachedCamera

SIZE = (160, 120)


@pytest.fixture
def client():
    client = DirectClient()
    yield client
    client.close()


def matrices(eye=(1.5, -1.8, 1.2), target=(0, 0, 0.3)):
    p = pybullet()
    return (
        p.computeViewMatrix(eye, target, [0, 0, 1]),
        p.computeProjectionMatrixFOV(55, SIZE[0] / SIZE[1], 0.05, 15.0),
    )


def both(camera, client, view, projection, **kwargs):
    p = pybullet()
    kwargs = {"flags": p.ER_SEGMENTATION_MASK_OBJECT_AND_LINKINDEX, "shadow": 0, **kwargs}
    theirs = p.getCameraImage(*SIZE, view, projection, renderer=p.ER_TINY_RENDERER, physicsClientId=client.id, **kwargs)
    return camera.getCameraImage(*SIZE, view, projection, renderer=p.ER_TINY_RENDERER, **kwargs), theirs


def assert_same(ours, theirs):
    assert ours[:2] == theirs[:2]
    for mine, other in zip(ours[2:], theirs[2:], strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
    equal = ours[4] == theirs[4]
    assert equal.mean() > 0.99
    assert np.abs(ours[2].astype(int) - theirs[2]).mean() < 1.0
    near, far = 0.05, 15.0
    metres = [far * near / (far - (far - near) * image[3].astype(float)) for image in (ours, theirs)]
    assert np.percentile(np.abs(metres[0] - metres[1])[equal & (theirs[4] >= 0)], 99) < 0.02
    assert (ours[3][theirs[4] < 0] >= 0.9999).mean() > 0.99


@pytest.mark.parametrize("flags", [0, 1])
def test_robots_with_moved_joints(client, flags):
    p = pybullet()
    client.load_urdf("plane.urdf")
    kuka = client.load_urdf("kuka_iiwa/model.urdf", useFixedBase=True, basePosition=[0.2, 0.3, 0])
    client.load_urdf("duck_vhacd.urdf", basePosition=[0.5, -0.5, 0.1], globalScaling=3.0)
    for joint in range(7):
        p.resetJointState(kuka, joint, 0.2 * joint, physicsClientId=client.id)
    camera = fleet_gym.rendering.attach(client.id, lod=False)
    assert_same(*both(camera, client, *matrices(), flags=flags))
    p.resetJointState(kuka, 1, -0.8, physicsClientId=client.id)
    p.resetBasePositionAndOrientation(kuka, [0, 0, 0], [0, 0, 0.6, 0.8], physicsClientId=client.id)
    assert_same(*both(camera, client, *matrices(), flags=flags))
    camera.close()
    camera.close()


def test_bodies_made_by_hand_and_light(client):
    p = pybullet()
    plane = p.createCollisionShape(p.GEOM_PLANE, physicsClientId=client.id)
    p.createMultiBody(0, plane, physicsClientId=client.id)
    for shape, where in (
        ({"shapeType": p.GEOM_BOX, "halfExtents": [0.2, 0.1, 0.3]}, [0, 0, 0.3]),
        ({"shapeType": p.GEOM_SPHERE, "radius": 0.2}, [0.5, 0.2, 0.2]),
        ({"shapeType": p.GEOM_CYLINDER, "radius": 0.15, "length": 0.4}, [-0.5, 0.2, 0.2]),
        ({"shapeType": p.GEOM_CAPSULE, "radius": 0.1, "length": 0.3}, [0.1, -0.5, 0.25]),
        ({"shapeType": p.GEOM_MESH, "fileName": "duck.obj", "meshScale": [0.2] * 3}, [-0.3, -0.5, 0.1]),
    ):
        visual = p.createVisualShape(**shape, rgbaColor=[0.3, 0.7, 0.5, 1], physicsClientId=client.id)
        p.createMultiBody(1, baseVisualShapeIndex=visual, basePosition=where, physicsClientId=client.id)
    camera = fleet_gym.rendering.attach(client.id)
    assert_same(*both(camera, client, *matrices()))
    light = {"lightDirection": [1, 0.5, 0.7], "lightColor": [1, 0.8, 0.6], "lightAmbientCoeff": 0.2}
    assert_same(*both(camera, client, *matrices(), lightDiffuseCoeff=0.6, lightSpecularCoeff=0.2, **light))


def test_bodies_come_and_go(client):
    p = pybullet()
    client.load_urdf("plane.urdf")
    camera = fleet_gym.rendering.attach(client.id)
    empty, _ = both(camera, client, *matrices())
    cube = client.load_urdf("cube_small.urdf", basePosition=[0, 0, 0.3], globalScaling=6.0)
    assert_same(*both(camera, client, *matrices()))
    p.changeVisualShape(cube, -1, rgbaColor=[1, 0, 0, 1], physicsClientId=client.id)
    camera.refresh()
    assert_same(*both(camera, client, *matrices()))
    p.removeBody(cube, physicsClientId=client.id)
    gone, _ = both(camera, client, *matrices())
    assert (gone[2] == empty[2]).all()


def test_what_pybullet_does_not_tell_is_drawn_by_pybullet_with_one_warning(client, caplog):
    p = pybullet()
    shape = p.createVisualShape(
        p.GEOM_MESH, vertices=[[0, 0, 0], [1, 0, 0], [0, 0, 1]], indices=[0, 1, 2], physicsClientId=client.id
    )
    p.createMultiBody(0, baseVisualShapeIndex=shape, physicsClientId=client.id)
    camera = fleet_gym.rendering.attach(client.id)
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        for _ in range(3):
            ours, theirs = both(camera, client, *matrices())
            for mine, other in zip(ours, theirs, strict=True):
                assert np.array_equal(mine, other)
    assert len(caplog.records) == 1
    assert "type 5" in caplog.text


def test_described_meshes_and_height_fields_are_drawn_by_the_rasterizer(client, caplog):
    p = pybullet()
    corners = [[-0.4, -0.3, 0], [0.5, -0.3, 0], [0.1, 0.5, 0], [0, 0, 0.7]]
    faces = [0, 1, 3, 1, 2, 3, 2, 0, 3, 0, 2, 1]
    mesh = p.createVisualShape(
        p.GEOM_MESH, vertices=corners, indices=faces, meshScale=[1, 1, 1], rgbaColor=[0.9, 0.3, 0.2, 1],
        physicsClientId=client.id,
    )  # fmt: skip
    tent = p.createMultiBody(0, -1, mesh, basePosition=[0.3, -0.2, 0.5], physicsClientId=client.id)
    rows, columns = 12, 9
    heights = (np.sin(np.arange(rows)[None] * 0.7) * 0.3 + np.arange(columns)[:, None] * 0.05).ravel()
    field = p.createCollisionShape(
        p.GEOM_HEIGHTFIELD, meshScale=[0.2, 0.25, 1.0], heightfieldData=heights.tolist(), numHeightfieldRows=rows,
        numHeightfieldColumns=columns, physicsClientId=client.id,
    )  # fmt: skip
    ground = p.createMultiBody(0, field, basePosition=[0, 0, 0.2], physicsClientId=client.id)
    camera = fleet_gym.rendering.attach(client.id)
    camera.describe_mesh(tent, corners, faces)
    camera.describe_heightfield(ground, heights, rows, columns, (0.2, 0.25, 1.0))
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        ours, theirs = both(camera, client, *matrices(eye=(2.0, -2.4, 2.2)))
    assert not caplog.records
    for body in (tent, ground):
        mine, other = ours[4] == body, theirs[4] == body
        assert other.sum() > 200
        assert (mine & other).sum() / (mine | other).sum() > 0.97
    assert np.abs(ours[3] - theirs[3])[ours[4] == theirs[4]].max() < 0.02
    with pytest.raises(ValueError, match="heights"):
        camera.describe_heightfield(ground, heights, rows, columns + 1)
    with pytest.raises(ValueError, match="indices"):
        camera.describe_mesh(tent, corners, [0, 1, 9])


def test_shadows_and_odd_projections_are_drawn_by_pybullet(client, caplog):
    p = pybullet()
    client.load_urdf("plane.urdf")
    camera = fleet_gym.rendering.attach(client.id)
    view, projection = matrices()
    skewed = p.computeProjectionMatrix(-0.02, 0.05, -0.03, 0.03, 0.05, 15.0)
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        for kwargs in ({"shadow": 1}, {"shadow": 1}):
            ours, theirs = both(camera, client, view, projection, **kwargs)
            assert (ours[2] == theirs[2]).all()
        ours, theirs = both(camera, client, view, skewed)
        assert (ours[2] == theirs[2]).all()
    assert len(caplog.records) == 2


def test_empty_client(client):
    ours, theirs = both(fleet_gym.rendering.attach(client.id), client, *matrices())
    assert (ours[2] == theirs[2]).all()
    assert (ours[4] == -1).all()


def test_bad_arguments_are_named(client):
    with pytest.raises(ValueError, match="client"):
        fleet_gym.rendering.attach(1023)
    camera = fleet_gym.rendering.attach(client.id)
    assert isinstance(camera, AttachedCamera)
    view, projection = matrices()
    with pytest.raises(ValueError, match="width"):
        camera.getCameraImage(0, 10, view, projection)
    with pytest.raises(ValueError, match="viewMatrix"):
        camera.getCameraImage(10, 10, None, projection)
    straight_down = pybullet().computeViewMatrix([0, 0, 3], [0, 0, 0], [0, 0, 1])
    with pytest.raises(ValueError, match="up vector"):
        camera.getCameraImage(10, 10, straight_down, projection)
