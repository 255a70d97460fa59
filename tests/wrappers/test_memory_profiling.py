"""MemoryProfilingWrapper: the documented line, what each figure means, and its manners."""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import sys
import tracemalloc
from typing import Any
from unittest.mock import MagicMock

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from profiled_env import ScriptedEnv, ScriptedVectorEnv, run

from fleet_gym.wrappers.memory_profiling import MemoryProfilingEnvWrapper, MemoryProfilingWrapper
from fleet_gym.wrappers.time_profiling import TimeProfilingWrapper

MIB = 1 << 20
LINE = re.compile(
    r"\[MEMORY\] Last (\d+) steps: current=(\d+\.\d\d)MB \(min=(\d+\.\d\d), max=(\d+\.\d\d)\), "
    r"peak=(\d+\.\d\d)MB \(max=(\d+\.\d\d)\), growth=([+-]\d+\.\d\d)MB"
)


@pytest.fixture(autouse=True)
def _tracing_left_off():
    assert not tracemalloc.is_tracing()
    yield
    assert not tracemalloc.is_tracing(), "the test left tracemalloc on"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture):
    """Gives the parsed [MEMORY] lines so far: (steps, current, min, max, peak, peak max, growth)."""
    caplog.set_level(logging.INFO, logger="fleet_gym.profiling")

    def parsed() -> list[tuple[float, ...]]:
        found = []
        for record in caplog.records:
            if record.name == "fleet_gym.profiling" and record.getMessage().startswith("[MEMORY] "):
                match = LINE.fullmatch(record.getMessage())
                assert match, record.getMessage()
                found.append(tuple(map(float, match.groups())))
        return found

    return parsed


def counts(parsed: list[tuple[float, ...]]) -> list[int]:
    return [int(line[0]) for line in parsed]


def test_a_line_per_interval_and_the_tail_at_close(lines):
    env = MemoryProfilingWrapper(ScriptedVectorEnv())
    env.reset(seed=1)
    run(env, 250)
    assert counts(lines()) == [100, 100]
    env.close()
    assert counts(lines()) == [100, 100, 50]
    env.close()
    assert counts(lines()) == [100, 100, 50]


def test_no_tail_without_a_step_and_none_after_a_whole_interval(lines):
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5)
    env.reset()
    run(env, 5)
    env.close()
    MemoryProfilingWrapper(ScriptedVectorEnv()).close()
    assert counts(lines()) == [5]


def test_interval_of_one(lines):
    kept: list[bytearray] = []
    env = MemoryProfilingWrapper(ScriptedVectorEnv(lambda: kept.append(bytearray(MIB))), profiling_interval=1)
    run(env, 4)
    env.close()
    assert counts(lines()) == [1, 1, 1, 1]
    assert [line[6] for line in lines()] == pytest.approx([1.0] * 4, abs=0.03)


def test_statistics_are_ordered(lines):
    rng = np.random.default_rng(5)
    kept: list[bytearray] = []

    def allocate() -> None:
        kept.append(bytearray(int(rng.integers(1, 200_000))))
        bytearray(int(rng.integers(1, 400_000)))
        if len(kept) > 20:
            del kept[: int(rng.integers(0, 15))]

    env = MemoryProfilingWrapper(ScriptedVectorEnv(allocate), profiling_interval=20)
    run(env, 400)
    env.close()
    assert len(lines()) == 20
    for _, current, low, high, peak, highest, _ in lines():
        assert low <= current <= high <= highest
        assert current <= peak <= highest


def test_growth_counts_from_the_previous_interval(lines):
    kept: list[bytearray] = []
    env = MemoryProfilingWrapper(ScriptedVectorEnv(lambda: kept.append(bytearray(MIB))), profiling_interval=10)
    before = env.get_memory_usage()
    run(env, 30)
    after = env.get_memory_usage()
    env.close()
    assert [line[6] for line in lines()] == pytest.approx([10.0] * 3, abs=0.03)
    assert after["current_mb"] - before["current_mb"] == pytest.approx(30.0, abs=0.05)
    first = lines()[0]
    assert first[6] > first[3] - first[2]


