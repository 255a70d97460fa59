"""RLlib itself on fleets. Needs ``ray[rllib]``, which pins Gymnasium 1.2.2; ``make test-rllib`` has it."""

import av
import gymnasium as gym
import numpy as np
import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.tune import register_env

from fleet_gym import CameraObsVideoRecorder, MemoryProfilingWrapper
from fleet_gym.adapters import RLlibVectorEnv, rllib_env
from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video import read_episodes

LENGTH = 6
TOP = {"name": "top", "width": 16, "height": 12, "position": (0.0, -2.0, 6.0), "target": (0.0, 0.0, 0.0)}
FLEET = {"num_robots": 2, "robot": "diffbot", "max_episode_steps": LENGTH}


@pytest.fixture(autouse=True, scope="module")
def local_ray():
    register_env("fleet", rllib_env)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def config(env, num_envs=4, **env_config):
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=num_envs,
            gym_env_vectorize_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT,
            rollout_fragment_length=2 * LENGTH,
        )
        .training(train_batch_size_per_learner=8 * LENGTH, minibatch_size=16, num_epochs=1)
        .debugging(seed=3)
    )


def decode(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_an_env_runner_makes_no_transition_up():
    """An episode's observations are those of the world it was played in, from its reset to its end."""
    runner = SingleAgentEnvRunner(config=config("fleet", **FLEET))
    assert type(runner.env.unwrapped) is RLlibVectorEnv
    episodes = runner.sample(num_episodes=8)
    oracle = rllib_env({**FLEET, "num_envs": 1})
    assert len(episodes) == 8
    for episode in episodes:
        assert len(episode) == LENGTH
        assert episode.is_truncated
        infos, observations, rewards = episode.get_infos(), episode.get_observations(), episode.get_rewards()
        assert len({info["episode_seed"] for info in infos}) == 1
        observation, _ = oracle.reset(seed=[int(infos[0]["episode_seed"])])
        np.testing.assert_array_equal(observations[0], observation[0])
        actions = np.clip(episode.get_actions(), -1, 1)
        for step in range(LENGTH):
            observation, reward, *_ = oracle.step(actions[step][None])
            np.testing.assert_allclose(observations[step + 1], observation[0], atol=1e-5)
            assert rewards[step] == pytest.approx(reward[0], abs=1e-5)
    oracle.close()
    runner.stop()


@pytest.mark.parametrize("flatten", [False, True], ids=["joint", "per robot"])
def test_ppo_trains_with_a_recorder_and_a_profiler_inside(tmp_path, flatten):
    profilers = []

    def wrap(env):
        recorder = CameraObsVideoRecorder(env, tmp_path, frame_source="env")
        profilers.append(MemoryProfilingWrapper(recorder, mode="light", profiling_interval=10))
        return profilers[-1]

    returns = {}

    def note(episode, **kwargs):
        returns.setdefault(int(episode.get_infos(-1)["episode_seed"]), []).append(episode.get_return())

    arguments = {**FLEET, "cameras": [TOP], "camera_obs": False, "flatten_robots": flatten, "wrap": wrap}
    algorithm = config("fleet", **arguments).callbacks(on_episode_end=note).build_algo()
    before = {key: value.copy() for key, value in algorithm.get_module().get_state().items()}
    results = [algorithm.train()["env_runners"] for _ in range(2)]
    after = algorithm.get_module().get_state()
    algorithm.stop()
    assert any((before[key] != after[key]).any() for key in before)
    rows = [row for row in read_episodes(tmp_path) if not row["interrupted"]]
    assert len(rows) >= 4
    assert results[-1]["num_episodes_lifetime"] == len(rows) * (2 if flatten else 1)
    assert {row["seed"] for row in rows} == returns.keys()
    for row in rows:
        assert row["steps"] == LENGTH
        assert len(decode(tmp_path / row["files"][0]["file"])) == LENGTH + 1
        assert len(returns[row["seed"]]) == (2 if flatten else 1)
        assert row["return"] == pytest.approx(np.mean(returns[row["seed"]]), abs=1e-9)
    assert profilers[-1].memory_records


def test_every_frame_is_of_its_episode(tmp_path):
    lengths = (2, 5)

    def coded(ctx):
        assert ctx["num_envs"] == 2
        recorder = CameraObsVideoRecorder(CodedColorVectorEnv(lengths, {"left": (12, 16)}), tmp_path, crf=1)
        return RLlibVectorEnv(recorder, observation_keys=["state"])

    register_env("coded", coded)
    runner = SingleAgentEnvRunner(config=config("coded", num_envs=2))
    episodes = runner.sample(num_timesteps=20, random_actions=True)
    runner.stop()
    theirs = sorted((len(episode), episode.get_return()) for episode in episodes if episode.is_done)
    rows = [row for row in read_episodes(tmp_path) if not row["interrupted"]]
    assert sorted((row["steps"], row["return"]) for row in rows) == theirs
    assert {row["env"] for row in rows} == {0, 1}
    for row in rows:
        codes = [decode_color(frame) for frame in decode(tmp_path / row["files"][0]["file"])]
        assert codes == [(row["env"], row["episode"], step) for step in range(lengths[row["env"]] + 1)]


def test_images_can_be_the_observation():
    camera = {**TOP, "width": 64, "height": 64}
    arguments = {**FLEET, "cameras": [camera], "observation_keys": ["top"]}
    algorithm = config("fleet", num_envs=2, **arguments).build_algo()
    assert algorithm.train()["env_runners"]["num_env_steps_sampled"] >= 8 * LENGTH
    algorithm.stop()


def test_the_registered_id_is_a_vector_entry_point():
    algorithm = config("fleet_gym:FleetGym/NavigationRLlib-v0", num_envs=2, **FLEET).build_algo()
    assert algorithm.train()["env_runners"]["episode_len_mean"] == LENGTH
    algorithm.stop()


def test_another_mode_is_refused_with_the_right_one():
    with pytest.raises(ValueError, match=r"RLlib needs autoreset_mode='NextStep', got 'SameStep'"):
        SingleAgentEnvRunner(config=config("fleet", autoreset_mode="SameStep", **FLEET))


def test_another_vectorization_is_refused_with_the_right_one():
    plain = config("fleet", **FLEET).env_runners(gym_env_vectorize_mode="sync")
    with pytest.raises(ValueError, match=r"set gym_env_vectorize_mode=gym.VectorizeMode.VECTOR_ENTRY_POINT"):
        SingleAgentEnvRunner(config=plain)
