"""The GL renderer: needs the extra ``gl`` and EGL (Mesa's llvmpipe will do)."""

import multiprocessing
import sys
import threading

import moderngl
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from fleet_gym import FleetVectorEnv
from fleet_gym.rendering.base import allocate_images
from fleet_gym.rendering.gl import GLRenderer
from fleet_gym.rendering.raster import RasterRenderer
from fleet_gym.rendering.select import make_renderer
from fleet_gym.testing import assert_no_leak
from fleet_gym.world.cameras import Camera
from fleet_gym.world.robots import robot_model
from fleet_gym.world.scene import BodySpec, Scene, Shape
from fleet_gym.world.state import FleetState, yaw_quaternion

ALL = ("rgb", "depth", "segmentation")
SCENE = Scene(
    (robot_model("husky"), robot_model("r2d2"), robot_model("kuka_iiwa")),
    (BodySpec("box", "obstacle", Shape("box", (0.4, 0.6, 0.8)), (0.2, 0.4, 0.8, 1.0)),),
)
SIDE = Camera("side", 160, 120, position=(-2.5, -3, 2), target=(0, 0, 0.3), modalities=ALL)
FRONT = Camera("front", 81, 61, mount=0, offset=(0.6, 0, 0.3), modalities=ALL)


def fleet_state(worlds=3):
    rng = np.random.default_rng(4)
    state = FleetState.allocate(worlds, SCENE)
    state.position[:, :, :2] = np.array([[-0.6, -0.6], [0.7, 0.8], [0.8, -0.7]]) + rng.normal(size=(worlds, 3, 2)) * 0.1
    state.position[..., 2] = (0.13, 0.48, 0.0)
    state.orientation[:] = yaw_quaternion(rng.uniform(-3, 3, (worlds, 3)))
    state.joint_position[:] = rng.uniform(-0.5, 0.5, state.joint_position.shape)
    state.body_position[:] = (-0.9, 0.8, 0.4)
    state.body_active[:] = True
    state.light[1:2, :3] = (1, 0.2, 0.5)
    state.color[2:3, 1] = (0.4, 1, 0.7, 1)
    return state


def draw(renderer, state, worlds, cameras):
    out = allocate_images(cameras, len(worlds))
    renderer.render(state, np.asarray(worlds), cameras, out)
    return out


@pytest.mark.parametrize("lod", [False, True])
def test_same_picture_as_the_rasterizer(lod):
    gl, raster = GLRenderer(SCENE, lod=lod), RasterRenderer(SCENE, lod=lod)
    state = fleet_state()
    ours, reference = (draw(renderer, state, [0, 1, 2], [SIDE, FRONT]) for renderer in (gl, raster))
    for name in ("side", "front"):
        equal = ours[f"{name}_segmentation"] == reference[f"{name}_segmentation"]
        assert equal.mean() > 0.995
        difference = np.abs(ours[name].astype(int) - reference[name])
        assert difference.mean() < 1.0
        assert (difference[equal].max(axis=-1) <= 1).mean() > 0.98
        depth = np.abs(ours[f"{name}_depth"] - reference[f"{name}_depth"])
        assert np.percentile(depth[equal], 99) < 0.01
    again, mixed = draw(gl, state, [0, 1, 2], [SIDE]), draw(gl, state, [2, 0], [SIDE])
    for key, images in again.items():
        assert (images == ours[key]).all()
        # Where in the column a tile lies decides how the driver rounds: single pixels on edges differ.
        assert np.isclose(mixed[key], images[[2, 0]], rtol=1e-4).mean() > 0.99
    assert "GL_RENDERER" not in gl.info or gl.info["GL_RENDERER"]
    gl.close()
    gl.close()
    with pytest.raises(ClosedEnvironmentError):
        draw(gl, state, [0], [SIDE])


def test_many_tiles_are_drawn_in_several_columns():
    state = fleet_state(200)
    camera = Camera("c", 20, 100, position=(-2.5, -3, 2), target=(0, 0, 0.3))
    gl = GLRenderer(SCENE)
    together = draw(gl, state, range(200), [camera])["c"]
    assert (draw(gl, state, [199], [camera])["c"][0] == together[199]).mean() > 0.99
    gl.close()


def _use(renderer, pipe):
    try:
        draw(renderer, fleet_state(1), [0], [SIDE])
    except RuntimeError as error:
        pipe.send(str(error))
    else:
        pipe.send("")


def test_use_after_a_fork_or_in_another_thread_is_refused():
    gl = GLRenderer(SCENE)
    draw(gl, fleet_state(1), [0], [SIDE])
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_use, args=(gl, theirs))
    child.start()
    assert mine.poll(60)
    assert "process and thread" in mine.recv()
    child.join(30)
    thread = threading.Thread(target=_use, args=(gl, theirs))
    thread.start()
    thread.join(60)
    assert "process and thread" in mine.recv()
    gl.close()


def test_made_by_name():
    renderer = make_renderer("gl", SCENE)
    assert isinstance(renderer, GLRenderer)
    renderer.close()


def gl_env():
    camera = Camera("overhead", 32, 24, position=(0, 0, 8), target=(0, 0, 0))
    return FleetVectorEnv(2, num_robots=1, robot="diffbot", cameras=[camera], renderer="gl", max_episode_steps=3)


def test_pictures_leave_nothing_behind():
    env = gl_env()
    assert_no_leak(env, 30, steps=5)
    env.close()


def test_a_lifetime_leaves_behind_what_a_context_of_moderngl_does():
    def lifetime():
        env = gl_env()
        env.reset(seed=0)
        env.step(env.action_space.sample())
        env.close()

    def context():
        moderngl.create_context(standalone=True, backend="egl", require=430).release()

    anything = {"max_native_bytes": sys.float_info.max, "max_blocks": sys.float_info.max}
    ours, theirs = (assert_no_leak(cycle, 30, **anything) for cycle in (lifetime, context))
    assert ours.blocks - theirs.blocks < 10
    assert ours.native_bytes - theirs.native_bytes < 512
