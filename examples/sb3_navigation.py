"""Navigation with Stable-Baselines3's PPO: every robot of every world is an environment of one shared policy.

Needs ``pip install 'fleet-gym[sb3,tensorboard]'``. Run it with ``python examples/sb3_navigation.py``; it prints the
trained policy's success beside the scripted one's. ``runs/sb3_navigation/`` then holds SB3's ``model.zip``,
``policy.pt`` for ``fleet-gym evaluate --policy``, TensorBoard's events, and videos of every 50th episode of world 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fleet_gym import Camera, CameraObsVideoRecorder, FleetVectorEnv, MemoryProfilingWrapper
from fleet_gym.evaluation import EvaluationResult, evaluate, save_policy
from fleet_gym.wrappers.flatten_robots import FlattenRobots

try:
    import tensorboard  # noqa: F401 # SB3 asks for it only once the training begins
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor, VecNormalize
    from torch import nn

    from fleet_gym.adapters import SB3VecEnv
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'fleet-gym[sb3,tensorboard]'") from None

EVALUATION_SEED = 1_000_000
OVERHEAD = Camera("overhead", 320, 240, position=(0.0, -2.5, 4.0), target=(0.0, -0.2, 0.0))
TASK: dict[str, Any] = {"num_obstacles": 4, "lidar_rays": 16}
ENV_SETTINGS: dict[str, Any] = {"num_robots": 4, "robot": "diffbot", "max_episode_steps": 200, "task_kwargs": TASK}
#: In training; at the task's own cost of 0.5 robots first learn to wait.
COLLISION_COST = 0.1


class SharedPolicy(nn.Module):
    """SB3's policy of one robot for all robots of all worlds: state (E, R, D) to actions without noise (E, R, A)."""

    def __init__(self, model: PPO, normalization: VecNormalize) -> None:
        super().__init__()
        statistics = normalization.obs_rms["state"]
        self.register_buffer("mean", torch.as_tensor(statistics.mean, dtype=torch.float32))
        self.register_buffer("std", torch.as_tensor(statistics.var + normalization.epsilon, dtype=torch.float32).sqrt())
        self.clip = float(normalization.clip_obs)
        self.hidden, self.last = model.policy.mlp_extractor.policy_net, model.policy.action_net

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        normalized = ((state - self.mean) / self.std).clamp(-self.clip, self.clip)
        return self.last(self.hidden(normalized)).clamp(-1.0, 1.0)


def make_training_env(run: Path, num_envs: int) -> VecNormalize:
    env: Any = FleetVectorEnv(
        num_envs,
        **{**ENV_SETTINGS, "task_kwargs": {**TASK, "collision_cost": COLLISION_COST}},
        cameras=[OVERHEAD],
        camera_obs=False,  # drawn for the videos only
        autoreset_mode="SameStep",  # SB3's
    )
    env = CameraObsVideoRecorder(
        env,
        run / "videos",
        frame_source="env",
        env_indices=[0],
        episode_trigger=lambda episode: episode % 50 == 0,
        backend="pool",
    )
    env = MemoryProfilingWrapper(env, mode="light", profiling_interval=500)
    return VecNormalize(VecMonitor(SB3VecEnv(FlattenRobots(env))), norm_reward=False)


def make_evaluation_env() -> FleetVectorEnv:
    return FleetVectorEnv(50, **ENV_SETTINGS, autoreset_mode="Disabled")


def train(run: Path, total_steps: int, num_envs: int, seed: int) -> None:
    """Trains for `total_steps` steps of a world, all worlds together."""
    if run.exists():
        raise SystemExit(f"{run}: there is a run already; choose another folder with --run")
    run.mkdir(parents=True)
    torch.set_num_threads(1)
    env = make_training_env(run, num_envs)
    model = PPO(
        "MultiInputPolicy",
        env,
        n_steps=32,
        batch_size=2048,
        n_epochs=4,
        learning_rate=lambda left: 2e-3 * left,
        gamma=0.98,
        gae_lambda=0.95,
        ent_coef=0.003,
        vf_coef=0.25,
        policy_kwargs={"net_arch": {"pi": [128, 128], "vf": [128, 128]}},
        tensorboard_log=str(run),
        verbose=1,
        seed=seed,
        device="cpu",
    )
    model.learn(total_steps * ENV_SETTINGS["num_robots"], log_interval=10)
    model.save(run / "model")
    test_env = make_evaluation_env()
    save_policy(run / "policy.pt", SharedPolicy(model, env), test_env, env_kwargs=ENV_SETTINGS)
    env.close()
    test_env.close()


def evaluate_both(run: Path, episodes: int) -> dict[str, EvaluationResult]:
    return {
        name: evaluate(make_evaluation_env, policy, episodes=episodes, seed=EVALUATION_SEED, profile="off")
        for name, policy in (("trained", str(run / "policy.pt")), ("scripted", "scripted"))
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/sb3_navigation"), help="a new folder")
    parser.add_argument("--total-steps", type=int, default=1_500_000, help="steps of a world, all worlds together")
    parser.add_argument("--num-envs", type=int, default=256, help="worlds")
    parser.add_argument("--episodes", type=int, default=200, help="of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.run, options.total_steps, options.num_envs, options.seed)
    for name, result in evaluate_both(options.run, options.episodes).items():
        success = result.success
        print(f"{name:8} success {success.value:.3f} [{success.low:.3f}, {success.high:.3f}], n = {success.n}")
