import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from PIL import Image

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering import raster_core
from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.cameras import Camera, quaternion_matrix
from fleet_gym.world.forward_kinematics import load_tree
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import FleetState, yaw_quaternion

ALL = ("rgb", "depth", "segmentation")


def model(urdf):
    path = f"{pybullet_data_path()}/{urdf}"
    return RobotModel(urdf, path, num_joints=load_tree(path).num_joints)


def draw(renderer, state, worlds, cameras):
    out = allocate_images(cameras, len(worlds))
    renderer.render(state, np.asarray(worlds), cameras, out)
    return out


def overlap(a, b):
    return (a & b).sum() / max(1, (a | b).sum())


# Distance of the camera and height of the root link above the ground, m.
ZOO = {
    "husky/husky.urdf": (1.6, 0.13),
    "r2d2.urdf": (1.8, 0.48),
    "racecar/racecar.urdf": (0.8, 0.0),
    "kuka_iiwa/model.urdf": (2.0, 0.0),
    "laikago/laikago_toes.urdf": (1.3, 0.5),
    "a1/a1.urdf": (1.0, 0.4),
    "humanoid/humanoid.urdf": (6.0, 1.5),
    "quadruped/minitaur.urdf": (1.0, 0.2),
    "mini_cheetah/mini_cheetah.urdf": (1.0, 0.4),
    "table/table.urdf": (2.5, 0.0),
    "duck_vhacd.urdf": (0.3, 0.0),
    "lego/lego.urdf": (0.2, 0.02),
    "sphere2.urdf": (2.5, 0.5),
    "soccerball.urdf": (2.5, 0.5),
    "xarm/xarm6_robot.urdf": (1.5, 0.0),
    "cube.urdf": (2.5, 0.5),
}
# PyBullet places a collision cylinder of a1 elsewhere, and draws rounded shapes with vertices left out.
LEAST_EQUAL = {"a1/a1.urdf": 0.99, "humanoid/humanoid.urdf": 0.995}


def posed_robot(urdf, height):
    robot = model(urdf)
    scene = Scene((robot,))
    state = FleetState.allocate(1, scene)
    state.position[0, 0] = (0.0, 0.0, height)
    state.joint_position[:] = np.random.default_rng(1).uniform(-0.2, 0.2, state.joint_position.shape)
    return scene, state


@pytest.mark.parametrize("urdf", ZOO)
def test_picture_is_tiny_renderers(urdf):
    distance, height = ZOO[urdf]
    scene, state = posed_robot(urdf, height)
    eye = (0.65 * distance, -0.7 * distance, height + 0.45 * distance)
    camera = Camera("c", 640, 480, near=0.02, far=20, position=eye, target=(0, 0, height), modalities=ALL)
    tiny, raster = TinyRenderer(scene), RasterRenderer(scene, lod=False)
    theirs, ours = draw(tiny, state, [0], [camera]), draw(raster, state, [0], [camera])
    tiny.close()
    equal = ours["c_segmentation"] == theirs["c_segmentation"]
    assert (theirs["c_segmentation"] > 0).mean() > 0.01  # the robot is in the picture
    assert equal.mean() >= LEAST_EQUAL.get(urdf, 0.997)
    assert np.percentile(np.abs(ours["c_depth"] - theirs["c_depth"])[equal], 99) <= 0.01
    difference = np.abs(ours["c"].astype(int) - theirs["c"])
    assert difference.mean() <= 1.0
    assert difference[equal].mean() <= 0.1  # lighting, texels and rounding are the same, not merely similar


@pytest.mark.parametrize("urdf", ["husky/husky.urdf", "r2d2.urdf", "kuka_iiwa/model.urdf", "racecar/racecar.urdf"])
def test_simplified_meshes_keep_the_outline(urdf):
    distance, height = ZOO[urdf]
    scene, state = posed_robot(urdf, height)
    eye = (0.9 * distance, -distance, height + 0.6 * distance)
    camera = Camera("c", 320, 240, near=0.02, far=20, position=eye, target=(0, 0, height), modalities=ALL)
    tiny, raster = TinyRenderer(scene), RasterRenderer(scene)
    theirs, ours = draw(tiny, state, [0], [camera]), draw(raster, state, [0], [camera])
    tiny.close()
    assert overlap(ours["c_segmentation"] > 0, theirs["c_segmentation"] > 0) >= 0.95
    equal = ours["c_segmentation"] == theirs["c_segmentation"]
    assert np.percentile(np.abs(ours["c_depth"] - theirs["c_depth"])[equal], 99) <= 0.01
    assert np.abs(ours["c"].astype(int) - theirs["c"]).mean() <= 1.0


