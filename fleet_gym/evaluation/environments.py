"""Making the environment of an evaluation from an id: ours with cameras of its own, others' as Gymnasium has them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

AnyVectorEnv = VectorEnv[Any, Any, Any]

DEFAULT_ENV = "FleetGym/Navigation-v0"
#: Names of cameras that need no specification.
PRESETS = ("overhead", "front")
NO_CAMERAS = "none"
RENDER = "render"
#: What an evaluation decides itself.
_TAKEN = ("num_envs", "autoreset_mode")


@dataclass(frozen=True)
class EnvRequest:
    """What to make.

    Attributes:
        env_id: registered with Gymnasium; ``"module:id"`` imports a module first.
        num_envs: worlds.
        kwargs: arguments of the environment.
        max_steps: control steps after which an episode is cut off; None: as registered.
        cameras: names of cameras to record: ``"overhead"``, ``"front"``, those in ``kwargs["cameras"]``, or JSON
            objects of `Camera`; for environments of others those in the observation, or ``"render"``. None: all there
            are, and for ours ``"overhead"`` when there are none; ``("none",)``: nothing is recorded.
        width: of the cameras made here, pixels.
        height: of the cameras made here, pixels.
    """

    env_id: str = DEFAULT_ENV
    num_envs: int = 8
    kwargs: Mapping[str, Any] = None  # type: ignore[assignment] # made a dict below
    max_steps: int | None = None
    cameras: tuple[str, ...] | None = None
    width: int = 320
    height: int = 240

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", dict(self.kwargs or {}))
        for name in _TAKEN:
            if name in self.kwargs:
                raise ValueError(f"env_kwargs: expected none of {', '.join(_TAKEN)}, got {name}")

    def with_max_steps(self) -> dict[str, Any]:
        """Returns the arguments with the limit of steps."""
        return {**self.kwargs, **({} if self.max_steps is None else {"max_episode_steps": self.max_steps})}


@dataclass(frozen=True)
class MadeEnv:
    """What was made.

    Attributes:
        env: in autoreset mode DISABLED.
        cameras: names to record, None for all.
        records: whether there is anything to record.
        frame_source: where the images come from, as `evaluate` takes it.
    """

    env: AnyVectorEnv
    cameras: tuple[str, ...] | None
    records: bool
    frame_source: Literal["auto", "render"] = "auto"


def find_spec(env_id: str) -> Any:
    """Returns Gymnasium's specification of an id.

    Raises:
        ValueError: when there is none.
        ImportError: when the module before a colon cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f"env: expected a module that can be imported in {env_id!r}, got: {error}") from error
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        raise ValueError(f"env: expected an id registered with Gymnasium, got {env_id!r} ({error})") from None


def is_fleet(spec: Any) -> bool:
    """Whether a specification is of this suite's environment."""
    return str(spec.vector_entry_point).startswith("fleet_gym.")


def make_env(request: EnvRequest) -> MadeEnv:
    """Makes a vector environment whose worlds wait for the seed of their next episode.

    Raises:
        TypeError: when an argument has the wrong type, or the environment does not take it.
        ValueError: for an unknown id or camera, or an argument with a value that cannot be.
    """
    spec = find_spec(request.env_id)
    try:
        return _make_fleet(spec.id, request) if is_fleet(spec) else _make_other(spec.id, request)
    except gym.error.Error as error:
        raise ValueError(f"env: expected one that can be made, got {request.env_id!r}: {error}") from error


