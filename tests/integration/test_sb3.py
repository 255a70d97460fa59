"""Stable-Baselines3 itself on fleets. Needs ``stable-baselines3``."""

import av
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)

from fleet_gym import Camera, CameraObsVideoRecorder, FleetEnv, FleetVectorEnv, MemoryProfilingWrapper
from fleet_gym.adapters import SB3VecEnv
from fleet_gym.adapters._views import flat_observation, flat_space
from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video import read_episodes
from fleet_gym.wrappers.flatten_robots import FlattenRobots

torch.set_num_threads(1)

LENGTH = 5
TOP = Camera("top", 48, 36, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))
FLEET = {"num_robots": 2, "robot": "diffbot", "max_episode_steps": LENGTH, "render_mode": "rgb_array"}
SMALL = {
    PPO: {"n_steps": 8, "batch_size": 8, "n_epochs": 1},
    SAC: {"learning_starts": 8, "batch_size": 8, "buffer_size": 50},
}


def fleet(num_envs=2, mode="SameStep", **arguments):
    return FleetVectorEnv(num_envs, autoreset_mode=mode, **FLEET, **arguments)


def decode(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


class OneLevel(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = flat_space(env.observation_space)

    def observation(self, observation):
        return flat_observation(observation)


def test_it_does_what_sb3s_own_vec_env_does_with_single_worlds():
    ours = SB3VecEnv(fleet(cameras=[TOP]))
    theirs = DummyVecEnv([lambda: OneLevel(FleetEnv(cameras=[TOP], **FLEET))] * 2)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.seed(4) == theirs.seed(4)
    np.testing.assert_equal(ours.reset(), theirs.reset())
    np.testing.assert_equal(ours.reset_infos, theirs.reset_infos)
    rng = np.random.default_rng(1)
    ended = 0
    for _ in range(2 * LENGTH + 1):
        actions = rng.uniform(-1, 1, (2, 2, 2)).astype(np.float32)
        observation, rewards, dones, infos = ours.step(actions)
        expected, expected_rewards, expected_dones, expected_infos = theirs.step(actions)
        np.testing.assert_equal(observation, expected)
        np.testing.assert_array_equal(rewards, expected_rewards)
        assert rewards.dtype == expected_rewards.dtype == np.float32
        np.testing.assert_array_equal(dones, expected_dones)
        for info in infos:
            assert ("is_success" in info) == ("terminal_observation" in info)
            info.pop("is_success", None)
        np.testing.assert_equal(infos, expected_infos)
        np.testing.assert_equal(ours.reset_infos, theirs.reset_infos)
        ended += dones.sum()
    assert ended == 4
    ours.close()
    theirs.close()


def test_other_vector_environments_do_too():
    arguments = {"autoreset_mode": AutoresetMode.SAME_STEP}
    ours = SB3VecEnv(gym.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs=arguments))
    theirs = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3)
    ours.seed(2)
    theirs.seed(2)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(60):
        actions = rng.integers(0, 2, 3)
        observation, rewards, dones, infos = ours.step(actions)
        expected, expected_rewards, expected_dones, expected_infos = theirs.step(actions)
        np.testing.assert_array_equal(observation, expected)
        np.testing.assert_array_equal(rewards, expected_rewards)
        np.testing.assert_array_equal(dones, expected_dones)
        np.testing.assert_equal(infos, expected_infos)
        ended += dones.sum()
    assert ended > 3
    PPO("MlpPolicy", ours, n_steps=8, batch_size=8, n_epochs=1).learn(24)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("flatten", [False, True], ids=["joint", "per robot"])
@pytest.mark.parametrize("algorithm", [PPO, SAC])
def test_algorithms_train(algorithm, flatten):
    env = FlattenRobots(fleet(cameras=[TOP])) if flatten else fleet(cameras=[TOP])
    vec_env = VecMonitor(SB3VecEnv(env))
    assert vec_env.num_envs == (4 if flatten else 2)
    model = algorithm("MultiInputPolicy", vec_env, seed=1, **SMALL[algorithm])
    before = [weights.clone() for weights in model.policy.parameters()]
    model.learn(48)
    assert any((old != new).any() for old, new in zip(before, model.policy.parameters(), strict=True))
    assert {int(episode["l"]) for episode in model.ep_info_buffer} == {LENGTH}
    assert list(model.ep_success_buffer) == [False] * len(model.ep_info_buffer)
    model.env.close()