def test_small_pictures_are_those_of_a_large_one_sampled():
    # At 64 x 64 TinyRenderer leaves out small triangles, so that its own large picture is the reference.
    scene, state = posed_robot("kuka_iiwa/model.urdf", 0.0)
    view = {"position": (3.0, -3.0, 2.2), "target": (0, 0, 0.5), "far": 20.0, "modalities": ALL}
    small, large = Camera("c", 64, 64, **view), Camera("c", 640, 640, **view)
    tiny = TinyRenderer(scene)
    reference = draw(tiny, state, [0], [large])["c_segmentation"][0]
    theirs = draw(tiny, state, [0], [small])["c_segmentation"][0] > 0
    tiny.close()
    # Row r of the small picture lies on the lower edge of its pixel: on row 10 * r + 9 of the large one.
    sampled = reference[9::10, ::10] > 0
    ours = draw(RasterRenderer(scene), state, [0], [small])["c_segmentation"][0] > 0
    full = draw(RasterRenderer(scene, lod=False), state, [0], [small])["c_segmentation"][0] > 0
    assert overlap(full, sampled) > 0.99
    assert overlap(ours, sampled) > 0.9
    assert overlap(ours, sampled) > overlap(theirs, sampled)


BODIES = (
    BodySpec("box", "obstacle", Shape("box", (0.4, 0.6, 0.8)), (0.2, 0.4, 0.8, 1.0)),
    BodySpec("can", "obstacle", Shape("cylinder", (0.3, 0.3, 0.8)), (0.9, 0.4, 0.8, 1.0)),
    BodySpec("ball", "free", Shape("sphere", (0.4, 0.4, 0.4)), (0.2, 0.9, 0.3, 1.0)),
    BodySpec("goal", "marker", Shape("cylinder", (0.5, 0.5, 0.02)), (0.1, 0.9, 0.1, 1.0)),
)
FLEET = Scene((model("husky/husky.urdf"), model("r2d2.urdf")), BODIES)
SIDE = Camera("side", 160, 120, position=(-2.5, -3, 2), target=(0, 0, 0.3), modalities=ALL)
FRONT = Camera("front", 80, 60, mount=0, offset=(0.6, 0, 0.3), modalities=ALL)


def fleet_state(worlds=3):
    rng = np.random.default_rng(4)
    state = FleetState.allocate(worlds, FLEET)
    state.position[:, :, :2] = np.array([[-0.6, -0.6], [0.7, 0.8]]) + rng.normal(size=(worlds, 2, 2)) * 0.1
    state.position[..., 2] = (0.13, 0.48)
    state.orientation[:] = yaw_quaternion(rng.uniform(-3, 3, (worlds, 2)))
    state.joint_position[:] = rng.uniform(-0.5, 0.5, state.joint_position.shape)
    state.body_position[:] = [(0.9, -0.6, 0.4), (-0.9, 0.8, 0.4), (0.1, 0.0, 0.4), (0.0, -1.2, 0.01)]
    state.body_position[:, :, :2] += rng.normal(size=(worlds, 4, 2)) * 0.1
    state.body_active[:] = True
    return state


@pytest.fixture(scope="module")
def raster():
    renderer = RasterRenderer(FLEET)
    yield renderer
    renderer.close()


def test_whole_scenes_and_mounted_cameras_are_tiny_renderers(raster):
    state = fleet_state()
    state.active[1, 0] = False
    state.body_active[2, 0] = False
    tiny = TinyRenderer(FLEET)
    theirs, ours = (draw(r, state, [0, 1, 2], [SIDE, FRONT]) for r in (tiny, raster))
    tiny.close()
    for key in ("side_segmentation", "front_segmentation"):
        for world in range(3):
            assert (ours[key][world] == theirs[key][world]).mean() > 0.985
            assert set(np.unique(ours[key][world]) & 0xFFFFFF) == set(np.unique(theirs[key][world]) & 0xFFFFFF)
    for key in ("side", "front"):
        assert np.abs(ours[key].astype(int) - theirs[key]).mean() < 1.5
    assert not (ours["side_segmentation"][1] & 0xFFFFFF == FLEET.robot_segmentation_id(0)).any()
    assert not (ours["side_segmentation"][2] == FLEET.body_segmentation_id(0)).any()


