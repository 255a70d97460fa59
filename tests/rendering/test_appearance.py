from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fleet_gym._pybullet import pybullet_data_path
from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.tiny import TinyRenderer
from fleet_gym.world.cameras import Camera
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, SceneBuilder, Shape
from fleet_gym.world.state import FleetState

HUSKY = RobotModel("husky", f"{pybullet_data_path()}/husky/husky.urdf", num_joints=4)
CAMERA = Camera("c", 120, 90, position=(-2, -2.5, 1.6), target=(0, 0, 0.3), modalities=("rgb", "segmentation"))
GROUND, ROBOT, BOX, BALL = range(4)


@pytest.fixture(scope="module")
def image_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("textures") / "green.png"
    green = np.zeros((4, 8, 3), np.uint8)
    green[..., 1] = np.linspace(200, 250, 32).reshape(4, 8)  # no two texels alike
    Image.fromarray(green).save(path)
    return str(path)


@pytest.fixture(scope="module")
def scene(image_file):
    builder = SceneBuilder((HUSKY,), (CAMERA,))
    builder.add_body(BodySpec("box", "obstacle", Shape("box", (0.4, 0.4, 0.4)), (0.9, 0.5, 0.3, 1.0)))
    builder.add_body(BodySpec("ball", "free", Shape("sphere", (0.3, 0.3, 0.3)), (0.4, 0.5, 0.9, 1.0)))
    assert builder.add_texture(image_file) == 0
    builder.set_arena_size(4.0)
    return builder.build()


@pytest.fixture(scope="module")
def raster(scene):
    renderer = RasterRenderer(scene)
    yield renderer
    renderer.close()


@pytest.fixture(scope="module")
def tiny(scene):
    renderer = TinyRenderer(scene)
    yield renderer
    renderer.close()


@pytest.fixture
def state(scene):
    state = FleetState.allocate(2, scene)
    state.position[..., 2] = 0.13
    state.body_position[:] = [(0.9, -0.4, 0.2), (-0.8, 0.3, 0.3)]
    state.body_active[:] = True
    return state


def draw(renderer, state, worlds=(0, 1)):
    out = allocate_images([CAMERA], len(worlds))
    renderer.render(state, np.array(worlds), [CAMERA], out)
    return out["c"], out["c_segmentation"]


def thing_mask(segmentation, thing):
    return (segmentation >= 0) & (segmentation & 0xFFFFFF == thing)


def test_only_the_changed_world_changes(raster, state):
    plain, _ = draw(raster, state)
    assert (plain[0] == plain[1]).all()
    state.color[1, ROBOT] = (0.5, 1.0, 1.0, 1.0)
    state.light[1, :3] = (1, 0, 1)
    changed, _ = draw(raster, state)
    assert (changed[0] == plain[0]).all()
    assert (changed[1] != plain[1]).any()
    alone, _ = draw(raster, state, [1])
    assert (alone[0] == changed[1]).all()


def test_colours_light_and_visibility_are_those_of_tiny(raster, tiny, state):
    rng = np.random.default_rng(0)
    state.color[0] = rng.uniform(0.2, 1.0, (4, 4))
    state.light[:] = rng.uniform(0.1, 1.0, (2, 9))
    state.visible[1, ROBOT] = False
    state.color[1, BALL] = (1, 1, 1, 0)
    (ours, our_ids), (theirs, their_ids) = draw(raster, state), draw(tiny, state)
    assert (our_ids[0] == their_ids[0]).mean() > 0.99
    assert np.abs(ours[0].astype(int) - theirs[0]).mean() < 1.0
    assert not thing_mask(our_ids[1], ROBOT).any()
    assert not thing_mask(our_ids[1], BALL).any()  # alpha 0
    assert not thing_mask(their_ids[1], ROBOT).any()
    state.color[:], state.visible[:] = 1.0, True
    (ours, _), (theirs, _) = draw(raster, state), draw(tiny, state)
    assert np.abs(ours.astype(int) - theirs).mean() < 1.0  # and back again


def test_ground_can_be_hidden(raster, tiny, state):
    state.visible[0, GROUND] = False
    for renderer in (raster, tiny):
        _, ids = draw(renderer, state)
        assert not thing_mask(ids[0], GROUND).any()
        assert thing_mask(ids[1], GROUND).any()


