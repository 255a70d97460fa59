"""Trained policies as files: a TorchScript module with what it was trained on, so that a misfit is found at loading."""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

AnyVectorEnv = VectorEnv[Any, Any, Any]

FORMAT = "fleet_gym.policy/1"
#: Arguments of an environment that say how many, how it is drawn or when it is reset, and nothing about the task.
NOT_OF_THE_TASK = frozenset({"num_envs", "autoreset_mode", "vectorization_mode", "render_mode", "num_workers"})
_NAMES = {
    "env": "environment",
    "task": "task",
    "drives": "drives of the robots",
    "state_layout": "columns of the state",
}
_TORCH_HINT = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


def import_torch() -> Any:
    """Returns the module torch.

    Raises:
        ImportError: naming the pip command, without PyTorch.
    """
    try:
        import torch
    except ImportError:
        raise ImportError(f"a policy file needs PyTorch: {_TORCH_HINT}") from None
    return torch


class TorchPolicy:
    """A saved policy at work: observations in, actions out, without gradients.

    Args:
        module: TorchScript; takes the `inputs` one after the other as batched tensors and returns a batch of actions.
        inputs: keys of the observation, nested ones joined by ``/``; empty for an observation that is one array.
        env: the environment to act in.
    """

    def __init__(self, module: Any, inputs: Sequence[str], env: AnyVectorEnv) -> None:
        self._torch = import_torch()
        self._module = module
        self._inputs = tuple(inputs)
        self._dtype = env.action_space.dtype

    def __call__(self, observation: Any) -> Any:
        """Returns actions of the action space's dtype for an observation of the vector environment."""
        torch = self._torch
        arrays = observation_arrays(observation)
        with torch.inference_mode():
            tensors = [torch.from_numpy(np.ascontiguousarray(arrays[key])) for key in self._inputs]
            actions = self._module(*tensors)
        return np.asarray(actions.numpy(), dtype=self._dtype)


