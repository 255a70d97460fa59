"""FleetEnv: Gymnasium's own checks, and what differs from the vector env."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from fleet_gym import Camera, FleetEnv

TOP = Camera("top", 40, 36, position=(0, 0, 5), target=(0, 0, 0))


@pytest.mark.parametrize("dynamics", ["kinematic", "physics"])
def test_gymnasiums_checker_finds_nothing(dynamics):
    env = FleetEnv(robot="diffbot", dynamics=dynamics, cameras=[TOP], renderer="tiny", render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The checker asks for an env that gym.make made.
        warnings.filterwarnings("ignore", message=".*spec.*")
        check_env(env)
    env.close()


def test_gym_make_truncates_by_its_time_limit():
    env = gym.make("fleet_gym:FleetGym/Navigation-v0", robot="diffbot", num_robots=1)
    assert env.spec.max_episode_steps == 200
    env.reset(seed=0)
    env.close()
    short = gym.make("FleetGym/Navigation-v0", robot="diffbot", num_robots=1, max_episode_steps=3)
    short.reset(seed=0)
    flags = [short.step(np.zeros((1, 2), dtype=np.float32))[3] for _ in range(3)]
    assert flags == [False, False, True]
    assert short.spec.to_json()
    short.close()


def test_infos_are_plain_python_scalars():
    env = FleetEnv(robot="diffbot", num_robots=2)
    _, info = env.reset(seed=3)
    assert info["episode_seed"] == 3
    assert {key: type(info[key]) for key in ("success", "num_collisions", "episode_seed")} == {
        "success": bool,
        "num_collisions": int,
        "episode_seed": int,
    }
    assert info["goal_distance"].shape == (2,)
    env.close()


def test_an_ended_episode_needs_a_reset():
    env = FleetEnv(robot="diffbot", num_robots=1, max_episode_steps=1)
    action = np.zeros((1, 2), dtype=np.float32)
    env.reset(seed=0)
    assert env.step(action)[3]
    with pytest.raises(ResetNeeded):
        env.step(action)
    env.reset()
    env.step(action)
    env.close()


def test_renders_one_world():
    env = FleetEnv(robot="diffbot", render_mode="rgb_array", cameras=[TOP], renderer="tiny")
    env.reset(seed=0)
    assert env.render().shape == (480, 640, 3)
    assert env.render_cameras()["top"].shape == (36, 40, 3)
    env.close()


@pytest.mark.parametrize("name", ["num_envs", "autoreset_mode"])
def test_arguments_of_the_vector_env_are_refused(name):
    with pytest.raises(TypeError, match=f"{name}: expected none"):
        FleetEnv(**{name: 1})


def test_messages_speak_of_one_world():
    env = FleetEnv(robot="diffbot", num_robots=1, max_episode_steps=1)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected shape \(1, 2\) \(robots, channels\), got \(2,\)"):
        env.step(np.zeros(2))
    env.step(np.zeros((1, 2)))
    with pytest.raises(ResetNeeded, match=r"reset\(\) after the episode has ended"):
        env.step(np.zeros((1, 2)))
    env.close()


def test_the_scripted_policy_drives_a_single_env():
    from fleet_gym.tasks.navigation_policy import GoToGoalPolicy

    env = FleetEnv(robot="diffbot", num_robots=2)
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(GoToGoalPolicy(env)(observation))
    env.close()
