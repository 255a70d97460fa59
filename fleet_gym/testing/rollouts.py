"""Stepping environments the same way again and again, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

Make = Callable[..., VectorEnv[Any, Any, Any]]
#: Observation, reward, terminated, truncated, infos.
Transition = tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


@contextlib.contextmanager
def open_env(make: Make, num_envs: int, mode: AutoresetMode, **kwargs: Any) -> Iterator[VectorEnv[Any, Any, Any]]:
    """Opens an environment and closes it at the end of the block."""
    env = make(num_envs, mode, **kwargs)
    try:
        yield env
    finally:
        env.close()


def sampled_actions(env: VectorEnv[Any, Any, Any], steps: int, seed: int = 0) -> list[Any]:
    """Returns the same random actions for the same seed, whatever has been sampled before."""
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(steps)]


def rollout(
    env: VectorEnv[Any, Any, Any],
    steps: int,
    seed: int,
    *,
    actions: Sequence[Any] | None = None,
    until_done: bool = False,
) -> list[Transition]:
    """Resets with `seed`, steps, and returns copies of everything returned. Resets ended worlds in DISABLED mode.

    Args:
        env: possibly wrapped.
        steps: at most.
        seed: of the reset.
        actions: one per step; None: `sampled_actions`.
        until_done: stop after the first step in which an episode ends.
    """
    actions = sampled_actions(env, steps) if actions is None else actions
    disabled = env.metadata.get("autoreset_mode") is AutoresetMode.DISABLED
    env.reset(seed=seed)
    transitions: list[Transition] = []
    for action in actions[:steps]:
        transitions.append(deepcopy(env.step(action)))
        done = transitions[-1][2] | transitions[-1][3]
        if until_done and done.any():
            break
        if disabled and done.any():
            env.reset(options={"reset_mask": done})
    return transitions


def first_done(transitions: Sequence[Transition]) -> int | None:
    """Index of the first transition in which an episode ended."""
    for index, transition in enumerate(transitions):
        if (transition[2] | transition[3]).any():
            return index
    return None


def row(batched: Any, world: int) -> Any:
    """One world's part of batched data."""
    if isinstance(batched, Mapping):
        return {key: row(value, world) for key, value in batched.items()}
    if isinstance(batched, tuple):
        return tuple(row(value, world) for value in batched)
    return batched[world]


def arrays_in(data: Any) -> Iterator[NDArray[Any]]:
    """All non-empty arrays in nested data."""
    if isinstance(data, np.ndarray):
        if data.dtype == object:
            for entry in data:
                yield from arrays_in(entry)
        elif data.size:
            yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from arrays_in(value)
    elif isinstance(data, (tuple, list)):
        for value in data:
            yield from arrays_in(value)
