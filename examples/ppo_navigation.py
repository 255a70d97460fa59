"""PPO for Navigation in one file: a policy that all robots share learns to drive to goals among obstacles and others.

Needs PyTorch and TensorBoard: ``pip install torch --index-url https://download.pytorch.org/whl/cpu`` and
``pip install 'fleet-gym[tensorboard]'``. Run it with ``python examples/ppo_navigation.py`` (minutes on two cores), look
at it with ``tensorboard --logdir runs``, go on after an interruption with ``--resume``. The run's folder then holds:

- ``policy.pt``, for ``fleet-gym evaluate --policy runs/ppo_navigation/policy.pt``; ``checkpoint.pt``, to go on from;
- ``progress.csv`` and TensorBoard's events; ``memory.jsonl``, for ``fleet-gym memory``, and ``memory-2.jsonl``...
  of resumed sessions;
- ``videos/``, some of the training's episodes; ``evaluation-STEPS/`` and ``scripted/`` with a ``report.html`` each.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleet_gym import Camera, CameraObsVideoRecorder, FleetVectorEnv, MemoryProfilingWrapper
from fleet_gym.evaluation import EvaluationResult, evaluate, save_policy

try:
    import torch
    from torch import nn
    from torch.distributions import Normal
    from torch.utils.tensorboard import SummaryWriter
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'fleet-gym[examples]'") from None

#: Episodes of an evaluation have this seed and the following ones; training is seeded far below.
EVALUATION_SEED = 1_000_000
OVERHEAD = Camera("overhead", 320, 240, position=(0.0, -2.5, 4.0), target=(0.0, -0.2, 0.0))
#: What a resumed run may choose anew.
NEW_ON_RESUME = ("run", "resume", "total_steps", "record_every", "memory_profiling")


def parse_arguments(defaults: Sequence[str] = (), command_line: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line, which comes after the defaults of an example that has others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--run", type=Path, default=Path("runs/ppo_navigation"), help="folder of all that is written")
    add("--resume", action="store_true", help="go on from the run's checkpoint, with its settings")
    add("--seed", type=int, default=0)
    add("--total-steps", type=int, default=1_500_000, help="steps of a world, all worlds together")
    add("--num-envs", type=int, default=256, help="worlds")
    add("--num-robots", type=int, default=4)
    add("--num-obstacles", type=int, default=4)
    add("--lidar-rays", type=int, default=16, help="of each robot's range sensor; 0: none")
    add("--max-episode-steps", type=int, default=200)
    add("--collision-cost", type=float, default=0.1, help="in training; evaluations have the task's own")
    add("--rollout-steps", type=int, default=32, help="steps of each world between two updates")
    add("--epochs", type=int, default=4, help="passes over the data of an update")
    add("--minibatch", type=int, default=2048, help="robots' steps per gradient step")
    add("--learning-rate", type=float, default=2e-3, help="falls to zero over the run")
    add("--discount", type=float, default=0.98)
    add("--gae-lambda", type=float, default=0.95)
    add("--clip", type=float, default=0.2)
    add("--entropy", type=float, default=0.003, help="weight of the entropy bonus")
    add("--hidden", type=int, default=128, help="units in each of two layers")
    add("--threads", type=int, default=1, help="of PyTorch; more are seldom faster for networks this small")
    add("--evaluate-every", type=int, default=25, help="updates between two checkpoints with evaluation")
    add("--evaluation-episodes", type=int, default=200)
    add("--record-every", type=int, default=50, help="every n-th episode of world 0 becomes a video; 0: none")
    add("--memory-profiling", choices=("auto", "light", "off"), default="auto")
    return parser.parse_args([*defaults, *(sys.argv[1:] if command_line is None else command_line)])


# ---- The environments ----


def env_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments that make the task what it is; the policy file keeps them."""
    return {
        "num_robots": args.num_robots,
        "robot": "diffbot",
        "max_episode_steps": args.max_episode_steps,
        "task_kwargs": {"num_obstacles": args.num_obstacles, "lidar_rays": args.lidar_rays},
    }


