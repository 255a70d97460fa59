"""The conformance suite finds what it is meant to find, in environments with known faults."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fleet_gym.testing import check_vector_env


class Walk(VectorEnv):
    """A minimal conforming environment: one random step size per episode, episodes of 7 steps."""

    def __init__(self, num_envs, autoreset_mode):
        self.num_envs, self.autoreset_mode = num_envs, autoreset_mode
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_observation_space = spaces.Box(-100, 100, (2,), np.float64)
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rngs = [np.random.default_rng() for _ in range(num_envs)]
        self.position, self.pace = np.zeros(num_envs), np.zeros(num_envs)
        self.steps, self.done, self.begun = np.zeros(num_envs, int), np.zeros(num_envs, bool), False

    def observation(self):
        return np.stack([self.position, self.pace], axis=-1)

    def infos(self):
        return {"steps": self.steps.copy(), "_steps": np.ones(self.num_envs, bool)}

    def begin(self, worlds, seeds):
        for world in worlds:
            if seeds[world] is not None:
                self.rngs[world] = np.random.default_rng(seeds[world])
            self.pace[world] = self.rngs[world].uniform(0.5, 1)
        self.position[worlds] = self.steps[worlds] = 0
        self.done[worlds] = False

    def reset(self, *, seed=None, options=None):
        if self.closed:
            raise ClosedEnvironmentError
        if isinstance(seed, list) and len(seed) != self.num_envs:
            raise ValueError("seed")
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != bool:
            raise TypeError("reset_mask")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError("reset_mask")
        self.begun = True
        self.begin(np.flatnonzero(mask), seeds)
        return self.observation(), self.infos()

    def step(self, actions):
        if self.closed:
            raise ClosedEnvironmentError
        if not self.begun or (self.autoreset_mode is AutoresetMode.DISABLED and self.done.any()):
            raise ResetNeeded
        if np.shape(actions) != (self.num_envs, 1):
            raise ValueError("actions")
        again = self.done & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        self.begin(np.flatnonzero(again), [None] * self.num_envs)
        self.position[~again] += (self.pace * actions[:, 0])[~again]
        self.steps[~again] += 1
        self.done = self.steps == 7
        reward = np.where(again, 0.0, self.position)
        done, observation, infos = self.done.copy(), self.observation(), self.infos()
        if self.autoreset_mode is AutoresetMode.SAME_STEP and done.any():
            final = np.full(self.num_envs, None, dtype=object)
            for world in np.flatnonzero(done):
                final[world] = observation[world].copy()
            final_info = {"steps": np.where(done, self.steps, 0), "_steps": done.copy()}
            self.begin(np.flatnonzero(done), [None] * self.num_envs)
            infos = {**self.infos(), "final_obs": final, "_final_obs": done.copy()}
            infos.update({"final_info": final_info, "_final_info": done.copy()})
            observation = self.observation()
        return observation, reward, np.zeros(self.num_envs, bool), done, infos


def check(kind, mode=AutoresetMode.NEXT_STEP):
    check_vector_env(lambda n, mode: kind(n, mode), modes=[mode], steps=20, lifetimes=2)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_conforming_environment_passes(mode):
    check(Walk, mode)


class ReusesItsBuffer(Walk):
    def observation(self):
        self.buffer = getattr(self, "buffer", np.zeros((self.num_envs, 2)))
        self.buffer[:] = super().observation()
        return self.buffer


class ShiftsWithItsNeighbours(Walk):
    def begin(self, worlds, seeds):
        super().begin(worlds, seeds)
        self.pace[worlds] += self.num_envs * 1e-12


class ForgetsMasks(Walk):
    def infos(self):
        return {"steps": self.steps.copy()}


class SharesMetadata(Walk):
    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs, autoreset_mode):
        super().__init__(num_envs, autoreset_mode)
        del self.metadata
        self.metadata = type(self).metadata


class RewardsInFloat32(Walk):
    def step(self, actions):
        observation, reward, *rest = super().step(actions)
        return observation, reward.astype(np.float32), *rest


class ResetsEverybody(Walk):
    def begin(self, worlds, seeds):
        super().begin(np.arange(self.num_envs), seeds)


class PopsTheMask(Walk):
    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if options:
            options.pop("reset_mask")
        return result


class PaysForTheResettingStep(Walk):
    def step(self, actions):
        observation, reward, *rest = super().step(actions)
        return observation, reward + 1e-3, *rest


class StaysOpen(Walk):
    def close(self, **kwargs):
        pass


class LeavesADescriptorOpen(Walk):
    def __init__(self, num_envs, autoreset_mode):
        super().__init__(num_envs, autoreset_mode)
        import os

        os.open("/dev/null", os.O_RDONLY)


class LosesTheLastObservation(Walk):
    def step(self, actions):
        result = super().step(actions)
        infos = result[4]
        for world in np.flatnonzero(infos.get("_final_obs", [])):
            infos["final_obs"][world] = result[0][world].copy()
        return result


class StepsPastTheEnd(Walk):
    def step(self, actions):
        self.done[:] = False
        return super().step(actions)


@pytest.mark.parametrize(
    ("kind", "mode", "finding"),
    [
        (ReusesItsBuffer, AutoresetMode.NEXT_STEP, "nothing_returned_is_used_again"),
        (ShiftsWithItsNeighbours, AutoresetMode.NEXT_STEP, "worlds_do_not_depend_on_each_other"),
        (ForgetsMasks, AutoresetMode.NEXT_STEP, "infos_are_masked_arrays"),
        (SharesMetadata, AutoresetMode.NEXT_STEP, "metadata_belong_to_the_instance"),
        (RewardsInFloat32, AutoresetMode.NEXT_STEP, "steps_stay_in_their_spaces"),
        (ResetsEverybody, AutoresetMode.DISABLED, "masked_resets_leave_other_worlds_alone"),
        (PopsTheMask, AutoresetMode.DISABLED, "masked_resets_leave_other_worlds_alone"),
        (PaysForTheResettingStep, AutoresetMode.NEXT_STEP, "ended_worlds_begin_anew"),
        (StaysOpen, AutoresetMode.NEXT_STEP, "closed_environments_say_so"),
        (LeavesADescriptorOpen, AutoresetMode.NEXT_STEP, "lifetimes_leave_nothing_behind"),
        (LosesTheLastObservation, AutoresetMode.SAME_STEP, "ended_worlds_begin_anew"),
        (StepsPastTheEnd, AutoresetMode.DISABLED, "ended_worlds_begin_anew"),
    ],
)
def test_a_fault_is_found(kind, mode, finding):
    with pytest.raises(AssertionError, match=finding):
        check(kind, mode)


def test_gymnasiums_own_cartpole_is_found_wanting():
    with pytest.raises(AssertionError) as error:
        check_vector_env(lambda n, _: CartPoleVectorEnv(n), modes=[AutoresetMode.NEXT_STEP], steps=60, lifetimes=0)
    assert "seed_lists" in str(error.value)
    assert "expected float64, got float32" in str(error.value)


def test_one_world_is_not_enough():
    with pytest.raises(ValueError, match="num_envs: expected at least 2, got 1"):
        check_vector_env(lambda n, mode: Walk(n, mode), num_envs=1)
