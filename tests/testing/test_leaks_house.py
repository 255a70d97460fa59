"""The house is clean: environments, renderers and recorders do not grow with use or with lifetimes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym import Camera, CameraObsVideoRecorder, FleetEnv, FleetVectorEnv, MemoryProfilingWrapper
from fleet_gym.testing.leaks import assert_no_leak
from fleet_gym.wrappers.time_profiling import TimeProfilingWrapper

CAMERA = Camera("overhead", 32, 24, position=(0, 0, 8), target=(0, 0, 0))


@pytest.fixture
def closing():
    opened: list[Any] = []

    def register(env: Any) -> Any:
        opened.append(env)
        return env

    yield register
    for env in opened:
        env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_kinematic_environments(closing, mode):
    env = closing(FleetVectorEnv(3, num_robots=3, autoreset_mode=mode, max_episode_steps=4))
    assert_no_leak(env, 40, steps=6)


def test_physics_environments(closing):
    env = closing(FleetVectorEnv(2, num_robots=2, robot="diffbot", dynamics="physics", max_episode_steps=3))
    assert_no_leak(env, 30, steps=5)


@pytest.mark.parametrize("renderer", ["tiny", "raster"])
def test_renderers(closing, renderer):
    env = closing(
        FleetVectorEnv(2, num_robots=1, robot="diffbot", cameras=[CAMERA], renderer=renderer, max_episode_steps=3)
    )
    assert_no_leak(env, 30, steps=5)


def test_single_environments(closing):
    assert_no_leak(closing(FleetEnv(num_robots=2)), 40, steps=6)


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_recorders(closing, tmp_path, backend):
    env = closing(
        CameraObsVideoRecorder(
            FleetVectorEnv(1, num_robots=1, robot="diffbot", cameras=[CAMERA], max_episode_steps=3),
            tmp_path,
            backend=backend,
            num_workers=1 if backend == "pool" else None,
            keep_last=2,
        )
    )
    # An episode is a process (moviepy) and a file, with a row in the log each: steps only, resets happen in them.
    env.reset(seed=0)
    actions = env.action_space.sample()

    def episode() -> None:
        for _ in range(4):
            env.step(actions)

    assert_no_leak(episode, 20)


@pytest.mark.parametrize("mode", ["light", "trace"])
def test_profilers(closing, mode):
    inner = FleetVectorEnv(2, num_robots=2, max_episode_steps=4)
    env = closing(TimeProfilingWrapper(MemoryProfilingWrapper(inner, mode=mode, profiling_interval=5), True, 5))
    # Tracing keeps tables of its own for every block, which the C heap holds.
    assert_no_leak(env, 40, steps=6, max_native_bytes=512 if mode == "light" else 4096)


@pytest.mark.parametrize("kind", ["kinematic", "cameras", "physics"])
def test_lifetimes(kind):
    arguments: dict[str, Any] = {
        "kinematic": {},
        "cameras": {"cameras": [CAMERA]},
        "physics": {"dynamics": "physics", "robot": "diffbot", "task_kwargs": {"num_obstacles": 0}},
    }[kind]
    seeds = itertools.count()

    def lifetime() -> None:
        env = MemoryProfilingWrapper(FleetVectorEnv(1, num_robots=1, **arguments), mode="light")
        env.reset(seed=next(seeds))
        env.step(env.action_space.sample())
        env.close()

    assert_no_leak(lifetime, 30)
