"""TimeProfilingWrapper: the line, its figures, phases, and its manners."""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode
from profiled_env import ScriptedEnv, ScriptedVectorEnv, run

from fleet_gym.profiling import phases
from fleet_gym.profiling.phases import NO_PHASE, phase
from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper
from fleet_gym.wrappers.time_profiling import TimeProfilingEnvWrapper, TimeProfilingWrapper

LINE = re.compile(
    r"\[PROFILING\] Last (\d+) steps average: step=(\d+\.\d\d)ms \((\d+\.\d)%\), (.*), "
    r"p50=(\d+\.\d\d)ms, p95=(\d+\.\d\d)ms, p99=(\d+\.\d\d)ms, (\d+\.\d) steps/s"
)


class Time:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_ms(self, ms: float) -> None:
        self.now += ms / 1e3


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(phases, "perf_counter", clock)
    return clock


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture):
    """Gives the [PROFILING] lines so far."""
    caplog.set_level(logging.INFO, logger="fleet_gym.profiling")
    return lambda: [r.getMessage() for r in caplog.records if r.getMessage().startswith("[PROFILING]")]


def in_phases(time: Time, **ms: float):
    """Returns an on_step that spends the given milliseconds in phases, ``other`` outside of them."""

    def on_step() -> None:
        for name, duration in ms.items():
            if name == "other":
                time.pass_ms(duration)
            else:
                with phase(name):
                    time.pass_ms(duration)

    return on_step


def test_the_line_and_the_record_say_where_the_time_went(time, lines):
    env = TimeProfilingWrapper(
        ScriptedVectorEnv(in_phases(time, dynamics=4, task=2, render=8, record=1, other=1)), profiling_interval=10
    )
    for _ in range(10):
        time.pass_ms(2)
        with env.phase("policy"):
            time.pass_ms(2)
        run(env, 1)
    assert lines() == [
        "[PROFILING] Last 10 steps average: step=16.00ms (80.0%), dynamics=4.00ms (20.0%), task=2.00ms (10.0%), "
        "render=8.00ms (40.0%), record=1.00ms (5.0%), policy=2.00ms (10.0%), other=1.00ms (5.0%), reset=0.00ms (0.0%), "
        "outside=2.00ms (10.0%), p50=16.00ms, p95=16.00ms, p99=16.00ms, 50.0 steps/s"
    ]
    record = env.last_profiling
    assert record["step"] == record["steps"] == 10
    assert record["phases_ms"]["render"] == pytest.approx(8)
    assert sum(record["phases_ms"].values()) == pytest.approx(record["total_ms"]) == pytest.approx(20)
    assert record["steps_per_second"] == pytest.approx(50)
    env.close()


def test_percentiles_are_of_the_steps(time):
    durations = itertools.cycle([*[1.0] * 98, 50.0, 100.0])
    env = TimeProfilingWrapper(ScriptedVectorEnv(lambda: time.pass_ms(next(durations))))
    run(env, 100)
    record = env.last_profiling
    assert record["p50_ms"] == pytest.approx(1)
    assert record["p95_ms"] == pytest.approx(1)
    assert record["p99_ms"] == pytest.approx(50.5)
    assert record["step_ms"] == pytest.approx(2.48)
    env.close()


def test_the_record_is_read_only():
    env = TimeProfilingWrapper(ScriptedVectorEnv(), profiling_interval=1)
    assert env.last_profiling is None
    run(env, 1)
    with pytest.raises(TypeError):
        env.last_profiling["steps"] = 5
    with pytest.raises(TypeError):
        env.last_profiling["phases_ms"]["other"] = 5
    env.close()


def test_intervals_the_tail_and_an_exception(lines):
    def fail() -> None:
        if inner.steps == 15:
            raise ValueError("step 15")

    inner = ScriptedVectorEnv(fail)
    env = TimeProfilingWrapper(inner, profiling_interval=10)
    run(env, 14)
    with pytest.raises(ValueError, match="step 15"):
        run(env, 1)
    assert phase("task") is NO_PHASE
    run(env, 3)
    env.close()
    env.close()
    counts = [int(LINE.fullmatch(line).group(1)) for line in lines()]
    assert counts == [10, 5, 3]
    assert env.last_profiling["step"] == 18
    assert inner.closes == 1


def test_reset_is_one_phase_whatever_happens_in_it(time):
    env = TimeProfilingWrapper(
        ScriptedVectorEnv(in_phases(time, dynamics=1), in_phases(time, dynamics=6, other=4)), profiling_interval=2
    )
    env.reset(seed=1)
    run(env, 2)
    expected = {"outside": 0, "other": 0, "reset": 5, "dynamics": 1}
    assert dict(env.last_profiling["phases_ms"]) == pytest.approx(expected)
    env.close()