def test_growth_between_steps_is_not_lost(lines):
    kept: list[bytearray] = []
    env = MemoryProfilingWrapper(
        ScriptedVectorEnv(on_reset=lambda: kept.append(bytearray(5 * MIB))), profiling_interval=10
    )
    for _ in range(3):
        env.reset()
        run(env, 10)
    env.close()
    assert [line[6] for line in lines()] == pytest.approx([5.0] * 3, abs=0.03)


def test_peak_is_the_intervals_and_peak_mb_the_runs(lines):
    step = iter(range(1, 1000))
    env = MemoryProfilingWrapper(
        ScriptedVectorEnv(lambda: bytearray(50 * MIB) if next(step) == 5 else None), profiling_interval=10
    )
    run(env, 20)
    usage = env.get_memory_usage()
    env.close()
    spike, calm = lines()
    assert spike[5] - spike[3] >= 49
    assert spike[4] - spike[1] == pytest.approx(5.0, abs=0.1)  # one sample of ten
    assert calm[5] - calm[3] < 1
    assert usage["peak_mb"] >= 50
    assert usage["current_mb"] < 1


def test_a_peak_seen_by_get_memory_usage_still_counts_for_the_line(lines):
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=10)
    run(env, 3)
    bytearray(20 * MIB)
    assert env.get_memory_usage()["peak_mb"] >= 20
    run(env, 7)
    env.close()
    assert lines()[0][5] >= 20


def test_usage_from_construction_to_after_close():
    kept: list[bytearray] = []
    env = MemoryProfilingWrapper(ScriptedVectorEnv(lambda: kept.append(bytearray(MIB))))
    first = env.get_memory_usage()
    assert set(first) == {"current_mb", "peak_mb"}
    assert 0 <= first["current_mb"] <= first["peak_mb"]
    run(env, 3)
    env.close()
    last = env.get_memory_usage()
    assert last["current_mb"] == pytest.approx(3.0, abs=0.05)
    assert last["peak_mb"] >= last["current_mb"]
    kept.clear()
    assert env.get_memory_usage() == last


def test_disabled_is_the_bare_environment(lines):
    inner = ScriptedVectorEnv()
    env = MemoryProfilingWrapper(inner, enabled=False)
    assert env.step == inner.step
    assert env.reset == inner.reset
    run(env, 300)
    assert not tracemalloc.is_tracing()
    assert env.get_memory_usage() is None
    assert env.memory_records == ()
    env.close()
    assert lines() == []
    assert inner.closes == 1


def test_off_is_disabled(lines):
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), mode="off")
    run(env, 150)
    env.close()
    assert env.get_memory_usage() is None
    assert lines() == []


def test_an_exception_passes_with_the_tail_before_it(lines):
    def fail() -> None:
        if inner.steps == 15:
            raise ValueError("step 15")

    inner = ScriptedVectorEnv(fail)
    env = MemoryProfilingWrapper(inner, profiling_interval=10)
    run(env, 14)
    with pytest.raises(ValueError, match="step 15"):
        run(env, 1)
    assert counts(lines()) == [10, 5]
    run(env, 1)
    env.close()
    assert counts(lines()) == [10, 5, 1]


def test_an_exception_of_reset_passes():
    def fail() -> None:
        raise RuntimeError("no reset")

    env = MemoryProfilingWrapper(ScriptedVectorEnv(on_reset=fail))
    with pytest.raises(RuntimeError, match="no reset"):
        env.reset()
    env.close()