def observation_arrays(observation: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the arrays of an observation by their key, nested keys joined by ``/``; ``""`` for a bare array."""
    if not isinstance(observation, Mapping):
        return {prefix: observation}
    found: dict[str, Any] = {}
    for key, value in observation.items():
        found.update(observation_arrays(value, f"{prefix}/{key}" if prefix else str(key)))
    return found


def space_facts(space: spaces.Space[Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Returns ``{key: {"shape": [...], "dtype": "..."}}`` of a single space, keys as in `observation_arrays`.

    Raises:
        ValueError: for a space that is no array, such as Text or Sequence.
    """
    if isinstance(space, spaces.Dict):
        found: dict[str, dict[str, Any]] = {}
        for key, part in space.spaces.items():
            found.update(space_facts(part, f"{prefix}/{key}" if prefix else str(key)))
        return found
    if space.shape is None or space.dtype is None:
        raise ValueError(f"env: expected spaces of arrays and dicts of them, got {space}")
    return {prefix: {"shape": list(space.shape), "dtype": str(np.dtype(space.dtype))}}


def task_facts(env: AnyVectorEnv) -> dict[str, Any]:
    """Returns what makes the environment's task what it is: its name, the columns of the state, the robots' drives."""
    base: Any = env.unwrapped
    spec = getattr(base, "spec", None)
    facts: dict[str, Any] = {"env": type(base).__name__ if spec is None else spec.id}
    if hasattr(base, "task") and hasattr(base, "state_layout"):
        facts["env"] = "fleet_gym"  # the same environment however it was made
        facts["task"] = type(base.task).__name__
        facts["state_layout"] = {name: [part.start, part.stop] for name, part in base.state_layout.items()}
        facts["drives"] = [robot.drive for robot in base.scene.robots]
        facts["control_dt"] = base.control_dt
    return facts


def save_policy(
    path: str | os.PathLike[str],
    module: Any,
    env: AnyVectorEnv,
    *,
    inputs: Sequence[str] | None = None,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a policy to a file that `load_policy` and ``fleet-gym evaluate --policy`` read without your code.

    The module is traced unless it is TorchScript already, tried on the environment's observation space, and kept with
    the shapes of observation and action and the facts of the task.

    Args:
        path: of the file, ending in ``.pt``; replaced if it exists.
        module: a `torch.nn.Module` that takes the `inputs` as batched tensors, one argument each, in that order, and
            returns the batch of actions. For Navigation: ``module(state)`` with (E, R, D) float32 to (E, R, A); what
            normalizes observations belongs into it. Saved in evaluation mode.
        env: an environment of the kind it acts in, possibly wrapped; any number of worlds.
        inputs: keys of the observation the module takes, nested ones as ``"camera_obs/front"``; None: all of them, in
            the order of the space.
        env_id: id under which ``fleet-gym evaluate`` makes the environment; None: that of ``env.spec``, or
            ``FleetGym/Navigation-v0`` for a `FleetVectorEnv` with Navigation.
        env_kwargs: arguments it makes it with, as JSON values; None: those of ``env.spec`` where it has one.
        metadata: JSON values kept beside it (steps trained, seed...).

    Raises:
        TypeError: for arguments that are not JSON values, or a module that is none.
        ValueError: for an unknown input, or a module that does not return one action per world.
        ImportError: without PyTorch.
    """
    torch = import_torch()
    if Path(path).suffix != ".pt":
        raise ValueError(f"path: expected a file name ending in .pt, got {str(path)!r}")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    observation = space_facts(env.single_observation_space)
    names = _checked_inputs(inputs, observation)
    action = _action_facts(env)
    env_id, env_kwargs = _making(env, env_id, env_kwargs)
    task = {"env_id": env_id, "env_kwargs": _json("env_kwargs", env_kwargs), "facts": task_facts(env)}
    was_training = module.training
    module.eval()
    try:
        scripted = _scripted(torch, module, env, names)
        _check_actions(torch, scripted, env, names, "module")
        buffer = io.BytesIO()
        with _quiet():
            torch.jit.save(scripted, buffer)
    finally:
        module.train(was_training)
    content = {
        "format": FORMAT,
        "task": task,
        "inputs": list(names),
        "observation_shape": {name: observation[name]["shape"] for name in names},
        "observation_dtype": {name: observation[name]["dtype"] for name in names},
        "action_shape": action["shape"],
        "action_dtype": action["dtype"],
        "metadata": _json("metadata", metadata or {}),
        "module": buffer.getvalue(),
    }
    partial = Path(f"{os.fspath(path)}.part")
    torch.save(content, partial)
    os.replace(partial, path)


def load_policy(path: str | os.PathLike[str], env: AnyVectorEnv) -> TorchPolicy:
    """Loads a policy and checks that it fits the environment.

    Args:
        path: of a file that `save_policy` wrote, or of a plain TorchScript module, which is called with all parts of
            the observation in the order of its space.
        env: the environment to act in.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no policy, was trained on another task, or takes or returns other shapes.
        ImportError: without PyTorch.
    """
    torch = import_torch()
    content = read_policy(path)
    where = f"policy {str(path)!r}"
    observation = space_facts(env.single_observation_space)
    if content is None:
        names: Sequence[str] = tuple(observation)
        source: Any = os.fspath(path)
    else:
        _check_fit(content, observation, env, where)
        names = content["inputs"]
        source = io.BytesIO(content["module"])
    with _quiet():
        module = torch.jit.load(source, map_location="cpu").eval()
    _check_actions(torch, module, env, names, where)
    return TorchPolicy(module, names, env)


def read_policy(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns what `save_policy` wrote into a file, None when it is a plain TorchScript module.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is neither.
        ImportError: without PyTorch.
    """
    torch = import_torch()
    if not Path(path).is_file():
        raise FileNotFoundError(f"policy: expected a file, got {str(path)!r}, which is none")
    expected = f"policy {str(path)!r}: expected a file of save_policy or a TorchScript module"
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{expected}, got something else")
    with zipfile.ZipFile(path) as archive:
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            return None
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever an unpickler can raise: it is not ours
        raise ValueError(f"{expected}, got a file with other contents ({type(error).__name__})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{expected}, got a checkpoint of another kind (a training checkpoint?)")
    return content


def _checked_inputs(inputs: Sequence[str] | None, observation: Mapping[str, Any]) -> tuple[str, ...]:
    if inputs is None:
        return tuple(observation)
    if isinstance(inputs, str) or not inputs:
        raise ValueError(f"inputs: expected a list of keys among {sorted(observation)}, got {inputs!r}")
    unknown = [name for name in inputs if name not in observation]
    if unknown:
        raise ValueError(f"inputs: expected keys among {sorted(observation)}, got {unknown}")
    return tuple(inputs)


def _action_facts(env: AnyVectorEnv) -> dict[str, Any]:
    facts = space_facts(env.single_action_space)
    if set(facts) != {""}:
        raise ValueError(f"env: expected an action space that is one array, got {env.single_action_space}")
    return facts[""]


def _making(
    env: AnyVectorEnv, env_id: str | None, env_kwargs: Mapping[str, Any] | None
) -> tuple[str | None, Mapping[str, Any]]:
    """Returns id and arguments to make such an environment with."""
    base: Any = env.unwrapped
    spec = getattr(base, "spec", None)
    if env_id is None:
        fleet = hasattr(base, "task") and type(base.task).__name__ == "Navigation"
        env_id = spec.id if spec is not None else "FleetGym/Navigation-v0" if fleet else None
    if env_kwargs is None:
        env_kwargs = {} if spec is None else spec.kwargs
    return env_id, {name: value for name, value in env_kwargs.items() if name not in NOT_OF_THE_TASK}


def _json(name: str, value: Mapping[str, Any]) -> Any:
    from fleet_gym.world.cameras import Camera

    def plain(entry: Any) -> Any:
        if isinstance(entry, Camera):
            return entry.to_dict()
        if isinstance(entry, (np.generic, np.ndarray)):
            return entry.tolist()
        raise TypeError(f"{name}: expected JSON values, got {type(entry).__name__}: {entry!r}")

    return json.loads(json.dumps(dict(value), default=plain))


def _example(torch: Any, env: AnyVectorEnv, inputs: Sequence[str], batch: int) -> list[Any]:
    facts = space_facts(env.single_observation_space)
    rng = np.random.default_rng(0)
    arrays = [rng.random((batch, *facts[name]["shape"])).astype(facts[name]["dtype"]) for name in inputs]
    return [torch.from_numpy(array) for array in arrays]


def _scripted(torch: Any, module: Any, env: AnyVectorEnv, inputs: Sequence[str]) -> Any:
    if isinstance(module, torch.jit.ScriptModule):
        return module
    with _quiet(), torch.inference_mode():
        traced = torch.jit.trace(module, tuple(_example(torch, env, inputs, 2)), check_trace=False)
        # A trace keeps what it saw: a branch on the batch's size or values would silently be lost.
        example = _example(torch, env, inputs, 5)
        same = torch.allclose(traced(*example), module(*example), rtol=1e-4, atol=1e-5)
    if not same:
        raise ValueError(
            "module: expected one whose trace acts like itself, got different actions for another number of worlds "
            "(random actions, or a branch?); pass torch.jit.script(module)"
        )
    return traced


def _check_actions(torch: Any, module: Any, env: AnyVectorEnv, inputs: Sequence[str], where: str) -> None:
    batch = env.num_envs
    expected = (batch, *_action_facts(env)["shape"])
    try:
        with _quiet(), torch.inference_mode():
            actions = module(*_example(torch, env, inputs, batch))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"{where}: expected one that takes {_shapes(env, inputs)}, got an error from it: {reason}"
        ) from None
    shape = tuple(actions.shape) if isinstance(actions, torch.Tensor) else type(actions).__name__
    if shape != expected:
        raise ValueError(f"{where}: expected actions of shape {expected}, got {shape}")


def _shapes(env: AnyVectorEnv, inputs: Sequence[str]) -> str:
    facts = space_facts(env.single_observation_space)
    return ", ".join(f"{name or 'observations'} {(env.num_envs, *facts[name]['shape'])}" for name in inputs)


def _check_fit(
    content: Mapping[str, Any], observation: Mapping[str, dict[str, Any]], env: AnyVectorEnv, where: str
) -> None:
    saved, own = content["task"]["facts"], task_facts(env)
    for name in ("env", "task", "drives", "state_layout"):
        if saved.get(name) != own.get(name):
            raise ValueError(
                f"{where}: expected one trained on this task, got another: {_NAMES[name]}: "
                f"{_differing(saved.get(name), own.get(name))}"
            )
    for key in content["inputs"]:
        here = observation.get(key)
        saved_shape = content["observation_shape"][key]
        if here is None:
            raise ValueError(f"{where}: expected one that needs only {sorted(observation)}, got one that needs {key!r}")
        if here["shape"] != saved_shape or here["dtype"] != content["observation_dtype"][key]:
            raise ValueError(
                f"{where}: expected {key or 'observations'} of shape {tuple(here['shape'])} {here['dtype']}, got a "
                f"policy for {tuple(saved_shape)} {content['observation_dtype'][key]}"
            )
    action = _action_facts(env)
    if action["shape"] != content["action_shape"]:
        raise ValueError(
            f"{where}: expected actions of shape {tuple(action['shape'])}, got a policy with "
            f"{tuple(content['action_shape'])}"
        )


def _differing(saved: Any, own: Any) -> str:
    if isinstance(saved, Mapping) and isinstance(own, Mapping):
        keys = [key for key in {**saved, **own} if saved.get(key) != own.get(key)]
        saved, own = ({key: part.get(key) for key in keys} for part in (saved, own))
    return f"{saved!r} there, {own!r} here"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences PyTorch about TorchScript: deprecated, and still the one format that runs without the code behind it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\..*")
        yield
