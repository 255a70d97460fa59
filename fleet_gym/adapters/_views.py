"""What the adaptors share: checks of the autoreset mode, one-level observations, infos by environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from fleet_gym.vector_arguments import autoreset_mode_of
from fleet_gym.wrappers.flatten_robots import has_rows


def check_mode(env: Any, expected: AutoresetMode, consumer: str) -> None:
    """Checks the autoreset mode before anything is done with `env`.

    Raises:
        TypeError: when `env` is no vector environment.
        ValueError: when its mode is another, naming the right one.
    """
    if not isinstance(env, VectorEnv):
        raise TypeError(f"env: expected a gymnasium.vector.VectorEnv, got {type(env).__name__}")
    mode = autoreset_mode_of(env)
    if mode is not expected:
        got = "no mode in its metadata" if mode is None else repr(mode.value)
        raise ValueError(
            f"env: {consumer} needs autoreset_mode={expected.value!r}, got {got}; make the environment with "
            f"autoreset_mode={expected.value!r}"
        )


def flat_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Returns the one-level form of a space: nested Dicts are opened, their keys kept.

    Raises:
        ValueError: when two parts have the same key.
    """
    if not isinstance(space, spaces.Dict):
        return space
    parts: dict[str, spaces.Space[Any]] = {}
    for key, part in space.spaces.items():
        inner = flat_space(part)
        opened = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {key: inner}
        if twice := sorted(parts.keys() & opened.keys()):
            raise ValueError(f"env: expected different keys in all levels of the observation, got {twice} twice")
        parts.update(opened)
    return spaces.Dict(parts)


def flat_observation(observation: Any) -> Any:
    """Returns the one-level form of an observation, whose arrays it shares; see `flat_space`."""
    if not isinstance(observation, Mapping):
        return observation
    flat: dict[str, Any] = {}
    for key, part in observation.items():
        flat.update(flat_observation(part) if isinstance(part, Mapping) else {key: part})
    return flat


def info_rows(infos: Mapping[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Returns the infos of each environment as a dict, without masks, ``final_obs`` and ``final_info``.

    What has no row for each environment, such as a plain number, is everybody's.

    Raises:
        TypeError: for infos that are no mapping.
    """
    if not isinstance(infos, Mapping):
        raise TypeError(
            f"infos: expected a mapping with arrays of all environments, got {type(infos).__name__}; leave out the "
            "wrapper that splits them"
        )
    rows: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if key.startswith("_") or key in ("final_obs", "final_info"):
            continue
        mask: NDArray[np.bool_] | None = infos.get(f"_{key}")
        # All at once: environment by environment it would cost more than the step.
        column = info_rows(values, num_envs) if isinstance(values, Mapping) else _column(values, num_envs)
        if mask is None or mask.all():
            for row, value in zip(rows, column, strict=True):
                row[key] = value
        else:
            for env in np.flatnonzero(mask):
                rows[env][key] = column[env]
    return rows


def _column(values: Any, num_envs: int) -> list[Any]:
    """Scalars as Python's own types, rows as arrays."""
    if not has_rows(values, num_envs):
        return [values] * num_envs
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else list(values)


class VectorView(VectorEnv[Any, Any, Any]):
    """A vector environment that is its own ``unwrapped``, for trainers that look past wrappers.

    It shows the spaces, number of environments, metadata and autoreset mode of the wrappers it holds.

    Args:
        env: possibly wrapped.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.metadata = dict(env.metadata)
        self.autoreset_mode = autoreset_mode_of(env)
        self.render_mode = env.render_mode
        self.spec = env.spec
        self.single_observation_space, self.observation_space = env.single_observation_space, env.observation_space
        self.single_action_space, self.action_space = env.single_action_space, env.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; see `gymnasium.vector.VectorEnv.reset`."""
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments; see `gymnasium.vector.VectorEnv.step`."""
        return self.env.step(actions)

    def render(self) -> Any:
        """Draws the environments; see `gymnasium.vector.VectorEnv.render`."""
        return self.env.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environment inside. Called once, by `close`."""
        if "env" in vars(self):  # Gymnasium before 1.3 also closes what could not be constructed
            self.env.close(**kwargs)
