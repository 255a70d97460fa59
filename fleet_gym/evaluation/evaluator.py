"""`evaluate`: exact numbers of seeded episodes, with averages, intervals, videos and profiles."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from gymnasium.vector import VectorEnv

from fleet_gym._validation import non_negative_int, one_of
from fleet_gym.evaluation.env_facts import env_facts
from fleet_gym.evaluation.instruments import Instruments, InstrumentSettings
from fleet_gym.evaluation.play import Episode, Plan, check_autoreset, play
from fleet_gym.evaluation.policies import Policy, make_policy, policy_identity
from fleet_gym.evaluation.report import write_report
from fleet_gym.evaluation.results import EvaluationResult
from fleet_gym.evaluation.run_folder import REPORT, RESULTS, RunFolder, claimed, finished_by_world, read_run
from fleet_gym.evaluation.statistics import checked_confidence

AnyVectorEnv = VectorEnv[Any, Any, Any]
FrameSource = Literal["auto", "obs", "render", "env"]
Profile = Literal["light", "auto", "off"]
_VERSIONS = ("fleet-gym", "gymnasium", "numpy", "numba", "pybullet", "torch")


@dataclass(frozen=True)
class _Options:
    """Checked arguments of `evaluate` that say how, not what."""

    instruments: InstrumentSettings
    on_episode: Callable[[Episode], None] | None


def evaluate(
    env: AnyVectorEnv | Callable[[], AnyVectorEnv],
    policy: str | Policy | Callable[[Any], Any],
    *,
    episodes: int,
    seed: int = 0,
    confidence: float = 0.95,
    out: str | os.PathLike[str] | None = None,
    videos: int = 20,
    cameras: Sequence[str] | None = None,
    frame_source: FrameSource = "auto",
    profile: Profile = "light",
    config: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> EvaluationResult:
    """Plays exactly `episodes` episodes and returns averages with confidence intervals.

    Episode k has the seed ``seed + k`` and is played in world k modulo the number of worlds. Every world plays a fixed
    number of episodes; what it plays beyond that while others finish does not count.

    With `out` it writes, into that folder, ``results.json``, ``episodes.jsonl``, videos, ``memory.jsonl``,
    ``time.jsonl`` and ``report.html``. The same call goes on with a run that was interrupted or killed; of one that is
    finished it returns the results.

    Args:
        env: a vector environment in autoreset mode DISABLED, which stays open, or a function that makes one, which is
            closed. With `out`, a function is safer: a run that is finished does not call it.
        policy: a function from observations to actions (see `Policy`), or a name as `make_policy` takes it.
        episodes: N, at least 1.
        seed: of episode 0.
        confidence: of the intervals, above 0 and below 1.
        out: folder of the files; new, empty, or one of the same run.
        videos: how many episodes to record, the first ones; 0 for none. Needs `out`.
        cameras: names to record; None for all colour cameras.
        frame_source: where images come from, as `CameraObsVideoRecorder` takes it; ``"auto"``: the environment's
            cameras on demand, else images of the observation, else ``render()``, else no videos.
        profile: mode of the memory profiler, ``"light"`` or ``"auto"``; ``"off"``: neither memory nor time.
        config: JSON values that tell this run from others, beside the arguments and what the environment says of
            itself: which weights a function acts with, for example. A run in `out` is gone on with when all are equal.
        on_episode: called with each episode as it ends, and at first with those of an interrupted run.

    Raises:
        TypeError: when an argument has the wrong type.
        ValueError: when it has a value that cannot be, before anything is written.
        ImportError: when a policy's module, or PyTorch, is missing.
        OSError: when the folder cannot be written.
    """
    options = _checked_options(videos, cameras, frame_source, profile, on_episode)
    confidence = checked_confidence(confidence)
    Plan(episodes, 1, seed)  # checks them before an environment is made
    if not isinstance(env, VectorEnv) and not callable(env):
        raise TypeError(f"env: expected a gymnasium.vector.VectorEnv or a function that makes one, got {env!r}")
    with contextlib.ExitStack() as stack:
        made = env if isinstance(env, VectorEnv) else stack.enter_context(contextlib.closing(env()))
        check_autoreset(made)
        plan = Plan(episodes, made.num_envs, seed)
        acting = make_policy(policy, made) if isinstance(policy, str) else policy
        if not callable(acting):
            raise TypeError(f"policy: expected a name or a function from observations to actions, got {policy!r}")
        facts = {
            **env_facts(made),
            **(config or {}),
            **policy_identity(policy),
            "episodes": episodes,
            "num_envs": plan.num_envs,
            "seed": seed,
            "confidence": confidence,
            "videos": videos if out is not None else 0,
            "cameras": None if cameras is None else list(cameras),
            "frame_source": frame_source,
            "profile": profile,
        }
        folder = stack.enter_context(claimed(out, facts, versions()))
        if folder is not None and (folder.path / RESULTS).exists():
            return _finished(folder, options)
        return _run(made, acting, plan, folder, options, EvaluationResult((), confidence, facts, versions()))


def _checked_options(
    videos: int,
    cameras: Sequence[str] | None,
    frame_source: str,
    profile: str,
    on_episode: Callable[[Episode], None] | None,
) -> _Options:
    if cameras is not None and (isinstance(cameras, str) or not all(isinstance(name, str) for name in cameras)):
        raise TypeError(f"cameras: expected a list of camera names, got {cameras!r}")
    instruments = InstrumentSettings(
        non_negative_int("videos", videos),
        None if cameras is None else tuple(cameras),
        one_of("frame_source", frame_source, get_args(FrameSource)),
        one_of("profile", profile, get_args(Profile)),
    )
    return _Options(instruments, on_episode)


def versions() -> dict[str, str]:
    """Returns the versions of Python and of what decides about results, those that are installed."""
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _finished(folder: RunFolder, options: _Options) -> EvaluationResult:
    result = read_run(folder.path)
    if options.on_episode is not None:
        for episode in result.episodes:
            options.on_episode(episode)
    if not (folder.path / REPORT).exists():  # killed between the two
        write_report(result)
    return result


def _run(
    env: AnyVectorEnv,
    policy: Callable[[Any], Any],
    plan: Plan,
    folder: RunFolder | None,
    options: _Options,
    result: EvaluationResult,
) -> EvaluationResult:
    episodes = folder.keep_finished(plan) if folder is not None else []
    if options.on_episode is not None:
        for episode in episodes:
            options.on_episode(episode)
    wall, cpu, steps, resumed = time.perf_counter(), time.process_time(), 0, len(episodes)
    done = finished_by_world(episodes, plan.num_envs)
    with Instruments(env, plan, folder, options.instruments, done) as instruments:
        for ended in play(instruments.env, policy, plan, done, instruments.acting):
            steps += 1
            instruments.after_step(ended)
            episodes += ended
            if options.on_episode is not None:
                for episode in ended:
                    options.on_episode(episode)
    episodes.sort(key=lambda episode: episode.index)
    timings = {
        "steps": steps,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "resumed_episodes": resumed,
    }
    result = replace(
        result,
        episodes=tuple(episodes),
        timings=timings,
        memory=instruments.memory,
        folder=None if folder is None else folder.path,
    )
    if folder is not None:
        folder.keep_rows({episode.index for episode in episodes})
        folder.write_results(result)
        write_report(result)
    return result
