"""`parallel_env`: one world as a PettingZoo `ParallelEnv`, an agent per robot."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import ArrayLike, NDArray

from fleet_gym.adapters._views import check_mode, flat_observation, flat_space, info_rows
from fleet_gym.vector_arguments import action_array
from fleet_gym.wrappers.flatten_robots import FlattenRobots

try:
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as error:
    if error.name != "pettingzoo":
        raise
    raise ImportError("parallel_env needs PettingZoo: pip install 'fleet-gym[pettingzoo]'") from None


class RobotsParallelEnv(ParallelEnv):
    """One world of R robots as agents ``robot_0`` ... ``robot_<R-1>``; made by `parallel_env`.

    An agent observes a one-level dictionary: its row of ``state`` (D,), and the images of its world or, with
    `robot_cameras`, its own. Its action is (A,), its reward its own ``robot_reward``. All agents end together; `agents`
    is then empty until `reset`. An agent's infos are those of the vector environment, its own row of those by robot.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], robot_cameras: Mapping[str, Sequence[str]] | None) -> None:
        self._robots = FlattenRobots(env, robot_cameras=robot_cameras)
        self.possible_agents = [f"robot_{robot}" for robot in range(self._robots.num_robots)]
        self.agents: list[str] = []
        self.render_mode = env.render_mode
        self.metadata = {
            "name": "fleet_gym",
            "is_parallelizable": True,
            "render_modes": list(env.metadata.get("render_modes", ())),
            "render_fps": env.metadata.get("render_fps"),
        }
        observation: spaces.Space[Any] = self._robots.single_observation_space
        action: Any = self._robots.single_action_space
        # A space per agent: each is seeded by itself.
        self.observation_spaces = {agent: copy.deepcopy(flat_space(observation)) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Box(action.low, action.high) for agent in self.possible_agents}
        world: Any = env.single_observation_space
        self.state_space = spaces.Box(world["state"].low.ravel(), world["state"].high.ravel())
        self._state: NDArray[np.float32] = np.zeros(self.state_space.shape, dtype=np.float32)

    def observation_space(self, agent: str) -> Any:
        """Returns the observation space of an agent, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Returns the action space of an agent, always the same object."""
        return self.action_spaces[agent]

    @property
    def fleet(self) -> VectorEnv[Any, Any, Any]:
        """The vector environment of one world inside."""
        env: VectorEnv[Any, Any, Any] = self._robots.env
        return env

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Starts a new episode.

        Returns:
            Observations and infos by agent.
        """
        observation, infos = self._robots.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._by_agent(observation), dict(zip(self.agents, info_rows(infos, len(self.agents)), strict=True))

    def step(self, actions: Mapping[str, ArrayLike]) -> tuple[Any, Any, Any, Any, Any]:
        """Steps the world.

        Args:
            actions: (A,) of each agent.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, and after the episode has ended.
            TypeError: for an action that is not real numbers.
            ValueError: for other agents than the robots, or an action of another shape, NaN or infinite.
        """
        if not self.agents:
            raise ResetNeeded("step: expected reset() before the first step and after an episode's end")
        if not isinstance(actions, Mapping) or set(actions) != set(self.agents):
            got = sorted(map(str, actions)) if isinstance(actions, Mapping) else repr(actions)
            raise ValueError(f"actions: expected an action for each of {self.agents}, got {got}")
        rows = [_checked_action(agent, actions[agent], self.action_spaces[agent]) for agent in self.agents]
        observation, rewards, terminated, truncated, infos = self._robots.step(np.stack(rows))
        agents = self.agents
        if (terminated | truncated).any():
            self.agents = []
        return (
            self._by_agent(observation, agents),
            dict(zip(agents, rewards.tolist(), strict=True)),
            dict(zip(agents, terminated.tolist(), strict=True)),
            dict(zip(agents, truncated.tolist(), strict=True)),
            dict(zip(agents, info_rows(infos, len(agents)), strict=True)),
        )

    def _by_agent(self, observation: Mapping[str, Any], agents: Sequence[str] | None = None) -> dict[str, Any]:
        self._state = observation["state"].ravel().copy()
        flat = flat_observation(observation)
        agents = self.agents if agents is None else agents
        return {agent: {key: part[row] for key, part in flat.items()} for row, agent in enumerate(agents)}

    def state(self) -> NDArray[np.float32]:
        """Returns the states of all robots, one after the other: (R * D,) float32, as in the last observations."""
        state: NDArray[np.float32] = self._state.copy()
        return state

    def render(self) -> Any:
        """Draws the world: (480, 640, 3) uint8, or None without a render mode."""
        frames = self.fleet.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Closes the environment inside. Twice is fine."""
        self._robots.close()


def _checked_action(agent: str, action: ArrayLike, space: spaces.Box) -> NDArray[Any]:
    array = action_array(f"actions[{agent!r}]", action, space.shape, "channels")
    if not np.isfinite(array).all():
        raise ValueError(f"actions[{agent!r}]: expected finite numbers, got {array.tolist()}")
    return array


def parallel_env(
    env: VectorEnv[Any, Any, Any] | None = None,
    *,
    robot_cameras: Mapping[str, Sequence[str]] | None = None,
    **kwargs: Any,
) -> RobotsParallelEnv:
    """Makes a PettingZoo `ParallelEnv` of one world, an agent per robot.

    Args:
        env: a vector environment of one world in DISABLED mode, such as a recorder or profiler around a
            `FleetVectorEnv`; None makes one.
        robot_cameras: observation key -> names of R cameras, whose image is that of the robot; see `FlattenRobots`.
        **kwargs: of `FleetVectorEnv`, without `num_envs` and `autoreset_mode`; only without `env`.

    Raises:
        ImportError: without PettingZoo.
        TypeError: for arguments beside `env`, or that a single world does not have.
        ValueError: for an `env` of several worlds or in another mode.
    """
    if env is None:
        if unknown := sorted({"num_envs", "autoreset_mode"} & kwargs.keys()):
            raise TypeError(f"parallel_env: expected arguments of one world, got {unknown}")
        from fleet_gym.vector_env import FleetVectorEnv

        env = FleetVectorEnv(1, autoreset_mode=AutoresetMode.DISABLED, **kwargs)
        try:
            return RobotsParallelEnv(env, robot_cameras)
        except BaseException:
            env.close()
            raise
    if kwargs:
        raise TypeError(
            f"parallel_env: expected either env or arguments of FleetVectorEnv, got env and {sorted(kwargs)}"
        )
    check_mode(env, AutoresetMode.DISABLED, "PettingZoo")
    if env.num_envs != 1:
        raise ValueError(f"env: expected one world, num_envs=1, got {env.num_envs}")
    return RobotsParallelEnv(env, robot_cameras)