@pytest.mark.parametrize("wrapper", [MemoryProfilingWrapper, TimeProfilingWrapper])
def test_a_handler_that_fails_does_not_keep_the_environment_open(wrapper, monkeypatch, caplog):
    def fail(record: logging.LogRecord) -> None:
        raise OSError("nobody listens")

    caplog.set_level(logging.INFO, logger="fleet_gym.profiling")
    env = wrapper(ScriptedVectorEnv())
    run(env, 1)
    handler = logging.Handler()
    handler.emit = fail
    monkeypatch.setattr(logging.getLogger("fleet_gym"), "handlers", [handler])
    with pytest.raises(OSError, match="nobody listens"):
        env.close()
    assert env.unwrapped.closes == 1
    monkeypatch.undo()
    env.close()


def test_calls_pass_through_unchanged():
    inner = ScriptedVectorEnv()
    env = MemoryProfilingWrapper(inner)
    observation, info = env.reset(seed=[3, 4], options={"reset_mask": np.array([True, False])})
    assert observation.shape == (2, 3)
    assert info == {"reset": True}
    assert inner.seed == [3, 4]
    assert list(inner.options) == ["reset_mask"]
    actions = np.ones((2, 2), np.float32)
    *_, info = env.step(actions)
    assert inner.last_actions is actions
    assert info == {"a": 1}
    assert env.autoreset_mode is AutoresetMode.SAME_STEP
    assert env.metadata is inner.metadata
    env.close(terminate=True)
    assert inner.close_kwargs == {"terminate": True}


def test_a_session_of_somebody_else_is_left_as_found(lines):
    tracemalloc.start(7)
    spike = bytearray(30 * MIB)
    del spike
    peak_before = tracemalloc.get_traced_memory()[1]
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5, nframe=3)
    run(env, 10)
    assert tracemalloc.get_traceback_limit() == 7
    env.close()
    assert tracemalloc.is_tracing()
    assert tracemalloc.get_traced_memory()[1] >= peak_before
    tracemalloc.stop()
    assert all(line[5] < 30 for line in lines())  # a peak from before is not the interval's


def test_two_wrappers_share_one_session():
    first = MemoryProfilingWrapper(ScriptedVectorEnv())
    second = MemoryProfilingWrapper(ScriptedVectorEnv())
    first.close()
    assert tracemalloc.is_tracing()
    second.close()
    assert not tracemalloc.is_tracing()


def test_a_forgotten_wrapper_stops_tracing():
    env = MemoryProfilingWrapper(ScriptedVectorEnv())
    assert tracemalloc.is_tracing()
    del env
    assert not tracemalloc.is_tracing()


def test_nested_wrappers_do_not_steal_each_others_peak(lines):
    step = iter(range(1, 1000))
    inner = MemoryProfilingWrapper(
        ScriptedVectorEnv(lambda: bytearray(50 * MIB) if next(step) == 5 else None), profiling_interval=10
    )
    outer = MemoryProfilingWrapper(inner, profiling_interval=50)
    run(outer, 50)
    outer.close()
    by_count: dict[int, list[tuple[float, ...]]] = {}
    for line in lines():
        by_count.setdefault(int(line[0]), []).append(line)
    assert len(by_count[10]) == 5
    assert len(by_count[50]) == 1
    assert by_count[50][0][5] - by_count[50][0][3] >= 49
    assert [line[5] >= 49 for line in by_count[10]] == [True, False, False, False, False]


@pytest.mark.parametrize("disturb", [tracemalloc.stop, tracemalloc.clear_traces])
def test_a_foreign_stop_or_clear_silences_with_one_warning(lines, caplog, disturb):
    kept: list[bytearray] = []
    env = MemoryProfilingWrapper(ScriptedVectorEnv(lambda: kept.append(bytearray(1000))))
    run(env, 120)
    disturb()
    run(env, 80)
    assert env.get_memory_usage() is None
    assert env.get_memory_usage() is None
    env.close()
    assert counts(lines()) == [100]
    assert sum("stopped or cleared" in record.getMessage() for record in caplog.records) == 1
    tracemalloc.stop()


