"""Configuration of `MultiRobotSimulationCore`: YAML or a dictionary in, checked values out, typing errors named."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

#: Physics steps at this rate, see `fleet_gym.dynamics.physics_world`, which would load PyBullet.
SUBSTEPS_PER_SECOND = 240

Meters = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Point = Annotated[list[Meters], Field(min_length=2, max_length=2)]
Pose = Annotated[list[Meters], Field(min_length=2, max_length=3)]
_M = TypeVar("_M", bound="_Strict")


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names file, key, expectation and value."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Loader(yaml.SafeLoader):
    """Safe YAML where a key that stands twice is an error, and 1e-3 a number as in YAML 1.2."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Reads a mapping, before references in it are followed."""
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise yaml.composer.ComposerError(None, None, f"key {key.value!r} stands twice", key.start_mark)
                keys.add(key.value)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


#: Keys of a robot that only a grid looks at, and what kinds of obstacles look at.
_OF_GRIDS = ("position", "spacing", "yaw")
_OF_OBSTACLES = {
    "box": ("position", "size", "yaw", "elevation"),
    "cylinder": ("position", "size", "elevation"),
    "wall": ("start", "end", "thickness", "height", "elevation"),
}


def _refuse_unused(entry: _Strict, keys: Collection[str], of: str) -> None:
    """Refuses keys that would have no effect: whoever wrote them expects one."""
    for key in sorted(entry.model_fields_set.intersection(keys)):
        if getattr(entry, key) is not None:
            raise ValueError(f"{key}: expected none of {of}, got {getattr(entry, key)!r}")


class RobotConfig(_Strict):
    """One robot, or several of a kind."""

    model: str = Field(description="Name of a known robot, or the path of a URDF.")
    count: int = Field(1, ge=1, description="How many.")
    layout: Literal["grid", "random"] = Field(
        "grid", description="Where they go: rows around `position`, or anywhere free in the arena."
    )
    position: Point = Field([0.0, 0.0], description="Of the robot, or the middle of the grid: x, y in m.")
    yaw: Meters = Field(0.0, description="Driving direction, rad; random layouts draw their own.")
    spacing: Positive | None = Field(None, description="Between grid points, m; default: two footprint diameters.")
    velocity: list[Meters] | None = Field(None, description="Command: (v, omega), (vx, vy, omega) or (v, steering).")
    goal: Pose | None = Field(None, description="x, y in m and, if wanted, the driving direction in rad.")
    path: list[Pose] | None = Field(None, min_length=1, description="Way points, each like `goal`.")
    patrol: bool = Field(False, description="Begin `path` again at its end.")
    random_walk: bool = Field(False, description="Drive to random points of the arena for ever.")
    static: bool = Field(False, description="Never moves, but is collided with.")
    collides: bool = Field(True, description="False: touches nothing and is touched by nobody.")
    footprint: Literal["circle", "box"] | None = Field(
        None, description="As what it collides (kinematics); default: as its model says, a circle."
    )

    @model_validator(mode="after")
    def _one_motion(self) -> RobotConfig:
        given = [name for name in ("velocity", "goal", "path") if getattr(self, name) is not None]
        given += ["random_walk"] if self.random_walk else []
        if len(given) > 1:
            raise ValueError(f"expected at most one of velocity, goal, path and random_walk, got {given}")
        if self.patrol and self.path is None:
            raise ValueError("patrol: expected a path")
        if self.static and given:
            raise ValueError(f"static: expected a robot without {given[0]}")
        if self.layout == "random":
            _refuse_unused(self, _OF_GRIDS, "a random layout, which draws places and directions")
        return self


