"""What an environment is, in JSON values with defaults spelled out: what tells one run's environment from another's."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.vector import VectorEnv

from fleet_gym.evaluation.policy_files import NOT_OF_THE_TASK

AnyVectorEnv = VectorEnv[Any, Any, Any]
_LIMIT = "max_episode_steps"
#: Longer values, such as maps, would bury the others.
_MAX_LENGTH = 2000
#: What decides only about images.
_OF_IMAGES = ("renderer", "renderer_options")


def env_facts(env: AnyVectorEnv) -> dict[str, Any]:
    """Returns the facts of an environment, possibly wrapped.

    Returns:
        ``env``, its id or class; ``env_settings``, how it was made, as far as that can be told and written as JSON; and
        where there are such, ``num_robots`` and ``max_steps``.
    """
    base: Any = env.unwrapped
    spec = getattr(base, "spec", None)
    is_fleet = hasattr(base, "task") and hasattr(base, "engine_settings")
    kind = f"FleetGym/{type(base.task).__name__}-v0" if is_fleet else type(base).__name__
    facts: dict[str, Any] = {"env": kind if spec is None else spec.id}
    if hasattr(base, "num_robots"):
        facts["num_robots"] = base.num_robots
    if (limit := _limit(base, spec)) is not None:
        facts["max_steps"] = limit
    facts["env_settings"] = _fleet_settings(base) if is_fleet else _settings_of_spec(base, spec)
    return facts


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns settings by their name, those inside of others as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{prefix}{name}"
        flat.update(flat_settings(value, f"{path}.") if isinstance(value, Mapping) else {path: value})
    return flat


def differing_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns settings that differ, (first's, second's) by the name `flat_settings` gives them."""
    one, other = flat_settings(first), flat_settings(second)
    return {name: (one.get(name), other.get(name)) for name in {**one, **other} if one.get(name) != other.get(name)}


def _limit(base: Any, spec: Any) -> int | None:
    # A specification keeps the limit it was registered with, and the one asked for among the arguments.
    asked = {} if spec is None else spec.kwargs
    limit: int | None = getattr(base, _LIMIT, asked.get(_LIMIT, getattr(spec, _LIMIT, None)))
    return limit


def _fleet_settings(base: Any) -> dict[str, Any]:
    robots = [_robot(model) for model in base.scene.robots]
    settings = {
        "robot": robots[0] if all(robot == robots[0] for robot in robots) else robots,
        "control_dt": base.control_dt,
        **base.engine_settings,
        "task": _json_values(_task_settings(base.task)),
    }
    if "camera_obs" in base.single_observation_space.spaces:
        settings["cameras"] = {camera.name: camera.to_dict() for camera in base.scene.cameras}
    else:
        settings = {name: value for name, value in settings.items() if name not in _OF_IMAGES}
    return _json_values(settings, longest=None)


def _robot(model: Any) -> Any:
    """The name of a known robot, all figures of another or of one that was changed."""
    from fleet_gym.world.robots import known_robots, robot_model

    known = model.name in known_robots() and robot_model(model.name) == model
    return model.name if known else _json_values(dataclasses.asdict(model))


def _task_settings(task: Any) -> dict[str, Any]:
    """A task's arguments as it has them now, under their names, or with an underscore where it keeps what was asked."""
    kept = vars(task)
    names = inspect.signature(type(task)).parameters
    return {name: kept.get(f"_{name}", kept.get(name)) for name in names if name in kept or f"_{name}" in kept}


def _settings_of_spec(base: Any, spec: Any) -> dict[str, Any]:
    if spec is None:
        return {}
    made = {name: value for name, value in spec.kwargs.items() if name not in (*NOT_OF_THE_TASK, _LIMIT)}
    singles = getattr(base, "envs", None)
    return _json_values({**(_defaults(type(singles[0].unwrapped)) if singles else {}), **made})


def _defaults(made_by: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(made_by).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not parameter.empty and name not in (*NOT_OF_THE_TASK, _LIMIT)
    }


def _json_values(settings: Mapping[str, Any], longest: int | None = _MAX_LENGTH) -> dict[str, Any]:
    """Leaves out what is no JSON value: its text may be another in each process."""
    found = {}
    for name, value in settings.items():
        try:
            text = json.dumps(value, default=lambda entry: entry.tolist(), allow_nan=False)
        except (TypeError, ValueError, AttributeError):
            continue
        if longest is None or len(text) <= longest:
            found[name] = json.loads(text)
    return found
