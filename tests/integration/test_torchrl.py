"""TorchRL itself on fleets. Needs ``torchrl``."""

import av
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from fleet_gym import Camera, CameraObsVideoRecorder, FleetVectorEnv, MemoryProfilingWrapper
from fleet_gym.adapters import torchrl_env
from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video import read_episodes
from fleet_gym.wrappers.flatten_robots import FlattenRobots

torch.set_num_threads(1)

LENGTH = 4
TOP = Camera("top", 16, 12, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))


def fleet(mode="Disabled", **arguments):
    fleet_arguments = {"num_robots": 2, "robot": "diffbot", "max_episode_steps": LENGTH, "autoreset_mode": mode}
    return FleetVectorEnv(3, **fleet_arguments, **arguments)


def collect(env, frames=36):
    """Steps by a collector and a policy of TorchRL's own; returns the one batch."""
    width, channels = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    policy = TensorDictModule(torch.nn.Linear(width, channels), in_keys=["observation"], out_keys=["action"])
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=frames)
    (batch,) = [data.clone() for data in collector]
    collector.shutdown()
    return batch


@pytest.mark.parametrize("cameras", [[], [TOP]], ids=["state", "cameras"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        RecordEpisodeStatistics,
        lambda env: MemoryProfilingWrapper(env, mode="light"),
        lambda env: RecordEpisodeStatistics(MemoryProfilingWrapper(env, mode="light")),
    ],
    ids=["bare", "gymnasium's wrapper", "profiler", "both"],
)
def test_specs_hold_and_a_collector_runs(wrap, cameras):
    env = torchrl_env(wrap(fleet(cameras=cameras)))
    check_env_specs(env)
    batch = collect(env)
    assert batch.shape == (3, 12)
    assert batch["next", "done"].squeeze(-1).sum(-1).tolist() == [3, 3, 3]
    if cameras:
        assert batch["camera_obs", "top"].shape == (3, 12, 12, 16, 3)
        assert batch["camera_obs", "top"].dtype == torch.uint8


def test_no_transition_is_made_up():
    """The first observation after an episode's end is a reset's, and every step has its own reward."""
    env = torchrl_env(fleet()).auto_register_info_dict()
    env.set_seed(7)
    rollout = env.rollout(2 * LENGTH, break_when_any_done=False)
    seeds = rollout["next", "episode_seed"]
    done = rollout["next", "done"].squeeze(-1)
    assert done.nonzero()[:, 1].tolist() == [LENGTH - 1, 2 * LENGTH - 1] * 3
    oracle = fleet()
    for episode in range(2):
        steps = slice(episode * LENGTH, (episode + 1) * LENGTH)
        assert (seeds[:, steps] == seeds[:, steps][:, :1]).all()
        observation, _ = oracle.reset(seed=seeds[:, steps][:, 0].tolist())
        for step in range(*steps.indices(2 * LENGTH)):
            np.testing.assert_array_equal(rollout["observation"][:, step], observation["state"])
            observation, rewards, *_ = oracle.step(rollout["action"][:, step].numpy())
            np.testing.assert_array_equal(rollout["next", "observation"][:, step], observation["state"])
            np.testing.assert_array_equal(rollout["next", "reward"][:, step, 0], rewards.astype(np.float32))
    oracle.close()
    env.close()


def test_robots_can_be_the_batch():
    env = torchrl_env(FlattenRobots(fleet(cameras=[TOP]))).auto_register_info_dict()
    assert env.batch_size == (6,)
    check_env_specs(env)
    batch = collect(env)
    assert batch["action"].shape == (6, 6, 2)
    assert batch["next", "goal_distance"].shape[:2] == (6, 6)
    env.close()


def test_videos_and_returns_under_a_collector_are_its_own(tmp_path):
    env = torchrl_env(CameraObsVideoRecorder(fleet(cameras=[TOP]), tmp_path))
    batch = collect(env)
    env.close()
    rows = [row for row in read_episodes(tmp_path) if not row["interrupted"]]
    ours = {(row["env"], row["episode"]): row["return"] for row in rows}
    theirs = batch["next", "reward"].reshape(3, 3, LENGTH).sum(-1)  # worlds, episodes, steps
    first = min(episode for _, episode in ours)
    assert len(ours) == 9
    for (world, episode), episode_return in ours.items():
        assert float(theirs[world, episode - first]) == pytest.approx(episode_return, abs=1e-5)
    for row in rows:
        with av.open(str(tmp_path / row["files"][0]["file"])) as container:
            assert sum(1 for _ in container.decode(video=0)) == LENGTH + 1


def test_every_frame_under_a_rollout_is_of_its_episode(tmp_path):
    lengths = (2, 5)
    coded = CodedColorVectorEnv(lengths, {"left": (12, 16)}, AutoresetMode.DISABLED)
    env = torchrl_env(CameraObsVideoRecorder(coded, tmp_path, crf=1))
    env.rollout(10, break_when_any_done=False)
    env.close()
    rows = [row for row in read_episodes(tmp_path) if not row["interrupted"]]
    assert {(row["env"], row["episode"]) for row in rows} == {(0, e) for e in range(5)} | {(1, 0), (1, 1)}
    for row in rows:
        with av.open(str(tmp_path / row["files"][0]["file"])) as container:
            codes = [decode_color(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
        assert codes == [(row["env"], row["episode"], step) for step in range(lengths[row["env"]] + 1)]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_other_modes_are_refused_with_the_right_one(mode):
    env = fleet(mode)
    with pytest.raises(ValueError, match=f"TorchRL needs autoreset_mode='Disabled', got '{mode}'"):
        torchrl_env(env)
    env.close()


def test_torchrls_own_wrapper_takes_a_bare_fleet():
    env = GymWrapper(fleet(cameras=[TOP]))
    check_env_specs(env)
    env.close()
