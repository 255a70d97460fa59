"""Trained policies as files, with PyTorch."""

import json
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from fleet_gym import FleetVectorEnv, cli
from fleet_gym.evaluation import evaluate, load_policy, read_run, save_policy
from fleet_gym.evaluation.policy_files import FORMAT, read_policy

# TorchScript is deprecated, and still what runs without the code behind it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::torch.jit.TracerWarning")

KWARGS = {"num_robots": 2, "robot": "diffbot", "task_kwargs": {"num_obstacles": 2}, "max_episode_steps": 12}


class Shared(torch.nn.Module):
    """A small policy that all robots share, with its normalization inside."""

    def __init__(self, columns, actions=2):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("mean", torch.linspace(-1, 1, columns))
        self.net = torch.nn.Sequential(torch.nn.Linear(columns, 8), torch.nn.Tanh(), torch.nn.Linear(8, actions))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, state):
        return torch.tanh(self.net(self.dropout(state - self.mean)))


@pytest.fixture
def env():
    env = FleetVectorEnv(3, **KWARGS, autoreset_mode="Disabled")
    yield env
    env.close()


@pytest.fixture
def module(env):
    return Shared(env.single_observation_space["state"].shape[-1])


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fleet-gym", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    return exit_info.value.code


def test_a_saved_policy_acts_like_its_module(tmp_path, env, module):
    module.train()
    save_policy(tmp_path / "policy.pt", module, env, metadata={"steps": np.int64(1000)})
    assert module.training  # as it was
    policy = load_policy(tmp_path / "policy.pt", env)
    observation, _ = env.reset(seed=0)
    expected = module.eval()(torch.from_numpy(observation["state"])).detach().numpy()
    actions = policy(observation)
    assert actions.dtype == np.float32
    assert np.allclose(actions, expected, atol=1e-6)
    content = read_policy(tmp_path / "policy.pt")
    assert content["format"] == FORMAT
    assert content["metadata"] == {"steps": 1000}
    assert content["inputs"] == ["state"]
    assert content["action_shape"] == [2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt"]


def test_another_number_of_worlds_does_not_matter(tmp_path, env, module):
    save_policy(tmp_path / "policy.pt", module, env)
    other = FleetVectorEnv(7, **KWARGS)
    assert load_policy(tmp_path / "policy.pt", other)(other.reset(seed=0)[0]).shape == (7, 2, 2)


def test_evaluate_makes_the_environment_the_policy_was_saved_with(tmp_path, env, module, monkeypatch):
    save_policy(tmp_path / "policy.pt", module, env, env_kwargs=KWARGS)
    out = tmp_path / "run"
    arguments = ["evaluate", "--policy", str(tmp_path / "policy.pt"), "--episodes=5", "--num-envs=3", "--videos=1"]
    assert run_main(monkeypatch, *arguments, "--out", str(out)) == 0
    played = read_run(out)
    assert played.config["env"] == "FleetGym/Navigation-v0"
    assert played.config["env_kwargs"] == KWARGS
    assert len(played.config["policy_sha256"]) == 64
    assert len(list(out.glob("*.mp4"))) == 1
    assert played.episodes == evaluate(env, str(tmp_path / "policy.pt"), episodes=5, profile="off").episodes


def test_a_policy_changed_meanwhile_is_another_run(tmp_path, env, module, monkeypatch, capsys):
    arguments = ["evaluate", "--policy", str(tmp_path / "policy.pt"), "--episodes=2", "--videos=0", "--profile=off"]
    arguments += ["--out", str(tmp_path / "run")]
    save_policy(tmp_path / "policy.pt", module, env, env_kwargs=KWARGS)
    assert run_main(monkeypatch, *arguments) == 0
    with torch.no_grad():
        module.mean += 1
    save_policy(tmp_path / "policy.pt", module, env, env_kwargs=KWARGS)
    assert run_main(monkeypatch, *arguments) == 2
    assert "with another run: policy_sha256 is" in capsys.readouterr().err


def test_policies_of_others_environments_and_of_images(tmp_path):
    pole = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")

    class Upright(torch.nn.Module):
        def forward(self, observation):
            return (observation[:, 2] > 0).long()

    save_policy(tmp_path / "pole.pt", Upright(), pole)
    actions = load_policy(tmp_path / "pole.pt", pole)(pole.reset(seed=0)[0])
    assert actions.shape == (2,)
    assert actions.dtype == pole.action_space.dtype
    camera = {"name": "front", "width": 16, "height": 12, "mount": 0}
    seeing = FleetVectorEnv(2, **KWARGS, cameras=[camera])

    class Bright(torch.nn.Module):
        def forward(self, image, state):
            return image.float().mean(dim=(1, 2, 3))[:, None, None] / 255 + state[..., :2]

    save_policy(tmp_path / "seeing.pt", Bright(), seeing, inputs=["camera_obs/front", "state"])
    observation, _ = seeing.reset(seed=0)
    actions = load_policy(tmp_path / "seeing.pt", seeing)(observation)
    brightness = observation["camera_obs"]["front"].mean(axis=(1, 2, 3))[:, None, None] / 255
    assert np.allclose(actions, brightness + observation["state"][..., :2], atol=1e-5)


def test_a_plain_torchscript_module_is_a_policy_too(tmp_path, env, module):
    observation, _ = env.reset(seed=0)
    state = torch.from_numpy(observation["state"])
    torch.jit.save(torch.jit.trace(module.eval(), state), str(tmp_path / "plain.pt"))
    assert np.allclose(load_policy(tmp_path / "plain.pt", env)(observation), module(state).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_robots": 3}, "drives of the robots: "),
        ({"robot": "racecar"}, "'ackermann'"),
        ({"task_kwargs": {"num_obstacles": 2, "lidar_rays": 4}}, "columns of the state: {'lidar': None} there"),
    ],
)
def test_a_checkpoint_from_another_task_is_refused(tmp_path, env, module, kwargs, message):
    save_policy(tmp_path / "policy.pt", module, env)
    other = FleetVectorEnv(2, **{**KWARGS, **kwargs})
    with pytest.raises(ValueError, match=r"expected one trained on this task, got another: ") as error:
        load_policy(tmp_path / "policy.pt", other)
    assert message in str(error.value)
    other.close()


