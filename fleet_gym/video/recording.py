"""Turns resets and steps into videos: joins the episode tracker, the frame source, the clips and the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym.video.clips import Clips, RecordingOptions
from fleet_gym.video.episode_log import EpisodeRecord
from fleet_gym.video.episode_tracker import BoolArray, EpisodeTracker, StepPlan
from fleet_gym.video.frame_sources import FrameSource
from fleet_gym.video.frames import CameraSpec, FrameBatch, to_numpy
from fleet_gym.video.infos import env_info, seeds_of
from fleet_gym.video.writers import VideoBackend

logger = logging.getLogger("fleet_gym.video")


class Recording:
    """Records the episodes of E environments. Knows no environment: it is told about resets and steps."""

    def __init__(
        self,
        options: RecordingOptions,
        tracker: EpisodeTracker,
        source: FrameSource,
        episode_index: Callable[[int], int | None],
        make_backend: Callable[[int], VideoBackend],
    ) -> None:
        """Prepares a recording; nothing is written before the first step of an episode.

        Args:
            options: what to record.
            tracker: of the environments.
            source: of the images.
            episode_index: returns the environment's own index of its running episode, None to have them counted.
            make_backend: called once, with the number of streams, when the first video is opened.
        """
        self._options = options
        self._tracker = tracker
        self._source = source
        self._episode_index = episode_index
        self._specs: dict[str, CameraSpec] = {}
        self._clips = Clips(options, tracker.num_envs, self._specs, make_backend)
        self._num_envs = tracker.num_envs
        self._steps_made = 0
        self._returns = np.zeros(tracker.num_envs)
        self._seeds: list[int | None] = [None] * tracker.num_envs
        self._told_missing = False
        self._closed = False
        self._owner = os.getpid()
        # A step in which nobody begins, ends or is cut needs no bookkeeping beyond handing the frames over.
        self._may_be_steady = options.stride == 1 and options.step_trigger is None and options.video_length is None

    @property
    def usable(self) -> bool:
        """Whether it was not closed and this is the process that made it."""
        return not self._closed and os.getpid() == self._owner

    def reset(self, mask: BoolArray | None, seed: Any, observation: Any, infos: Mapping[str, Any]) -> None:
        """Takes in a reset of the environments in `mask` (all if None)."""
        plan = self._tracker.reset(mask)
        self._end(plan.interrupt, plan.steps, {}, interrupted=True)
        triggered = self._steps_made == 0 and self._step_triggered()
        self._begin(plan.begin, self._wanted_envs(plan.begin, triggered), seeds_of(seed, self._num_envs), infos)
        new = self._clips.prepared & plan.begin
        if new.any():
            self._clips.begin(self._checked(self._source.current(observation, np.flatnonzero(new))), new)
        self._clips.settle()

    def step(
        self, observation: Any, rewards: Any, terminations: Any, truncations: Any, infos: Mapping[str, Any]
    ) -> None:
        """Takes in a step of all environments."""
        terminated = self._flags(terminations, "terminations")
        truncated = self._flags(truncations, "truncations")
        rewards = self._rewards(rewards)
        done = terminated | truncated
        final = self._source.final_available(infos, self._num_envs) if done.any() else None
        plan = self._tracker.step(done, final)
        self._steps_made += 1
        if plan.steady and self._may_be_steady and not self._clips.prepared_any:
            self._returns += rewards
            envs = self._clips.open_envs
            if len(envs):
                self._clips.write(self._checked(self._source.current(observation, envs)), envs)
        else:
            self._returns[plan.joined] = 0.0
            np.add(self._returns, rewards, out=self._returns, where=plan.stepped)
            self._step(plan, observation, infos, terminated, truncated)
        self._clips.settle()

    def lose(self) -> None:
        """Gives up every running episode because somebody raised, and waits for their files.

        Errors met now are kept for the next call: what was raised first is what matters.
        """
        self._end(self._tracker.lose(), self._tracker.steps, {}, crashed=True)
        self._clips.forget(np.ones(self._num_envs, dtype=np.bool_))
        self._clips.settle(wait=True, raise_errors=False)

    def close(self) -> None:
        """Ends every running episode as interrupted and waits for all files. Again, or in a fork: does nothing.

        Raises:
            VideoEncodeError: when a file that should be there could not be written.
        """
        if not self.usable:
            return
        self._closed = True
        try:
            steps = self._tracker.steps
            self._end(self._tracker.running & (steps > 0), steps, {}, interrupted=True)
            self._clips.settle(wait=True)
        finally:
            self._clips.close()

    def _step(
        self,
        plan: StepPlan,
        observation: Any,
        infos: Mapping[str, Any],
        terminated: BoolArray,
        truncated: BoolArray,
    ) -> None:
        clips = self._clips
        self._join(plan)
        to_open = clips.prepared & plan.stepped
        recording = (clips.open | to_open) & ~clips.full
        on_grid = (plan.steps - clips.first_step) % self._options.stride == 0
        append = plan.append & recording & (on_grid | plan.finish)
        finals = plan.append_final & recording
        # All frames of the step are fetched and checked before any is written.
        final_batch = self._checked(self._source.final(infos, np.flatnonzero(finals))) if finals.any() else None
        triggered = self._step_triggered()
        wanted = self._wanted_envs(plan.begin, triggered)
        needed = append | wanted | (plan.stepped & self._options.envs & triggered)
        if not self._specs:
            needed |= to_open  # a stream is opened for each camera, though the episode may have no frame for it yet
        batch = self._checked(self._source.current(observation, np.flatnonzero(needed))) if needed.any() else None

        clips.start(to_open)
        if batch is not None and append.any():
            clips.write(batch, np.flatnonzero(append))
        if final_batch is not None:
            clips.write(final_batch, np.flatnonzero(finals))
        self._tell_missing(plan.missing_last)
        clips.missing_last(plan.missing_last)
        clips.cut()
        self._end(plan.finish, plan.steps, infos, terminated=terminated, truncated=truncated)
        if triggered:
            going_on = plan.stepped & ~plan.finish & self._options.envs & ~clips.prepared & ~clips.open
            self._prepare(going_on, plan.steps)
        self._begin(plan.begin, wanted, [None] * self._num_envs, infos)
        new = clips.prepared & ~clips.begun
        if new.any() and batch is not None:
            clips.begin(batch, new)

    def _step_triggered(self) -> bool:
        trigger = self._options.step_trigger
        return trigger is not None and bool(trigger(self._steps_made))

    def _flags(self, flags: Any, name: str) -> BoolArray:
        array = to_numpy(flags)
        if array.shape != (self._num_envs,):
            raise ValueError(f"{name}: expected shape ({self._num_envs},), got {array.shape}")
        return array.astype(np.bool_, copy=False)

    def _rewards(self, rewards: Any) -> NDArray[Any]:
        array = to_numpy(rewards)
        if array.shape == (self._num_envs,) and array.dtype.kind in "biuf":
            return array
        return np.full(self._num_envs, np.nan)  # several objectives, or none: no reason not to record

    def _checked(self, batch: FrameBatch) -> FrameBatch:
        """Returns the batch as uint8, or raises ValueError when an image differs from its camera's first one."""
        converted: dict[str, Any] = {}
        expected = self._num_envs if batch.envs is None else len(batch.envs)
        formats = self._options.formats
        for camera, images in batch.images.items():
            if len(images) != expected:
                raise ValueError(f"camera {camera!r}: expected {expected} images, got {len(images)}")
            if camera not in self._specs:
                self._specs[camera] = CameraSpec(camera, images[0], formats.get(camera, formats[None]))
            spec = self._specs[camera]
            if isinstance(images, np.ndarray):
                spec.check(images, batched=True)
                converted[camera] = spec.convert(images)
            else:
                for image in images:
                    spec.check(image, batched=False)
                converted[camera] = [spec.convert(image) for image in images]
        return FrameBatch(converted, batch.envs)

    def _index(self, env: int, back: int) -> int:
        own = self._episode_index(env)
        return (int(self._tracker.episode[env]) if own is None else own) - back

    def _join(self, plan: StepPlan) -> None:
        """Starts clips of episodes that were under way before the recorder saw them: their t0 is missing."""
        for env in np.flatnonzero(plan.joined & self._options.envs).tolist():
            index = max(0, self._index(env, back=int(plan.begin[env])))
            if self._wanted(env, index):
                record = EpisodeRecord(env, index, first_frame="missing")
                self._clips.prepare(env, record, first_step=0, first_frame=False)

    def _wanted_envs(self, begin: BoolArray, triggered: bool) -> BoolArray:
        """Returns (E,) whose new episode is to be recorded, of those in `begin`; asks the trigger once of each."""
        wanted = begin & self._options.envs
        if not triggered:
            for env in np.flatnonzero(wanted).tolist():
                wanted[env] = self._wanted(env, self._index(env, back=0))
        return wanted

    def _begin(self, begin: BoolArray, wanted: BoolArray, seeds: list[int | None], infos: Mapping[str, Any]) -> None:
        self._returns[begin] = 0.0
        self._clips.forget(begin)
        for env in np.flatnonzero(begin & self._options.envs).tolist():
            own = env_info(infos, env, ("episode_seed",)) if "episode_seed" in infos else {}
            self._seeds[env] = own.get("episode_seed", seeds[env])
            if wanted[env]:
                record = EpisodeRecord(env, self._index(env, back=0))
                self._clips.prepare(env, record, first_step=0, first_frame=True)

    def _prepare(self, envs: BoolArray, steps: NDArray[np.int64]) -> None:
        """Starts clips in the middle of running episodes, at the current observation."""
        for env in np.flatnonzero(envs).tolist():
            record = EpisodeRecord(env, self._index(env, back=0), start_step=int(steps[env]))
            self._clips.prepare(env, record, first_step=int(steps[env]), first_frame=True)

    def _wanted(self, env: int, index: int) -> bool:
        trigger = self._options.episode_trigger
        if trigger is None:
            return self._options.step_trigger is None
        return trigger(env, index)

    def _end(
        self,
        envs: BoolArray,
        steps: NDArray[np.int64],
        infos: Mapping[str, Any],
        *,
        terminated: BoolArray | None = None,
        truncated: BoolArray | None = None,
        interrupted: bool = False,
        crashed: bool = False,
    ) -> None:
        ended = {
            env: {
                "steps": int(steps[env]),
                "episode_return": float(self._returns[env]) if np.isfinite(self._returns[env]) else None,
                "seed": self._seeds[env],
                "terminated": bool(terminated is not None and terminated[env]),
                "truncated": bool(truncated is not None and truncated[env]),
                "interrupted": interrupted,
                "crashed": crashed,
            }
            for env in np.flatnonzero(envs & self._clips.any).tolist()
        }
        self._clips.end(ended, infos)

    def _tell_missing(self, missing: BoolArray) -> None:
        if missing.any() and not self._told_missing:
            self._told_missing = True
            logger.warning(
                "the environment resets within the ending step and does not hand over the last frame (frame source "
                "%s, no infos['final_obs']): the videos end one frame early and the log marks it",
                type(self._source).__name__,
            )