def make_training_env(args: argparse.Namespace) -> Any:
    # NextStep is the mode with least to do: every observation a step returns belongs to the episode it is a step of.
    env: Any = FleetVectorEnv(
        args.num_envs, **env_settings(args), cameras=[OVERHEAD], camera_obs=False, autoreset_mode="NextStep"
    )
    if args.record_every:
        env = CameraObsVideoRecorder(
            env,
            args.run / "videos",
            frame_source="env",  # draws the one world that is recorded, and only while it is
            env_indices=[0],
            episode_trigger=lambda episode: episode % args.record_every == 0,
            backend="pool",
        )
    if args.memory_profiling != "off":
        env = MemoryProfilingWrapper(
            env, mode=args.memory_profiling, profiling_interval=100, log_path=next_log(args.run / "memory.jsonl")
        )
    return env


def next_log(path: Path) -> Path:
    """Where this session's records go: `path`, or ``memory-2.jsonl`` and so on after the sessions before a resume."""
    session, log = 1, path
    while log.exists() and log.stat().st_size:
        session += 1
        log = path.with_stem(f"{path.stem}-{session}")
    return log


def make_evaluation_env(args: argparse.Namespace) -> FleetVectorEnv:
    """The task with its own reward, so that returns can be compared with anybody's."""
    return FleetVectorEnv(50, **env_settings(args), cameras=[OVERHEAD], camera_obs=False, autoreset_mode="Disabled")


# ---- The policy ----


