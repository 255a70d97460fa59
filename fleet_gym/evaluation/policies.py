"""Policies by name: the scripted one, random actions, a function of yours, or a file that `save_policy` wrote."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from fleet_gym.evaluation.policy_files import load_policy, save_policy

__all__ = ["Policy", "RandomPolicy", "load_policy", "make_policy", "save_policy"]

AnyVectorEnv = VectorEnv[Any, Any, Any]


class Policy(Protocol):
    """A function from batched observations to batched actions.

    A policy that keeps something per episode (a hidden state, a random generator) also has a method
    ``begin_episodes(worlds, seeds)``: called with the (n,) indices of the worlds in which an episode begins and the
    seeds of these episodes, before the first observation of them is shown.
    """

    def __call__(self, observation: Any) -> Any:
        """Returns one action per world for an observation of the vector environment."""
        ...


class RandomPolicy:
    """Draws each world's actions from its single action space, from a generator that each episode's seed begins.

    So an episode is the same whichever worlds run beside it, and when it is played again.

    Args:
        env: whose action space to draw from.
    """

    def __init__(self, env: AnyVectorEnv) -> None:
        self._spaces = [deepcopy(env.single_action_space) for _ in range(env.num_envs)]

    def begin_episodes(self, worlds: NDArray[np.intp], seeds: Sequence[int]) -> None:
        """Starts these worlds' generators anew."""
        for world, seed in zip(worlds, seeds, strict=True):
            self._spaces[world].seed(int(seed))

    def __call__(self, observation: Any) -> Any:
        """Returns one sample per world."""
        from gymnasium.vector.utils import concatenate, create_empty_array

        single = self._spaces[0]
        out: Any = create_empty_array(single, len(self._spaces))
        return concatenate(single, [space.sample() for space in self._spaces], out)


def make_policy(policy: str, env: AnyVectorEnv) -> Policy:
    """Makes the policy that a name stands for.

    Args:
        policy: ``"scripted"`` (Navigation only), ``"random"``, the path of a ``.pt`` file, or ``"module:name"``: a
            function that is called with the vector environment and returns the policy, a function from observations to
            actions. Modules are looked for in the working directory too.
        env: the environment to act in, possibly wrapped.

    Raises:
        TypeError: when what a name stands for is no function.
        ValueError: for a name that stands for nothing, or a policy that does not fit the environment.
        FileNotFoundError: when there is no such file.
        ImportError: when a module, or PyTorch for a file, is missing.
    """
    if policy == "scripted":
        return _scripted(env)
    if policy == "random":
        return RandomPolicy(env)
    if policy.endswith((".pt", ".pth")):
        return load_policy(policy, env)
    if ":" in policy:
        return _imported(policy, env)
    raise ValueError(f"policy: expected 'scripted', 'random', a file ending in .pt or 'module:name', got {policy!r}")


def _scripted(env: AnyVectorEnv) -> Policy:
    from fleet_gym.tasks.navigation import Navigation
    from fleet_gym.tasks.navigation_policy import GoToGoalPolicy

    base = env.unwrapped
    if not isinstance(getattr(base, "task", None), Navigation):
        kind = getattr(getattr(base, "spec", None), "id", None) or type(base).__name__
        raise ValueError(f"policy: expected one that fits {kind}, got 'scripted', which drives Navigation only")
    return GoToGoalPolicy(env)


def _imported(name: str, env: AnyVectorEnv) -> Policy:
    module_name, _, attribute = name.partition(":")
    working_directory = os.getcwd()
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(f"policy: expected a module that can be imported in {name!r}, got: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"policy: expected a name of module {module_name} after the colon, got {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"policy: expected {name} to be a function of the vector environment, got {found!r}")
    try:
        policy = found(env)
    except TypeError as error:  # most often a function of observations, or of nothing
        raise TypeError(
            f"policy: expected {name} to be a function of the vector environment that returns the policy, got from "
            f"calling it: {error}"
        ) from error
    if not callable(policy):
        raise TypeError(
            f"policy: expected {name}(env) to return a function from observations to actions, got {policy!r}"
        )
    made: Policy = policy
    return made


def policy_identity(policy: str | Callable[..., Any]) -> Mapping[str, str]:
    """Returns what tells a policy from another in a run's configuration: its name, and a file's checksum."""
    if not isinstance(policy, str):
        kind = policy if hasattr(policy, "__qualname__") else type(policy)
        return {"policy": f"{kind.__module__}:{kind.__qualname__}"}
    if policy.endswith((".pt", ".pth")):
        return {"policy": policy, "policy_sha256": hashlib.sha256(Path(policy).read_bytes()).hexdigest()}
    return {"policy": policy}
