"""What both profiling wrappers owe to copies, subclasses, callers by keyword, and an environment put in later."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from profiled_env import ScriptedVectorEnv, run

from fleet_gym.profiling.sinks import read_records
from fleet_gym.wrappers.memory_profiling import MemoryProfilingEnvWrapper, MemoryProfilingWrapper
from fleet_gym.wrappers.time_profiling import TimeProfilingEnvWrapper, TimeProfilingWrapper

VECTOR = {"time": TimeProfilingWrapper, **{m: partial(MemoryProfilingWrapper, mode=m) for m in ("light", "trace")}}
SINGLE = {
    "time": TimeProfilingEnvWrapper,
    **{m: partial(MemoryProfilingEnvWrapper, mode=m) for m in ("light", "trace")},
}
ON_AND_OFF = pytest.mark.parametrize("enabled", [True, False])


def steps_seen(env: Any) -> int | None:
    """Steps in the wrapper's latest record."""
    record = getattr(env, "last_memory_record", None)
    if record is not None:
        return int(record.step)
    return None if env.last_profiling is None else int(env.last_profiling["step"])


@ON_AND_OFF
@pytest.mark.parametrize("kind", VECTOR)
def test_a_copy_steps_its_own_environment(kind: str, enabled: bool) -> None:
    env = VECTOR[kind](ScriptedVectorEnv(), enabled=enabled, profiling_interval=2)
    run(env, 3)
    other = copy.deepcopy(env)
    run(other, 2)
    other.reset()
    assert (env.unwrapped.steps, env.unwrapped.resets) == (3, 0)
    assert (other.unwrapped.steps, other.unwrapped.resets) == (5, 1)
    assert steps_seen(other) == (2 if enabled else None)
    env.close()
    run(other, 2)
    assert other.unwrapped.steps == 7
    assert steps_seen(other) == (4 if enabled else None)
    other.close()


@ON_AND_OFF
@pytest.mark.parametrize("kind", SINGLE)
def test_a_wrapper_can_be_pickled(kind: str, enabled: bool) -> None:
    env = SINGLE[kind](gym.make("CartPole-v1"), enabled=enabled, profiling_interval=1)
    env.reset(seed=3)
    again = pickle.loads(pickle.dumps(env))
    again.reset(seed=4)
    again.step(0)
    assert steps_seen(again) == (1 if enabled else None)
    assert steps_seen(env) is None
    env.close()
    again.close()


@pytest.mark.parametrize("kind", VECTOR)
def test_a_copy_of_a_closed_wrapper_is_closed(kind: str) -> None:
    env = VECTOR[kind](ScriptedVectorEnv(), profiling_interval=1)
    run(env, 1)
    env.close()
    other = copy.deepcopy(env)
    run(other, 2)
    assert steps_seen(other) is None
    assert steps_seen(env) == 1


def test_a_copy_leaves_the_records_of_the_original_alone(tmp_path: Any) -> None:
    env = MemoryProfilingWrapper(
        ScriptedVectorEnv(), profiling_interval=1, mode="light", log_path=tmp_path / "run.jsonl"
    )
    run(env, 2)
    other = copy.deepcopy(env)
    run(other, 2)
    other.close()
    run(env, 1)
    env.close()
    assert [record.step for record in read_records(tmp_path / "run.jsonl")] == [1, 2, 3]


@ON_AND_OFF
@pytest.mark.parametrize("wrapper", [TimeProfilingWrapper, MemoryProfilingWrapper])
def test_a_subclass_s_own_work_is_done_on_off_and_after_close(wrapper: Any, enabled: bool) -> None:
    class Counting(wrapper):
        calls = 0

        def step(self, actions: Any) -> Any:
            self.calls += 1
            return super().step(actions)

        def reset(self, **kwargs: Any) -> Any:
            self.calls += 1
            return super().reset(**kwargs)

    env = Counting(ScriptedVectorEnv(), enabled=enabled, profiling_interval=2)
    env.reset()
    run(env, 2)
    assert env.calls == 3
    env.close()
    env.reset()
    run(env, 2)
    assert env.calls == 6
    assert steps_seen(env) == (2 if enabled else None)


@ON_AND_OFF
@pytest.mark.parametrize("kind", VECTOR)
def test_actions_may_be_given_by_name(kind: str, enabled: bool) -> None:
    env = VECTOR[kind](ScriptedVectorEnv(), enabled=enabled)
    env.step(actions=env.unwrapped.actions)
    env.close()
    single = SINGLE[kind](gym.make("CartPole-v1"), enabled=enabled)
    single.reset(seed=1)
    single.step(action=0)
    single.close()


@ON_AND_OFF
@pytest.mark.parametrize("kind", VECTOR)
def test_an_environment_put_in_later_is_the_one_that_steps(kind: str, enabled: bool) -> None:
    first, second = ScriptedVectorEnv(), ScriptedVectorEnv()
    env = VECTOR[kind](first, enabled=enabled, profiling_interval=2)
    run(env, 1)
    env.env = second
    env.reset()
    run(env, 1)
    assert (first.steps, second.steps, second.resets) == (1, 1, 1)
    assert steps_seen(env) == (2 if enabled else None)
    env.close()
    assert (first.closes, second.closes) == (0, 1)
