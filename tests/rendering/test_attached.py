import logging

import numpy as np
import pytest

import fleet_gym.rendering
from fleet_gym._pybullet import DirectClient, pybullet, pybullet_data_path
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


def test_a_body_under_the_number_of_one_that_is_gone_is_a_new_one(client):
    p = pybullet()
    client.load_urdf("plane.urdf")
    robot = client.load_urdf("r2d2.urdf", basePosition=[0, 0, 0.5])
    camera = fleet_gym.rendering.attach(client.id)
    assert_same(*both(camera, client, *matrices()))
    p.removeBody(robot, physicsClientId=client.id)
    assert client.load_urdf("cube.urdf", basePosition=[0, 0, 0.5]) == robot
    assert_same(*both(camera, client, *matrices()))
    p.resetSimulation(physicsClientId=client.id)
    client.load_urdf("plane.urdf")
    assert client.load_urdf("kuka_iiwa/model.urdf", useFixedBase=True) == robot
    assert_same(*both(camera, client, *matrices()))


def changed(matrix, **entries):
    values = list(matrix)
    for index, value in entries.items():
        values[int(index[1:])] *= value
    return values


@pytest.mark.parametrize(
    ("view_change", "projection_change", "reason"),
    [
        ({}, {"m0": -1.0}, "projection"),  # mirrored
        ({}, {"m5": -1.0}, "projection"),  # upside down
        ({}, {"m14": -1.0}, "projection"),  # near and far below 0
        ({}, {"m10": -1.0}, "projection"),  # far before near
        ({"m0": -1.0, "m4": -1.0, "m8": -1.0, "m12": -1.0}, {}, "view"),  # mirrored
        ({f"m{i}": 1.5 for i in range(12)}, {}, "view"),  # enlarged
    ],
)
def test_cameras_that_are_none_are_drawn_by_pybullet(client, caplog, view_change, projection_change, reason):
    client.load_urdf("plane.urdf")
    client.load_urdf("r2d2.urdf", basePosition=[0, 0, 0.5])
    camera = fleet_gym.rendering.attach(client.id)
    view, projection = matrices()
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        ours, theirs = both(camera, client, changed(view, **view_change), changed(projection, **projection_change))
    assert (ours[2] == theirs[2]).all()
    assert (ours[4] == theirs[4]).all()
    assert len(caplog.records) == 1
    assert f"a {reason} matrix" in caplog.text


def test_a_far_plane_that_float32_cannot_tell_from_infinity_is_pybullets(client, caplog):
    p = pybullet()
    client.load_urdf("plane.urdf")
    projection = p.computeProjectionMatrixFOV(55, SIZE[0] / SIZE[1], 0.001, 1e9)
    assert projection[10] == -1.0
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        ours, theirs = both(fleet_gym.rendering.attach(client.id), client, matrices()[0], projection)
    assert np.array_equal(ours[4], theirs[4])
    assert "0 < near < far" in caplog.text


def test_arguments_stand_where_pybullets_do(client):
    p = pybullet()
    client.load_urdf("plane.urdf")
    client.load_urdf("r2d2.urdf", basePosition=[0, 0, 0.5])
    arguments = (
        *SIZE, *matrices(), [1.0, 0.5, 2.0], [1.0, 0.9, 0.8], 3.0, 0, 0.5, 0.4, 0.1, p.ER_TINY_RENDERER,
        p.ER_SEGMENTATION_MASK_OBJECT_AND_LINKINDEX, [0.0] * 16, [0.0] * 16, client.id,
    )  # fmt: skip
    assert_same(fleet_gym.rendering.attach(client.id).getCameraImage(*arguments), p.getCameraImage(*arguments))


def test_numbers_below_zero_mean_pybullets_own_and_no_mask_means_none(client):
    p = pybullet()
    client.load_urdf("plane.urdf")
    camera = fleet_gym.rendering.attach(client.id)
    unset = {f"light{name}Coeff": -1.0 for name in ("Ambient", "Diffuse", "Specular")}
    assert_same(*both(camera, client, *matrices(), lightDistance=-1.0, **{**unset, "shadow": -1}))
    unmasked = camera.getCameraImage(*SIZE, *matrices(), flags=p.ER_NO_SEGMENTATION_MASK)
    assert (unmasked[4] == -1).all()
    assert unmasked[4].dtype == np.int32