def test_bytes_do_not_depend_on_threads_batches_or_modalities(raster):
    state = fleet_state(5)
    cameras = [SIDE, FRONT]
    together = draw(raster, state, range(5), cameras)
    for threads in (2, 3, 8):
        parallel = RasterRenderer(FLEET, threads=threads)
        again = draw(parallel, state, range(5), cameras)
        one_world = draw(parallel, state, [3], cameras)  # fewer images than threads: bands of rows
        parallel.close()
        for key, images in together.items():
            assert (again[key] == images).all()
            assert (one_world[key][0] == images[3]).all()
    color_only = Camera("side", 160, 120, position=(-2.5, -3, 2), target=(0, 0, 0.3))
    assert (draw(raster, state, [4], [color_only])["side"][0] == together["side"][4]).all()


@pytest.mark.parametrize("options", [{}, {"supersample": 2}, {"shadows": True}])
@pytest.mark.parametrize("size", [(33, 33), (3, 719)])
def test_bytes_do_not_depend_on_bands_at_odd_heights(monkeypatch, options, size):
    state = fleet_state(3)
    state.color[:] = np.random.default_rng(2).uniform(0.3, 1.0, state.color.shape)
    cameras = [replace(SIDE, width=size[0], height=size[1]), replace(FRONT, width=size[0], height=size[1])]
    expected = draw(RasterRenderer(FLEET, **options), state, range(3), cameras)
    monkeypatch.setattr(raster_core, "_PIXELS_PER_BAND", 700)
    for threads in (1, 2, 3):
        renderer = RasterRenderer(FLEET, threads=threads, **options)
        for worlds in ([0, 1, 2], [1]):
            for key, images in draw(renderer, state, worlds, cameras).items():
                assert (images == expected[key][worlds]).all()
        renderer.close()


def test_large_images_are_drawn_in_bands_like_small_ones(raster):
    large = replace(SIDE, width=1283, height=723)  # two bands
    assert large.width * large.height > 1.5 * raster_core._PIXELS_PER_BAND
    state = fleet_state(1)
    images = draw(raster, state, [0], [large])
    parallel = RasterRenderer(FLEET, threads=3)
    for key, again in draw(parallel, state, [0], [large]).items():
        assert (again == images[key]).all()
    parallel.close()


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"shadows": True}])
def test_threads_may_share_a_renderer(options):
    renderer, state = RasterRenderer(FLEET, **options), fleet_state(3)
    far = replace(SIDE, name="far", width=300, height=200)
    near = replace(far, name="near", width=311, height=207, position=(-0.5, -0.6, 0.5))
    expected = {camera.name: draw(renderer, state, range(3), [camera]) for camera in (far, near)}
    with ThreadPoolExecutor(3) as users:
        cameras = [far, near, far] * 10
        drawn = list(users.map(lambda camera: draw(renderer, state, range(3), [camera]), cameras))
    for camera, images in zip(cameras, drawn, strict=True):
        for key, image in images.items():
            assert (image == expected[camera.name][key]).all()
    renderer.close()


def _draw_in_child(pipe):
    pipe.send(draw(RasterRenderer(FLEET, threads=2), fleet_state(), [0, 2], [SIDE, FRONT]))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_another_process_draws_the_same_bytes(raster, method):
    here = draw(raster, fleet_state(), [0, 2], [SIDE, FRONT])
    context = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    child = context.Process(target=_draw_in_child, args=(theirs,))
    child.start()
    assert mine.poll(120)
    there = mine.recv()
    child.join(30)
    assert child.exitcode == 0
    for key, images in here.items():
        assert (there[key] == images).all()


def test_triangles_that_share_edges_leave_no_holes():
    # A ball of many triangles fills the picture; any background pixel in it is a hole.
    scene = Scene((model("sphere2.urdf"),))
    renderer = RasterRenderer(scene)
    rng = np.random.default_rng(0)
    state = FleetState.allocate(8, scene)
    quaternions = rng.normal(size=(8, 1, 4))
    state.orientation[:] = quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)
    state.position[..., 2] = 3.0
    camera = Camera("c", 256, 256, position=(0, -0.9, 3), target=(0, 0, 3), fov=50, modalities=("segmentation",))
    assert (draw(renderer, state, range(8), [camera])["c_segmentation"] == 1).all()


