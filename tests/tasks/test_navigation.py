"""Navigation: what is drawn, observed and rewarded."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_gym import FleetVectorEnv
from fleet_gym.tasks.navigation_kernel import direction
from fleet_gym.tasks.navigation_policy import GoToGoalPolicy


def make(num_envs=4, **kwargs):
    return FleetVectorEnv(num_envs, **{"robot": "diffbot", "autoreset_mode": "disabled", **kwargs})


def discs(env, world):
    """Centres and radii of obstacles, starts and goals of a world."""
    scene, state, task = env.scene, env.state, env.task
    markers = [i for i, body in enumerate(scene.bodies) if body.kind == "marker"]
    obstacles = [i for i, body in enumerate(scene.bodies) if body.kind == "obstacle"]
    assert len(obstacles) == task.num_obstacles
    center = np.concatenate(
        [
            state.body_position[world, obstacles, :2],
            state.position[world, :, :2],
            state.body_position[world, markers, :2],
        ]
    )
    radius = [*(scene.bodies[i].shape.bounding_radius for i in obstacles), *np.tile(scene.footprint_radius, 2)]
    return center, np.array(radius)


@pytest.mark.parametrize("num_robots", [1, 3, 40])
def test_nothing_overlaps_at_the_start_and_all_is_inside(num_robots):
    env = make(num_robots=num_robots)
    for seed in range(5):
        env.reset(seed=seed)
        for world in range(4):
            center, radius = discs(env, world)
            distance = np.linalg.norm(center[:, None] - center[None], axis=-1) + 100 * np.eye(len(center))
            assert (distance >= radius[:, None] + radius[None] + env.task.clearance - 1e-9).all()
            assert (np.abs(center) + radius[:, None] <= env.scene.arena_size / 2 + 1e-9).all()
    env.close()


def test_worlds_and_episodes_differ():
    env = make()
    env.reset(seed=0)
    first = env.state.position.copy()
    env.reset()
    assert len({tuple(row) for row in np.concatenate([first, env.state.position])[:, 0].tolist()}) == 8
    env.close()


def test_a_thousand_robots_fit_by_default():
    env = make(1, num_robots=1000)
    observation, _ = env.reset(seed=0)
    assert observation["state"].shape[:2] == (1, 1000)
    env.step(np.zeros((1, 1000, 2)))
    env.close()


def test_an_impossible_density_says_how_many_fit():
    with pytest.raises(ValueError, match=r"got a side of 3 m, where (\d+) robots fit") as error:
        make(num_robots=60, task_kwargs={"arena_size": 3.0})
    fit = int(str(error.value).rsplit("where ", 1)[1].split()[0])
    assert 1 < fit < 60
    make(1, num_robots=fit // 2, task_kwargs={"arena_size": 3.0}).close()


def test_the_observation_is_in_the_body_frame():
    env = make(1, num_robots=3, task_kwargs={"num_obstacles": 2})
    observation, infos = env.reset(seed=6)
    state, layout = observation["state"][0].astype(np.float64), env.state_layout
    goal = env.state.body_position[0, 2:, :2] - env.state.position[0, :, :2]
    yaw = env.state.yaw()[0]
    for r in range(3):
        turn = np.array([[np.cos(yaw[r]), np.sin(yaw[r])], [-np.sin(yaw[r]), np.cos(yaw[r])]])
        expected = turn @ goal[r]
        np.testing.assert_allclose(state[r, layout["goal"]], expected, rtol=1e-5)
        np.testing.assert_allclose(state[r, layout["goal_distance"]], np.linalg.norm(goal[r]), rtol=1e-5)
        np.testing.assert_allclose(state[r, layout["heading_error"]], np.arctan2(*expected[::-1]), rtol=1e-4)
        np.testing.assert_allclose(infos["goal_distance"][0, r], np.linalg.norm(goal[r]))
        others = [i for i in range(3) if i != r]
        offset = env.state.position[0, others, :2] - env.state.position[0, r, :2]
        nearest = np.argsort(np.linalg.norm(offset, axis=1))
        seen = state[r, layout["robots"]].reshape(-1, 6)
        np.testing.assert_allclose(seen[:, :2], (turn @ offset[nearest].T).T, rtol=1e-4)
        np.testing.assert_allclose(seen[:, 4], env.scene.footprint_radius[others], rtol=1e-6)
        assert (seen[:, 5] == 1).all()
        obstacles = env.state.body_position[0, :2, :2] - env.state.position[0, r, :2]
        seen = state[r, layout["obstacles"]].reshape(-1, 6)
        gap = np.linalg.norm(obstacles, axis=1) - [body.shape.bounding_radius for body in env.scene.bodies[:2]]
        np.testing.assert_allclose(seen[:, :2], (turn @ obstacles[np.argsort(gap)].T).T, rtol=1e-4)
    env.close()


def test_velocities_and_the_previous_action_are_observed():
    env = make(1, num_robots=2)
    env.reset(seed=1)
    actions = np.array([[[0.5, -0.25], [0.0, 0.0]]])
    for _ in range(20):
        state = env.step(actions)[0]["state"][0]
    limits = env.scene.robots[0].command_limits
    np.testing.assert_allclose(state[0, env.state_layout["previous_action"]], [0.5, -0.25])
    np.testing.assert_allclose(
        state[0, env.state_layout["velocity"]], [0.5 * limits[0], 0, -0.25 * limits[1]], atol=1e-5
    )
    env.close()


def test_columns_that_cannot_be_filled_are_left_out():
    env = make(1, num_robots=1, task_kwargs={"num_obstacles": 0})
    assert set(env.state_layout) == {"goal", "goal_distance", "heading_error", "velocity", "previous_action"}
    assert env.reset(seed=0)[0]["state"].shape == (1, 1, 9)
    env.close()


def test_rewards_add_up_to_progress_and_costs():
    weights = {"progress_weight": 2.0, "goal_bonus": 0.0, "success_bonus": 0.0, "effort_cost": 0.1}
    env = make(1, num_robots=2, task_kwargs={**weights, "collision_cost": 0.0})
    _, infos = env.reset(seed=2)
    before = infos["goal_distance"]
    action = np.array([[[1.0, 0.5], [0.2, -1.0]]])
    total = np.zeros((1, 2))
    for _ in range(6):
        infos = env.step(action)[4]
        total += infos["robot_reward"]
    expected = 2.0 * (before - infos["goal_distance"]) - 6 * 0.1 * np.mean(action**2, axis=2)
    np.testing.assert_allclose(total, expected, atol=1e-12)
    env.close()


def drive_to_goals(env, seed, steps=400):
    policy = GoToGoalPolicy(env)
    observation, infos = env.reset(seed=seed)
    history = []
    for _ in range(steps):
        observation, _, terminated, _, infos = env.step(policy(observation))
        history.append((terminated.copy(), infos))
        if terminated.any():
            break
    return history


def test_success_needs_all_robots_at_their_goals_in_one_step():
    env = make(1, num_robots=2, max_episode_steps=None, task_kwargs={"num_obstacles": 0})
    history = drive_to_goals(env, seed=0)
    near = [bool((infos["goal_distance"] <= env.task.goal_radius).all()) for _, infos in history]
    assert near == [False] * (len(near) - 1) + [True]
    assert [bool(terminated[0]) for terminated, _ in history] == near
    assert [bool(infos["success"][0]) for _, infos in history] == near
    env.close()


def test_the_goal_bonus_is_paid_once_and_success_to_all():
    weights = {
        "progress_weight": 0.0,
        "effort_cost": 0.0,
        "collision_cost": 0.0,
        "goal_bonus": 3.0,
        "success_bonus": 5.0,
    }
    env = make(1, num_robots=2, max_episode_steps=None, task_kwargs={"num_obstacles": 0, **weights})
    history = drive_to_goals(env, seed=0)
    total = sum(infos["robot_reward"][0] for _, infos in history)
    np.testing.assert_allclose(total, [8.0, 8.0])
    env.close()


def collide(env):
    """Drives robot 0 into robot 1; returns infos and flags per step."""
    env.reset(seed=0)
    steps = []
    for _ in range(200):
        offset = env.state.position[0, 1, :2] - env.state.position[0, 0, :2]
        bearing = np.arctan2(offset[1], offset[0]) - env.state.yaw()[0, 0]
        turn = np.arctan2(np.sin(bearing), np.cos(bearing))
        _, _, terminated, _, infos = env.step([[[float(abs(turn) < 0.3), np.clip(3 * turn, -1, 1)], [0.0, 0.0]]])
        steps.append((bool(terminated[0]), infos))
        if infos["num_collisions"][0]:
            break
    return steps


def test_collisions_cost_and_are_counted():
    weights = {"progress_weight": 0.0, "effort_cost": 0.0, "collision_cost": 0.7}
    env = make(1, num_robots=2, max_episode_steps=None, task_kwargs={"num_obstacles": 0, **weights})
    steps = collide(env)
    assert [int(infos["num_collisions"][0]) for _, infos in steps] == [0] * (len(steps) - 1) + [1]
    np.testing.assert_allclose(steps[-1][1]["robot_reward"], [[-0.7, -0.7]])
    assert not any(terminated for terminated, _ in steps)
    env.close()


def test_a_collision_may_end_the_episode():
    env = make(1, num_robots=2, task_kwargs={"num_obstacles": 0, "terminate_on_collision": True})
    steps = collide(env)
    assert steps[-1][0]
    assert not steps[-1][1]["success"][0]
    env.close()


@pytest.mark.parametrize(("robot", "least"), [("diffbot", 0.9), ("husky", 0.9), ("racecar", 0.5)])
def test_the_scripted_policy_reaches_the_goals(robot, least):
    env = make(20, robot=robot, num_robots=3, max_episode_steps=400)
    policy = GoToGoalPolicy(env)
    observation, _ = env.reset(seed=0)
    succeeded = np.zeros(20, dtype=bool)
    for _ in range(400):
        observation, _, terminated, truncated, infos = env.step(policy(observation))
        done = terminated | truncated
        succeeded |= infos["success"]
        if succeeded.all() or truncated.any():
            break
        if done.any():
            observation, _ = env.reset(options={"reset_mask": done})
    assert succeeded.mean() >= least
    env.close()


def test_a_task_object_is_copied():
    from fleet_gym.tasks.navigation import Navigation

    task = Navigation(num_obstacles=1)
    one, other = make(1, task=task), make(2, task=task)
    assert one.task is not task
    assert one.task is not other.task
    one.reset(seed=0)
    other.reset(seed=0)
    one.close()
    other.close()


def test_directions_are_exact_to_single_precision():
    rng = np.random.default_rng(0)
    points = [*rng.normal(size=(2000, 2)), *(rng.choice([-1.0, 0.0, 1.0, 1e-12], size=(200, 2)))]
    for y, x in points:
        assert abs(direction(y, x) - np.arctan2(y + 0.0, x)) < 1e-7, (y, x)


def test_two_who_want_to_cross_each_others_way_do_not_drive_on_side_by_side():
    env = make(1, robot="husky", num_robots=2, max_episode_steps=None, task_kwargs={"num_obstacles": 0})
    policy = GoToGoalPolicy(env)
    env.reset(seed=0)
    # Side by side, each robot's goal behind the other one's lane.
    env.state.position[0, :, :2] = [[-3, 0.75], [-3, -0.75]]
    env.state.orientation[0] = [0, 0, 0, 1]
    env.task._goal[0] = [[2, -2], [2, 2]]
    observation = env.step(np.zeros((1, 2, 2)))[0]
    for _ in range(150):
        observation, _, terminated, _, infos = env.step(policy(observation))
        if terminated[0]:
            break
    assert infos["success"][0]
    env.close()