def test_sb3s_wrappers_and_evaluation_stand_on_it(tmp_path):
    vec_env = SB3VecEnv(fleet(cameras=[TOP]))
    vec_env = VecVideoRecorder(vec_env, str(tmp_path), lambda step: step == 0, video_length=3)
    vec_env = VecMonitor(vec_env, info_keywords=("success", "num_collisions"))
    vec_env = VecCheckNan(vec_env, raise_exception=True)
    vec_env = VecNormalize(vec_env, norm_obs_keys=["state"])
    vec_env = VecFrameStack(vec_env, 2, channels_order={"state": "last", "top": "last"})
    model = PPO("MultiInputPolicy", vec_env, seed=1, **SMALL[PPO])
    model.learn(32)
    assert model.ep_info_buffer[0]["num_collisions"] == 0
    returns, lengths = evaluate_policy(model, vec_env, n_eval_episodes=4, return_episode_rewards=True)
    assert lengths == [LENGTH] * 4
    assert np.isfinite(returns).all()
    vec_env.close()
    (video,) = tmp_path.glob("*.mp4")
    assert np.shape(decode(video)[0]) == (960, 640, 3)  # one world above the other


def test_videos_and_returns_under_training_are_the_trainers_own(tmp_path):
    recorder = CameraObsVideoRecorder(fleet(cameras=[TOP]), tmp_path)
    profiler = MemoryProfilingWrapper(recorder, mode="light", profiling_interval=10)
    vec_env = VecMonitor(SB3VecEnv(profiler), str(tmp_path / "monitor.csv"))
    model = PPO("MultiInputPolicy", vec_env, seed=3, **SMALL[PPO])
    model.learn(40)
    vec_env.close()
    rows = [row for row in read_episodes(tmp_path) if not row["interrupted"]]
    logged = [float(line.split(",")[0]) for line in (tmp_path / "monitor.csv").read_text().splitlines()[2:]]
    assert len(rows) == len(logged) == 8
    # SB3 sums float32, the log float64.
    np.testing.assert_allclose(sorted(row["return"] for row in rows), sorted(logged), atol=1e-5)
    for row in rows:
        assert row["steps"] == LENGTH
        assert len(decode(tmp_path / row["files"][0]["file"])) == LENGTH + 1
    assert sum(record.steps for record in profiler.memory_records) == 24  # 3 rollouts of 8


def test_every_frame_under_training_is_of_its_episode(tmp_path):
    lengths = (3, 5)
    cameras = {"left": (36, 48)}
    coded = CodedColorVectorEnv(lengths, cameras, AutoresetMode.SAME_STEP)
    vec_env = VecMonitor(SB3VecEnv(CameraObsVideoRecorder(coded, tmp_path, crf=1)))
    model = PPO("MultiInputPolicy", vec_env, seed=3, **SMALL[PPO])
    model.learn(32)
    vec_env.close()
    rows = [row for row in read_episodes(tmp_path) if not row["interrupted"]]
    assert {(row["env"], row["episode"]) for row in rows} == {(0, e) for e in range(5)} | {(1, e) for e in range(3)}
    returns = [(int(episode["l"]), float(episode["r"])) for episode in model.ep_info_buffer]
    assert sorted(returns) == sorted((row["steps"], row["return"]) for row in rows)
    for row in rows:
        codes = [decode_color(frame) for frame in decode(tmp_path / row["files"][0]["file"])]
        assert codes == [(row["env"], row["episode"], step) for step in range(lengths[row["env"]] + 1)]


def test_terminated_and_truncated_episodes_are_told_apart():
    vec_env = SB3VecEnv(CodedColorVectorEnv((2, 2), {"left": (36, 48)}, AutoresetMode.SAME_STEP))
    vec_env.reset()
    vec_env.step(np.zeros((2, 1)))
    observation, rewards, dones, infos = vec_env.step(np.zeros((2, 1)))
    assert dones.tolist() == [True, True]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, True]
    assert [info["terminal_observation"]["state"].tolist() for info in infos] == [[0, 2], [0, 2]]
    assert observation["state"].tolist() == [[1, 0], [1, 0]]
    assert [info["is_success"] for info in infos] == [True, True]
    assert rewards.tolist() == [2.0, 2.0]
    vec_env.close()