def test_ground_is_cut_at_the_near_plane_and_the_horizon():
    scene = Scene(())
    state = FleetState.allocate(1, scene)
    low = Camera("low", 64, 64, position=(0, 0, 0.02), target=(1, 0, 0.02), near=0.01, far=40.0, modalities=ALL)
    out = draw(RasterRenderer(scene), state, [0], [low])
    assert (out["low_segmentation"][0, :31] == -1).all()
    assert (out["low_segmentation"][0, 33:] == 0).all()
    rows = np.arange(33, 64)
    # Row r samples the lower edge of its pixel: the ray falls by tan(fov / 2) * (r + 1 - 32) / 32 per metre.
    expected = 0.02 / (np.tan(np.radians(30)) * (rows + 1 - 32) / 32)
    np.testing.assert_allclose(out["low_depth"][0, 33:, 20], expected, rtol=1e-5)


def test_depth_and_segmentation_of_a_wall():
    wall = BodySpec("wall", "obstacle", Shape("box", (0.2, 8.0, 8.0)), (1.0, 0.5, 0.25, 1.0))
    scene = Scene((), (wall,))
    state = FleetState.allocate(1, scene)
    state.body_position[0, 0] = (3.1, 0, 4.5)
    state.body_active[:] = True
    camera = Camera("c", 32, 32, position=(0, 0, 4.5), target=(1, 0, 4.5), far=10.0, modalities=ALL)
    out = draw(RasterRenderer(scene), state, [0], [camera])
    assert (out["c_segmentation"] == scene.body_segmentation_id(0)).all()
    np.testing.assert_allclose(out["c_depth"], 3.0, rtol=1e-6)
    # Ambient 0.6 plus diffuse 0.35 n.l with n = -x, no highlight, on colours cut to whole levels.
    brightness = 0.6 + 0.35 * 50 / np.sqrt(50**2 + 30**2 + 100**2)
    assert (out["c"] == np.floor(brightness * np.floor([255.0, 127.5, 63.75])).astype(np.uint8)).all()


@pytest.mark.parametrize("where", ["inside", "at the surface", "behind"])
def test_camera_in_awkward_places_gives_defined_pictures(raster, where):
    state = fleet_state(1)
    state.body_position[0, 2] = (0, 0, 1)
    eye = {"inside": (0, 0, 1), "at the surface": (-0.4, 0, 1), "behind": (3, 0, 1)}[where]
    camera = Camera("c", 40, 30, position=eye, target=(eye[0] + 1, 0, 1), modalities=ALL)
    out = draw(raster, state, [0], [camera])
    assert np.isfinite(out["c_depth"]).all()
    assert ((out["c_depth"] >= camera.near - 1e-6) & (out["c_depth"] <= camera.far)).all()
    # Back faces are not drawn, so that a camera inside a body looks out of it.
    assert (out["c_segmentation"][out["c_segmentation"] >= 0] & 0xFFFFFF != FLEET.body_segmentation_id(2)).all()


def test_random_views_and_poses_never_fail(raster):
    rng = np.random.default_rng(11)
    state = fleet_state(4)
    for _ in range(60):
        state.position[:] = rng.normal(size=state.position.shape) * 10 ** rng.uniform(-2, 3)
        quaternions = rng.normal(size=state.orientation.shape)
        state.orientation[:] = quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)
        state.body_position[:] = rng.normal(size=state.body_position.shape) * 10 ** rng.uniform(-3, 2)
        near = 10 ** rng.uniform(-3, 0)
        camera = Camera(
            "c", int(rng.integers(1, 70)), int(rng.integers(1, 70)), fov=rng.uniform(1.0, 179.0), near=near,
            far=near * 10 ** rng.uniform(0.01, 5), position=tuple(rng.normal(size=3)), target=tuple(rng.normal(size=3)),
            modalities=ALL,
        )  # fmt: skip
        out = draw(raster, state, range(4), [camera])
        hit = out["c_segmentation"] >= 0
        assert (out["c"][~hit] == 255).all()
        assert np.isfinite(out["c_depth"]).all()
        assert (out["c_depth"] <= np.float32(camera.far)).all()
        assert (out["c_depth"] > near * 0.999).all()


@pytest.mark.parametrize("size", [1e9, 1e150, 1e300])
def test_poses_beyond_all_measure_never_fail(raster, size):
    state = fleet_state(2)
    state.position[0] *= size
    state.orientation[1] *= size**0.4
    state.body_position[0, :2] = size
    state.joint_position[1] = size
    out = draw(raster, state, [0, 1], [SIDE, FRONT])
    assert (out["side_depth"] <= SIDE.far).all()


