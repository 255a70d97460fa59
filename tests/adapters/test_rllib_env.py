"""The environment RLlib gets; that it trains is tested with RLlib itself in tests/integration/rllib."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym.adapters import RLlibVectorEnv, rllib_env
from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
from fleet_gym.vector_env import FleetVectorEnv
from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper

CAMERAS = [{"name": "top", "width": 16, "height": 12, "position": (0.0, -2.0, 6.0), "target": (0.0, 0.0, 0.0)}]
FLEET = {"num_robots": 2, "robot": "diffbot", "max_episode_steps": 3}


def test_numbers_are_rows_and_a_single_part_is_bare():
    env = rllib_env({**FLEET, "num_envs": 4})
    oracle = FleetVectorEnv(4, **FLEET)
    observation, _ = env.reset(seed=[5, 4, 3, 2])
    expected, _ = oracle.reset(seed=[5, 4, 3, 2])
    np.testing.assert_array_equal(observation, expected["state"].reshape(4, -1))
    assert observation in env.observation_space
    assert env.unwrapped is env
    for _ in range(5):  # beyond the first episode's end
        actions = env.action_space.sample()
        assert actions.shape == (4, 4)
        observation, rewards, *_ = env.step(actions)
        expected, expected_rewards, *_ = oracle.step(actions.reshape(4, 2, 2))
        np.testing.assert_array_equal(observation, expected["state"].reshape(4, -1))
        np.testing.assert_array_equal(rewards, expected_rewards)
    env.close()
    oracle.close()


def test_runners_with_neighbouring_seeds_play_different_episodes():
    env = rllib_env({**FLEET, "num_envs": 4})
    first, second, again = (env.reset(seed=seed)[1]["episode_seed"].tolist() for seed in (1, 2, 1))
    assert len({*first, *second}) == 8
    assert first == again
    env.close()


def test_parts_can_be_chosen():
    for keys, shapes in ((["top"], (2, 12, 16, 3)), (None, {"state": (2, 66), "top": (2, 12, 16, 3)})):
        env = rllib_env({**FLEET, "num_envs": 2, "cameras": CAMERAS, "observation_keys": keys})
        observation, _ = env.reset(seed=1)
        assert observation in env.observation_space
        top = observation["top"] if keys is None else observation
        assert top.dtype == np.float32
        assert 0.2 < top.max() <= 1
        got = {key: part.shape for key, part in observation.items()} if keys is None else observation.shape
        assert got == shapes
        env.close()


def test_robots_can_be_environments_and_wrappers_stand_inside():
    wrapped = []

    def wrap(env):
        wrapped.append(MemoryProfilingWrapper(env, enabled=False))
        return wrapped[0]

    env = rllib_env({**FLEET, "num_envs": 6, "flatten_robots": True, "wrap": wrap})
    assert wrapped[0].num_envs == 3
    observation, _ = env.reset(seed=1)
    assert observation.shape == (6, 33)
    assert env.step(env.action_space.sample())[1].shape == (6,)
    env.close()
    assert wrapped[0].closed


@pytest.mark.parametrize(
    ("ctx", "message"),
    [
        ({}, r"expected num_envs from RLlib; set gym_env_vectorize_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT"),
        ({"num_envs": 2, "autoreset_mode": "SameStep"}, r"RLlib needs autoreset_mode='NextStep', got 'SameStep'"),
        ({"num_envs": 3, "flatten_robots": True}, r"num_envs_per_env_runner: expected a multiple of num_robots=2"),
        ({"num_envs": 2, "observation_keys": ["front"]}, r"observation_keys: expected some of \['state'\]"),
        ({"num_envs": 2, "observation_keys": ["state"] * 2}, r"observation_keys: expected some of .* each once"),
        ({"num_envs": 2, "robot_cameras": {"front": ["a", "b"]}}, r"robot_cameras: expected flatten_robots=True"),
    ],
)
def test_bad_configurations_are_refused(ctx, message):
    with pytest.raises(ValueError, match=message):
        rllib_env({**FLEET, **ctx})


@pytest.mark.parametrize(
    ("ctx", "message"),
    [
        ({"wrap": "recorder"}, r"wrap: expected a function .* got 'recorder'"),
        ({"wrap": lambda env: None}, r"wrap: expected a function .* it returned None"),
        ({"observation_keys": "state"}, r"observation_keys: expected a sequence of names or None, got 'state'"),
        ({"observation_keys": [3]}, r"observation_keys: expected a sequence of names or None, got \[3\]"),
        ({"flatten_robots": "no"}, r"flatten_robots: expected a bool, got 'no'"),
    ],
)
def test_arguments_of_other_types_are_refused(ctx, message):
    with pytest.raises(TypeError, match=message):
        rllib_env({**FLEET, "num_envs": 2, **ctx})


def test_seeds_that_are_none_are_refused():
    env = rllib_env({**FLEET, "num_envs": 2})
    for seed in ("3", 1.5, True):
        with pytest.raises(TypeError, match=r"seed: expected an int >= 0, got "):
            env.reset(seed=seed)
    with pytest.raises(ValueError, match=r"seed: expected an int >= 0, got -1"):
        env.reset(seed=-1)
    by_int, by_array = (env.reset(seed=seed)[1]["episode_seed"].tolist() for seed in (7, np.array(7)))
    assert by_int == by_array
    env.close()


def test_keys_of_an_observation_without_any_are_refused():
    cart_poles = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(ValueError, match=r"observation_keys: expected None, the observation is no dictionary"):
        RLlibVectorEnv(cart_poles, observation_keys=["state"])
    cart_poles.close()


def test_other_modes_and_actions_are_refused():
    with pytest.raises(ValueError, match=r"RLlib needs autoreset_mode='NextStep', got 'Disabled'"):
        RLlibVectorEnv(CodedColorVectorEnv([3], autoreset_mode=AutoresetMode.DISABLED))
    env = rllib_env({**FLEET, "num_envs": 2})
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions: expected shape \(2, 4\), got \(2, 2, 2\)"):
        env.step(np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"actions: expected shape \(2, 4\), got list"):
        env.step([[0, 0, 0, 0], [0]])
    env.close()
