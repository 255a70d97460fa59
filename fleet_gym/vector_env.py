"""FleetVectorEnv: worlds of robots as one Gymnasium vector environment."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import finite_float, non_negative_int, one_of, positive_int
from fleet_gym.camera_frames import CameraFrames, Images, camera_space, rows_of
from fleet_gym.engine import Engine, FrameRequest, Placement
from fleet_gym.episode_seeds import EpisodeSeeds, expand_seed
from fleet_gym.profiling.phases import phase
from fleet_gym.rendering.base import allocate_images
from fleet_gym.tasks import make_task
from fleet_gym.tasks.base import Task
from fleet_gym.vector_arguments import (
    checked_actions,
    checked_names,
    checked_reset_mask,
    checked_sample,
    checked_world,
    checked_worlds,
    parse_autoreset_mode,
)
from fleet_gym.world.cameras import MAX_FAR, Camera, cameras_from_specs, validate_cameras
from fleet_gym.world.robots import RobotModel, robot_models
from fleet_gym.world.scene import Scene, SceneBuilder
from fleet_gym.world.state import FleetState

Observation = dict[str, Any]
Infos = dict[str, Any]

OVERVIEW_WIDTH, OVERVIEW_HEIGHT = 640, 480
#: Control steps outside this range are typing errors, s.
MIN_CONTROL_DT, MAX_CONTROL_DT = 1e-6, 60.0


class FleetVectorEnv(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """Steps `num_envs` worlds of `num_robots` robots each, with cameras.

    Action, per world: ``Box(-1, 1, (R, A), float32)``, scaled by each model's limits: (v, omega) for differential,
    (vx, vy, omega) for omnidirectional, (v, steering) for Ackermann drives. Finite values outside are clipped.

    Observation: ``{"state": (E, R, D) float32, "camera_obs": {name: (E, H, W, 3) uint8, name_depth: (E, H, W) float32
    m, name_segmentation: (E, H, W) int32}}``; `state_layout` names the columns; ``camera_obs`` is absent without
    cameras or with ``camera_obs=False``.

    Reward: (E,) float64, the mean of the robots' rewards.

    Infos, the same keys in `reset` and `step`, each with an all-True mask ``_key``: ``success`` (E,) bool,
    ``robot_reward`` (E, R) float64, ``goal_distance`` (E, R) m, ``num_collisions`` (E,) int64 collision starts so far
    this episode, ``fallen`` (E, R) bool, ``episode_seed`` (E,) int64. In SAME_STEP mode also ``final_obs`` and
    ``final_info`` of the worlds that ended.

    Nothing returned is overwritten by a later call or shares memory with an earlier return.

    Args:
        num_envs: worlds, E.
        task: ``"navigation"`` or a task of your own (it is copied).
        task_kwargs: arguments of a task given by name.
        num_robots: robots in each world, R.
        robot: registry name, URDF path, `RobotModel`, or a list with one of these per slot.
        dynamics: ``"kinematic"`` or ``"physics"``.
        collision_response: kinematic only: ``"stop"`` or ``"report"``.
        cameras: `Camera` objects or their dicts; every world has them all.
        camera_obs: False leaves the images out of observations; `render_cameras` still draws them.
        renderer: ``"auto"``, ``"raster"``, ``"tiny"`` or ``"gl"``.
        renderer_options: of the rasterizer: ``threads`` (1), ``supersample`` (1), ``shadows`` (False), ``lod`` (True).
        autoreset_mode: `AutoresetMode` or its value.
        max_episode_steps: truncates episodes; None never does.
        control_dt: s per step; in physics a whole number of 1/240 s.
        render_mode: None or ``"rgb_array"``.
        num_workers: 0; worker processes are not part of this version.

    Raises:
        TypeError: when an argument has the wrong type.
        ValueError: when it has a value that cannot be; the message names argument, expectation and value.
    """

    # No autoreset_mode here: it differs between instances, whose own metadata have it.
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 # as the base class declares it
    _render_modes: ClassVar[tuple[str, ...]] = ("rgb_array",)

    def __init__(
        self,
        num_envs: int = 1,
        *,
        task: str | Task = "navigation",
        task_kwargs: Mapping[str, Any] | None = None,
        num_robots: int = 3,
        robot: str | RobotModel | Sequence[str | RobotModel] = "husky",
        dynamics: str = "kinematic",
        collision_response: str = "stop",
        cameras: Sequence[Camera | Mapping[str, Any]] = (),
        camera_obs: bool = True,
        renderer: str = "auto",
        renderer_options: Mapping[str, Any] | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = 200,
        control_dt: float = 0.1,
        render_mode: str | None = None,
        num_workers: int = 0,
    ) -> None:
        self.num_envs = positive_int("num_envs", num_envs)
        self.num_robots = positive_int("num_robots", num_robots)
        self.control_dt = finite_float("control_dt", control_dt, minimum=MIN_CONTROL_DT, maximum=MAX_CONTROL_DT)
        if max_episode_steps is not None:
            max_episode_steps = positive_int("max_episode_steps", max_episode_steps)
        self.max_episode_steps = max_episode_steps
        if not isinstance(camera_obs, bool):
            raise TypeError(f"camera_obs: expected a bool, got {camera_obs!r}")
        if non_negative_int("num_workers", num_workers) != 0:
            raise ValueError(f"num_workers: expected 0, this version has no worker processes, got {num_workers!r}")
        self.autoreset_mode = parse_autoreset_mode(autoreset_mode)
        self.render_mode = None if render_mode is None else one_of("render_mode", render_mode, self._render_modes)
        self.metadata = {
            "render_modes": list(self._render_modes),
            "render_fps": 1.0 / self.control_dt,
            "autoreset_mode": self.autoreset_mode,
        }
        # One copy per environment: a task keeps arrays of its own.
        self.task = copy.deepcopy(make_task(task, task_kwargs))
        self.scene = self._build_scene(robot_models(robot, self.num_robots), cameras_from_specs(cameras))
        #: How its worlds are moved and drawn, for whoever writes down what was run.
        self.engine_settings: dict[str, Any] = {
            "dynamics": dynamics,
            "collision_response": collision_response,
            "renderer": renderer,
            "renderer_options": renderer_options,
        }
        self._engine = Engine(self.scene, self.num_envs, control_dt=self.control_dt, **self.engine_settings)
        # In DISABLED mode masked resets are the rule, and keeping images costs less than drawing them again.
        keep_all = self.autoreset_mode is AutoresetMode.DISABLED
        self._frames = CameraFrames(self.scene.cameras if camera_obs else (), self.num_envs, keep_all=keep_all)
        self._has_camera_obs = camera_obs and bool(self.scene.cameras)
        self._make_spaces()
        self._seeds = EpisodeSeeds(self.num_envs)
        self._steps = np.zeros(self.num_envs, dtype=np.int64)
        # Worlds whose episode is over, and those in which that happened in the last call.
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._just_ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._channels = (self._engine.command_limits > 0).astype(np.float64)
        self._last_state = np.zeros((self.num_envs, self.num_robots, len(self.task.observation_low)), dtype=np.float32)
        self._last_infos: dict[str, NDArray[Any]] = {}

    def _build_scene(self, robots: tuple[RobotModel, ...], cameras: tuple[Camera, ...]) -> Scene:
        builder = SceneBuilder(robots, cameras)
        self.task.build(builder)
        scene = builder.build()
        validate_cameras(cameras, robots)
        self.task.bind(scene, self.num_envs, self.control_dt)
        return scene

    def _make_spaces(self) -> None:
        shape = (self.num_robots, 1)
        parts: dict[str, spaces.Space[Any]] = {
            "state": spaces.Box(
                np.tile(self.task.observation_low, shape), np.tile(self.task.observation_high, shape), dtype=np.float32
            )
        }
        if self._has_camera_obs:
            parts["camera_obs"] = camera_space(self.scene.cameras)
        self.single_observation_space = spaces.Dict(parts)
        self.single_action_space = spaces.Box(-1.0, 1.0, (self.num_robots, self.scene.action_size), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    # ---- Episodes ----

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Infos]:
        """Starts new episodes in all worlds, or in those of ``options["reset_mask"]``.

        Args:
            seed: world i gets ``seed + i``, or the list's entry i. Worlds that are not reset ignore theirs.
            options: ``reset_mask``: (E,) bool array with at least one True; the rows of the other worlds come back
                bit-identical. Never changed.

        Raises:
            TypeError: for a mask that is not a bool array, or a seed that is not an int.
            ValueError: for a mask of another shape or without a True, or a bad seed.
        """
        self._check_open()
        seeds = expand_seed(seed, self.num_envs)
        mask = checked_reset_mask(options, self.num_envs)
        if not mask.all() and (unreset := np.flatnonzero(~mask & (self._seeds.index < 0))).size:
            raise ResetNeeded(f"reset_mask: expected a first reset of all worlds, got none yet for {unreset.tolist()}")
        worlds = np.flatnonzero(mask)
        placement = self._begin_episodes(worlds, [seeds[world] for world in worlds])
        self._ended[worlds] = False
        self._just_ended[:] = False
        requests = self._frames.request_reset(worlds)
        self._engine.reset(placement, requests)
        with phase("task"):
            rows, row_infos = self._observe_new(worlds)
        state, infos = self._last_state.copy(), {key: value.copy() for key, value in self._last_infos.items()}
        state[worlds] = rows
        for key, value in row_infos.items():
            infos.setdefault(key, np.zeros((self.num_envs, *value.shape[1:]), value.dtype))[worlds] = value
        return self._deliver(state, self._frames.assemble(requests), infos)

    def step(
        self, actions: ArrayLike
    ) -> tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Advances all worlds by one control step.

        Args:
            actions: (E, R, A), finite. In NEXT_STEP mode the rows of worlds that ended in the step before are not
                looked at: these worlds are reset instead, with reward 0.

        Returns:
            Observation, reward (E,) float64, terminated (E,) bool, truncated (E,) bool, infos.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, and, in DISABLED mode, for worlds that have ended.
            TypeError: for actions that are not real numbers.
            ValueError: for actions of another shape, NaN or infinite.
        """
        self._check_open()
        resets = self._due_resets()
        actions = checked_actions(actions, self.action_space.shape, ignored=resets)
        worlds = np.flatnonzero(resets)
        placement = self._begin_episodes(worlds, [None] * len(worlds)) if len(worlds) else None
        actions *= self._channels  # channels a robot does not have count for nothing
        self._steps[~resets] += 1
        requests = self._frames.request_step(self._steps)
        self._engine.advance(actions * self._engine.command_limits, ~resets, placement, requests)
        with phase("task"):
            evaluation = self.task.evaluate(self._engine.state, actions)
        terminated = evaluation.terminated & ~resets
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        if self.max_episode_steps is not None:
            truncated = (self._steps >= self.max_episode_steps) & ~resets
        reward = np.where(resets, 0.0, evaluation.reward)
        infos = {
            **evaluation.infos,
            "success": evaluation.infos["success"] & ~resets,
            "robot_reward": np.where(resets[:, None], 0.0, evaluation.robot_reward),
            "episode_seed": self._seeds.seed.copy(),
        }
        if infos.keys() != self._last_infos.keys():
            raise ValueError(f"task.evaluate: expected infos {sorted(self._last_infos)}, got {sorted(infos)}")
        self._ended = terminated | truncated
        self._just_ended = self._ended.copy()
        images = self._frames.assemble(requests)
        self._draw_missed(images)
        state = evaluation.observation
        final: Infos = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and self._ended.any():
            final = self._autoreset_now(state, images, infos)
        observation, infos = self._deliver(state, images, infos)
        return observation, reward, terminated, truncated, {**infos, **final}

    def _due_resets(self) -> NDArray[np.bool_]:
        if (self._seeds.index < 0).any():
            raise ResetNeeded("step: expected reset() before the first step")
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            return np.array(self._ended)
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise ResetNeeded(
                f"step: expected reset(options={{'reset_mask': ...}}) of worlds that have ended, "
                f"got worlds {np.flatnonzero(self._ended).tolist()} without one"
            )
        return np.zeros(self.num_envs, dtype=np.bool_)

    def _begin_episodes(self, worlds: NDArray[np.intp], seeds: Sequence[int | None]) -> Placement:
        drawn, generators = self._seeds.draw(worlds, seeds)
        with phase("task"):
            sample = checked_sample(self.task.sample(generators, worlds), len(worlds), self.scene)
        self._seeds.begin(worlds, drawn, generators)
        self._steps[worlds] = 0
        return Placement(worlds, sample)

    def _observe_new(self, worlds: NDArray[np.intp]) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
        """Observation and infos (n rows) of worlds that were just reset."""
        observation, infos = self.task.observe(self._engine.state, worlds)
        infos["robot_reward"] = np.zeros((len(worlds), self.num_robots))
        infos["episode_seed"] = self._seeds.seed[worlds]
        return observation, infos

    def _autoreset_now(self, state: NDArray[np.float32], images: Images, infos: dict[str, NDArray[Any]]) -> Infos:
        """Resets the worlds that ended, overwriting their rows; returns how they ended."""
        ended = self._ended.copy()
        worlds = np.flatnonzero(ended)
        observation = self._observation(state, images)
        final_obs = np.full(self.num_envs, None, dtype=object)
        for world in worlds:
            final_obs[world] = rows_of(observation, int(world))
        final_info: Infos = {}
        for key, value in infos.items():
            final_info[key] = np.zeros_like(value)
            final_info[key][worlds] = value[worlds]
            final_info[f"_{key}"] = ended.copy()
        placement = self._begin_episodes(worlds, [None] * len(worlds))
        request = self._frames.request_worlds(worlds)
        self._engine.reset(placement, [request], keep_final=True)
        self._frames.overwrite(images, [request])
        with phase("task"):
            state[worlds], row_infos = self._observe_new(worlds)
        for key, value in row_infos.items():
            infos[key][worlds] = value
        return {
            "final_obs": final_obs,
            "_final_obs": ended.copy(),
            "final_info": final_info,
            "_final_info": ended.copy(),
        }

    # ---- What is returned ----

    def _draw_missed(self, images: Images) -> None:
        requests = self._frames.request_last(np.flatnonzero(self._ended), self._steps)
        for request in requests:
            self._engine.render(request)
        self._frames.overwrite(images, requests)

    def _observation(self, state: NDArray[np.float32], images: Images) -> Observation:
        return {"state": state, "camera_obs": images} if self._has_camera_obs else {"state": state}

    def _deliver(
        self, state: NDArray[np.float32], images: Images, infos: dict[str, NDArray[Any]]
    ) -> tuple[Observation, Infos]:
        """Keeps copies for masked resets, and returns observation and infos with their masks."""
        self._last_state[:] = state
        self._last_infos = {key: value.copy() for key, value in infos.items()}
        masks = {f"_{key}": np.ones(self.num_envs, dtype=np.bool_) for key in infos}
        return self._observation(state, images), {**infos, **masks}

    # ---- Pictures ----

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Draws each world from above at an angle: E images (480, 640, 3) uint8. Changes nothing.

        Returns:
            None without ``render_mode="rgb_array"``.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        self._check_open()
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render mode; make the env with render_mode='rgb_array'.")
            return None
        images = self._draw(np.arange(self.num_envs), (overview_camera(self.scene),))
        return tuple(images["overview"])

    def render_cameras(
        self, env_indices: Sequence[int] | None = None, cameras: Sequence[str] | None = None, *, final: bool = False
    ) -> Images:
        """Draws some worlds through some cameras, whether or not images are part of the observation.

        Args:
            env_indices: worlds, in the order of the returned rows; None: all.
            cameras: names; None: all.
            final: draw how the episodes ended that ended in the last call; in SAME_STEP mode these worlds have moved
                on, but are kept until the next call.

        Returns:
            Key -> (n, H, W, 3) uint8, or (n, H, W) for depth (float32, m) and segmentation (int32).

        Raises:
            TypeError: for an index that is not an int, or anything but sequences.
            ValueError: for an unknown world or camera, or `final` of a world that did not end in the last call.
            gymnasium.error.ResetNeeded: before the first reset.
        """
        self._check_open()
        worlds = checked_worlds(env_indices, self.num_envs)
        known = {camera.name: camera for camera in self.scene.cameras}
        names = checked_names("cameras", cameras, list(known))
        running = worlds[~self._just_ended[worlds]]
        if final and len(running):
            raise ValueError(f"env_indices: expected worlds that ended in the last call, got {running.tolist()}")
        return self._draw(worlds, tuple(known[name] for name in names), final=final)

    def _draw(self, worlds: NDArray[np.intp], cameras: Sequence[Camera], *, final: bool = False) -> Images:
        if (self._seeds.index < 0).any():
            raise ResetNeeded("render: expected reset() before drawing")
        request = FrameRequest(worlds, cameras, allocate_images(cameras, len(worlds)))
        self._engine.render(request, final=final)
        return dict(request.out)

    # ---- The rest ----

    @property
    def state_layout(self) -> Mapping[str, slice]:
        """Name -> columns of the last axis of ``observation["state"]``."""
        return self.task.state_layout

    @property
    def state(self) -> FleetState:
        """The simulation's state itself, not a copy. Write only how it looks: colors, textures, visibility, light."""
        return self._engine.state

    @property  # type: ignore[misc] # a tuple, one generator per world, as SyncVectorEnv has it
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each world's generator."""
        return tuple(self._seeds.generators)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Seed of each world's current episode, -1 before the first reset."""
        return tuple(int(seed) for seed in self._seeds.seed)

    def get_episode_index(self, env_idx: int) -> int:
        """Index of the current episode of a world: -1 before the first reset; every reset adds 1."""
        return int(self._seeds.index[checked_world("env_idx", env_idx, self.num_envs)])

    def close_extras(self, **kwargs: Any) -> None:
        """Frees physics clients and the renderer. Called once, by `close`."""
        if "_engine" in vars(self):  # Gymnasium before 1.3 also closes what could not be constructed
            self._engine.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("this FleetVectorEnv is closed; make a new one")


def overview_camera(scene: Scene) -> Camera:
    """The camera of `FleetVectorEnv.render`: looks down on the whole arena at an angle."""
    side = scene.arena_size
    tallest = max((robot.height for robot in scene.robots), default=0.0)
    return Camera(
        "overview",
        OVERVIEW_WIDTH,
        OVERVIEW_HEIGHT,
        position=(0.0, -0.85 * side, 0.85 * side + tallest),
        target=(0.0, -0.05 * side, 0.0),
        near=0.05,
        far=min(4.0 * side + 10.0, MAX_FAR),
    )
