"""FleetState: layout, views, copies."""

from __future__ import annotations

from multiprocessing import shared_memory

import numpy as np
import pytest

from fleet_gym.world.robots import RobotModel
from fleet_gym.world.scene import BodySpec, Scene, SceneBuilder, Shape
from fleet_gym.world.state import FleetState, yaw_quaternion

SCENE = Scene(
    (RobotModel("a", "a.urdf", footprint_radius=0.3, num_joints=2), RobotModel("b", "b.urdf", num_joints=5)),
    (BodySpec("crate", "obstacle", Shape("box", (1, 2, 3))),),
)


def test_arrays_are_contiguous_and_padded():
    state = FleetState.allocate(4, SCENE)
    assert state.position.shape == (4, 2, 3)
    assert state.joint_position.shape == (4, 2, 5)
    assert state.body_position.shape == (4, 1, 3)
    assert all(array.flags.c_contiguous for array in vars(state).values())
    assert (state.orientation == [0, 0, 0, 1]).all()
    assert state.active.all()


def test_rows_are_views_and_take_copies():
    state = FleetState.allocate(4, SCENE)
    view, copy = state.rows(slice(1, 3)), state.take(np.array([1, 2]))
    state.position[2, 0] = [1, 2, 3]
    assert (view.position[1, 0] == [1, 2, 3]).all()
    assert not copy.position.any()
    state.put(np.array([2]), copy.rows(slice(0, 1)))
    assert not state.position.any()


def test_memory_may_come_from_elsewhere():
    blocks = []

    def alloc(shape, dtype):
        size = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        blocks.append(shared_memory.SharedMemory(create=True, size=size))
        return np.ndarray(shape, dtype, buffer=blocks[-1].buf)

    state = FleetState.allocate(2, SCENE, alloc)
    assert len(blocks) == len(vars(state))
    state.position[1, 1, 2] = 5.0
    assert np.ndarray((2, 2, 3), buffer=blocks[0].buf)[1, 1, 2] == 5.0
    del state
    for block in blocks:
        block.close()
        block.unlink()


def test_yaw_undoes_yaw_quaternion():
    state = FleetState.allocate(1, SCENE)
    state.orientation[0] = yaw_quaternion(np.array([2.5, -3.0]))
    np.testing.assert_allclose(state.yaw()[0], [2.5, -3.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shape("cone", (1, 1, 1)), "shape kind: expected 'box', 'cylinder', 'sphere' or 'mesh', got 'cone'"),
        (lambda: Shape("box", (1, 0, 1)), r"shape size\[1\]: expected a finite number > 0, got 0"),
        (lambda: BodySpec("x", "wall", Shape("box", (1, 1, 1))), "body kind"),
    ],
)
def test_bad_shapes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_body_names_are_unique_and_segmentation_ids_follow_the_order_of_bodies():
    builder = SceneBuilder(SCENE.robots)
    crate = BodySpec("crate", "obstacle", Shape("box", (1, 1, 1)))
    assert builder.add_body(crate) == 0
    with pytest.raises(ValueError, match="'crate' twice"):
        builder.add_body(crate)
    with pytest.raises(ValueError, match="arena_size"):
        builder.set_arena_size(-1.0)
    scene = builder.build()
    assert [scene.robot_segmentation_id(1), scene.body_segmentation_id(0)] == [2, 3]