def test_a_foreign_stop_and_start_is_noticed_even_if_the_heap_grew_past_the_old_one(lines):
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=10)
    run(env, 15)
    tracemalloc.stop()
    tracemalloc.start()
    ballast = bytearray(5 * MIB)
    run(env, 5)
    assert counts(lines()) == [10]
    assert env.get_memory_usage() is None
    env.close()
    assert tracemalloc.is_tracing(), "the session is somebody else's now"
    tracemalloc.stop()
    del ballast


def test_a_new_wrapper_after_a_foreign_stop_works(lines):
    lost = MemoryProfilingWrapper(ScriptedVectorEnv())
    tracemalloc.stop()
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5)
    run(env, 5)
    assert env.get_memory_usage() is not None
    assert lost.get_memory_usage() is None
    lost.close()
    assert tracemalloc.is_tracing()
    env.close()
    assert counts(lines()) == [5]


@pytest.mark.parametrize("mode", ["light", "auto"])
def test_light_and_auto_report_rss_without_tracing(lines, caplog, mode):
    gc.collect()
    psutil.heap_trim()  # pages that earlier tests have freed would be used again, and RSS would not grow
    kept: list[Any] = []
    env = MemoryProfilingWrapper(ScriptedVectorEnv(lambda: kept.append(np.ones(MIB))), profiling_interval=10, mode=mode)
    assert not tracemalloc.is_tracing()
    before = env.get_memory_usage()
    run(env, 20)
    after = env.get_memory_usage()
    env.close()
    assert counts(lines()) == [10, 10]
    assert after["current_mb"] - before["current_mb"] == pytest.approx(160, abs=30)  # freed pages are reused
    assert before["current_mb"] > 20
    plus = [record.getMessage() for record in caplog.records if record.getMessage().startswith("[MEMORY+] ")]
    assert all("source=rss" in line for line in plus)
    assert env.memory_records[0].step_native_bytes == pytest.approx(80 * MIB, rel=0.01)


def test_records_say_what_the_line_says_and_more():
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=4)
    env.reset()
    run(env, 6)
    env.close()
    first, tail = env.memory_records
    assert (first.step, first.steps, first.resets, first.source) == (4, 4, 1, "tracemalloc")
    assert (tail.step, tail.steps, tail.resets) == (6, 2, 0)
    assert first.rss_mb > first.native_mb > 1
    assert 0 < first.uss_mb <= first.rss_mb * 1.5
    assert first.python_blocks > 1000
    assert first.limit_mb > first.rss_mb
    assert tail.steps_per_second > 0
    assert (first.num_workers, first.num_encoders) == (0, 0)


def test_several_environments_are_said_to_share(caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym.profiling")
    first = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=2)
    run(first, 2)
    second = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=2)
    run(first, 2)
    second.close()
    run(first, 2)
    first.close()
    shared = ["shared by 2 environments" in r.getMessage() for r in caplog.records if "[MEMORY+]" in r.getMessage()]
    assert shared == [False, True, False]


def test_nested_wrappers_are_one_environment(caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym.profiling")
    env = MemoryProfilingWrapper(MemoryProfilingWrapper(ScriptedVectorEnv()), profiling_interval=2)
    run(env, 2)
    env.close()
    assert not any("shared by" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("interval", [0, -5, 2.5, 100.0, "100", None, True])
def test_bad_interval(interval):
    with pytest.raises(ValueError, match=r"profiling_interval.*got " + re.escape(repr(interval))):
        MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=interval)


@pytest.mark.parametrize("nframe", [0, -1, 1.5, "1", 70_000])
def test_bad_nframe(nframe):
    with pytest.raises(ValueError, match="nframe"):
        MemoryProfilingWrapper(ScriptedVectorEnv(), nframe=nframe)


@pytest.mark.parametrize("mode", ["heavy", "", None, 1, ["trace"], np.array(["trace", "off"])])
def test_bad_mode(mode):
    with pytest.raises(ValueError, match=r"mode: expected one of trace, light, auto, off"):
        MemoryProfilingWrapper(ScriptedVectorEnv(), mode=mode)


def test_numpy_integers_are_whole_numbers(lines):
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=np.int64(3))
    run(env, 3)
    env.close()
    assert counts(lines()) == [3]