def test_textures_cover_boxes_and_the_ground(raster, state):
    state.texture[0, [GROUND, BOX]] = 0
    rgb, ids = draw(raster, state)
    plain, _ = draw(raster, state, [1])
    for thing, own in ((GROUND, 1.0), (BOX, 0.5)):
        pixels = rgb[0][thing_mask(ids[0], thing)]
        assert (pixels[:, [0, 2]] == 0).all()
        assert pixels[:, 1].max() <= 250 * own
        assert pixels[:, 1].min() > 0
    assert (rgb[1] == plain[0]).all()


def test_tiny_covers_what_the_rasterizer_covers_and_uncovers_it(raster, tiny, state):
    before, _ = draw(tiny, state)
    state.texture[0, :] = 0
    (ours, our_ids), (theirs, their_ids) = draw(raster, state), draw(tiny, state)
    same = our_ids[0] == their_ids[0]
    assert same.mean() > 0.99
    assert np.abs(ours[0].astype(int) - theirs[0])[same].mean() < 1.0
    assert (theirs[0] != before[0]).any(axis=-1).mean() > 0.3
    np.testing.assert_array_equal(theirs[1], before[1])
    state.texture[0, :] = -1
    again, _ = draw(tiny, state)
    np.testing.assert_array_equal(again, before)


def test_each_face_of_a_box_shows_the_part_of_the_texture_that_tiny_shows(tmp_path):
    row, column = np.mgrid[0:64, 0:64]
    path = str(tmp_path / "gradient.png")
    Image.fromarray(np.stack([4 * column, 4 * row, 0 * row], axis=-1).astype(np.uint8)).save(path)
    box = BodySpec("box", "marker", Shape("box", (0.6, 0.8, 1.0)), (1.0, 1.0, 1.0, 1.0))
    scene = Scene((), (box,), textures=(path,))
    state = FleetState.allocate(1, scene)
    state.body_active[:] = True
    state.texture[0, 1] = 0
    cameras = [
        Camera(f"c{k}", 160, 120, position=2.0 * np.array(corner), target=(0, 0, 0))
        for k, corner in enumerate([(0.8, 0.9, 1.0), (-0.8, -0.9, 1.0), (0.8, -0.9, -1.0), (-0.8, 0.9, -1.0)])
    ]
    state.visible[0, 0] = False
    images = []
    for renderer in (RasterRenderer(scene, lod=False), TinyRenderer(scene)):
        images.append(allocate_images(cameras, 1))
        renderer.render(state, np.array([0]), cameras, images[-1])
        renderer.close()
    for camera in cameras:
        ours, theirs = (image[camera.name][0].astype(int) for image in images)
        covered = (theirs != 255).any(axis=-1)
        assert covered.mean() > 0.05
        assert np.percentile(np.abs(ours - theirs)[covered], 98) <= 4  # a texel's step
        assert len(np.unique(ours[covered], axis=0)) > 100


def test_bright_factors_are_cut_off_alike(raster, tiny, state):
    state.color[0, :, :3] = (1.3, 0.4, 2.0)
    state.color[1, :, 0] = -1.0
    (ours, our_ids), (theirs, their_ids) = draw(raster, state), draw(tiny, state)
    same = our_ids == their_ids
    assert np.abs(ours.astype(int) - theirs)[same].mean() < 1.0
    ground = thing_mask(our_ids[0], GROUND)
    plain = draw(raster, FleetState.allocate(1, raster._scene), [0])[0]
    assert np.median(ours[0][ground][:, 0]) >= np.median(plain[0][:, :, 0][ground]) - 1


def test_numbers_of_threads_may_be_numpys(scene):
    assert RasterRenderer(scene, threads=np.int64(2))._core._threads == 2
    with pytest.raises(TypeError, match=r"threads: expected an int >= 1, got 2\.0"):
        RasterRenderer(scene, threads=2.0)


@pytest.mark.parametrize("name", ["raster", "tiny"])
def test_bad_looks_are_refused(name, request, state):
    renderer = request.getfixturevalue(name)
    state.texture[0, BOX] = 1
    with pytest.raises(ValueError, match="texture"):
        draw(renderer, state)
    state.texture[0, BOX] = -1
    state.texture[1, BOX] = -2
    with pytest.raises(ValueError, match=r"texture: .*got -2"):
        draw(renderer, state)
    state.texture[1, BOX] = -1
    for array, message in (
        (state.color[1, BALL], r"state\.color\[1, 3\]"),
        (state.camera_jitter[0, 0], r"state\.camera_jitter\[0, 0\]"),
    ):
        kept, array[1] = array[1], np.nan
        with pytest.raises(ValueError, match=message + ": expected finite numbers"):
            draw(renderer, state)
        array[1] = kept
    state.light[1, :3] = 0
    with pytest.raises(ValueError, match="light"):
        draw(renderer, state)
    state.light[1, :3] = (0, 0, 1)
    for column in range(3, 9):
        kept, state.light[1, column] = state.light[1, column], -0.1
        with pytest.raises(ValueError, match="colours and coefficients >= 0"):
            draw(renderer, state)
        state.light[1, column] = kept
    draw(renderer, state)


