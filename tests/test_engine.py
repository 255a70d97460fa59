"""Engine: the renderer is made late, asked for little, and closed."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym import Camera
from fleet_gym.engine import Engine, FrameRequest, Placement
from fleet_gym.world.robots import robot_models
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import WorldSample, yaw_quaternion

TOP = Camera("top", 12, 10, position=(0, 0, 4), target=(0, 0, 0))


class CountingRenderer:
    """Writes each world's x position and counts what it is asked for."""

    def __init__(self):
        self.drawn, self.closed = [], False

    def render(self, state, worlds, cameras, out):
        self.drawn.append(worlds.tolist())
        for camera in cameras:
            out[camera.name][:] = (10 * state.position[worlds, 0, 0]).astype(np.uint8)[:, None, None, None]

    def close(self):
        self.closed = True


@pytest.fixture
def engine(mocker):
    renderer = CountingRenderer()
    factory = mocker.patch("fleet_gym.engine.make_renderer", return_value=renderer)
    engine = Engine(Scene(robot_models("diffbot", 1)), 3, control_dt=0.1)
    assert not factory.called
    engine.renderer, engine.factory = renderer, factory
    yield engine
    engine.close()


def placement(worlds, x):
    n = len(worlds)
    position = np.zeros((n, 1, 3))
    position[:, 0, 0] = x
    empty = np.zeros((n, 0))
    sample = WorldSample(
        position,
        yaw_quaternion(np.zeros((n, 1))),
        np.ones((n, 1), bool),
        np.zeros((n, 0, 3)),
        np.zeros((n, 0, 4)),
        empty > 0,
    )
    return Placement(np.array(worlds), sample)


def request(worlds):
    return FrameRequest(np.array(worlds, dtype=np.intp), (TOP,), {"top": np.zeros((len(worlds), 10, 12, 3), np.uint8)})


def test_only_what_is_asked_for_is_drawn(engine):
    engine.reset(placement([0, 1, 2], [1, 2, 3]))
    engine.advance(np.zeros((3, 1, 2)), np.ones(3, bool), frames=[request([2, 0]), request([])])
    assert engine.renderer.drawn == [[2, 0]]
    assert engine.factory.call_count == 1


def test_ended_worlds_are_kept_until_the_next_call(engine):
    engine.reset(placement([0, 1, 2], [1, 2, 3]))
    engine.reset(placement([2, 1], [7, 8]), keep_final=True)
    final, now = request([1, 2, 0]), request([1, 2, 0])
    engine.render(final, final=True)
    engine.render(now)
    assert final.out["top"][:, 0, 0, 0].tolist() == [20, 30, 10]
    assert now.out["top"][:, 0, 0, 0].tolist() == [80, 70, 10]
    engine.advance(np.zeros((3, 1, 2)), np.ones(3, bool))
    engine.render(final, final=True)
    assert final.out["top"][:, 0, 0, 0].tolist() == [80, 70, 10]


def test_a_placed_world_is_not_stepped(engine):
    engine.reset(placement([0, 1, 2], [0, 0, 0]))
    commands = np.full((3, 1, 2), 0.5)
    engine.advance(commands, np.array([True, False, True]), placement([1], [4]))
    assert engine.state.position[:, 0, 0].round(3).tolist()[1] == 4
    assert (engine.state.position[[0, 2], 0, 0] > 0).all()


def test_close_closes_the_renderer_and_may_be_repeated(engine):
    engine.reset(placement([0, 1, 2], [0, 0, 0]), [request([0])])
    engine.close()
    engine.close()
    assert engine.renderer.closed