def test_the_wrong_kind_of_environment_names_the_right_wrapper():
    with pytest.raises(TypeError, match="MemoryProfilingEnvWrapper"):
        MemoryProfilingWrapper(ScriptedEnv())
    with pytest.raises(TypeError, match="MemoryProfilingWrapper"):
        MemoryProfilingEnvWrapper(ScriptedVectorEnv())
    with pytest.raises(TypeError, match="got str"):
        MemoryProfilingWrapper("CartPole-v1")


def test_a_mocked_vector_env_can_be_wrapped():
    mock = MagicMock(spec=VectorEnv)
    env = MemoryProfilingWrapper(mock, profiling_interval=2)
    assert env.step("anything") is mock.step.return_value
    env.close()
    mock.close.assert_called_once_with()


def test_single_environments_are_profiled_alike(lines):
    kept: list[bytearray] = []
    env = MemoryProfilingEnvWrapper(ScriptedEnv(lambda: kept.append(bytearray(MIB))), profiling_interval=10)
    env.reset(seed=3)
    run(env, 15)
    env.close()
    assert counts(lines()) == [10, 5]
    assert lines()[0][6] == pytest.approx(10, abs=0.03)
    assert env.unwrapped.closed


def test_single_wrapper_survives_its_spec():
    env = MemoryProfilingEnvWrapper(gym.make("CartPole-v1"), profiling_interval=7, mode="light")
    again = gym.make(env.spec)
    assert isinstance(again, MemoryProfilingEnvWrapper)
    again.close()
    env.close()


def test_works_over_gymnasiums_sync_vector_env(lines):
    env = MemoryProfilingWrapper(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3), profiling_interval=20)
    env.reset(seed=0)
    for _ in range(40):
        env.step(env.action_space.sample())
    env.close()
    assert counts(lines()) == [20, 20]
    assert env.closed


SCRIPT = """
import logging, sys
{setup}
sys.path.insert(0, {here!r})
from profiled_env import ScriptedVectorEnv, run
from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper
env = MemoryProfilingWrapper(ScriptedVectorEnv(), enabled={enabled}, profiling_interval=5)
run(env, 5)
env.close()
print("root", logging.getLogger().level, len(logging.getLogger().handlers))
"""


def _logged(setup: str, enabled: bool = True) -> tuple[str, str]:
    script = SCRIPT.format(setup=setup, here=str(__import__("pathlib").Path(__file__).parent), enabled=enabled)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_lines_show_on_stderr_without_any_logging_setup():
    out, err = _logged("")
    assert out == "root 30 0\n"
    assert err.startswith("[MEMORY] Last 5 steps: ")
    assert len(err.splitlines()) == 2


def test_whoever_configured_logging_decides():
    out, err = _logged("logging.basicConfig(format='mine %(message)s')")
    assert err == ""
    assert out == "root 30 1\n"
    _, err = _logged("logging.basicConfig(format='mine %(message)s', level=logging.INFO)")
    assert all(line.startswith("mine [MEMORY") for line in err.splitlines())
    assert len(err.splitlines()) == 2
    _, err = _logged("logging.getLogger('fleet_gym').addHandler(logging.NullHandler())")
    assert err == ""


def test_a_record_factory_of_the_programs_is_used():
    setup = (
        "old = logging.getLogRecordFactory()\n"
        "def make(*arguments, **named):\n"
        "    record = old(*arguments, **named)\n"
        "    record.run = 'run7'\n"
        "    return record\n"
        "logging.setLogRecordFactory(make)\n"
        "logging.basicConfig(format='%(run)s %(message)s', level=logging.INFO)"
    )
    _, err = _logged(setup)
    assert [line[:13] for line in err.splitlines()] == ["run7 [MEMORY]", "run7 [MEMORY+"]


def test_disabled_touches_no_logger():
    assert _logged("", enabled=False) == ("root 30 0\n", "")
