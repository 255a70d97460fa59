"""Which observation belongs to which episode, in every autoreset mode. Nothing here knows a video."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]

# States of an environment.
_UNSEEN = 0  # neither reset nor stepped through us yet
_RUNNING = 1
_PENDING = 2  # ended; the next step resets it (NEXT_STEP)
_IDLE = 3  # ended or lost; waits for a reset (DISABLED, or after an exception)


@dataclass(frozen=True)
class ResetPlan:
    """What a reset means for each of E environments.

    Attributes:
        interrupt: (E,) the running episode had at least one step and was cut off. One without a step just goes.
        begin: (E,) the returned observation is the first frame (t0) of a new episode.
        steps: (E,) int64, steps made of the episodes that ran before the reset.
    """

    interrupt: BoolArray
    begin: BoolArray
    steps: NDArray[np.int64]


@dataclass(frozen=True)
class StepPlan:
    """What a step means for each of E environments, in this order.

    Attributes:
        joined: (E,) an episode seen for the first time after its t0, which is missing.
        stepped: (E,) the step and its reward belong to the running episode.
        append: (E,) the returned observation is the running episode's next frame.
        append_final: (E,) the running episode's last frame is in ``infos["final_obs"]``.
        missing_last: (E,) the running episode's last frame was not handed over.
        finish: (E,) the running episode ends, after its last frame.
        begin: (E,) the returned observation is the first frame (t0) of a new episode.
        steps: (E,) int64, steps made of the episode this step belongs to.
        steady: True when every environment just goes on: `stepped` and `append` are all True, the rest all False.
    """

    joined: BoolArray
    stepped: BoolArray
    append: BoolArray
    append_final: BoolArray
    missing_last: BoolArray
    finish: BoolArray
    begin: BoolArray
    steps: NDArray[np.int64]
    steady: bool = False


class EpisodeTracker:
    """Follows the episodes of E environments through resets and steps.

    A T-step episode seen from its reset has exactly the frames t0..tT:

    - NEXT_STEP: the observation of the ending step is tT; the next step of that environment is its reset.
    - SAME_STEP: tT is in ``infos["final_obs"]``, the observation of the ending step is t0 of the next episode.
    - DISABLED: the observation of the ending step is tT; what a finished environment returns until it is reset
      belongs to no episode.

    Attributes:
        num_envs: E.
        autoreset_mode: as declared, or None: then an environment that ends with a final observation in the infos is
            taken as SAME_STEP, any other as NEXT_STEP.
        steps: (E,) int64, steps of the running episodes.
        episode: (E,) int64, resets seen of each environment, minus one.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode | None) -> None:
        self.num_envs = num_envs
        self.autoreset_mode = autoreset_mode
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self.episode = np.full(num_envs, -1, dtype=np.int64)
        self._state = np.full(num_envs, _UNSEEN, dtype=np.int8)
        self._all_running = False
        none, every = np.zeros(num_envs, dtype=np.bool_), np.ones(num_envs, dtype=np.bool_)
        none.flags.writeable = every.flags.writeable = False
        self._none = none
        self._steady = StepPlan(none, every, every, none, none, none, none, self.steps, steady=True)

    @property
    def running(self) -> BoolArray:
        """(E,) an episode is under way."""
        return np.asarray(self._state == _RUNNING)

    def reset(self, mask: BoolArray | None = None) -> ResetPlan:
        """Tells that the environments in `mask` (all if None) were reset from outside."""
        begin = np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask.copy()
        plan = ResetPlan(interrupt=self.running & begin & (self.steps > 0), begin=begin, steps=self.steps.copy())
        self._begin(begin)
        self._all_running = bool((self._state == _RUNNING).all())
        return plan

    def step(self, done: BoolArray, final_available: BoolArray | None = None) -> StepPlan:
        """Tells that all environments were stepped.

        Args:
            done: (E,) terminated or truncated.
            final_available: (E,) a final observation came with the infos; None if there were none.
        """
        if self._all_running and not done.any():
            self.steps += 1
            return self._steady
        joined = self._state == _UNSEEN
        pending = self._state == _PENDING
        stepped = (self._state == _RUNNING) | joined
        self.episode[joined] += 1
        self.steps[joined] = 0
        self.steps[stepped] += 1
        over = done & stepped
        if self.autoreset_mode != AutoresetMode.DISABLED:
            over |= done & (self._state == _IDLE)  # a lost episode ends too, and the next one can be followed
        same_step, final = self._same_step(over, final_available)
        finish = stepped & done
        plan = StepPlan(
            joined=joined,
            stepped=stepped,
            append=stepped & ~same_step,
            append_final=stepped & same_step & final,
            missing_last=stepped & same_step & ~final,
            finish=finish,
            begin=pending | same_step,
            steps=self.steps.copy(),
        )
        self._state[stepped] = _RUNNING
        self._state[over] = _IDLE if self.autoreset_mode == AutoresetMode.DISABLED else _PENDING
        self._begin(plan.begin)
        # An end reported by the very step that reset the environment leaves an episode without a step behind.
        self._state[pending & done] = _PENDING
        self._all_running = bool((self._state == _RUNNING).all())
        return plan

    def lose(self) -> BoolArray:
        """Gives up every running episode: what comes before the next reset belongs to none.

        Returns:
            (E,) the episodes given up that had at least one step.
        """
        lost = self.running & (self.steps > 0)
        self._state[:] = _IDLE
        self._all_running = False
        return lost

    def _begin(self, begin: BoolArray) -> None:
        self.episode[begin] += 1
        self.steps[begin] = 0
        self._state[begin] = _RUNNING

    def _same_step(self, over: BoolArray, final_available: BoolArray | None) -> tuple[BoolArray, BoolArray]:
        final = self._none if final_available is None else final_available
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            return over, final
        if self.autoreset_mode is None:
            return over & final, final
        return self._none, self._none
