"""Range sensors against rays marched through the scene in small steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet_gym import FleetVectorEnv
from fleet_gym.world.robots import robot_model

RANGE = 4.0
BOUNDS = (-0.1, -0.2, 0.5, 0.15)


def make(**kwargs):
    defaults = {"lidar_rays": 16, "lidar_range": RANGE}
    return {"robot": "diffbot", "task_kwargs": {**defaults, **kwargs}}


def marched(env, world, robot, rays, step=0.002):
    """First point of each ray that lies in a robot or obstacle."""
    state, scene = env.state, env.scene
    here = state.position[world, robot, :2]
    angle = state.yaw()[world, robot] + 2 * np.pi * np.arange(rays) / rays
    along = np.arange(0, RANGE, step)
    points = here + along[None, :, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)[:, None]
    hit = np.zeros(points.shape[:2], dtype=bool)
    for other in range(scene.num_robots):
        if other == robot:
            continue
        away = points - state.position[world, other, :2]
        if scene.robots[other].footprint == "circle":
            hit |= np.linalg.norm(away, axis=-1) <= scene.footprint_radius[other]
            continue
        yaw = state.yaw()[world, other]
        local = np.stack([np.cos(yaw) * away[..., 0] + np.sin(yaw) * away[..., 1],
                          np.cos(yaw) * away[..., 1] - np.sin(yaw) * away[..., 0]], axis=-1)  # fmt: skip
        bounds = np.array(scene.robots[other].footprint_bounds)
        hit |= ((bounds[:2] <= local) & (local <= bounds[2:])).all(axis=-1)
    for body, spec in enumerate(scene.bodies):
        if spec.kind != "obstacle":
            continue
        away = points - state.body_position[world, body, :2]
        if spec.shape.kind == "cylinder":
            hit |= np.linalg.norm(away, axis=-1) <= spec.shape.size[0]
            continue
        z, w = state.body_orientation[world, body, 2:]
        cos, sin = w * w - z * z, 2 * w * z
        local = np.abs(np.stack([cos * away[..., 0] + sin * away[..., 1], cos * away[..., 1] - sin * away[..., 0]], -1))
        hit |= (local <= np.array(spec.shape.size[:2]) / 2).all(axis=-1)
    return np.where(hit.any(axis=1), along[hit.argmax(axis=1)], RANGE)


@pytest.mark.parametrize(("num_robots", "bounds"), [(5, ()), (60, ()), (5, BOUNDS), (60, BOUNDS)])
def test_rays_end_at_the_first_surface(num_robots, bounds):
    robot = replace(robot_model("diffbot"), footprint="box" if bounds else "circle", footprint_bounds=bounds)
    env = FleetVectorEnv(2, num_robots=num_robots, **{**make(num_obstacles=6), "robot": robot})
    env.action_space.seed(0)
    observation, _ = env.reset(seed=3)
    for _ in range(3):
        observation, *_ = env.step(env.action_space.sample())
    ranges = observation["state"][..., env.state_layout["lidar"]]
    seen = 0
    for world in range(2):
        for robot in range(5):
            expected = marched(env, world, robot, 16)
            # A ray that grazes a corner may slip between two marched points.
            assert (np.abs(ranges[world, robot] - expected) < 0.003).mean() >= 15 / 16
            seen += (expected < RANGE).sum()
    assert seen > 10
    env.close()


def test_noise_is_decided_by_the_seed_and_has_its_size():
    def rollout(noise, num_envs, seed):
        env = FleetVectorEnv(num_envs, num_robots=3, **make(lidar_noise=noise))
        rows = [env.reset(seed=seed)[0]["state"][-1]]
        for _ in range(40):
            rows.append(env.step(np.zeros(env.action_space.shape))[0]["state"][-1])
        layout = env.state_layout["lidar"]
        env.close()
        return np.array(rows)[..., layout]

    noisy, again = rollout(0.05, 1, 6), rollout(0.05, 2, 5)
    assert np.array_equal(noisy, again)
    exact = noisy.mean(axis=0)
    inside = (exact > 0.3) & (exact < RANGE - 0.3)
    assert np.std((noisy - exact)[:, inside]) == pytest.approx(0.05, rel=0.15)
    assert not np.array_equal(noisy[0], noisy[1])


def test_observations_stay_in_their_space_and_old_columns_in_their_place():
    with_lidar, without = FleetVectorEnv(1, **make()), FleetVectorEnv(1, robot="diffbot")
    first, second = with_lidar.reset(seed=0)[0], without.reset(seed=0)[0]
    width = second["state"].shape[-1]
    assert np.array_equal(first["state"][..., :width], second["state"])
    assert with_lidar.state_layout["lidar"] == slice(width, width + 16)
    assert with_lidar.observation_space.contains(first)
    with_lidar.close()
    without.close()


@pytest.mark.parametrize("bad", [{"lidar_rays": -1}, {"lidar_range": 0}, {"lidar_noise": float("nan")}])
def test_bad_arguments_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FleetVectorEnv(1, **make(**bad))
