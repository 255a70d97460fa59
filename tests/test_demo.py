"""The demo's episodes and cameras."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fleet_gym import FleetVectorEnv
from fleet_gym.demo import demo_arena_size, demo_cameras, play_episodes
from fleet_gym.tasks.navigation_policy import GoToGoalPolicy
from fleet_gym.world.robots import robot_model
from fleet_gym.world.scene import GROUND_BODY


def make_env(num_envs: int) -> FleetVectorEnv:
    return FleetVectorEnv(
        num_envs, num_robots=1, robot="diffbot", autoreset_mode="Disabled", max_episode_steps=60, control_dt=0.2
    )


def test_every_world_plays_its_share_and_no_more() -> None:
    env = make_env(4)
    updates = list(play_episodes(env, GoToGoalPolicy(env), episodes=3, seed=0))
    env.close()
    results = [result for update in updates for result in update.results]
    assert sorted((result.world, result.episode) for result in results) == [(w, e) for w in range(4) for e in range(3)]
    assert len({result.steps for result in results}) > 1, "episodes of different length are what this is about"
    assert updates[-1].finished.tolist() == [3, 3, 3, 3]
    assert all(np.all(earlier.finished <= later.finished) for earlier, later in itertools.pairwise(updates))


def test_an_episode_is_replayed_from_its_seed() -> None:
    env = make_env(3)
    policy = GoToGoalPolicy(env)
    results = [result for update in play_episodes(env, policy, episodes=2, seed=7) for result in update.results]
    env.close()
    later = next(result for result in results if result.world == 2 and result.episode == 1)
    env = make_env(1)
    (replay,) = (r for update in play_episodes(env, policy, episodes=1, seed=later.seed) for r in update.results)
    env.close()
    assert (replay.steps, replay.episode_return, replay.success) == (later.steps, later.episode_return, later.success)


@pytest.mark.parametrize("size", [(320, 240), (120, 120), (90, 160)])
def test_the_whole_arena_is_in_the_picture_of_any_shape(size: tuple[int, int]) -> None:
    overhead, _ = demo_cameras(robot_model("diffbot"), 4.0, *size)
    position, target = np.array(overhead.position), np.array(overhead.target)
    forward = (target - position) / np.linalg.norm(target - position)
    right = np.array([1.0, 0.0, 0.0])
    corners = np.array([[x, y, 0.0] for x in (-2.0, 2.0) for y in (-2.0, 2.0)]) - position
    reach = corners @ forward * np.tan(np.radians(overhead.fov / 2))
    assert np.all(np.abs(corners @ right) < reach * size[0] / size[1])
    assert np.all(np.abs(corners @ np.cross(right, forward)) < reach)


@pytest.mark.parametrize("name", ["husky", "r2d2", "diffbot"])
def test_one_camera_sees_all_robots_and_goals_and_the_other_looks_ahead_of_its_own(name: str) -> None:
    robot = robot_model(name)
    arena_size = demo_arena_size(robot, 3)
    cameras = [replace(camera, modalities=("segmentation",)) for camera in demo_cameras(robot, arena_size, 160, 120)]
    task_kwargs = {"arena_size": arena_size, "num_obstacles": 3}
    env = FleetVectorEnv(4, num_robots=3, robot=robot, cameras=cameras, renderer="tiny", task_kwargs=task_kwargs)
    observation, _ = env.reset(seed=0)
    env.close()
    own = env.scene.robot_segmentation_id(0)
    expected = {env.scene.robot_segmentation_id(slot) for slot in range(3)}
    expected |= {env.scene.body_segmentation_id(body) for body in range(env.scene.num_bodies)}
    for overhead, front in zip(*observation["camera_obs"].values(), strict=True):
        assert expected <= set(np.unique(overhead & 0xFFFFFF))
        seen = set(np.unique(front & 0xFFFFFF))
        assert GROUND_BODY in seen
        assert own not in seen
