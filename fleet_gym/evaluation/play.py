"""Playing a fixed number of episodes of known seeds in the worlds of a vector environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from fleet_gym._validation import non_negative_int, positive_int
from fleet_gym.vector_arguments import as_array
from fleet_gym.video.infos import SUCCESS_KEYS, env_info, success_of

AnyVectorEnv = VectorEnv[Any, Any, Any]
#: Infos of an episode's last step that are kept.
_INFO_KEYS = (*SUCCESS_KEYS, "num_collisions")


@dataclass(frozen=True)
class Episode:
    """One counted episode.

    Attributes:
        index: 0..N-1 over all worlds.
        env: world it was played in.
        episode: index among the episodes of its world, as in the names of its videos.
        seed: ``reset(seed=[seed])`` replays it.
        steps: its length.
        episode_return: sum of its rewards.
        success: what the environment said in its last step, None when it says nothing.
        collisions: ``num_collisions`` of its last step, None when there is no such info.
        terminated: the environment ended it.
        truncated: it was cut off.
    """

    index: int
    env: int
    episode: int
    seed: int
    steps: int
    episode_return: float
    success: bool | None
    collisions: int | None
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class Plan:
    """Which episode is played where: episode k has the seed ``seed + k`` and is played in world k modulo `num_envs`.

    So the episodes are the same whatever `num_envs`, every world plays its share, and each episode that was begun
    counts: taking the first N that end would prefer short ones.

    Attributes:
        episodes: N.
        num_envs: worlds.
        seed: of episode 0.
    """

    episodes: int
    num_envs: int
    seed: int

    def __post_init__(self) -> None:
        positive_int("episodes", self.episodes)
        positive_int("num_envs", self.num_envs)
        non_negative_int("seed", self.seed)

    @property
    def shares(self) -> NDArray[np.int64]:
        """(E,) number of episodes of each world."""
        worlds = np.arange(self.num_envs)
        return np.asarray((self.episodes - worlds + self.num_envs - 1) // self.num_envs, dtype=np.int64).clip(0)

    @property
    def seeds(self) -> list[int]:
        """The N seeds, by episode."""
        return [self.seed + index for index in range(self.episodes)]

    def index(self, world: int, episode: int) -> int:
        """Index over all worlds of a world's episode."""
        return episode * self.num_envs + world

    def seeds_at(self, episode: NDArray[np.int64]) -> Any:  # gymnasium types seeds as int, and takes lists
        """Returns each world's seed for its episode of that index; worlds beyond their share repeat the last one."""
        last = np.maximum(self.shares - 1, 0)
        indices = np.minimum(episode, last) * self.num_envs + np.arange(self.num_envs)
        return [self.seed + int(index) for index in indices]


def check_autoreset(env: AnyVectorEnv) -> None:
    """Checks that worlds wait for the seed of their next episode.

    Raises:
        ValueError: for any other mode than DISABLED.
    """
    mode = getattr(env, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.DISABLED:
        raise ValueError(
            "env: expected autoreset_mode=AutoresetMode.DISABLED, so that each episode gets its seed, got "
            f"{getattr(mode, 'value', mode)!r}; SyncVectorEnv and FleetVectorEnv take autoreset_mode='Disabled'"
        )


def play(
    env: AnyVectorEnv,
    policy: Callable[[Any], Any],
    plan: Plan,
    done: NDArray[np.int64],
    acting: Callable[[], AbstractContextManager[Any]],
) -> Iterator[list[Episode]]:
    """Plays the plan's episodes.

    All worlds step together: one that has played its share goes on, uncounted.

    Args:
        env: in autoreset mode DISABLED.
        policy: observation -> actions; see `fleet_gym.evaluation.policies.Policy`.
        plan: what to play.
        done: (E,) episodes of each world that were played before; it goes on behind them.
        acting: makes a context around each call of the policy.

    Yields:
        The counted episodes that ended in a step, after every step.

    Raises:
        TypeError: for actions of another kind than the environment's.
        ValueError: for actions of another shape, or rewards that are not one finite number per world.
    """
    shares = plan.shares
    if np.all(done >= shares):
        return
    running = np.zeros(plan.num_envs, dtype=np.int64)
    begin = getattr(policy, "begin_episodes", None)
    observation, _ = env.reset(seed=plan.seeds_at(running))
    while np.any(behind := running < done):  # resets that only count, so that indices and videos go on where they were
        running += behind
        observation, _ = env.reset(seed=plan.seeds_at(running), options={"reset_mask": behind})
    began = np.ones(plan.num_envs, dtype=np.bool_)
    steps, returns = np.zeros(plan.num_envs, dtype=np.int64), np.zeros(plan.num_envs)
    while True:
        if begin is not None and began.any():
            worlds, seeds = np.flatnonzero(began), plan.seeds_at(running)
            begin(worlds, [seeds[world] for world in worlds])
        with acting():
            actions = _checked_actions(policy(observation), env.action_space)
        observation, rewards, terminated, truncated, infos = env.step(actions)
        steps += 1
        returns += _checked_rewards(rewards, plan.num_envs)
        over = np.asarray(terminated | truncated)
        counted = np.flatnonzero(over & (running < shares))
        yield [
            _episode(plan, int(world), int(running[world]), steps, returns, terminated, truncated, infos)
            for world in counted
        ]
        running += over
        if np.all(running >= shares):
            return
        steps[over], returns[over] = 0, 0.0
        began = over
        if over.any():
            observation, _ = env.reset(seed=plan.seeds_at(running), options={"reset_mask": over})


def _checked_rewards(rewards: Any, num_envs: int) -> NDArray[Any]:
    array = np.asarray(rewards)
    if array.shape != (num_envs,) or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        raise ValueError(f"env: expected {num_envs} finite rewards, got {array.tolist()!r}")
    return array


def _episode(
    plan: Plan,
    world: int,
    episode: int,
    steps: NDArray[np.int64],
    returns: NDArray[np.float64],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    infos: Mapping[str, Any],
) -> Episode:
    info = env_info(infos, world, _INFO_KEYS)
    index = plan.index(world, episode)
    return Episode(
        index=index,
        env=world,
        episode=episode,
        seed=plan.seed + index,
        steps=int(steps[world]),
        episode_return=float(returns[world]),
        success=success_of(info),
        collisions=collisions_of(info),
        terminated=bool(terminated[world]),
        truncated=bool(truncated[world]),
    )


def _checked_actions(actions: Any, space: spaces.Space[Any]) -> Any:
    """Returns actions if they are one array of the space's shape and kind; those of composite spaces as they are.

    An environment of others may take the first rows of too many, or ask for the right ones by an assertion.
    """
    if space.shape is None or space.dtype is None:
        return actions
    expected = f"actions of shape {space.shape} {space.dtype}, a row per world"
    array = as_array("policy", actions, expected)
    if array.dtype.kind not in ("iufb" if space.dtype.kind == "f" else "iub"):
        raise TypeError(f"policy: expected {expected}, got dtype {array.dtype}")
    if array.shape != space.shape:
        raise ValueError(f"policy: expected {expected}, got {array.shape}")
    return array


def collisions_of(info: Mapping[str, Any]) -> int | None:
    """Returns what one environment's infos say about collisions, None when nothing."""
    value = info.get("num_collisions")
    return None if value is None or np.ndim(value) else int(value)


def by_world(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
    """Groups episodes by their world, worlds in order."""
    groups: dict[int, list[Episode]] = {}
    for episode in sorted(episodes, key=lambda episode: (episode.env, episode.episode)):
        groups.setdefault(episode.env, []).append(episode)
    return groups
