"""Learns to drive to a goal with the cross-entropy method: each world of the fleet tries one linear policy.

Nothing but NumPy: the point is the loop around `FleetVectorEnv`. Run it with ``python examples/training_loop.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym import FleetVectorEnv


def features(observation: Mapping[str, Any], layout: Mapping[str, slice]) -> NDArray[np.float64]:
    """Returns what the policy sees of each robot, (num_envs, num_robots, 4): goal in its own frame, distance, bias."""
    state = observation["state"]
    goal = state[..., layout["goal"]]
    distance = state[..., layout["goal_distance"]]
    return np.concatenate([goal, distance, np.ones_like(distance)], axis=-1).astype(np.float64)


def evaluate(
    env: FleetVectorEnv, weights: NDArray[np.float64], seeds: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Plays an episode in each world, world i driven by ``weights[i]``; returns returns and successes, (num_envs,)."""
    observation, _ = env.reset(seed=seeds)
    returns = np.zeros(env.num_envs)
    success = np.zeros(env.num_envs, dtype=bool)
    alive = np.ones(env.num_envs, dtype=bool)
    while alive.any():
        inputs = features(observation, env.state_layout)
        actions = np.tanh(np.einsum("erf,efa->era", inputs, weights)).astype(np.float32)
        observation, rewards, terminated, truncated, infos = env.step(actions)
        returns += rewards * alive
        success |= infos["success"] & alive
        alive &= ~(terminated | truncated)
    return returns, success


def train(generations: int, num_envs: int, steps: int, seed: int) -> float:
    """Trains a policy; returns its success rate in worlds it has not seen."""
    rng = np.random.default_rng(seed)
    env = FleetVectorEnv(
        num_envs,
        num_robots=1,
        robot="diffbot",
        max_episode_steps=steps,
        task_kwargs={"num_obstacles": 0},
    )
    shape = (4, 2)
    mean, spread = np.zeros(shape), np.ones(shape)
    for generation in range(generations):
        candidates = mean + spread * rng.standard_normal((num_envs, *shape))
        # All candidates drive in the same world, three worlds a generation.
        worlds = [[seed + 3 * generation + k] * num_envs for k in range(3)]
        returns = np.mean([evaluate(env, candidates, seeds)[0] for seeds in worlds], axis=0)
        elite = candidates[np.argsort(returns)[-num_envs // 5 :]]
        mean, spread = elite.mean(axis=0), elite.std(axis=0) + 0.05
        print(f"generation {generation:2}: mean return {returns.mean():6.2f}, best {returns.max():6.2f}")
    unseen = [seed + 10_000 + world for world in range(num_envs)]
    success = float(evaluate(env, np.repeat(mean[None], num_envs, axis=0), unseen)[1].mean())
    env.close()
    print(f"success rate in {num_envs} unseen worlds: {success:.2f}")
    return success


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--num-envs", type=int, default=40, help="candidates in a generation")
    parser.add_argument("--steps", type=int, default=100, help="control steps of an episode")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.generations, options.num_envs, options.steps, options.seed)
