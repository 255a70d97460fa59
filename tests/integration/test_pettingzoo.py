"""One world as a PettingZoo environment, by PettingZoo's own tests. Needs ``pettingzoo``."""

import warnings

import av
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from pettingzoo.test import parallel_api_test, parallel_seed_test
from pettingzoo.utils import parallel_to_aec

from fleet_gym import Camera, CameraObsVideoRecorder, FleetVectorEnv, MemoryProfilingWrapper
from fleet_gym.adapters import parallel_env
from fleet_gym.video import read_episodes

LENGTH = 12
FLEET = {"num_robots": 2, "robot": "diffbot", "max_episode_steps": LENGTH}
TOP = Camera("top", 16, 12, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))
FRONT = [Camera(f"front_{i}", 16, 12, mount=i, offset=(0.3, 0.0, 0.3)) for i in range(2)]
SEEING = {**FLEET, "cameras": [TOP, *FRONT], "robot_cameras": {"front": ["front_0", "front_1"]}}


@pytest.fixture(params=[FLEET, SEEING], ids=["state", "cameras"])
def arguments(request):
    return request.param


def test_pettingzoos_own_tests_pass(arguments):
    env = parallel_env(**arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(env, num_cycles=3 * LENGTH)
        parallel_seed_test(lambda: parallel_env(**arguments))
    env.close()


def test_agents_get_what_the_world_gives_its_robots():
    worlds = FleetVectorEnv(1, autoreset_mode="Disabled", **FLEET)
    env = parallel_env(**FLEET)
    observation, _ = worlds.reset(seed=4)
    by_agent, infos = env.reset(seed=4)
    assert env.agents == env.possible_agents == ["robot_0", "robot_1"]
    rng = np.random.default_rng(2)
    for step in range(LENGTH):
        for robot, agent in enumerate(("robot_0", "robot_1")):
            np.testing.assert_array_equal(by_agent[agent]["state"], observation["state"][0, robot])
            assert by_agent[agent] in env.observation_space(agent)
        np.testing.assert_array_equal(env.state(), observation["state"].ravel())
        assert env.state() in env.state_space
        actions = rng.uniform(-1, 1, (2, 2)).astype(np.float32)
        observation, reward, terminated, truncated, expected = worlds.step(actions[None])
        by_agent, rewards, terminations, truncations, infos = env.step(dict(zip(env.agents, actions, strict=True)))
        assert list(rewards.values()) == expected["robot_reward"][0].tolist()
        assert np.isclose(np.mean(list(rewards.values())), reward[0])
        assert set(terminations.values()) == {bool(terminated[0])}
        assert set(truncations.values()) == {bool(truncated[0])} == {step == LENGTH - 1}
        assert infos["robot_1"]["goal_distance"] == expected["goal_distance"][0, 1]
    assert env.agents == []
    assert env.num_agents == 0
    with pytest.raises(ResetNeeded, match="expected reset"):
        env.step({})
    env.reset()
    assert env.num_agents == 2
    worlds.close()
    env.close()


def test_each_agents_spaces_are_its_own():
    env = parallel_env(**SEEING)
    for space in (env.observation_space, env.action_space):
        first, second = space("robot_0"), space("robot_1")
        first.seed(1)
        alone = first.sample()
        first.seed(1)
        second.seed(2)
        np.testing.assert_equal(first.sample(), alone)
    env.close()


def test_a_world_that_cannot_be_shown_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(FleetVectorEnv, "close_extras", lambda self, **kwargs: closed.append(self))
    with pytest.raises(ValueError, match=r"robot_cameras\['front'\]: expected names among") as refusal:
        parallel_env(**FLEET, robot_cameras={"front": ["front_0", "front_1"]})
    assert refusal.traceback  # while it is held, the garbage collector closes nothing
    assert len(closed) == 1


def test_a_recorder_and_a_profiler_stand_inside(tmp_path):
    fleet = FleetVectorEnv(1, autoreset_mode="Disabled", cameras=[TOP], render_mode="rgb_array", **FLEET)
    profiler = MemoryProfilingWrapper(CameraObsVideoRecorder(fleet, tmp_path), mode="light", profiling_interval=5)
    env = parallel_env(profiler)
    assert env.metadata["render_fps"] == 10.0
    returns = []
    for seed in (1, 2):
        env.reset(seed=seed)
        assert env.render().shape == (480, 640, 3)
        returns.append(0.0)
        while env.agents:
            _, rewards, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            returns[-1] += np.mean(list(rewards.values()))
    env.close()
    env.close()
    rows = read_episodes(tmp_path)
    assert [row["seed"] for row in rows] == [1, 2]
    np.testing.assert_allclose([row["return"] for row in rows], returns)
    for row in rows:
        with av.open(str(tmp_path / row["files"][0]["file"])) as container:
            assert sum(1 for _ in container.decode(video=0)) == LENGTH + 1
    assert sum(record.steps for record in profiler.memory_records) == 2 * LENGTH


def test_pettingzoo_turns_it_into_a_turn_based_environment():
    env = parallel_to_aec(parallel_env(**FLEET))
    env.reset(seed=1)
    turns = 0
    for agent in env.agent_iter():
        _, _, terminated, truncated, _ = env.last()
        env.step(None if terminated or truncated else env.action_space(agent).sample())
        turns += 1
    assert turns == 2 * (LENGTH + 1)
    env.close()


def test_bad_arguments_and_actions_are_refused():
    with pytest.raises(TypeError, match=r"parallel_env: expected arguments of one world, got \['num_envs'\]"):
        parallel_env(num_envs=2)
    for arguments, message in (
        ({"num_envs": 2, "autoreset_mode": "Disabled"}, r"env: expected one world, num_envs=1, got 2"),
        ({"autoreset_mode": "SameStep"}, r"PettingZoo needs autoreset_mode='Disabled', got 'SameStep'"),
        ({}, r"PettingZoo needs autoreset_mode='Disabled', got 'NextStep'"),
    ):
        fleet = FleetVectorEnv(**FLEET, **arguments)
        with pytest.raises(ValueError, match=message):
            parallel_env(fleet)
        with pytest.raises(TypeError, match=r"expected either env or arguments of FleetVectorEnv"):
            parallel_env(fleet, **FLEET)
        fleet.close()
    env = parallel_env(**FLEET)
    with pytest.raises(ResetNeeded):
        env.step({})
    env.reset(seed=0)
    still = np.zeros(2)
    for actions, message in (
        ({"robot_0": still}, r"actions: expected an action for each of \['robot_0', 'robot_1'\], got \['robot_0'\]"),
        ({"robot_0": still, "robot_2": still}, r"got \['robot_0', 'robot_2'\]"),
        ({"robot_0": still, "robot_1": np.zeros(3)}, r"actions\['robot_1'\]: expected shape \(2,\)"),
        (
            {"robot_0": still, "robot_1": still + np.nan},
            r"actions\['robot_1'\]: expected finite numbers, got \[nan, nan\]",
        ),
        ([still, still], r"actions: expected an action for each of"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(actions)
    env.close()
