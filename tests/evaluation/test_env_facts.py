"""What an environment says of itself: the same however it was made, JSON, and nothing that is no fact of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from coin_env import coin_envs
from gymnasium.vector import AutoresetMode, VectorEnv

from fleet_gym import Camera, FleetVectorEnv
from fleet_gym.evaluation.env_facts import differing_settings, env_facts
from fleet_gym.evaluation.environments import EnvRequest, make_env
from fleet_gym.tasks.navigation import Navigation
from fleet_gym.world.robots import robot_model

TOP = Camera("top", 32, 24, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))


def facts_of(env: VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    facts = env_facts(env)
    env.close()
    return json.loads(json.dumps(facts))  # type: ignore[no-any-return]


def test_defaults_that_are_spelled_out_change_nothing() -> None:
    short = facts_of(FleetVectorEnv(2, num_robots=2, robot="diffbot"))
    spelled = facts_of(
        FleetVectorEnv(
            3,
            num_robots=2,
            robot=["diffbot", robot_model("diffbot")],
            dynamics="kinematic",
            control_dt=0.1,
            max_episode_steps=200,
            task=Navigation(num_obstacles=4, lidar_rays=0),
            cameras=[TOP],
            camera_obs=False,
            renderer="tiny",  # nobody sees its images
        )
    )
    kwargs = {"num_robots": 2, "robot": "diffbot", "max_episode_steps": 200}
    registered = facts_of(make_env(EnvRequest(kwargs=kwargs, cameras=("none",))).env)
    assert short == spelled == registered
    assert (short["env"], short["num_robots"], short["max_steps"]) == ("FleetGym/Navigation-v0", 2, 200)


@pytest.mark.parametrize(
    ("arguments", "differing"),
    [
        ({"task_kwargs": {"num_obstacles": 8}}, {"env_settings.task.num_obstacles": (4, 8)}),
        ({"task_kwargs": {"arena_size": 9}}, {"env_settings.task.arena_size": (None, 9.0)}),
        ({"robot": "husky"}, {"env_settings.robot": ("diffbot", "husky")}),
        ({"dynamics": "physics"}, {"env_settings.dynamics": ("kinematic", "physics")}),
        ({"max_episode_steps": 9}, {"max_steps": (200, 9)}),
        ({"num_robots": 2}, {"num_robots": (1, 2)}),
    ],
)
def test_what_was_made_otherwise_differs(arguments: dict[str, Any], differing: dict[str, Any]) -> None:
    usual = {"num_robots": 1, "robot": "diffbot"}
    one, other = facts_of(FleetVectorEnv(1, **usual)), facts_of(FleetVectorEnv(1, **{**usual, **arguments}))
    assert differing_settings(one, other) == differing


def test_cameras_the_policy_sees_and_robots_that_were_changed_are_facts() -> None:
    faster = replace(robot_model("diffbot"), max_speed=9.0)
    settings = facts_of(FleetVectorEnv(1, num_robots=1, robot=faster, cameras=[TOP]))["env_settings"]
    assert settings["cameras"]["top"]["width"] == 32
    assert settings["renderer"] == "auto"
    assert settings["robot"]["max_speed"] == 9.0


def test_a_task_changed_after_it_was_made_is_what_it_is_now() -> None:
    env = FleetVectorEnv(1, num_robots=1, robot="diffbot")
    env.task.collision_cost = 0.1  # type: ignore[attr-defined]
    assert facts_of(env)["env_settings"]["task"]["collision_cost"] == 0.1


def test_what_is_no_json_is_left_out() -> None:
    class Mapped(Navigation):
        def __init__(self, grid: Any, name: Any, factor: float = np.inf) -> None:
            super().__init__(num_obstacles=0)
            self.grid, self._name, self.factor = grid, name, factor

    task = Mapped(np.zeros((100, 100)), object())
    assert facts_of(FleetVectorEnv(1, num_robots=1, robot="diffbot", task=task))["env_settings"]["task"] == {}
    task = Mapped(np.arange(2), "b")
    told = facts_of(FleetVectorEnv(1, num_robots=1, robot="diffbot", task=task))["env_settings"]["task"]
    assert told == {"grid": [0, 1], "name": "b"}


def test_environments_of_others_say_their_arguments_and_their_limit() -> None:
    mode = {"autoreset_mode": AutoresetMode.DISABLED}

    def cart_pole(**arguments: Any) -> dict[str, Any]:
        return facts_of(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", vector_kwargs=mode, **arguments))

    assert cart_pole() == cart_pole(sutton_barto_reward=False) == cart_pole(max_episode_steps=500)
    assert differing_settings(cart_pole(), cart_pole(sutton_barto_reward=True, max_episode_steps=7)) == {
        "max_steps": (500, 7),
        "env_settings.sutton_barto_reward": (False, True),
    }
    assert facts_of(coin_envs(2)) == {"env": "SyncVectorEnv", "env_settings": {}}