def test_a_colour_below_black_is_black(client):
    p = pybullet()
    cube = client.load_urdf("cube.urdf", basePosition=[0, 0, 0.3])
    p.changeVisualShape(cube, -1, rgbaColor=[-1.0, -0.3, 0.5, 1.0], physicsClientId=client.id)
    image = fleet_gym.rendering.attach(client.id).getCameraImage(*SIZE, *matrices())
    pixels = image[2][image[4] == cube]
    assert len(pixels) > 100
    assert (pixels[:, :2] == 0).all()
    assert pixels[:, 2].max() > 20


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"width": 16.0}, TypeError, r"width: expected an int >= 1 and <= 16384, got 16\.0"),
        ({"height": 20_000}, ValueError, "height: .*got 20000"),
        ({"lightDirection": [1, 2]}, ValueError, r"lightDirection: expected 3 numbers, got \[1, 2\]"),
        ({"lightDirection": [0, 0, 0]}, ValueError, "directions of positive length"),
        ({"lightColor": [1, 1, 1, 1]}, ValueError, "lightColor: expected 3 numbers"),
        ({"lightColor": [1, -1, 1]}, ValueError, r"lightColor\[1\]: expected a finite number >= 0, got -1"),
        ({"lightAmbientCoeff": float("nan")}, ValueError, "lightAmbientCoeff: expected a finite number, got nan"),
        ({"lightDir": [1, 1, 1]}, TypeError, "lightDir"),
        ({"physicsClientId": 1000}, ValueError, "physicsClientId: expected .*, got 1000"),
    ],
)
def test_arguments_that_would_be_misread_are_refused(client, arguments, error, message):
    view, projection = matrices()
    call = {"width": 16, "height": 12, "viewMatrix": view, "projectionMatrix": projection, **arguments}
    with pytest.raises(error, match=message):
        fleet_gym.rendering.attach(client.id).getCameraImage(**call)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"client": "0"}, TypeError, "client: expected an int >= 0, got '0'"),
        ({"client": 2**40}, ValueError, f"client: .*got {2**40}"),
        ({"threads": 0}, ValueError, "threads: expected an int >= 1, got 0"),
        ({"lod": "no"}, TypeError, "lod: expected True or False, got 'no'"),
    ],
)
def test_bad_attachments_are_refused_at_once(client, arguments, error, message):
    with pytest.raises(error, match=message):
        fleet_gym.rendering.attach(**{"client": client.id, **arguments})


def test_a_soft_body_is_drawn_by_pybullet_with_one_warning_and_only_as_long_as_it_is_there(client, caplog):
    p = pybullet()
    p.resetSimulation(p.RESET_USE_DEFORMABLE_WORLD, physicsClientId=client.id)
    client.load_urdf("plane.urdf")
    cloth = p.loadSoftBody(
        f"{pybullet_data_path()}/cloth_z_up.obj", basePosition=[0, 0, 0.4], scale=0.5, mass=1, useMassSpring=1,
        physicsClientId=client.id,
    )  # fmt: skip
    camera = fleet_gym.rendering.attach(client.id)
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        for _ in range(2):
            p.stepSimulation(physicsClientId=client.id)
            ours, theirs = both(camera, client, *matrices())
            for mine, other in zip(ours, theirs, strict=True):
                assert np.array_equal(mine, other)
            assert (theirs[4] == cloth).sum() > 100
    assert len(caplog.records) == 1
    assert f"soft body {cloth}" in caplog.text
    p.removeBody(cloth, physicsClientId=client.id)
    ours, theirs = both(camera, client, *matrices())
    assert_same(ours, theirs)
    assert not np.array_equal(ours[3], theirs[3])  # the rasterizer's again: its depth is rounded differently
