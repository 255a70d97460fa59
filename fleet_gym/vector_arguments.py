"""Checks of FleetVectorEnv's arguments, made before anything moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import non_negative_int


def parse_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Returns the mode for itself, its value (``"NextStep"``) or its name (``"next_step"``).

    Raises:
        ValueError: for anything else.
    """
    if isinstance(mode, AutoresetMode):
        return mode
    if isinstance(mode, str):
        plain = mode.replace("_", "").lower()
        for known in AutoresetMode:
            if plain == known.value.lower():
                return known
    values = ", ".join(repr(known.value) for known in AutoresetMode)
    raise ValueError(f"autoreset_mode: expected an AutoresetMode or one of {values}, got {mode!r}")


def checked_actions(
    actions: ArrayLike, shape: tuple[int, ...] | None, *, ignored: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Returns actions as a new float64 array clipped to [-1, 1], with zeros in the ignored worlds.

    Args:
        actions: (E, R, A).
        shape: expected.
        ignored: (E,) worlds whose rows are not looked at.

    Raises:
        TypeError: for anything but real numbers.
        ValueError: for another shape, NaN or infinity, naming world and robot.
    """
    array = np.asarray(actions)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"actions: expected real numbers of shape {shape}, got dtype {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"actions: expected shape {shape} (worlds, robots, channels), got {array.shape}")
    checked = array.astype(np.float64)
    checked[ignored] = 0.0
    if not np.isfinite(checked).all():
        world, robot, channel = np.argwhere(~np.isfinite(checked))[0]
        raise ValueError(
            f"actions: expected finite numbers, got {checked[world, robot, channel]} "
            f"for world {world}, robot {robot}, channel {channel}"
        )
    return np.clip(checked, -1.0, 1.0, out=checked)


def checked_reset_mask(options: Mapping[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """Returns a copy of ``options["reset_mask"]``, or an all-True mask without one.

    Raises:
        TypeError: for a mask that is not a NumPy bool array.
        ValueError: for another shape or no True.
    """
    if options is None or "reset_mask" not in options:
        return np.ones(num_envs, dtype=np.bool_)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"reset_mask: expected a NumPy bool array of shape ({num_envs},), got {type(mask).__name__}")
    if mask.dtype != np.bool_:
        raise TypeError(f"reset_mask: expected a NumPy bool array of shape ({num_envs},), got dtype {mask.dtype}")
    if mask.shape != (num_envs,):
        raise ValueError(f"reset_mask: expected shape ({num_envs},), got {mask.shape}")
    if not mask.any():
        raise ValueError("reset_mask: expected at least one True, got none")
    return np.array(mask, dtype=np.bool_)


def checked_worlds(env_indices: Sequence[int] | None, num_envs: int) -> NDArray[np.intp]:
    """Returns world indices as an array; None means all.

    Raises:
        TypeError: for an index that is not an int.
        ValueError: for one outside 0..num_envs-1.
    """
    if env_indices is None:
        return np.arange(num_envs)
    worlds = [non_negative_int("env_indices", index) for index in env_indices]
    for world in worlds:
        if world >= num_envs:
            raise ValueError(f"env_indices: expected worlds in 0..{num_envs - 1}, got {world}")
    return np.array(worlds, dtype=np.intp)
