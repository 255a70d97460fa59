"""VMAS's side of kinematics.py: navigation with collisions and lidar on one torch thread.

Arguments: worlds, agents in each. Reads a number of steps per line from standard input, 0 ends.
"""

from __future__ import annotations

import sys
import time

import torch
import vmas


def main() -> None:
    torch.set_num_threads(1)
    num_worlds, num_agents = int(sys.argv[1]), int(sys.argv[2])
    env = vmas.make_env(
        "navigation", num_envs=num_worlds, device="cpu", continuous_actions=True, seed=0, n_agents=num_agents
    )
    env.reset()
    actions = [torch.rand(num_worlds, 2) * 2 - 1 for _ in range(num_agents)]
    for line in sys.stdin:
        steps = int(line)
        if steps == 0:
            break
        start = time.process_time()
        for _ in range(steps):
            env.step(actions)
        print("seconds", time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