def test_bad_calls_are_refused(raster):
    state = fleet_state()
    with pytest.raises(ValueError, match="side_depth"):
        raster.render(state, np.array([0]), [SIDE], {"side": np.zeros((1, 120, 160, 3), np.uint8)})
    state.orientation[1, 1, 0] = np.inf
    with pytest.raises(ValueError, match=r"state\.orientation\[1, 1\]"):
        draw(raster, state, [1], [SIDE])
    draw(raster, state, [0], [SIDE])
    for threads, error in ((0, ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(error, match="threads"):
            RasterRenderer(Scene(()), threads=threads)


def test_output_may_be_strided(raster):
    state = fleet_state()
    plain = draw(raster, state, [0, 1], [SIDE])
    padded = {key: np.zeros((4, *a.shape[1:]), a.dtype)[::2] for key, a in plain.items()}
    raster.render(state, np.array([0, 1]), [SIDE], padded)
    for key, images in plain.items():
        assert (padded[key] == images).all()


def test_many_shapes():
    boxes = tuple(BodySpec(f"b{i}", "obstacle", Shape("box", (0.05, 0.05, 0.05))) for i in range(10_000))
    scene = Scene((), boxes)
    state = FleetState.allocate(1, scene)
    grid = np.stack(np.meshgrid(np.arange(100), np.arange(100)), axis=-1).reshape(-1, 2) * 0.1 - 5
    state.body_position[0, :, :2] = grid
    state.body_position[0, :, 2] = 0.025
    state.body_active[:] = True
    camera = Camera("c", 400, 400, position=(0, 0, 9), target=(0, 0, 0), modalities=("segmentation",))
    ids = np.unique(draw(RasterRenderer(scene), state, [0], [camera])["c_segmentation"])
    assert len(ids) > 9000


def test_close_twice_and_use_after():
    renderer = RasterRenderer(Scene(()), threads=2)
    renderer.close()
    renderer.close()
    with pytest.raises(ClosedEnvironmentError):
        draw(renderer, FleetState.allocate(1, Scene(())), [0], [SIDE])


def test_texture_is_upright_and_repeats(tmp_path):
    # A 2 x 1 m sheet seen from above, textured with a 2 x 2 image, v upwards.
    Image.fromarray(np.array([[[250, 0, 0], [0, 250, 0]], [[0, 0, 250], [250, 250, 0]]], np.uint8)).save(
        tmp_path / "t.png"
    )
    (tmp_path / "m.mtl").write_text("newmtl a\nmap_Kd t.png\n")
    (tmp_path / "m.obj").write_text(
        "mtllib m.mtl\nv -1 -0.5 0\nv 1 -0.5 0\nv 1 0.5 0\nv -1 0.5 0\nvt 0 0\nvt 2 0\nvt 2 1\nvt 0 1\nvn 0 0 1\n"
        "usemtl a\nf 1/1/1 2/2/1 3/3/1 4/4/1\n"
    )
    (tmp_path / "m.urdf").write_text(
        '<robot name="m"><link name="a"><visual><geometry><mesh filename="m.obj"/></geometry></visual></link></robot>'
    )
    scene = Scene((RobotModel("m", str(tmp_path / "m.urdf")),))
    state = FleetState.allocate(1, scene)
    state.position[0, 0, 2] = 1.0
    camera = Camera("c", 200, 100, position=(0, 0, 3), target=(0, 0, 0), fov=28)
    tiny = TinyRenderer(scene)
    theirs, ours = draw(tiny, state, [0], [camera])["c"][0], draw(RasterRenderer(scene), state, [0], [camera])["c"][0]
    tiny.close()
    assert (np.abs(ours.astype(int) - theirs).max(axis=-1) <= 1).mean() > 0.99
    left = [ours[row, column].argmax() for row, column in ((30, 15), (30, 65), (70, 15))]
    assert left == [0, 1, 2]  # red above, green beside it, blue below
    assert (ours[30, 65] == ours[30, 160]).all()


def test_frames_follow_the_state_not_the_order_of_worlds(raster):
    state = fleet_state()
    plain = draw(raster, state, [0, 1, 2], [FRONT])
    mixed = draw(raster, state, [2, 0, 2], [FRONT])
    for key, images in plain.items():
        assert (mixed[key] == images[[2, 0, 2]]).all()
    assert np.allclose(quaternion_matrix(state.orientation[0, 0]) @ [0, 0, 1], [0, 0, 1])
