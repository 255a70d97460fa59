"""PyBulletFleet's side of kinematics.py; runs in its own virtual environment (it pins numpy < 2).

Arguments: simulations, robots in each. Reads a number of steps per line from standard input, 0 ends.
"""

from __future__ import annotations

import math
import random
import sys
import time

from pybullet_fleet import AgentSpawnParams, MultiRobotSimulationCore, Pose, SimulationParams
from pybullet_fleet.agent_manager import AgentManager, GridSpawnParams
from pybullet_fleet.robot_models import resolve_model
from pybullet_fleet.types import CollisionMode


def make(num_robots: int) -> tuple[MultiRobotSimulationCore, list[object]]:
    simulation = MultiRobotSimulationCore(
        SimulationParams(
            target_rtf=0,
            gui=False,
            monitor=False,
            enable_monitor_gui=False,
            physics=False,
            timestep=0.1,
            log_level="error",
        )
    )
    manager = AgentManager(sim_core=simulation, fleet_controller={"type": "batch_omni"})
    side = math.ceil(math.sqrt(num_robots))
    agents = manager.spawn_agents_grid(
        num_agents=num_robots,
        grid_params=GridSpawnParams(
            x_min=0, x_max=side - 1, y_min=0, y_max=side - 1, spacing=[1.0, 1.0, 0.0], offset=[0.0, 0.0, 0.1]
        ),
        spawn_params=AgentSpawnParams(
            urdf_path=resolve_model("simple_cube"),
            collision_mode=CollisionMode.NORMAL_2D,
            controller={"type": "omni", "max_linear_vel": 1.5, "max_linear_accel": 2.0},
        ),
        name_prefix="robot",
    )
    simulation.initialize_simulation()
    for agent in agents:
        start = agent.get_pose()
        # So far away that it drives at full speed throughout.
        angle = random.uniform(-math.pi, math.pi)
        agent.set_path([Pose.from_xyz(start.x + 1e5 * math.cos(angle), start.y + 1e5 * math.sin(angle), start.z)])
    return simulation, agents


def main() -> None:
    random.seed(0)
    num_worlds, num_robots = int(sys.argv[1]), int(sys.argv[2])
    worlds = [make(num_robots) for _ in range(num_worlds)]
    before = [agent.get_pose().x for agent in worlds[0][1]]
    for line in sys.stdin:
        steps = int(line)
        if steps == 0:
            break
        start = time.process_time()
        for _ in range(steps):
            for simulation, _ in worlds:
                simulation.step_once()
        print("seconds", time.process_time() - start, flush=True)
    moved = [abs(agent.get_pose().x - x) > 1e-9 for agent, x in zip(worlds[0][1], before, strict=True)]
    if not all(moved):
        sys.exit(f"only {sum(moved)} of {len(moved)} robots moved")


if __name__ == "__main__":
    main()
