"""Checks of FleetVectorEnv's arguments, made before anything moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import non_negative_int, one_of
from fleet_gym.profiling.forwarding import find_inner
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import WorldSample


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


def autoreset_mode_of(env: VectorEnv[Any, Any, Any]) -> AutoresetMode | None:
    """Returns the autoreset mode of an environment, possibly wrapped; None when it does not say.

    Raises:
        ValueError: when what it says is no mode.
    """
    mode = env.metadata.get("autoreset_mode")
    mode = find_inner(env, "autoreset_mode") if mode is None else mode
    return None if mode is None else parse_autoreset_mode(mode)


def as_array(name: str, values: ArrayLike, expected: str) -> NDArray[Any]:
    """Returns values as an array.

    Raises:
        ValueError: for nested lists of different lengths; it says what was `expected`.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name}: expected {expected}, got {type(values).__name__}: {error}") from None


def action_array(name: str, actions: ArrayLike, shape: tuple[int, ...] | None, axes: str) -> NDArray[Any]:
    """Returns actions as an array of real numbers of the given shape.

    Raises:
        TypeError: for anything but real numbers.
        ValueError: for another shape.
    """
    array = as_array(name, actions, f"shape {shape} ({axes})")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected real numbers of shape {shape} ({axes}), got dtype {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape} ({axes}), got {array.shape}")
    return array


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
    array = action_array("actions", actions, shape, "worlds, robots, channels")
    finite = np.isfinite(array)
    finite[ignored] = True
    if not finite.all():
        world, robot, channel = np.argwhere(~finite)[0]
        raise ValueError(
            f"actions: expected finite numbers, got {array[world, robot, channel]} "
            f"for world {world}, robot {robot}, channel {channel}"
        )
    # Clipped first: a longdouble may not fit into float64.
    checked: NDArray[np.float64] = np.clip(array, -1, 1).astype(np.float64)
    checked[ignored] = 0.0
    return checked


def checked_reset_mask(options: Mapping[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """Returns a copy of ``options["reset_mask"]``, or an all-True mask without one.

    Raises:
        TypeError: for options that are no mapping, or a mask that is not a NumPy bool array.
        ValueError: for another shape or no True.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options: expected a mapping or None, got {options!r}")
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


def checked_world(name: str, index: int, num_envs: int, *, what: str = "worlds") -> int:
    """Returns a world index; an error calls worlds `what` they are to the caller.

    Raises:
        TypeError: for anything but an int.
        ValueError: outside 0..num_envs-1.
    """
    world = non_negative_int(name, index)
    if world >= num_envs:
        raise ValueError(f"{name}: expected {what} in 0..{num_envs - 1}, got {world}")
    return world


def checked_worlds(env_indices: Sequence[int] | None, num_envs: int, *, what: str = "worlds") -> NDArray[np.intp]:
    """Returns world indices as an array; None means all. An error calls worlds `what` they are to the caller.

    Raises:
        TypeError: for anything but a sequence of ints.
        ValueError: for an index outside 0..num_envs-1.
    """
    if env_indices is None:
        return np.arange(num_envs)
    if not isinstance(env_indices, (Sequence, np.ndarray)) or np.ndim(env_indices) != 1:
        raise TypeError(f"env_indices: expected a sequence of ints or None, got {env_indices!r}")
    return np.array([checked_world("env_indices", index, num_envs, what=what) for index in env_indices], dtype=np.intp)


def checked_names(name: str, chosen: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Returns the chosen names; None means all.

    Raises:
        TypeError: for anything but a sequence of names.
        ValueError: for an unknown name.
    """
    if chosen is None:
        return list(known)
    if isinstance(chosen, str) or not isinstance(chosen, Sequence):
        raise TypeError(f"{name}: expected a sequence of names or None, got {chosen!r}")
    return [one_of(name, entry, known) for entry in chosen]


def checked_sample(sample: WorldSample, num_worlds: int, scene: Scene) -> WorldSample:
    """Returns a task's sample if its arrays have the right shapes and finite values.

    Raises:
        ValueError: naming the array.
    """
    n, robots, bodies = num_worlds, scene.num_robots, scene.num_bodies
    expected = {
        "position": (n, robots, 3),
        "orientation": (n, robots, 4),
        "active": (n, robots),
        "body_position": (n, bodies, 3),
        "body_orientation": (n, bodies, 4),
        "body_active": (n, bodies),
    }
    for name, shape in expected.items():
        array = np.asarray(getattr(sample, name))
        if array.shape != shape:
            raise ValueError(f"task.sample: expected {name} of shape {shape}, got {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"task.sample: expected finite values of {name}, got {array[~np.isfinite(array)][0]}")
    return sample