def test_attributes_and_methods_reach_the_environment():
    env = MemoryProfilingWrapper(fleet(num_envs=3, cameras=[TOP]), enabled=False)
    vec_env = SB3VecEnv(env)
    vec_env.seed(8)
    vec_env.reset()
    assert vec_env.get_attr("control_dt") == [0.1] * 3
    assert vec_env.get_attr("np_random_seed", [2, 0]) == [10, 8]
    assert vec_env.get_attr("np_random", 1) == [env.unwrapped.np_random[1]]
    assert vec_env.has_attr("state_layout")
    assert not vec_env.has_attr("gravity")
    assert vec_env.env_method("get_episode_index", indices=-1) == [0]
    (images,) = vec_env.env_method("render_cameras", indices=1)
    np.testing.assert_array_equal(images["top"], env.unwrapped.render_cameras([1])["top"][0])
    assert vec_env.env_method("get_memory_usage") == [None] * 3
    assert vec_env.env_is_wrapped(MemoryProfilingWrapper, 0) == [True]
    assert vec_env.env_is_wrapped(CameraObsVideoRecorder) == [False] * 3
    vec_env.set_attr("label", "a run")
    assert env.unwrapped.label == "a run"
    assert len(vec_env.get_images()) == 3
    assert vec_env.render().shape == (960, 1280, 3)
    vec_env.close()
    vec_env.close()
    assert env.unwrapped.closed


def test_robots_have_the_attributes_of_their_worlds():
    env = fleet(num_envs=3, cameras=[TOP], camera_obs=False)
    vec_env = SB3VecEnv(FlattenRobots(env))
    vec_env.seed(8)
    vec_env.reset()
    assert vec_env.get_attr("np_random_seed") == [8, 8, 9, 9, 10, 10]
    assert vec_env.get_attr("np_random", [5, 0]) == [env.np_random[2], env.np_random[0]]
    images = vec_env.env_method("render_cameras", indices=[5, 0])
    for image, world in zip(images, (2, 0), strict=True):
        np.testing.assert_array_equal(image["top"], env.render_cameras([world])["top"][0])
    assert len(vec_env.env_method("render_cameras")) == 6
    vec_env.close()


def test_attributes_of_single_environments_are_reached():
    arguments = {"autoreset_mode": AutoresetMode.SAME_STEP}
    vec_env = SB3VecEnv(gym.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs=arguments))
    assert vec_env.get_attr("gravity") == [9.8] * 3
    vec_env.set_attr("gravity", 1.6, [0, 2])
    assert vec_env.get_attr("gravity") == [1.6, 9.8, 1.6]
    vec_env.set_attr("gravity", 3.7)
    assert vec_env.env.get_attr("gravity") == (3.7,) * 3
    assert vec_env.env_method("has_wrapper_attr", "gravity", indices=1) == [True]
    assert not vec_env.has_attr("moons")
    vec_env.close()


def test_an_attribute_of_environments_in_processes_is_set_there():
    arguments = {"autoreset_mode": AutoresetMode.SAME_STEP}
    vec_env = SB3VecEnv(gym.make_vec("CartPole-v1", 2, vectorization_mode="async", vector_kwargs=arguments))
    vec_env.set_attr("gravity", 1.6)
    assert vec_env.env.get_attr("gravity") == (1.6, 1.6)
    vec_env.close()


@pytest.mark.parametrize("flatten", [False, True], ids=["joint", "per robot"])
def test_gymnasiums_statistics_reach_sb3(flatten):
    env = FlattenRobots(fleet()) if flatten else fleet()
    vec_env = SB3VecEnv(RecordEpisodeStatistics(env))
    vec_env.reset()
    rewards = np.zeros(vec_env.num_envs)
    for _ in range(LENGTH):
        _, step_rewards, _, infos = vec_env.step(np.stack([vec_env.action_space.sample()] * vec_env.num_envs))
        rewards += step_rewards
    assert [info["episode"]["l"] for info in infos] == [LENGTH] * vec_env.num_envs
    np.testing.assert_allclose([info["episode"]["r"] for info in infos], rewards, atol=1e-5)
    assert all("episode" not in info for info in vec_env.reset_infos)
    model = PPO("MultiInputPolicy", vec_env, seed=1, **SMALL[PPO])
    model.learn(2 * LENGTH * vec_env.num_envs)
    assert {int(episode["l"]) for episode in model.ep_info_buffer} == {LENGTH}
    vec_env.close()


