"""Reading single environments' values out of batched Gymnasium infos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fleet_gym.video.frames import to_numpy

SUCCESS_KEYS = ("success", "is_success")


def _value(values: Any, env: int) -> Any:
    if isinstance(values, Mapping):
        return env_info(values, env)
    if hasattr(values, "shape") and (array := to_numpy(values)).ndim == 1:
        # A scalar's own `item` looks the array's up by a new string each time, and CPython caches up to 4,096 of them.
        return array.item(env)
    value = to_numpy(values)[env] if hasattr(values, "shape") else values[env]
    return value.item() if isinstance(value, np.generic) else value


def _has(infos: Mapping[str, Any], key: str, env: int) -> bool:
    mask = infos.get(f"_{key}")
    return key in infos and (mask is None or bool(to_numpy(mask)[env]))


def env_info(infos: Mapping[str, Any], env: int, keys: Iterable[str] | None = None) -> dict[str, Any]:
    """Returns one environment's infos as a plain dict, without the masks and what is not there for it.

    Args:
        infos: batched, as a vector environment returns them.
        env: whose.
        keys: the only ones wanted; None for all but ``final_obs`` and ``final_info``.
    """
    if keys is None:
        keys = [key for key in infos if not str(key).startswith("_") and key not in ("final_obs", "final_info")]
    return {key: _value(infos[key], env) for key in keys if _has(infos, key, env)}


def last_info(infos: Mapping[str, Any], env: int, keys: Iterable[str] | None = None) -> dict[str, Any]:
    """Returns the infos of an episode that just ended in `env`: of its row of ``final_info`` where there is one."""
    if _has(infos, "final_info", env):
        final = infos["final_info"]
        if not isinstance(final, Mapping):
            return dict(final[env] or {})
        infos = final
    return env_info(infos, env, keys)


def success_of(info: Mapping[str, Any]) -> bool | None:
    """Returns what one environment's infos say about success, None when nothing."""
    for key in SUCCESS_KEYS:
        if key in info and np.ndim(info[key]) == 0 and info[key] is not None:
            return bool(info[key])
    return None


def seeds_of(seed: Any, num_envs: int) -> list[int | None]:
    """Returns the seed of each environment for a `seed` argument of ``reset``, as Gymnasium's vector envs spread it."""
    if seed is None or isinstance(seed, bool):
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + env for env in range(num_envs)]
    if isinstance(seed, (Sequence, np.ndarray)) and np.shape(seed) == (num_envs,):
        return [None if value is None else int(value) for value in seed]
    return [None] * num_envs