@pytest.mark.parametrize("kind", [RasterRenderer, TinyRenderer])
def test_missing_texture_is_named(kind):
    builder = SceneBuilder((), ())
    builder.add_texture("/nowhere/gone.png")
    with pytest.raises(ValueError, match=r"gone\.png"):
        kind(builder.build())


def test_jitter_moves_the_camera_in_its_own_axes(raster, tiny, scene, state):
    # Looking along +y from the south: forward +y, left -x, up +z.
    camera = Camera("c", 60, 60, position=(0, -3, 0.3), target=(0, 0, 0.3), modalities=("rgb", "segmentation"))
    state.camera_jitter[0, 0] = (0.5, 0.2, 0.1, 0, 0, 0)
    jittered = Camera(
        "d", 60, 60, position=(-0.2, -2.5, 0.4), target=(-0.2, 0.5, 0.4), modalities=("rgb", "segmentation")
    )
    moved = replace(scene, cameras=(camera,))
    renderer = RasterRenderer(moved)
    out = allocate_images([camera, jittered], 1)
    renderer.render(state, np.array([0]), [camera, jittered], out)
    assert (out["c"] == out["d"]).mean() > 0.999
    # A turn about "up" to the left by 10 degrees.
    state.camera_jitter[0, 0] = (0, 0, 0, 0, 0, np.radians(10))
    target = (-3 * np.sin(np.radians(10)), -3 + 3 * np.cos(np.radians(10)), 0.3)
    turned = replace(jittered, position=(0, -3, 0.3), target=target)
    renderer.render(state, np.array([0]), [camera, turned], out)
    assert (out["c"] == out["d"]).mean() > 0.999


def test_supersampling_averages_and_keeps_the_samples_of_ids(scene, raster, state):
    fine = RasterRenderer(scene, supersample=2)
    (smooth, smooth_ids), (plain, ids) = draw(fine, state), draw(raster, state)
    # Levels of detail are chosen by pixel size, so that outlines may differ a little.
    assert (smooth_ids == ids).mean() > 0.99
    assert 0 < np.abs(smooth.astype(int) - plain).mean() < 6
    steps = [np.abs(np.diff(image.astype(int), axis=1)).mean() for image in (smooth, plain)]
    assert steps[0] < steps[1]
    with pytest.raises(ValueError, match="supersample"):
        RasterRenderer(scene, supersample=3)


def test_shadow_lies_on_the_side_away_from_the_light(scene, state):
    lit, shadowed = RasterRenderer(scene), RasterRenderer(scene, shadows=True)
    state.visible[:, [ROBOT, BALL]] = False
    state.body_position[:, 0] = (0, 0, 0.5)
    state.light[0, :3], state.light[1, :3] = (1, 0, 1), (-1, 0, 1)
    above = Camera("c", 90, 90, position=(0, 0, 6), target=(0, 0, 0), fov=40, modalities=("rgb", "segmentation"))
    images = []
    for renderer in (lit, shadowed):
        out = allocate_images([above], 2)
        renderer.render(state, np.array([0, 1]), [above], out)
        images.append(out)
    darker = (images[1]["c"].astype(int) < images[0]["c"]).any(axis=-1) & (images[0]["c_segmentation"] == 0)
    assert not (images[1]["c"].astype(int) > images[0]["c"]).any()
    columns = [np.nonzero(darker[world])[1].mean() for world in range(2)]
    assert darker.sum(axis=(1, 2)).min() > 30
    # A box at 0.5 m under light at 45 degrees: the shadow's centre lies 0.5 m beyond.
    per_metre = 90 / (12 * np.tan(np.radians(20)))
    assert columns[0] == pytest.approx(45 - 0.5 * per_metre, abs=3)
    assert columns[1] == pytest.approx(45 + 0.5 * per_metre, abs=3)