def _make_fleet(env_id: str, request: EnvRequest) -> MadeEnv:
    own = _own_cameras(request.kwargs.get("cameras", ()))
    wanted = request.cameras
    if wanted is None:
        wanted = tuple(camera["name"] for camera in own) or PRESETS[:1]
    if wanted == (NO_CAMERAS,):
        wanted = ()
    given = [_parsed_camera(camera) for camera in wanted if camera.startswith("{")]
    names = tuple(str(_parsed_camera(name)["name"]) if name.startswith("{") else name for name in wanted)
    known = {camera["name"] for camera in (*own, *given)}
    unknown = [name for name in names if name not in known and name not in PRESETS]
    if unknown:
        raise ValueError(f"cameras: expected names among {sorted({*known, *PRESETS})}, got {', '.join(unknown)}")
    presets = [name for name in names if name not in known]
    cameras = [*own, *given, *(_presets(env_id, request, presets) if presets else ())]
    kwargs = {**request.with_max_steps(), "cameras": cameras}
    if not own:
        kwargs["camera_obs"] = False  # drawn for the videos only
    env = gym.make_vec(
        env_id,
        num_envs=request.num_envs,
        vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.DISABLED,
        **kwargs,
    )
    return MadeEnv(env, names, bool(names))


def _own_cameras(cameras: Any) -> list[dict[str, Any]]:
    if isinstance(cameras, (str, Mapping)) or not isinstance(cameras, Sequence):
        raise TypeError(f"cameras: expected a list of cameras in env_kwargs, got {cameras!r}")
    return [dict(_camera_dict(camera)) for camera in cameras]


def _parsed_camera(text: str) -> Mapping[str, Any]:
    try:
        return _camera_dict(json.loads(text))
    except ValueError as error:
        raise ValueError(f"cameras: expected a name or the JSON object of a camera, got {text!r} ({error})") from None


def _camera_dict(camera: Any) -> Mapping[str, Any]:
    from fleet_gym.world.cameras import Camera

    if isinstance(camera, Camera):
        return camera.to_dict()
    if not isinstance(camera, Mapping) or "name" not in camera:
        raise ValueError(f"cameras: expected objects with a name, got {camera!r}")
    return camera


def _presets(env_id: str, request: EnvRequest, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Returns cameras fitted to the arena and the first robot; a world is built to learn their sizes."""
    from fleet_gym.demo import demo_cameras

    # Kinematic worlds have the same scene as physics ones, and need no physics engine.
    kwargs = {**request.kwargs, "dynamics": "kinematic", "cameras": (), "render_mode": None}
    probe = gym.make_vec(env_id, num_envs=1, vectorization_mode="vector_entry_point", **kwargs)
    scene: Any = probe.unwrapped.scene  # type: ignore[attr-defined]
    probe.close()
    made = demo_cameras(scene.robots[0], scene.arena_size, request.width, request.height)
    return [camera.to_dict() for camera in made if camera.name in names]


def _make_other(env_id: str, request: EnvRequest) -> MadeEnv:
    kwargs = request.with_max_steps()
    wanted = request.cameras or (NO_CAMERAS,)
    if wanted == (RENDER,):
        kwargs["render_mode"] = "rgb_array"
    if gym.spec(env_id).entry_point is None:
        mode: dict[str, Any] = {
            "vectorization_mode": "vector_entry_point",
            "autoreset_mode": AutoresetMode.DISABLED,
        }
    else:
        mode = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": AutoresetMode.DISABLED}}
    env = gym.make_vec(env_id, num_envs=request.num_envs, **mode, **kwargs)
    if wanted == (RENDER,):
        return MadeEnv(env, None, True, "render")
    if wanted == (NO_CAMERAS,):
        return MadeEnv(env, None, False)
    return MadeEnv(env, wanted, True)


def from_checkpoint(request: EnvRequest, policy: str, *, env_given: bool) -> EnvRequest:
    """Returns the request completed by the environment that a policy file was saved with.

    Args:
        request: what the user said; it wins.
        policy: as `make_policy` takes it.
        env_given: the user named the environment; of another one's arguments nothing is taken over.

    Raises:
        FileNotFoundError: when the file is not there.
        ValueError: when it is no policy.
        ImportError: without PyTorch.
    """
    if not policy.endswith((".pt", ".pth")):
        return request
    from fleet_gym.evaluation.policy_files import read_policy

    content = read_policy(policy)
    task = {} if content is None else content["task"]
    saved_id = task.get("env_id")
    if saved_id is None or (env_given and find_spec(request.env_id).id != saved_id):
        return request
    return replace(request, env_id=saved_id, kwargs={**task["env_kwargs"], **request.kwargs})