def test_nested_wrappers_both_see_the_phases(time):
    inner = TimeProfilingWrapper(ScriptedVectorEnv(in_phases(time, dynamics=3)), profiling_interval=1)
    outer = TimeProfilingWrapper(MemoryProfilingWrapper(inner, mode="light"), profiling_interval=1)
    run(outer, 1)
    for env in (inner, outer):
        assert env.last_profiling["phases_ms"]["dynamics"] == pytest.approx(3)
        assert env.last_profiling["step_ms"] == pytest.approx(3)
    outer.close()


def test_a_memory_wrapper_outside_passes_phases_and_records_on(time):
    env = MemoryProfilingWrapper(
        TimeProfilingWrapper(ScriptedVectorEnv(in_phases(time, other=1)), profiling_interval=1), mode="light"
    )
    with env.phase("policy"):
        time.pass_ms(7)
    run(env, 1)
    assert env.last_profiling["phases_ms"]["policy"] == pytest.approx(7)
    assert env.autoreset_mode is AutoresetMode.SAME_STEP
    env.close()


def test_a_phase_without_a_time_wrapper_is_a_no_op():
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), enabled=False)
    assert env.phase("policy") is NO_PHASE
    assert env.last_profiling is None
    env.close()


def test_disabled_is_the_bare_environment(lines):
    inner = ScriptedVectorEnv()
    env = TimeProfilingWrapper(inner, enabled=False)
    assert env.step == inner.step
    assert env.reset == inner.reset
    run(env, 200)
    assert env.last_profiling is None
    assert env.phase("policy") is NO_PHASE
    env.close()
    assert lines() == []


@pytest.mark.parametrize("name", ["step", "total", "", None, 3])
def test_bad_phase_names(name):
    env = TimeProfilingWrapper(ScriptedVectorEnv())
    with pytest.raises(ValueError, match=r"name: expected the name of a phase"):
        env.phase(name)


@pytest.mark.parametrize("interval", [0, -5, 2.5, "100", None, True])
def test_bad_interval(interval):
    with pytest.raises(ValueError, match=r"profiling_interval.*got " + re.escape(repr(interval))):
        TimeProfilingWrapper(ScriptedVectorEnv(), profiling_interval=interval)


def test_the_wrong_kind_of_environment_names_the_right_wrapper():
    with pytest.raises(TypeError, match="TimeProfilingEnvWrapper"):
        TimeProfilingWrapper(ScriptedEnv())
    with pytest.raises(TypeError, match="TimeProfilingWrapper"):
        TimeProfilingEnvWrapper(ScriptedVectorEnv())


def test_single_environments(time, lines):
    env = TimeProfilingEnvWrapper(ScriptedEnv(in_phases(time, task=3, other=1)), profiling_interval=2)
    env.reset(seed=2)
    run(env, 2)
    env.close()
    assert env.unwrapped.closed
    assert "task=3.00ms (75.0%)" in lines()[0]


def test_single_wrapper_survives_its_spec():
    env = TimeProfilingEnvWrapper(gym.make("CartPole-v1"), profiling_interval=7)
    again: Any = gym.make(env.spec)
    assert isinstance(again, TimeProfilingEnvWrapper)
    again.close()
    env.close()


def test_what_the_memory_profiler_inside_says_is_passed_on() -> None:
    env = TimeProfilingWrapper(MemoryProfilingWrapper(ScriptedVectorEnv(), mode="light"))
    assert env.get_memory_usage()["current_mb"] > 0
    assert set(env.memory_report().phases) == {"step", "reset"}
    env.close()
    bare = TimeProfilingWrapper(ScriptedVectorEnv())
    assert (bare.get_memory_usage(), bare.memory_report()) == (None, None)


@pytest.mark.parametrize("wrapper", [TimeProfilingWrapper, MemoryProfilingWrapper])
def test_a_word_is_no_switch(wrapper: Any) -> None:
    with pytest.raises(TypeError, match="enabled: expected True or False, got 'no'"):
        wrapper(ScriptedVectorEnv(), enabled="no")


def test_a_phase_s_name_stays_in_its_line() -> None:
    env = TimeProfilingWrapper(ScriptedVectorEnv())
    with pytest.raises(ValueError, match=r"name: expected the name of a phase, printable .*got 'a\\nb'"):
        env.phase("a\nb")


def test_a_clock_that_stands_still_is_no_error(time, lines):
    env = TimeProfilingWrapper(ScriptedVectorEnv(), profiling_interval=1)
    run(env, 1)
    env.close()
    assert "step=0.00ms (0.0%)" in lines()[0]
