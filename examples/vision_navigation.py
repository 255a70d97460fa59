"""Navigation from a camera: a robot learns to look for its red goal and to drive there, from 32 x 24 pixels alone.

The training is that of ``ppo_navigation.py`` beside it, with convolutions in front and a smaller task. Needs PyTorch
and TensorBoard as it does. Run it with ``python examples/vision_navigation.py``; at the end it prints how well random
actions, the network before training and the trained one do in the same episodes. ``runs/vision_navigation/`` then
holds ``policy.pt`` and ``progress.csv``, and ``evaluation/`` with a ``report.html`` and videos.
"""

from __future__ import annotations

import argparse
from typing import Any

# First, as it says what to install where something is missing.
from ppo_navigation import EVALUATION_SEED, Policy, Trainer, parse_arguments, play, report

# isort: split
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from fleet_gym import Camera, FleetVectorEnv
from fleet_gym.evaluation import EvaluationResult, evaluate, save_policy

WIDTH, HEIGHT = 32, 24
#: Half a metre above the ground, tilted down by 25 degrees, so that the flat goal is more than a line.
FRONT = Camera("front", WIDTH, HEIGHT, fov=75.0, mount=0, offset=(0.16, 0.0, 0.5), rotation=(0.0, 0.216, 0.0, 0.976))
ENV_SETTINGS: dict[str, Any] = {
    "num_robots": 1,
    "robot": "diffbot",
    "cameras": [FRONT],
    "max_episode_steps": 100,
    "task_kwargs": {"num_obstacles": 2, "arena_size": 3.0, "goal_radius": 0.3},
}
DEFAULTS = ["--run", "runs/vision_navigation", "--total-steps", "120000", "--num-envs", "64", "--evaluate-every", "10"]
DEFAULTS += ["--learning-rate", "1e-3", "--gae-lambda", "0.9", "--hidden", "64"]


class VisionPolicy(Policy):
    """Actor and critic that see the camera's image, a row of numbers in between."""

    def __init__(self, action_size: int, hidden: int) -> None:
        super().__init__(1, action_size, hidden)
        self.actor, self.critic = convolutions(hidden, action_size, 0.01), convolutions(hidden, 1, 1.0)

    @staticmethod
    def inputs(observation: dict[str, Any]) -> torch.Tensor:
        """The images of the one robot of each world, (E, 1, H * W * 3)."""
        return torch.as_tensor(observation["camera_obs"]["front"]).flatten(1).unsqueeze(1)

    def normalized(self, state: torch.Tensor) -> torch.Tensor:
        """Colours from -1 to 1."""
        return state / 127.5 - 1.0

    def observe(self, state: torch.Tensor) -> None:
        """Nothing to learn: colours have known bounds."""


class Pixels(nn.Module):
    """Rows of numbers (..., H * W * 3) to images (n, 3, H, W)."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        return rows.reshape(-1, HEIGHT, WIDTH, 3).permute(0, 3, 1, 2)


class Convolutions(nn.Sequential):
    """A network for images in rows (..., H * W * 3), with outputs (..., n)."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        return super().forward(rows).reshape(*rows.shape[:-1], -1)


def convolutions(hidden: int, outputs: int, last_gain: float) -> Convolutions:
    layers = [
        nn.Conv2d(3, 16, 5, stride=2),  # 14 x 10
        nn.Conv2d(16, 32, 3, stride=2),  # 6 x 4
        nn.Linear(32 * 6 * 4, hidden),
        nn.Linear(hidden, outputs),
    ]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    first, second, third, last = layers
    return Convolutions(Pixels(), first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), third, nn.ReLU(), last)


class OnImages(nn.Module):
    """What is saved: images (E, H, W, 3) uint8 to actions (E, 1, A)."""

    def __init__(self, policy: VisionPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        return self.policy(images.flatten(1).unsqueeze(1).float())


def make_evaluation_env() -> FleetVectorEnv:
    return FleetVectorEnv(50, **ENV_SETTINGS, autoreset_mode="Disabled")


def train(args: argparse.Namespace) -> dict[str, EvaluationResult]:
    """Trains; returns how random actions, the untrained and the trained network do in the same episodes."""
    args.run.mkdir(parents=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    env = FleetVectorEnv(args.num_envs, **ENV_SETTINGS, autoreset_mode="NextStep")
    test_env = make_evaluation_env()
    policy = VisionPolicy(env.single_action_space.shape[-1], args.hidden)
    episodes = args.evaluation_episodes
    results = {
        "random": evaluate(test_env, "random", episodes=episodes, seed=EVALUATION_SEED, profile="off"),
        "untrained": play(test_env, policy, episodes),
    }
    trainer = Trainer(args, env, policy)
    updates = args.total_steps // trainer.steps_per_update
    with SummaryWriter(str(args.run)) as writer:
        trainer.begin()
        while trainer.update < updates:
            losses = trainer.step()
            if trainer.update % args.evaluate_every == 0:
                report(trainer, play(test_env, policy, episodes), losses, writer)
    settings = {"steps": trainer.update * trainer.steps_per_update, "seed": args.seed}
    save_policy(
        args.run / "policy.pt",
        OnImages(policy),
        test_env,
        inputs=["camera_obs/front"],
        env_kwargs=ENV_SETTINGS,
        metadata=settings,
    )
    results["trained"] = evaluate(
        make_evaluation_env,
        str(args.run / "policy.pt"),
        episodes=episodes,
        seed=EVALUATION_SEED,
        out=args.run / "evaluation",
        videos=8,
    )
    env.close()
    test_env.close()
    return results


if __name__ == "__main__":
    for name, result in train(parse_arguments(DEFAULTS)).items():
        success, reward = result.success, result.mean_return
        print(
            f"{name:10} success {success.value:.3f} [{success.low:.3f}, {success.high:.3f}], "
            f"return {reward.value:.2f} [{reward.low:.2f}, {reward.high:.2f}]"
        )