class ObstacleConfig(_Strict):
    """Something in the way."""

    kind: Literal["box", "cylinder", "wall"] = Field(description="A wall is a box from `start` to `end`.")
    position: Point | None = Field(None, description="Centre of a box or cylinder: x, y in m.")
    size: list[Positive] | None = Field(None, description="Box: length, width, height. Cylinder: radius, height. m.")
    yaw: Meters = Field(0.0, description="Of a box, rad.")
    start: Point | None = Field(None, description="Where a wall begins, m.")
    end: Point | None = Field(None, description="Where it ends, m.")
    thickness: Positive = Field(0.1, description="Of a wall, m.")
    height: Positive = Field(1.0, description="Of a wall, m.")
    elevation: NonNegative = Field(0.0, description="Of its lowest point above the ground, m.")

    @model_validator(mode="after")
    def _complete(self) -> ObstacleConfig:
        used = _OF_OBSTACLES[self.kind]
        unused = set().union(*_OF_OBSTACLES.values()) - set(used)
        _refuse_unused(self, unused, f"a {self.kind}, which has {', '.join(used)}")
        if self.kind == "wall":
            if self.start is None or self.end is None or self.start == self.end:
                raise ValueError("a wall needs start and end, which differ")
            return self
        length = 3 if self.kind == "box" else 2
        if self.position is None or self.size is None or len(self.size) != length:
            raise ValueError(f"a {self.kind} needs position and a size of {length} lengths")
        return self


class MapConfig(_Strict):
    """An occupancy grid: what is occupied becomes boxes."""

    image: str = Field(description="Path of an image, from the configuration's folder; its top is the far end (+y).")
    resolution: Positive = Field(description="Side of a pixel, m.")
    threshold: int = Field(128, ge=0, le=256, description="Grey values below it are occupied.")
    origin: Point | None = Field(None, description="Of the lower left corner, m; default: the map is centred.")
    height: Positive = Field(1.0, description="Of the walls, m.")


class SimulationConfig(_Strict):
    """What `MultiRobotSimulationCore` takes, as keyword arguments and as keys of a YAML file alike."""

    duration: NonNegative | None = Field(None, description="Simulated s per run; default: until it is stopped.")
    target_rtf: NonNegative | None = Field(
        None, description="Simulated s per s; 0: as fast as it goes. Default: 0, with `gui` 1."
    )
    control_dt: Positive = Field(0.1, description="s per step; a whole number of 1/240 s with `physics`.")
    gui: bool = Field(False, description="Show PyBullet's window; needs a display.")
    physics: bool = Field(False, description="Wheels on contact physics instead of kinematics.")
    seed: int = Field(0, ge=0, description="Of random places and random walks.")
    arena_size: Positive = Field(100.0, description="Side of the square that goals and robots have to lie in, m.")
    walls: bool = Field(False, description="Put walls around the arena.")
    collision_response: Literal["stop", "report"] = Field(
        "stop", description="Motion ends at contact, or goes on and is reported only."
    )
    collision_margin: NonNegative = Field(0.0, description="A gap up to this counts as contact, m (kinematics).")
    enable_memory_profiling: bool = Field(False, description="Say every `profiling_interval` steps what is held.")
    memory_mode: Literal["trace", "light", "auto"] = Field(
        "trace", description="Python heap by tracemalloc, or the process's figures, see memory profiling."
    )
    enable_time_profiling: bool = Field(False, description="Say where the time of a step goes.")
    profiling_interval: int = Field(100, ge=1, description="Steps per line.")
    robots: list[RobotConfig] = Field([], description="See below.")
    obstacles: list[ObstacleConfig] = Field([], description="See below.")
    map: MapConfig | None = Field(None, description="See below.")

    @model_validator(mode="after")
    def _possible_in_physics(self) -> SimulationConfig:
        if not self.physics:
            return self
        steps = self.control_dt * SUBSTEPS_PER_SECOND
        if abs(steps - max(round(steps), 1)) > 1e-6:
            raise ValueError(
                f"control_dt: expected a whole number of 1/{SUBSTEPS_PER_SECOND} s with physics, got {self.control_dt}"
            )
        if self.collision_response != "stop":
            raise ValueError(f"collision_response: expected 'stop' with physics, got {self.collision_response!r}")
        if self.collision_margin != 0.0:
            raise ValueError(f"collision_margin: expected 0 with physics, got {self.collision_margin}")
        return self

    @property
    def effective_rtf(self) -> float:
        """`target_rtf` with its default in place."""
        return self.target_rtf if self.target_rtf is not None else float(self.gui)


