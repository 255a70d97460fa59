"""Ten thousand robots in one world, four thousand worlds in one environment: right, and within the stated memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np

from fleet_gym import FleetVectorEnv, MultiRobotSimulationCore
from fleet_gym.world.robots import robot_model


def bytes_per_robot(code, count):
    """What a fresh process holds more after `code` has called `large()` than before, where `small()` compiled all."""
    program = textwrap.dedent(code) + textwrap.dedent(
        """
        import psutil
        held = lambda: psutil.Process().memory_full_info().uss
        small()
        before = held()
        large_one = large()
        print(held() - before)
        """
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(ran.stdout) / count


def test_ten_thousand_robots_stay_apart_and_arrive():
    radius = robot_model("diffbot").footprint_radius
    with MultiRobotSimulationCore(arena_size=120.0) as sim:
        robots = sim.spawn_grid("diffbot", 10_000, spacing=1.0)
        start = sim.state.position[0, :, :2].copy()
        for robot, (x, y) in zip(robots[::2], start[::2].tolist(), strict=True):
            sim.set_goal(robot, (x + 3.0, y))
        assert sim.run_simulation(duration=2.0) == 20
        assert len(sim.contacts()) > 1000, "every other one is in the way"
        places = sim.state.position[0, :, :2]
        assert smallest_distance(places) >= 2 * radius
        sim.remove(robots[1::2])
        sim.run_simulation(duration=8.0)
        assert all(map(sim.has_arrived, robots[::2]))
        np.testing.assert_allclose(sim.state.position[0, :, :2], np.add(start[::2], (3.0, 0.0)), atol=1e-9)


def smallest_distance(places):
    """Between any two of many points, found among those that are near in x."""
    places = places[np.argsort(places[:, 0])]
    smallest, behind = np.inf, 1
    while (places[behind:, 0] - places[:-behind, 0]).min() < smallest:
        smallest = min(smallest, np.hypot(*(places[behind:] - places[:-behind]).T).min())
        behind += 1
    return smallest


def test_the_last_of_four_thousand_worlds_is_the_one_it_is_alone():
    many, one = FleetVectorEnv(4096, num_robots=8), FleetVectorEnv(1, num_robots=8)
    observation, _ = many.reset(seed=7)
    alone, _ = one.reset(seed=7 + 4095)
    assert np.array_equal(observation["state"][4095:], alone["state"])
    actions = np.random.default_rng(0).uniform(-1, 1, many.action_space.shape).astype(np.float32)
    for _ in range(10):
        observation, reward, *_ = many.step(actions)
        alone, alone_reward, *_ = one.step(actions[4095:])
        assert np.array_equal(observation["state"][4095:], alone["state"])
        assert reward[4095] == alone_reward[0]
    many.close()
    one.close()


def test_memory_per_robot_is_about_what_the_guide_says():
    simulation = """
        from fleet_gym import MultiRobotSimulationCore
        def run(count):
            sim = MultiRobotSimulationCore(arena_size=200.0)
            for robot in sim.spawn_grid("diffbot", count, spacing=1.0):
                sim.random_walk(robot)
            sim.run_simulation(duration=1.0)
            return sim
        small, large = lambda: run(100).close(), lambda: run(10_000)
    """
    environment = """
        from fleet_gym import FleetVectorEnv
        def run(count):
            env = FleetVectorEnv(count, num_robots=8)
            env.reset(seed=0)
            for _ in range(3):
                env.step(env.action_space.sample())
            return env
        small, large = lambda: run(2).close(), lambda: run(4096)
    """
    assert bytes_per_robot(simulation, 10_000) < 1.5 * 3800
    assert bytes_per_robot(environment, 4096 * 8) < 1.5 * 2000
