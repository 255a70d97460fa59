"""What is recorded: which environments, cameras, episodes and steps, and how users say so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

EpisodeTrigger = Callable[[int], bool] | Callable[[int, int], bool]
StepTrigger = Callable[[int], bool]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def normalize_episode_trigger(trigger: EpisodeTrigger | None) -> Callable[[int, int], bool] | None:
    """Returns a trigger of (env, episode) for one of (episode) or (env, episode).

    Raises:
        TypeError: when it is not callable.
        ValueError: when it takes neither one nor two positional parameters.
    """
    if trigger is None:
        return None
    if not callable(trigger):
        raise TypeError(f"episode_trigger: expected a function of (episode) or (env, episode), got {trigger!r}")
    call: Callable[..., Any] = trigger
    try:
        signature = inspect.signature(call)
    except ValueError:  # some of C have none, such as the __contains__ of a set of episodes
        return lambda env, episode: bool(call(episode))
    parameters = [p for p in signature.parameters.values() if p.kind in _POSITIONAL]
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    count = len(required) or len(parameters)
    if count == 1:
        return lambda env, episode: bool(call(episode))
    if count == 2:
        return lambda env, episode: bool(call(env, episode))
    raise ValueError(
        f"episode_trigger: expected a function of (episode) or (env, episode), got one of {count} positional parameters"
    )


def check_cameras(cameras: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the camera names as a tuple.

    Raises:
        TypeError: when it is not a sequence of strings.
        ValueError: when it is empty or names a camera twice.
    """
    if cameras is None:
        return None
    if isinstance(cameras, str) or not all(isinstance(camera, str) for camera in cameras):
        raise TypeError(f"cameras: expected a list of camera names, got {cameras!r}")
    names = tuple(cameras)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"cameras: expected at least one name and each once, got {list(names)}")
    return names


def env_mask(env_indices: Sequence[int] | None, num_envs: int) -> NDArray[np.bool_]:
    """Returns (E,) True for the environments to record.

    Raises:
        TypeError: when the indices are not integers.
        ValueError: when one is out of range, twice there, or there are none.
    """
    if env_indices is None:
        return np.ones(num_envs, dtype=np.bool_)
    indices = np.asarray(env_indices)
    if indices.ndim != 1 or (indices.size and not np.issubdtype(indices.dtype, np.integer)):
        raise TypeError(f"env_indices: expected a list of integers, got {env_indices!r}")
    if not indices.size or indices.min() < 0 or indices.max() >= num_envs or len(np.unique(indices)) != indices.size:
        raise ValueError(f"env_indices: expected distinct integers in 0..{num_envs - 1}, got {env_indices!r}")
    mask = np.zeros(num_envs, dtype=np.bool_)
    mask[indices] = True
    return mask