class Policy(nn.Module):
    """Actor and critic of one robot, with the statistics its observations are normalized by."""

    def __init__(self, observation_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.actor = network(observation_size, hidden, action_size, last_gain=0.01)
        self.critic = network(observation_size, hidden, 1, last_gain=1.0)
        self.log_std = nn.Parameter(torch.zeros(action_size))
        self.register_buffer("mean", torch.zeros(observation_size))
        self.register_buffer("variance", torch.ones(observation_size))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))

    @staticmethod
    def inputs(observation: dict[str, Any]) -> torch.Tensor:
        """What of the environment's observation the policy sees, (E, R, D) float32."""
        return torch.as_tensor(observation["state"])

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Actions (..., A) without noise for observations (..., D): what is saved and evaluated."""
        return self.actor(self.normalized(state)).clamp(-1.0, 1.0)

    def distribution(self, normalized: torch.Tensor) -> Normal:
        """Of actions, for normalized observations (..., D)."""
        return Normal(self.actor(normalized), self.log_std.exp(), validate_args=False)

    def normalized(self, state: torch.Tensor) -> torch.Tensor:
        """Observations (..., D) of mean 0 and variance 1, without outliers."""
        return ((state - self.mean) / torch.sqrt(self.variance + 1e-8)).clamp(-5.0, 5.0)

    @torch.no_grad()
    def observe(self, state: torch.Tensor) -> None:
        """Adds observations (..., D) to mean and variance (Chan et al.'s parallel update)."""
        rows = state.reshape(-1, state.shape[-1])
        mean, variance, count = rows.mean(0), rows.var(0, unbiased=False), len(rows)
        total, delta = self.count + count, mean - self.mean
        share = float(count / total)
        self.variance += share * (variance - self.variance) + share * (1.0 - share) * delta**2
        self.mean += share * delta
        self.count.copy_(total)


def network(inputs: int, hidden: int, outputs: int, last_gain: float) -> nn.Sequential:
    sizes, gains = (inputs, hidden, hidden, outputs), (2**0.5, 2**0.5, last_gain)
    layers: list[nn.Module] = []
    for size, following, gain in zip(sizes, sizes[1:], gains, strict=False):
        layer = nn.Linear(size, following)
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# ---- PPO ----


@dataclass
class Rollout:
    """T steps of E worlds with R robots. `state` is one longer: step t leads from ``state[t]`` to ``state[t + 1]``."""

    state: torch.Tensor  # (T + 1, E, R, D)
    action: torch.Tensor  # (T, E, R, A)
    log_prob: torch.Tensor  # (T, E, R)
    reward: torch.Tensor  # (T, E, R)
    terminated: torch.Tensor  # (T, E, 1), no value after it
    ended: torch.Tensor  # (T, E, 1), terminated or truncated: the next episode's rewards do not count
    is_step: torch.Tensor  # (T, E), False where the world was reset instead and ignored the action

    @classmethod
    def empty(cls, steps: int, worlds: int, robots: int, observation_size: int, action_size: int) -> Rollout:
        """Room for a rollout, to be filled again and again."""
        return cls(
            state=torch.empty(steps + 1, worlds, robots, observation_size),
            action=torch.empty(steps, worlds, robots, action_size),
            log_prob=torch.empty(steps, worlds, robots),
            reward=torch.empty(steps, worlds, robots),
            terminated=torch.empty(steps, worlds, 1),
            ended=torch.empty(steps, worlds, 1),
            is_step=torch.empty(steps, worlds, dtype=torch.bool),
        )


class EpisodeCounter:
    """Returns, lengths and successes of episodes, from what `step` returns."""

    def __init__(self, num_envs: int) -> None:
        self.running_return, self.running_length = np.zeros(num_envs), np.zeros(num_envs, dtype=int)
        self.finished: list[tuple[int, float, int, bool]] = []  # world, return, length, success

    def step(self, reward: np.ndarray, ended: np.ndarray, success: np.ndarray) -> None:
        """Counts a step of all worlds, arguments (E,)."""
        self.running_return += reward
        self.running_length += 1
        for world in np.flatnonzero(ended):
            total, length = float(self.running_return[world]), int(self.running_length[world])
            self.finished.append((int(world), total, length, bool(success[world])))
            # The next step is the reset, not a step of the episode.
            self.running_return[world], self.running_length[world] = 0.0, -1


class Trainer:
    """Everything a run needs to go on."""

    def __init__(self, args: argparse.Namespace, env: Any, policy: Policy) -> None:
        self.args, self.env, self.policy = args, env, policy
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate, eps=1e-5)
        self.update, self.cpu_seconds = 0, 0.0
        self.steps_per_update = args.rollout_steps * args.num_envs

    def begin(self) -> None:
        """Starts new episodes; a resumed run begins others than its first part did."""
        observation, _ = self.env.reset(seed=1000 * self.args.seed + self.update)
        self.state = self.policy.inputs(observation)
        self.rollout = Rollout.empty(self.args.rollout_steps, *self.state.shape, self.env.single_action_space.shape[-1])
        self.pending_reset = torch.zeros(self.args.num_envs, dtype=torch.bool)
        self.counter = EpisodeCounter(self.args.num_envs)
        if self.update == 0:
            self.policy.observe(self.state)

    @torch.no_grad()
    def collect(self) -> None:
        """Fills the rollout with steps of all worlds."""
        rollout, policy = self.rollout, self.policy
        for t in range(self.args.rollout_steps):
            rollout.state[t], rollout.is_step[t] = self.state, ~self.pending_reset
            distribution = policy.distribution(policy.normalized(self.state))
            action = distribution.sample()
            rollout.action[t], rollout.log_prob[t] = action, distribution.log_prob(action).sum(-1)
            observation, reward, terminated, truncated, infos = self.env.step(action.numpy())  # clipped by the env
            ended = terminated | truncated
            self.counter.step(reward, ended, infos["success"])
            self.state, self.pending_reset = policy.inputs(observation), torch.as_tensor(ended)
            rollout.reward[t] = torch.as_tensor(infos["robot_reward"])
            rollout.terminated[t, :, 0], rollout.ended[t, :, 0] = torch.as_tensor(terminated), self.pending_reset
        rollout.state[-1] = self.state

    @torch.no_grad()
    def advantages(self, value: torch.Tensor) -> torch.Tensor:
        """Generalized advantage estimation over ``value`` (T + 1, E, R); Schulman et al. 2016."""
        rollout, discount = self.rollout, self.args.discount
        advantage = torch.zeros_like(rollout.reward)
        following = torch.zeros_like(rollout.reward[0])
        for t in reversed(range(self.args.rollout_steps)):
            # A truncated episode would have gone on: its last observation has a value. A terminated one's has none.
            target = rollout.reward[t] + discount * value[t + 1] * (1.0 - rollout.terminated[t])
            following = target - value[t] + discount * self.args.gae_lambda * (1.0 - rollout.ended[t]) * following
            advantage[t] = following
        return advantage

    def learn(self) -> dict[str, float]:
        """One update of PPO (clipped objective, Schulman et al. 2017) from the rollout."""
        args, policy, rollout = self.args, self.policy, self.rollout
        share_left = max(1.0 - self.update * self.steps_per_update / args.total_steps, 0.0)
        self.optimizer.param_groups[0]["lr"] = args.learning_rate * share_left
        state = policy.normalized(rollout.state)
        with torch.no_grad():
            value = policy.critic(state).squeeze(-1)
        advantage = self.advantages(value)
        target = (advantage + value[:-1])[rollout.is_step].flatten()
        advantage = advantage[rollout.is_step].flatten()
        state = state[:-1][rollout.is_step].flatten(0, 1)
        action = rollout.action[rollout.is_step].flatten(0, 1)
        log_prob = rollout.log_prob[rollout.is_step].flatten()
        for _ in range(args.epochs):
            for rows in torch.randperm(len(state)).split(args.minibatch):
                distribution = policy.distribution(state[rows])
                log_ratio = distribution.log_prob(action[rows]).sum(-1) - log_prob[rows]
                ratio = log_ratio.exp()
                gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
                clipped = ratio.clamp(1.0 - args.clip, 1.0 + args.clip)
                policy_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
                value_loss = (policy.critic(state[rows]).squeeze(-1) - target[rows]).square().mean()
                entropy = distribution.entropy().sum(-1).mean()
                self.optimizer.zero_grad()
                (policy_loss + 0.25 * value_loss - args.entropy * entropy).backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                self.optimizer.step()
        policy.observe(rollout.state[:-1])
        return {
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
            "divergence": (ratio - 1.0 - log_ratio).mean().item(),
        }

    def step(self) -> dict[str, float]:
        """A rollout and an update."""
        start = time.process_time()
        self.collect()
        losses = self.learn()
        self.update += 1
        self.cpu_seconds += time.process_time() - start
        return losses

    def save(self) -> None:
        """Writes ``checkpoint.pt``; whoever is killed meanwhile keeps the one before."""
        content = {
            "args": {name: value for name, value in vars(self.args).items() if name not in NEW_ON_RESUME},
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "update": self.update,
            "cpu_seconds": self.cpu_seconds,
            "random": torch.get_rng_state(),
        }
        partial = self.args.run / "checkpoint.pt.part"
        torch.save(content, partial)
        os.replace(partial, self.args.run / "checkpoint.pt")

    def load(self, content: dict[str, Any]) -> None:
        """Takes up what `save` wrote."""
        self.policy.load_state_dict(content["policy"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.update, self.cpu_seconds = content["update"], content["cpu_seconds"]
        torch.set_rng_state(content["random"])


# ---- The run ----


def play(env: FleetVectorEnv, policy: Policy, episodes: int) -> EvaluationResult:
    """Plays episodes without noise, and without writing anything."""

    def act(observation: dict[str, Any]) -> np.ndarray:
        with torch.inference_mode():
            return policy(policy.inputs(observation)).numpy()

    return evaluate(env, act, episodes=episodes, seed=EVALUATION_SEED, profile="off")


def report(trainer: Trainer, result: EvaluationResult, losses: dict[str, float], writer: SummaryWriter) -> None:
    """One row of progress, to the screen, ``progress.csv`` and TensorBoard."""
    steps = trainer.update * trainer.steps_per_update
    row = {"steps": steps, "cpu_seconds": round(trainer.cpu_seconds, 1)}
    row |= {name: round(estimate.value, 4) for name, estimate in result.metrics.items()}
    path = trainer.args.run / "progress.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        table = csv.DictWriter(file, row)
        if is_new:
            table.writeheader()
        table.writerow(row)
    for name, estimate in result.metrics.items():
        writer.add_scalar(f"evaluation/{name}", estimate.value, steps)
    for name, value in losses.items():
        writer.add_scalar(f"losses/{name}", value, steps)
    print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def report_episodes(trainer: Trainer, writer: SummaryWriter) -> None:
    """Means of the update's episodes, and each one of world 0, whose videos there are."""
    finished, trainer.counter.finished = trainer.counter.finished, []
    steps = trainer.update * trainer.steps_per_update
    for world, episode_return, _, _ in finished:
        if world == 0:
            writer.add_scalar("world_0/return", episode_return, steps)
    if finished:
        writer.add_scalar("training/return", np.mean([row[1] for row in finished]), steps)
        writer.add_scalar("training/success", np.mean([row[3] for row in finished]), steps)


def train(args: argparse.Namespace) -> argparse.Namespace:
    """Trains until `total_steps`; returns the settings, which are the checkpoint's in a resumed run."""
    checkpoint = None
    if args.resume:
        checkpoint = torch.load(args.run / "checkpoint.pt", weights_only=True)
        args = argparse.Namespace(**{**checkpoint["args"], **{name: getattr(args, name) for name in NEW_ON_RESUME}})
    elif (args.run / "checkpoint.pt").exists():
        raise SystemExit(f"{args.run}: there is a run already; add --resume, or choose another folder with --run")
    args.run.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    env, test_env = make_training_env(args), make_evaluation_env(args)
    observation_size, action_size = env.single_observation_space["state"].shape[-1], env.single_action_space.shape[-1]
    trainer = Trainer(args, env, Policy(observation_size, action_size, args.hidden))
    if checkpoint is not None:
        trainer.load(checkpoint)
    updates = args.total_steps // trainer.steps_per_update
    # Touching costs less in training only: evaluations have an environment of their own.
    env.unwrapped.task.collision_cost = args.collision_cost
    with SummaryWriter(str(args.run)) as writer:
        trainer.begin()
        while trainer.update < updates:
            losses = trainer.step()
            report_episodes(trainer, writer)
            if trainer.update % args.evaluate_every == 0 or trainer.update == updates:
                report(trainer, play(test_env, trainer.policy, args.evaluation_episodes), losses, writer)
                trainer.save()
    env.close()
    test_env.close()
    save_policy(
        args.run / "policy.pt",
        trainer.policy,
        test_env,
        env_kwargs=env_settings(args),
        metadata={"steps": trainer.update * trainer.steps_per_update, "seed": args.seed},
    )
    return args


def compare_with_scripted(args: argparse.Namespace) -> None:
    """Plays the same episodes with the trained and with the scripted policy, recorded, and prints both."""
    for name, policy in ((f"evaluation-{args.total_steps}", str(args.run / "policy.pt")), ("scripted", "scripted")):
        result = evaluate(
            lambda: make_evaluation_env(args),
            policy,
            episodes=args.evaluation_episodes,
            seed=EVALUATION_SEED,
            out=args.run / name,
            videos=8,
        )
        metrics = ", ".join(
            f"{key} {value.value:.3f} [{value.low:.3f}, {value.high:.3f}]" for key, value in result.metrics.items()
        )
        print(f"{name} ({len(result.episodes)} episodes): {metrics}", flush=True)


if __name__ == "__main__":
    compare_with_scripted(train(parse_arguments()))
