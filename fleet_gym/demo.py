"""The demo: a fleet drives to its goals under the scripted policy, recorded and memory profiled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from fleet_gym.tasks.navigation_policy import GoToGoalPolicy
from fleet_gym.vector_env import FleetVectorEnv
from fleet_gym.video.episode_files import parse_episode_video_filename
from fleet_gym.video.gallery import write_gallery
from fleet_gym.world.cameras import Camera
from fleet_gym.world.robots import RobotModel, robot_model
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder
from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper

NAME_PREFIX = "robot-cam"
OVERVIEW_CAMERA = "overhead"
ROBOT_CAMERA = "front"
NUM_OBSTACLES = 3
#: s per step: 80 steps are 16 s, enough to cross the arena.
CONTROL_DT = 0.2
#: Frames per second of the videos: they play at twice the real speed.
FPS = 10


@dataclass(frozen=True)
class DemoConfig:
    """What the demo runs.

    Attributes:
        out: folder of videos, gallery (``index.html``), ``results.json`` and ``memory.jsonl``.
        num_envs: worlds.
        num_robots: robots in each world.
        robot: registry name or URDF path.
        episodes: episodes of each world.
        width: pixels of each camera.
        height: pixels of each camera.
        seed: world i starts from ``seed + i``.
        dynamics: ``"kinematic"`` or ``"physics"``.
        renderer: as `FleetVectorEnv` takes it.
        max_episode_steps: control steps after which an episode is truncated.
    """

    out: Path
    num_envs: int = 4
    num_robots: int = 3
    robot: str = "husky"
    episodes: int = 2
    width: int = 320
    height: int = 240
    seed: int = 0
    dynamics: str = "kinematic"
    renderer: str = "auto"
    max_episode_steps: int = 80


@dataclass(frozen=True)
class EpisodeResult:
    """One finished episode.

    Attributes:
        world: index of the world.
        episode: index of the episode in its world, as in the names of its videos.
        seed: ``reset(seed=[seed])`` replays it.
        steps: control steps.
        episode_return: sum of the team's rewards.
        success: all robots stood at their goals in the last step.
        collisions: collisions that began during the episode.
        videos: file names, one per camera.
    """

    world: int
    episode: int
    seed: int
    steps: int
    episode_return: float
    success: bool
    collisions: int
    videos: tuple[str, ...]


def demo_arena_size(robot: RobotModel, num_robots: int) -> float:
    """Side of the demo's arena, m: the robots can cross it within an episode, and have to mind each other."""
    return 8.0 * robot.footprint_radius * math.sqrt(num_robots)


def demo_cameras(robot: RobotModel, arena_size: float, width: int, height: int) -> tuple[Camera, Camera]:
    """Returns a camera over the arena and one on robot 0, ahead of its bumper.

    Inside the body a camera would show nothing, and cost twice as much to draw.
    """
    fov, tilt = math.radians(60.0), math.radians(15.0)
    # The arena is a little wider than high in the picture.
    distance = 1.1 * arena_size / 2 / math.tan(fov / 2) * max(1.0, 1.1 * height / width)
    overhead = Camera(
        OVERVIEW_CAMERA,
        width,
        height,
        fov=math.degrees(fov),
        position=(0.0, -distance * math.sin(tilt), distance * math.cos(tilt)),
        target=(0.0, -0.03 * arena_size, 0.0),
    )
    # Turned to the driving direction, then down, to see more ground than sky.
    yaw, pitch = robot.forward_yaw / 2, math.radians(10.0) / 2
    ahead = robot.footprint_radius + 0.02
    front = Camera(
        ROBOT_CAMERA,
        width,
        height,
        fov=75.0,
        mount=0,
        offset=(
            ahead * math.cos(robot.forward_yaw),
            ahead * math.sin(robot.forward_yaw),
            max(robot.height - robot.base_height, 0.1),
        ),
        rotation=(
            -math.sin(yaw) * math.sin(pitch),
            math.cos(yaw) * math.sin(pitch),
            math.sin(yaw) * math.cos(pitch),
            math.cos(yaw) * math.cos(pitch),
        ),
    )
    return overhead, front


def compile_kernels(config: DemoConfig) -> None:
    """Steps and draws a small fleet of the same kind once, so that everything is compiled when profiling begins.

    Compiling takes seconds, and six times as long while a memory profiler traces it.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    robot = robot_model(config.robot)
    env = FleetVectorEnv(
        1,
        num_robots=config.num_robots,
        robot=robot,
        dynamics=config.dynamics,
        cameras=demo_cameras(robot, demo_arena_size(robot, config.num_robots), 16, 16),
        renderer=config.renderer,
        control_dt=CONTROL_DT,
    )
    try:
        env.reset(seed=config.seed)
        env.step(np.zeros(env.action_space.shape))
    finally:
        env.close()


def make_demo_env(config: DemoConfig) -> VectorEnv[Any, Any, Any]:
    """Builds the demo's environment with recorder and memory profiler around it.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    robot = robot_model(config.robot)
    arena_size = demo_arena_size(robot, config.num_robots)
    env = FleetVectorEnv(
        config.num_envs,
        num_robots=config.num_robots,
        robot=robot,
        dynamics=config.dynamics,
        cameras=demo_cameras(robot, arena_size, config.width, config.height),
        camera_obs=False,  # drawn for the videos only
        renderer=config.renderer,
        autoreset_mode=AutoresetMode.DISABLED,
        max_episode_steps=config.max_episode_steps,
        control_dt=CONTROL_DT,
        task_kwargs={"arena_size": arena_size, "num_obstacles": NUM_OBSTACLES},
    )
    try:
        recorder = CameraObsVideoRecorder(
            env,
            config.out,
            name_prefix=NAME_PREFIX,
            fps=FPS,
            frame_source="env",
            episode_trigger=lambda env, episode: episode < config.episodes,
        )
        return MemoryProfilingWrapper(recorder, profiling_interval=50, log_path=config.out / "memory.jsonl")
    except BaseException:
        env.close()
        raise


