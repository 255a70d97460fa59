"""Evaluates the scripted policy: the same number of episodes in every world, recorded, one line each.

Stopping after N episodes in total would count short ones too often, so every world plays its share. Run it with
``python examples/evaluate_policy.py``.
"""

from __future__ import annotations

import argparse

import numpy as np

from fleet_gym import Camera, CameraObsVideoRecorder, FleetVectorEnv
from fleet_gym.tasks.navigation_policy import GoToGoalPolicy


def evaluate(num_envs: int, episodes: int, folder: str, seed: int, max_episode_steps: int) -> list[bool]:
    """Plays `episodes` episodes in each world; returns whether each succeeded."""
    overhead = Camera("overhead", 160, 120, position=(0.0, -2.0, 4.0), target=(0.0, 0.0, 0.0))
    env = FleetVectorEnv(
        num_envs,
        num_robots=3,
        robot="diffbot",
        cameras=[overhead],
        camera_obs=False,  # the policy does not look; the recorder asks for what it records
        autoreset_mode="Disabled",
        max_episode_steps=max_episode_steps,
    )
    recorder = CameraObsVideoRecorder(
        env, folder, frame_source="env", episode_trigger=lambda world, episode: episode < episodes
    )
    policy = GoToGoalPolicy(env)
    successes: list[bool] = []
    played = np.zeros(num_envs, dtype=int)
    observation, infos = recorder.reset(seed=seed)
    while played.min() < episodes:
        observation, _, terminated, truncated, infos = recorder.step(policy(observation))
        done = terminated | truncated
        # Worlds step together: one that has played its share goes on, uncounted and unrecorded.
        for world in np.flatnonzero(done & (played < episodes)):
            successes.append(bool(infos["success"][world]))
            print(
                f"world {world}, seed {infos['episode_seed'][world]}: "
                f"{'success' if successes[-1] else 'no success'}, {infos['num_collisions'][world]} collisions"
            )
        played += done
        if done.any():
            observation, infos = recorder.reset(options={"reset_mask": done})
    recorder.close()
    return successes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=5, help="episodes of each world")
    parser.add_argument("--folder", default="evaluation-videos")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-episode-steps", type=int, default=200)
    options = parser.parse_args()
    result = evaluate(options.num_envs, options.episodes, options.folder, options.seed, options.max_episode_steps)
    print(f"success rate {np.mean(result):.2f} over {len(result)} episodes; videos are in {options.folder}")
