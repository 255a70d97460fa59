"""Evaluates a policy: every episode has a known seed, every world plays its fixed share, averages come with intervals.

Run it with ``python examples/evaluate_policy.py``; ``fleet-gym evaluate`` does the same from the command line. To
evaluate a policy of yours, put a function from observations to actions in place of `GoToGoalPolicy`.
"""

from __future__ import annotations

import argparse

from fleet_gym import Camera, FleetVectorEnv
from fleet_gym.evaluation import EvaluationResult, evaluate
from fleet_gym.tasks.navigation_policy import GoToGoalPolicy


def evaluate_scripted(num_envs: int, episodes: int, folder: str, seed: int, max_episode_steps: int) -> EvaluationResult:
    """Plays `episodes` episodes over all worlds."""
    overhead = Camera("overhead", 160, 120, position=(0.0, -2.0, 4.0), target=(0.0, 0.0, 0.0))
    env = FleetVectorEnv(
        num_envs,
        num_robots=3,
        robot="diffbot",
        cameras=[overhead],
        camera_obs=False,  # the policy does not look; the recorder asks for what it records
        autoreset_mode="Disabled",  # evaluate() says when a world is reset, and with which seed
        max_episode_steps=max_episode_steps,
    )
    try:
        # Worlds step together: one that has played its share goes on, uncounted and unrecorded.
        return evaluate(env, GoToGoalPolicy(env), episodes=episodes, seed=seed, out=folder, videos=8)
    finally:
        env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=20, help="episodes over all worlds")
    parser.add_argument("--folder", default="evaluation", help="a new one, or one of the same run to go on with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-episode-steps", type=int, default=200)
    options = parser.parse_args()
    result = evaluate_scripted(
        options.num_envs, options.episodes, options.folder, options.seed, options.max_episode_steps
    )
    for episode in result.episodes:
        print(
            f"world {episode.env}, seed {episode.seed}: {'success' if episode.success else 'no success'}, "
            f"{episode.collisions} collisions"
        )
    for name, metric in result.metrics.items():
        print(
            f"{name} {metric.value:.2f}, {100 * metric.confidence:g} % interval {metric.low:.2f} to {metric.high:.2f}"
        )
    print(f"the report is {options.folder}/report.html")
