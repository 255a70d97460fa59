"""What PyBulletFleet's own memory profiling costs it. Run by memory_profiling.py with the Python of its own venv.

    python benchmarks/peer_pybullet_fleet.py 100 1000

Prints a JSON object: number of robots -> milliseconds per step without and with profiling, and their ratio, medians of
interleaved blocks in one process. All robots move all the time.
"""

import contextlib
import json
import logging
import os
import statistics
import sys
import time
import tracemalloc


def make_simulation(num_robots):
    from pybullet_fleet.agent import Agent, AgentSpawnParams, Pose
    from pybullet_fleet.core_simulation import MultiRobotSimulationCore, SimulationParams
    from pybullet_fleet.robot_models import resolve_model

    params = SimulationParams(gui=False, monitor=False, physics=False, timestep=0.1, target_rtf=0, log_level="error")
    simulation = MultiRobotSimulationCore(params)
    side = int(num_robots**0.5 + 0.999)
    agents = []
    for index in range(num_robots):
        pose = Pose.from_yaw(2.0 * (index % side), 2.0 * (index // side), 0.05, 0.0)
        spawn = AgentSpawnParams(urdf_path=resolve_model("mobile_robot"), initial_pose=pose)
        agents.append(Agent.from_params(spawn, sim_core=simulation))
    simulation.initialize_simulation()
    return simulation, agents


def drive(agents, cycle):
    """Sends every robot half a metre to and fro, which takes longer than a block of steps."""
    from pybullet_fleet.agent import Pose

    for agent in agents:
        pose = agent.get_pose()
        step = 50.0 if cycle % 2 == 0 else -50.0
        agent.set_goal_pose(Pose.from_yaw(pose.x + step, pose.y, pose.z, pose.yaw))


def timed(simulation, agents, steps, cycle):
    drive(agents, cycle)
    start = time.perf_counter()
    for _ in range(steps):
        simulation.step_once()
    return 1e3 * (time.perf_counter() - start) / steps


def measure(num_robots, repeats=5):
    simulation, agents = make_simulation(num_robots)
    steps = max(3, 2000 // num_robots)
    timed(simulation, agents, steps, 0)
    off, on = [], []
    for repeat in range(repeats):
        off.append(timed(simulation, agents, steps, repeat))
        tracemalloc.start(10)  # as its initialize_simulation does with profiling enabled
        simulation._enable_memory_profiling = True
        on.append(timed(simulation, agents, steps, repeat + 1))
        simulation._enable_memory_profiling = False
        tracemalloc.stop()
    ratio = statistics.median(with_it / without for with_it, without in zip(on, off, strict=True))
    return {"off_ms": statistics.median(off), "on_ms": statistics.median(on), "ratio": ratio}


def main():
    logging.disable(logging.INFO)
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        figures = {num_robots: measure(int(num_robots)) for num_robots in sys.argv[1:]}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