def test_options_are_compared_by_value():
    vec_env = SB3VecEnv(fleet(num_envs=3))
    vec_env.set_options([{"weights": {"goal": np.ones(2)}} for _ in range(3)])
    vec_env.reset()
    vec_env.set_options([{"weights": {"goal": np.full(2, world)}} for world in range(3)])
    with pytest.raises(ValueError, match=r"set_options: expected the same options for all environments"):
        vec_env.reset()
    vec_env.close()


def test_what_worlds_share_cannot_be_one_worlds():
    vec_env = SB3VecEnv(fleet(num_envs=3))
    for call in (
        lambda: vec_env.set_attr("control_dt", 0.2, [0, 1]),
        lambda: vec_env.env_method("render", indices=[1]),
    ):
        with pytest.raises(ValueError, match=r"expected indices=None, all environments share one object"):
            call()
    with pytest.raises(ValueError, match=r"indices: expected environments in 0..2, got \[3\]"):
        vec_env.get_attr("control_dt", 3)
    with pytest.raises(AttributeError, match="gravity"):
        vec_env.get_attr("gravity")
    vec_env.set_options([{}, {"course": 1}, {}])
    with pytest.raises(ValueError, match=r"set_options: expected the same options for all environments"):
        vec_env.reset()
    with pytest.raises(RuntimeError, match=r"step_wait: expected step_async\(\) before"):
        vec_env.step_wait()
    with pytest.raises(ValueError, match=r"actions: expected shape \(3, 2, 2\), got \(2, 2, 2\)"):
        vec_env.step(np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"actions: expected shape \(3, 2, 2\), got list"):
        vec_env.step([[[0, 0], [0]]])
    with pytest.raises(TypeError, match=r"env_method: expected the name of a method, got 'control_dt', which is 0.1"):
        vec_env.env_method("control_dt")
    vec_env.close()


def test_seeds_are_used_once_and_flattened_robots_keep_the_worlds_seeds():
    vec_env = SB3VecEnv(FlattenRobots(fleet()))
    assert vec_env.seed(30) == [30, 30, 31, 31]
    vec_env.reset()
    assert [info["episode_seed"] for info in vec_env.reset_infos] == [30, 30, 31, 31]
    vec_env.reset()
    assert not {30, 31} & {info["episode_seed"] for info in vec_env.reset_infos}
    vec_env.seed(-1)
    with pytest.raises(ValueError, match="seed: expected an int >= 0, got -1"):
        vec_env.reset()
    vec_env.reset()
    vec_env.close()


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_other_modes_are_refused_with_the_right_one(mode):
    env = fleet(mode=mode)
    with pytest.raises(ValueError, match=f"Stable-Baselines3 needs autoreset_mode='SameStep', got '{mode}'"):
        SB3VecEnv(env)
    env.close()


def test_images_sb3_cannot_take_are_refused():
    small = Camera("small", 48, 24, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))
    env = fleet(cameras=[small])
    with pytest.raises(ValueError, match=r"observation 'small': SB3's .* at least 36 x 36, got \(24, 48, 3\)"):
        SB3VecEnv(env)
    assert "small" in SB3VecEnv(env, check_images=False).observation_space.spaces
    env.close()
    dotted = Camera("arm.top", 48, 36, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))
    env = fleet(cameras=[dotted])
    with pytest.raises(ValueError, match=r"observation 'arm.top': expected a name without '\.'"):
        SB3VecEnv(env)
    env.close()
    for name in ("half", "training"):
        env = fleet(cameras=[Camera(name, 48, 36, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))])
        with pytest.raises(ValueError, match=f"observation '{name}': expected a name that is no attribute of torch's"):
            SB3VecEnv(env)
        env.close()
    with pytest.raises(TypeError, match=r"env: expected a gymnasium.vector.VectorEnv, got FleetEnv"):
        SB3VecEnv(FleetEnv(**FLEET))


def test_an_environment_that_hides_its_last_observations_is_refused():
    vec_env = SB3VecEnv(CodedColorVectorEnv((1,), {"left": (36, 48)}, AutoresetMode.SAME_STEP, final_obs=False))
    vec_env.reset()
    with pytest.raises(ValueError, match=r"infos: expected final_obs in a step that ends episodes"):
        vec_env.step(np.zeros((1, 1)))
    vec_env.close()