def load_config(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[SimulationConfig, Path]:
    """Reads a YAML file or a dictionary.

    Returns:
        The configuration, and the folder that relative paths in it start from.

    Raises:
        ConfigError: a file that cannot be read or is not YAML, an unknown key, a value of the wrong type or size.
        TypeError: neither a path nor a mapping.
    """
    if isinstance(source, Mapping):
        return checked(SimulationConfig, dict(source)), Path.cwd()
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"config: expected a path or a mapping, got {source!r}")
    path = Path(source)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"config: expected a readable YAML file, got {str(path)!r} ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected YAML, but {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: expected YAML, but it is nested too deeply") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(content).__name__}")
    return checked(SimulationConfig, content, str(path)), path.resolve().parent


def checked(model: type[_M], values: Mapping[Any, Any], origin: str = "") -> _M:
    """Makes a model of raw values.

    Args:
        model: `SimulationConfig` or one of its parts.
        values: by key; tuples and NumPy values are taken for lists and numbers.
        origin: put in front of messages, such as a file's path.

    Raises:
        ConfigError: naming the first wrong keys.
    """
    plain = {}
    for key, value in values.items():
        try:
            plain[str(key)] = _plain(value)
        except RecursionError:
            named = f"{origin}: {key}" if origin else str(key)
            raise ConfigError(f"{named}: expected a value with an end, got one that contains itself") from None
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        problems = "; ".join(_problem(model, detail) for detail in error.errors()[:3])
        raise ConfigError(f"{origin}: {problems}" if origin else problems) from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _problem(model: type[BaseModel], detail: Any) -> str:
    location = detail["loc"]
    key = _key(location)
    value = detail.get("input")
    if detail["type"] == "extra_forbidden":
        known = _keys_at(model, location[:-1])
        nearest = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.0)
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        return f"{key}: unknown key{hint}; known keys: {', '.join(known)}"
    if detail["type"] == "missing":
        return f"{key}: expected a value, got none"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: {message[0].lower()}{message[1:]}, got {value!r}"


def _key(location: tuple[Any, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _keys_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Keys known where `location` leads: into lists by their index, into models by their field's name."""
    for part in location:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def reference() -> str:
    """Returns the tables of the configuration reference, in Markdown."""
    parts = []
    for title, model in (
        ("Simulation", SimulationConfig),
        ("Entries of `robots`", RobotConfig),
        ("Entries of `obstacles`", ObstacleConfig),
        ("`map`", MapConfig),
    ):
        rows = [f"## {title}", "", "| key | type | default | what |", "|---|---|---|---|"]
        schemas = model.model_json_schema()["properties"]
        for name, field in model.model_fields.items():
            kind = _type_text(schemas[name])
            default = "required" if field.is_required() else f"`{_yaml_text(field.default)}`"
            rows.append(f"| `{name}` | {kind} | {default} | {field.description} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _yaml_text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).split("\n")[0].strip()


_BOUNDS = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="))


def _type_text(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type_text(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "keys and values"
    kind = {"number": "number", "integer": "whole number", "boolean": "true or false", "string": "text"}.get(
        schema["type"], schema["type"]
    )
    if schema["type"] == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        size = f" of {least}" if least == most else f" of {least} or {most}" if most < math.inf else ""
        return f"list{size}"
    bounds = [f"{sign} {schema[name]:g}" for name, sign in _BOUNDS if name in schema]
    return " ".join([kind, ", ".join(bounds)]).strip()
