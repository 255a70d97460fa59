"""MemoryProfilingWrapper on environments that leak: verdict, attribution, what is named, and what is written."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv
from leaking_env import KeepingEnv, UrdfVectorEnv
from profiled_env import ScriptedEnv, ScriptedVectorEnv, run

from fleet_gym.profiling import signals
from fleet_gym.profiling.sinks import read_records
from fleet_gym.wrappers.memory_profiling import MemoryProfilingEnvWrapper, MemoryProfilingWrapper

HERE = str(Path(__file__))


@pytest.fixture(autouse=True)
def _tracing_left_off():
    assert not tracemalloc.is_tracing()
    yield
    assert not tracemalloc.is_tracing(), "the test left tracemalloc on"


def number_of(line_text: str) -> int:
    """The line of this file that ends in the comment `# <line_text>`."""
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.endswith(f"# {line_text}"))


def statuses(env: Any) -> dict[str, str]:
    return {name: verdict.status for name, verdict in env.memory_report().verdicts.items()}


def test_trace_names_the_leaking_line():
    kept: list[bytes] = []

    def leak() -> None:
        kept.append(bytes(1000))  # leaks in trace

    env = MemoryProfilingWrapper(ScriptedVectorEnv(leak), profiling_interval=5)
    run(env, 500)
    report = env.memory_report()
    env.close()
    assert report.verdicts["python"].status == "leak"
    assert 1000 <= report.verdicts["python"].bytes_per_step <= 1100
    top = report.top_lines[0]
    assert (top.kind, top.filename, top.lineno) == ("python", HERE, number_of("leaks in trace"))
    assert 1000 <= top.bytes_per_step <= 1100
    assert f"{HERE}:{number_of('leaks in trace')}: +10" in str(report)
    assert "the native growth is the Python heap's own" in str(report)


def test_auto_traces_only_when_it_suspects_and_names_the_line(caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym.profiling")
    kept: list[bytes] = []
    traced: list[bool] = []

    def leak() -> None:
        traced.append(tracemalloc.is_tracing())
        kept.append(bytes(3000))  # leaks in auto

    env = MemoryProfilingWrapper(ScriptedVectorEnv(leak), profiling_interval=5, mode="auto", diagnosis_steps=50)
    run(env, 400)
    report = env.memory_report()
    env.close()
    assert traced == [False] * 300 + [True] * 50 + [False] * 50
    assert report.verdicts["native"].status == "leak"
    assert report.verdicts["native"].bytes_per_step == pytest.approx(3000, rel=0.2)  # the window leaves some behind
    top = report.top_lines[0]
    assert (top.kind, top.filename, top.lineno) == ("python", HERE, number_of("leaks in auto"))
    assert 3000 <= top.bytes_per_step <= 3200
    messages = [record.getMessage() for record in caplog.records]
    assert "[MEMORY+] a leak is suspected: tracing 50 steps to name the lines" in messages
    assert any(f"grows: {HERE}:{number_of('leaks in auto')}" in message for message in messages)


def test_auto_closed_within_its_window_ends_tracing():
    kept: list[bytes] = []
    env = MemoryProfilingWrapper(
        ScriptedVectorEnv(lambda: kept.append(bytes(3000))), profiling_interval=5, mode="auto", diagnosis_steps=200
    )
    run(env, 320)
    assert tracemalloc.is_tracing()
    env.close()
    assert not tracemalloc.is_tracing()
    assert env.memory_report().verdicts["native"].status == "leak"


@pytest.mark.parametrize("steps", [900, 1300])
def test_a_leak_of_small_objects_is_still_one_after_the_window(steps):
    kept: list[object] = []

    def leak() -> None:
        kept.append(object())
        kept.append(object())

    env = MemoryProfilingWrapper(ScriptedVectorEnv(leak), mode="auto", profiling_interval=10, diagnosis_steps=200)
    run(env, steps)
    report = env.memory_report()
    env.close()
    assert report.verdicts["python"].status == "leak"
    assert 120 <= report.verdicts["python"].bytes_per_step <= 145
    assert report.top_lines[0].filename == HERE


@pytest.mark.parametrize("mode", ["light", "auto"])
def test_free_lists_that_fill_up_are_no_leak(mode):
    def shrink() -> None:
        tuple(number for number in range(3))  # made with room for ten: CPython keeps what it shrank to, up to 2,000

    env = MemoryProfilingWrapper(ScriptedVectorEnv(shrink), mode=mode, profiling_interval=10)
    run(env, 900)
    report = env.memory_report()
    env.close()
    assert report.verdicts["python"].status == "stable"
    assert report.top_lines == ()


def test_a_report_within_the_window_and_after_it_was_cut_names_the_line():
    kept: list[bytes] = []

    def leak() -> None:
        kept.append(bytes(3000))  # leaks within the window

    env = MemoryProfilingWrapper(ScriptedVectorEnv(leak), mode="auto", profiling_interval=5, diagnosis_steps=1000)
    run(env, 350)
    within = env.memory_report()
    assert tracemalloc.is_tracing()
    env.close()
    for report in (within, env.memory_report()):
        assert report.top_lines[0].lineno == number_of("leaks within the window")
        assert not any("names the line" in hint for hint in report.hints)


def test_trace_does_not_name_what_only_the_profiler_uses():
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5)
    run(env, 20)
    report = env.memory_report()
    env.close()
    assert not [line for line in report.top_lines if "contextlib" in line.filename]


GARBAGE_AND_A_LEAK = """
import gc
import json