def test_a_checkpoint_from_another_environment_is_one_line(tmp_path, env, module, monkeypatch, capsys):
    save_policy(tmp_path / "policy.pt", module, env)
    arguments = ["evaluate", "--env=CartPole-v1", "--policy", str(tmp_path / "policy.pt"), "--out", str(tmp_path / "r")]
    assert run_main(monkeypatch, *arguments) == 2
    captured = capsys.readouterr().err
    assert "trained on this task, got another: environment: 'fleet_gym' there, 'CartPole-v1' here" in captured
    assert captured.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_wrong_shapes_are_named(tmp_path, env, module):
    with pytest.raises(ValueError, match=r"module: expected actions of shape \(3, 2, 2\), got \(3, 2, 5\)"):
        save_policy(tmp_path / "policy.pt", Shared(module.mean.numel(), 5), env)
    with pytest.raises(ValueError, match=r"module: expected one that takes state \(3, 2, "):
        save_policy(tmp_path / "policy.pt", torch.jit.script(Shared(7)), env)
    with pytest.raises(TypeError, match=r"module: expected a torch\.nn\.Module"):
        save_policy(tmp_path / "policy.pt", lambda state: state, env)
    with pytest.raises(ValueError, match=r"inputs: expected keys among \['state'\], got \['image'\]"):
        save_policy(tmp_path / "policy.pt", module, env, inputs=["image"])
    with pytest.raises(ValueError, match=r"path: expected a file name ending in \.pt"):
        save_policy(tmp_path / "policy.bin", module, env)
    with pytest.raises(TypeError, match="metadata: expected JSON values"):
        save_policy(tmp_path / "policy.pt", module, env, metadata={"what": object()})
    assert list(tmp_path.iterdir()) == []
    wrong = torch.jit.script(Shared(module.mean.numel(), 3))
    torch.jit.save(wrong, str(tmp_path / "plain.pt"))
    with pytest.raises(ValueError, match=r"expected actions of shape \(3, 2, 2\), got \(3, 2, 3\)"):
        load_policy(tmp_path / "plain.pt", env)


def test_a_trace_that_would_lose_a_branch_is_refused(tmp_path, env):
    class Branching(torch.nn.Module):
        def forward(self, state):
            return state[..., :2] * (1.0 if state.shape[0] < 3 else -1.0)

    with pytest.raises(ValueError, match="expected one whose trace acts like itself"):
        save_policy(tmp_path / "policy.pt", Branching(), env)
    save_policy(tmp_path / "policy.pt", torch.jit.script(Branching()), env)
    observation, _ = env.reset(seed=0)
    assert np.array_equal(load_policy(tmp_path / "policy.pt", env)(observation), -observation["state"][..., :2])


def test_files_that_are_no_policies_are_named(tmp_path, env, module):
    (tmp_path / "text.pt").write_text(json.dumps({"not": "a policy"}))
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    torch.save(module, tmp_path / "pickled.pt")
    for name, message in (
        ("text.pt", "got something else"),
        ("weights.pt", "got a checkpoint of another kind"),
        ("pickled.pt", "got a file with other contents"),
    ):
        with pytest.raises(ValueError, match=message):
            load_policy(tmp_path / name, env)
    with pytest.raises(FileNotFoundError, match="policy: expected a file, got "):
        load_policy(tmp_path / "absent.pt", env)