@dataclass(frozen=True)
class StepUpdate:
    """Where `play_episodes` stands after a step.

    Attributes:
        results: of the episodes that ended in this step, without their videos.
        finished: (E,) int64, counted episodes of each world so far.
        steps: (E,) int64, steps of each world's running episode.
    """

    results: tuple[EpisodeResult, ...]
    finished: NDArray[np.int64]
    steps: NDArray[np.int64]


def play_episodes(
    env: VectorEnv[Any, Any, Any], policy: Callable[[Any], NDArray[Any]], episodes: int, seed: int
) -> Iterator[StepUpdate]:
    """Plays exactly `episodes` episodes in every world, so that short episodes are not over-represented.

    Args:
        env: in ``AutoresetMode.DISABLED``. All worlds step together, so one that has played its share goes on with
            surplus episodes, which are in no result.
        policy: observation -> actions.
        episodes: of each world.
        seed: world i starts from ``seed + i``.

    Yields:
        An update after every step.
    """
    finished = np.zeros(env.num_envs, dtype=np.int64)
    steps = np.zeros(env.num_envs, dtype=np.int64)
    returns = np.zeros(env.num_envs)
    observation, _ = env.reset(seed=seed)
    while True:
        observation, rewards, terminations, truncations, infos = env.step(policy(observation))
        steps += 1
        returns += rewards
        done = terminations | truncations
        results = tuple(
            EpisodeResult(
                world=int(world),
                episode=int(finished[world]),
                seed=int(infos["episode_seed"][world]),
                steps=int(steps[world]),
                episode_return=float(returns[world]),
                success=bool(infos["success"][world]),
                collisions=int(infos["num_collisions"][world]),
                videos=(),
            )
            for world in np.flatnonzero(done & (finished < episodes))
        )
        finished = np.minimum(finished + done, episodes)
        steps[done] = 0
        returns[done] = 0.0
        yield StepUpdate(results, finished.copy(), steps.copy())
        if np.all(finished == episodes):
            return
        if done.any():
            observation, _ = env.reset(options={"reset_mask": done})


def run_demo(
    config: DemoConfig, on_progress: Callable[[float], None], on_episode: Callable[[EpisodeResult], None]
) -> list[EpisodeResult]:
    """Runs the demo; writes videos, their gallery, results and memory records to ``config.out``.

    Args:
        config: what to run.
        on_progress: called after every step with the share of the work that is done, 0 to 1.
        on_episode: called with each finished episode.

    Returns:
        One result per episode, by world and episode.

    Raises:
        ValueError: naming the argument that does not fit.
        OSError: when the folder cannot be written.
    """
    env = make_demo_env(config)
    before = set(config.out.glob("*.mp4"))
    results: list[EpisodeResult] = []
    try:
        policy = GoToGoalPolicy(env.unwrapped)
        for update in play_episodes(env, policy, config.episodes, config.seed):
            results += update.results
            for result in update.results:
                on_episode(result)
            on_progress(_share_done(update, config))
    finally:
        env.close()
    videos = _videos_by_episode(set(config.out.glob("*.mp4")) - before)
    results = [replace(result, videos=videos[result.world, result.episode]) for result in results]
    results.sort(key=lambda result: (result.world, result.episode))
    _write_results(config.out / "results.json", config, results)
    write_gallery(config.out)
    return results


def _videos_by_episode(paths: Iterable[Path]) -> dict[tuple[int, int], tuple[str, ...]]:
    """Groups the names of a run's videos by (world, episode)."""
    videos: dict[tuple[int, int], tuple[str, ...]] = {}
    for path in sorted(paths):
        name = parse_episode_video_filename(path)
        if name is not None and name.prefix == NAME_PREFIX:
            videos[name.env, name.episode] = (*videos.get((name.env, name.episode), ()), path.name)
    return videos


def _share_done(update: StepUpdate, config: DemoConfig) -> float:
    running = np.where(update.finished < config.episodes, update.steps / config.max_episode_steps, 0.0)
    return float((update.finished + running).sum()) / (config.num_envs * config.episodes)


def _write_results(path: Path, config: DemoConfig, results: Sequence[EpisodeResult]) -> None:
    settings = {**asdict(config), "out": str(config.out)}
    document = {"config": settings, "episodes": [asdict(result) for result in results]}
    path.write_text(json.dumps(document, indent=2) + "\n")