from profiled_env import ScriptedVectorEnv, run

from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper

kept = []
env = ScriptedVectorEnv(lambda: kept.append(bytes(3000)))
env = MemoryProfilingWrapper(env, profiling_interval=5, mode="auto", diagnosis_steps=20)
gc.disable()
for _ in range(2000):
    cycle = [bytearray(1000)]
    cycle.append(cycle)
del cycle
run(env, 400)
gc.enable()
report = env.memory_report()
env.close()
native = report.verdicts["native"]
per_call = report.phases["step"].native_bytes_per_call
print(json.dumps([len(report.top_lines), native.status, native.bytes_per_step, per_call]))
"""


def test_garbage_that_the_profiler_collects_is_no_fall_of_the_leak():
    # In a process of its own: what other tests left running allocates now and then, in somebody's step.
    done = subprocess.run(
        [sys.executable, "-c", GARBAGE_AND_A_LEAK],
        cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    lines, status, bytes_per_step, bytes_per_call = json.loads(done.stdout)
    assert lines, "it traced, and to do so collected garbage"
    assert status == "leak"
    assert bytes_per_step == pytest.approx(3000, rel=0.1)
    assert bytes_per_call == pytest.approx(3000, rel=0.1)


REPORT_WITHIN_A_WINDOW = """
import json

from profiled_env import ScriptedVectorEnv, run

from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper

kept = []
env = ScriptedVectorEnv(lambda: kept.append(bytes(300)))
env = MemoryProfilingWrapper(env, profiling_interval=5, mode="auto", diagnosis_steps=400)
run(env, 400)
env.memory_report()
run(env, 100)
env.close()
print(json.dumps([line.filename for line in env.memory_report().top_lines]))
"""


def test_a_report_within_the_window_is_not_named_in_the_next():
    # In a process of its own: what a report loads is loaded once.
    done = subprocess.run(
        [sys.executable, "-c", REPORT_WITHIN_A_WINDOW],
        cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout) == ["<string>"]


@pytest.mark.parametrize("mode", ["trace", "light", "auto"])
def test_garbage_that_piles_up_is_no_leak(mode):
    def litter() -> None:
        cycle: list[Any] = [bytearray(1000)]
        cycle.append(cycle)

    env = MemoryProfilingWrapper(ScriptedVectorEnv(litter), profiling_interval=5, mode=mode)
    gc.disable()
    try:
        run(env, 400)
        found = statuses(env)
    finally:
        gc.enable()
    env.close()
    assert found["python"] == found["native"] == "stable"


def test_only_lines_that_can_explain_the_leak_are_named():
    kept: list[Any] = []
    small: dict[int, Any] = {}

    def step() -> None:
        kept.append(np.zeros(500))  # leaks among noise
        for key in range(50):
            small[key] = [float(key), str(key)]
        sorted(small)
        np.add.reduce(np.ones(100))
        len(kept)

    env = MemoryProfilingWrapper(ScriptedVectorEnv(step), profiling_interval=5, mode="auto", diagnosis_steps=100)
    run(env, 420)
    report = env.memory_report()
    env.close()
    (line,) = report.top_lines
    assert (line.filename, line.lineno) == (HERE, number_of("leaks among noise"))
    assert "the native growth is the Python heap's own" in str(report)


def test_a_line_of_a_library_comes_with_the_way_to_its_caller():
    kept: list[np.ndarray] = []
    for nframe in (1, 5):
        env = MemoryProfilingWrapper(
            ScriptedVectorEnv(lambda: kept.append(np.ones(500))), profiling_interval=5, nframe=nframe
        )
        run(env, 400)
        report = env.memory_report()
        env.close()
        assert report.verdicts["python"].status == "leak"
        hinted = [hint for hint in report.hints if "numeric.py is a library's: nframe=5" in hint]
        assert len(hinted) == (nframe == 1)
        assert any(HERE in frame for frame in report.top_lines[0].frames) == (nframe == 5)


def test_auto_leaves_a_healthy_environment_alone():
    traced: list[bool] = []
    env = MemoryProfilingWrapper(
        ScriptedVectorEnv(lambda: traced.append(tracemalloc.is_tracing())), profiling_interval=5, mode="auto"
    )
    run(env, 1300)
    assert set(statuses(env).values()) == {"stable"}
    assert not any(traced)
    assert env.memory_report().top_lines == ()
    env.close()


@pytest.mark.parametrize("mode", ["trace", "light"])
def test_a_urdf_reloaded_in_reset_is_a_native_leak_of_reset(mode):
    env = MemoryProfilingWrapper(UrdfVectorEnv(by_remove_body=True), profiling_interval=20, mode=mode)
    for _ in range(65):
        env.reset()
        run(env, 20)
    report = env.memory_report()
    env.close()
    assert report.verdicts["native"].status == "leak"
    assert report.verdicts["python"].status == "stable"
    assert report.verdicts["native"].bytes_per_step == pytest.approx(585e3 / 20, rel=0.1)
    assert report.phases["reset"].calls == 65
    # The mean over all 65 calls: the first one loads what later ones replace, 2 MB, so it lies at 609 kB.
    assert report.phases["reset"].native_bytes_per_call == pytest.approx(585e3, rel=0.1)
    assert report.phases["step"].calls == 1300
    assert abs(report.phases["step"].native_bytes_per_call) < 1000
    (hint,) = report.hints
    assert "native growth in reset" in hint
    assert "URDF" in hint
    assert report.verdicts["native"].hours_to_limit > 0


def test_auto_names_the_call_that_loads_the_urdf():
    env = MemoryProfilingWrapper(UrdfVectorEnv(True), profiling_interval=20, mode="auto", diagnosis_steps=80)
    for _ in range(65):
        env.reset()
        run(env, 20)
    lines = env.memory_report().top_lines
    env.close()
    (line,) = lines
    assert line.call == "pybullet.loadURDF"
    assert line.blocks == 4


@pytest.mark.parametrize("mode", ["trace", "light"])
def test_the_same_environment_with_reset_simulation_is_stable(mode):
    env = MemoryProfilingWrapper(UrdfVectorEnv(by_remove_body=False), profiling_interval=20, mode=mode)
    for _ in range(65):
        env.reset()
        run(env, 20)
    report = env.memory_report()
    env.close()
    assert report.verdicts["native"].status == "stable"
    assert report.verdicts["python"].status == "stable"
    assert report.hints == ()


def test_growth_outside_the_environment_is_said_to_be_outside():
    kept: list[Any] = []
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5, mode="light")
    for _ in range(320):
        run(env, 1)
        kept.append(np.zeros(500))
    report = env.memory_report()
    env.close()
    assert report.verdicts["native"].status == "leak"
    assert any("outside step and reset" in hint for hint in report.hints)


def test_workers_that_grow_show_in_the_workers_figure_only():
    env = MemoryProfilingWrapper(AsyncVectorEnv([KeepingEnv] * 4, context="forkserver"), profiling_interval=50)
    assert tracemalloc.is_tracing()
    env.reset()
    actions = np.zeros((4, 2), np.float32)
    for _ in range(1000):
        *_, info = env.step(actions)
    records = env.memory_records
    report = env.memory_report()
    env.close()
    assert not info["traced"].any()
    assert records[-1].num_workers == 4
    grown = records[-1].workers_mb - records[9].workers_mb  # at first, pages shared with the parent become their own
    assert grown == pytest.approx(500 * 4 * 8192 / 2**20, rel=0.1)
    assert report.verdicts["workers"].bytes_per_step == pytest.approx(4 * 8192, rel=0.1)
    assert report.verdicts["workers"].status == "not enough data"
    assert report.verdicts["python"].bytes_per_step < 500


def test_workers_forked_while_tracing_are_not_traced():
    owner = MemoryProfilingWrapper(ScriptedVectorEnv())
    workers = AsyncVectorEnv([KeepingEnv] * 2, context="fork")
    workers.reset()
    *_, info = workers.step(np.zeros((2, 2), np.float32))
    workers.close()
    assert tracemalloc.is_tracing()
    owner.close()
    assert not info["traced"].any()


def _profile_in_child(pipe: int) -> None:
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5)
    run(env, 5)
    os.write(pipe, b"sampled" if env.get_memory_usage() is not None else b"nothing")
    env.close()


def test_a_forked_child_can_profile_for_itself():
    env = MemoryProfilingWrapper(ScriptedVectorEnv())
    read, write = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=_profile_in_child, args=(write,))
    child.start()
    child.join()
    assert os.read(read, 100) == b"sampled"
    os.close(read)
    os.close(write)
    assert env.get_memory_usage() is not None
    env.close()


@pytest.mark.parametrize("mode", ["trace", "light"])
def test_the_profiler_does_not_report_itself(mode):
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=1, mode=mode)
    logging.getLogger("fleet_gym.profiling").setLevel(logging.WARNING)  # pytest keeps what is logged
    try:
        run(env, 600)
    finally:
        logging.getLogger("fleet_gym.profiling").setLevel(logging.NOTSET)
    report = env.memory_report()
    env.close()
    assert {verdict.status for verdict in report.verdicts.values()} == {"stable"}
    assert report.verdicts["python"].bytes_per_step < 100


def test_a_report_at_any_time():
    env = MemoryProfilingWrapper(ScriptedVectorEnv())
    first = env.memory_report()
    assert first.steps == 0
    assert {name: verdict.status for name, verdict in first.verdicts.items()} == dict.fromkeys(
        ("python", "native", "rss", "workers"), "not enough data"
    )
    assert all(verdict.bytes_per_step == 0.0 for verdict in first.verdicts.values())
    assert first.phases["reset"].calls == 0
    run(env, 7)
    assert env.memory_report().phases["step"].calls == 7
    env.close()
    last = env.memory_report()
    assert last.steps == 7
    assert last.current_mb == env.get_memory_usage()["current_mb"]
    assert last is env.memory_report()


def test_no_report_when_disabled():
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), enabled=False)
    assert env.memory_report() is None
    assert env.last_memory_record is None
    env.close()


def test_a_report_after_a_foreign_stop_still_knows_the_native_heap():
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5)
    tracemalloc.stop()
    run(env, 320)
    report = env.memory_report()
    env.close()
    assert report.current_mb is None
    assert report.verdicts["native"].status == "stable"
    assert env.memory_records == ()


def test_the_projection_uses_the_given_limit():
    kept: list[bytes] = []

    def leak() -> None:
        kept.append(bytes(10_000))

    hours = {}
    for limit in (1_000.0, 100_000.0):
        env = MemoryProfilingWrapper(ScriptedVectorEnv(leak), profiling_interval=5, mode="light", memory_limit_mb=limit)
        run(env, 320)
        verdict = env.memory_report().verdicts["native"]
        assert env.memory_report().limit_mb == limit
        env.close()
        assert verdict.status == "leak"
        assert "reaches the limit in" in str(verdict)
        hours[limit] = verdict.hours_to_limit
    assert hours[100_000.0] > 10 * hours[1_000.0] > 0


def test_the_threshold_is_the_callers():
    kept: list[bytes] = []
    env = MemoryProfilingWrapper(
        ScriptedVectorEnv(lambda: kept.append(bytes(3000))), profiling_interval=5, mode="light", leak_threshold=5000
    )
    run(env, 320)
    assert statuses(env)["native"] == "stable"
    env.close()


def test_without_a_native_heap_rss_stands_in(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym.profiling")
    signals.native_heap_reader.cache_clear()
    monkeypatch.setattr(signals, "_mallinfo", lambda: 0)
    try:
        env = MemoryProfilingWrapper(ScriptedVectorEnv(), profiling_interval=5, mode="light")
        run(env, 5)
        env.close()
    finally:
        signals.native_heap_reader.cache_clear()
    assert env.memory_records[0].native_mb is None
    assert "native=unknown" in caplog.text
    assert "using RSS instead" in caplog.text


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
def test_records_are_written_as_they_come(tmp_path, name):
    env = MemoryProfilingWrapper(
        ScriptedVectorEnv(), profiling_interval=4, mode="light", log_path=tmp_path / name, tensorboard_dir=tmp_path
    )
    run(env, 6)
    assert len(read_records(tmp_path / name)) == 1
    env.close()
    assert read_records(tmp_path / name) == list(env.memory_records)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def test_a_full_disk_costs_the_records_and_nothing_else(tmp_path, caplog):
    def fail() -> None:
        if env.unwrapped.steps == 12:
            raise RuntimeError("of the environment")

    path = tmp_path / "run.jsonl"
    path.symlink_to("/dev/full")
    env = MemoryProfilingWrapper(ScriptedVectorEnv(fail), profiling_interval=5, log_path=path)
    with pytest.raises(RuntimeError, match="of the environment"):
        run(env, 12)
    run(env, 1)
    env.close()
    assert env.unwrapped.closes == 1
    assert [record.steps for record in env.memory_records] == [5, 5, 2, 1]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"{path}: no more records are written" in warnings[0]


def test_a_first_line_that_cannot_be_written_is_an_error_at_construction(tmp_path):
    path = tmp_path / "run.csv"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="log_path: expected a file that can be written"):
        MemoryProfilingWrapper(ScriptedVectorEnv(), log_path=path)


def test_disabled_writes_nothing(tmp_path):
    env = MemoryProfilingWrapper(ScriptedVectorEnv(), enabled=False, log_path=tmp_path / "run.jsonl")
    run(env, 200)
    env.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing/run.jsonl", FileNotFoundError),
        ("folder.csv", IsADirectoryError),
        ("run.txt", ValueError),
        ("run", ValueError),
    ],
)
def test_unwritable_log_paths(tmp_path, path, error):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(error, match="log_path"):
        MemoryProfilingWrapper(ScriptedVectorEnv(), log_path=tmp_path / path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.csv"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("log_path", 3),
        ("tensorboard_dir", 3),
        ("leak_threshold", 0),
        ("leak_threshold", "1"),
        ("leak_threshold", float("nan")),
        ("memory_limit_mb", -1),
        ("memory_limit_mb", float("inf")),
        ("diagnosis_steps", 1),
        ("diagnosis_steps", 2.5),
    ],
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"{argument}: expected"):
        MemoryProfilingWrapper(ScriptedVectorEnv(), **{argument: value})


def test_single_environments_have_reports_too():
    kept: list[bytes] = []
    env = MemoryProfilingEnvWrapper(ScriptedEnv(lambda: kept.append(bytes(3000))), profiling_interval=5, mode="light")
    env.reset(seed=1)
    run(env, 320)
    assert env.memory_report().verdicts["native"].status == "leak"
    assert env.last_memory_record.step == 320
    env.close()


def test_the_plain_ci_idiom():
    env = MemoryProfilingWrapper(ScriptedVectorEnv())
    run(env, 50)
    assert env.get_memory_usage()["current_mb"] < 500
    env.close()
