"""Growing lines are named: objects kept in Python, and calls after which the C heap is larger."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet_gym._pybullet import DirectClient, pybullet
from fleet_gym.profiling import growth
from fleet_gym.profiling.growth import NativeCalls, TracingWindow, growing_lines, relevant_lines, traced_lines
from fleet_gym.profiling.report import TopLine
from fleet_gym.profiling.signals import native_heap_reader
from fleet_gym.profiling.tracing import TraceLease

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _tracing_left_off():
    yield
    assert not tracemalloc.is_tracing()
    assert sys.getprofile() is None


def number_of(line_text: str) -> int:
    """The line of this file that ends in the comment `# <line_text>`."""
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.endswith(f"# {line_text}"))


def test_snapshots_name_the_line_that_keeps():
    lease = TraceLease()
    before = traced_lines(1)
    kept = [bytes(1000) for _ in range(500)]  # keeps
    lines = growing_lines(before, traced_lines(1), steps=500)
    lease.release()
    assert (Path(lines[0].filename).name, lines[0].lineno) == (HERE, number_of("keeps"))
    assert 1000 <= lines[0].bytes_per_step <= 1100
    assert "bytes(1000)" in lines[0].source
    assert f"{HERE}:{number_of('keeps')}: +10" in str(lines[0])
    assert len(kept) == 500


def test_tracebacks_are_kept_for_several_frames():
    def keep() -> Any:
        return [bytes(2000) for _ in range(100)]

    lease = TraceLease(nframe=3)
    before = traced_lines(3)
    kept = keep()  # calls
    line = growing_lines(before, traced_lines(3), steps=100)[0]
    lease.release()
    assert line.frames[-1] == f"{__file__}:{number_of('calls')}" or line.frames[-2].endswith(f":{number_of('calls')}")
    assert kept


def test_the_profilers_own_lines_are_left_out():
    lease = TraceLease()
    kept = [traced_lines(1) for _ in range(3)]
    files = {frames[-1][0] for frames in traced_lines(1)}
    lease.release()
    assert growth.__file__ not in files
    assert tracemalloc.__file__ not in files
    assert kept


def in_window(steps: int, work: Any) -> list[Any]:
    window = TracingWindow(steps, 1, native_heap_reader())
    over = False
    while not over:
        window.before_call()
        work()
        window.after_call()
        over = window.step_done()
    return list(window.close())


def test_a_window_names_what_grows_throughout_and_not_what_fills_up():
    kept: list[bytes] = []
    ring: deque[bytes] = deque(maxlen=20)

    def work() -> None:
        kept.append(bytes(300))  # grows
        ring.append(bytes(5000))

    lines = [line for line in in_window(100, work) if line.kind == "python"]
    assert (Path(lines[0].filename).name, lines[0].lineno) == (HERE, number_of("grows"))
    assert 300 <= lines[0].bytes_per_step <= 400
    assert all("5000" not in line.source for line in lines)


def test_a_window_names_calls_that_enlarge_the_c_heap():
    p = pybullet()
    client = DirectClient()
    kept: list[Any] = []

    def work() -> None:
        np.zeros(100_000)
        kept.append(np.zeros(5000))  # keeps an array
        p.createCollisionShape(p.GEOM_BOX, halfExtents=[1, 1, 1], physicsClientId=client.id)  # leaks

    work()
    lines = in_window(100, work)
    client.close()
    native = [line for line in lines if line.kind == "native"]
    assert (Path(native[0].filename).name, native[0].lineno) == (HERE, number_of("leaks"))
    assert native[0].call == "pybullet.createCollisionShape"
    assert native[0].blocks == 100
    assert native[0].bytes_per_step == pytest.approx(2700, rel=0.1)
    assert "native +2" in str(native[0])
    assert all(line.bytes < 0.05 * native[0].bytes for line in native[1:])
    assert lines[0].lineno == number_of("keeps an array")


def test_calls_are_charged_without_the_calls_inside_them():
    heap = iter([0, 10, 110, 120])
    calls = NativeCalls(lambda: next(heap))
    frame = sys._getframe()
    calls(frame, "c_call", sorted)
    calls(frame, "c_call", len)
    calls(frame, "c_return", len)
    calls(frame, "c_return", sorted)
    assert {line.call: line.bytes for line in calls.lines(1)} == {"builtins.len": 100, "builtins.sorted": 20}


def test_readings_around_calls_stop_when_they_took_too_long(monkeypatch):
    monkeypatch.setattr(growth, "WATCHED_S", 0.0)
    p = pybullet()
    client = DirectClient()
    lines = in_window(20, lambda: p.createCollisionShape(p.GEOM_BOX, halfExtents=[1] * 3, physicsClientId=client.id))
    client.close()
    assert [line.blocks for line in lines if line.kind == "native"] == [1]


def test_another_profiler_is_left_alone():
    seen: list[str] = []

    def other(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    window = TracingWindow(4, 1, native_heap_reader())
    sys.setprofile(other)
    try:
        window.before_call()
        assert sys.getprofile() is other
        window.after_call()
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)
        window.close()
    assert seen


def test_a_profiler_that_the_call_started_goes_on():
    def other(frame: Any, event: str, argument: Any) -> None:
        pass

    window = TracingWindow(4, 1, native_heap_reader())
    window.before_call()
    sys.setprofile(other)
    try:
        window.after_call()
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)
        window.close()


def test_a_window_leaves_no_garbage():
    gc.collect()
    gc.disable()
    try:
        window = TracingWindow(4, 1, native_heap_reader())
        for _ in range(4):
            window.step_done()
        window.close()
        gone = weakref.ref(window)
        del window
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [30, 60, 90])
def test_an_unfinished_window_names_what_grew_so_far(steps):
    kept: list[bytes] = []
    window = TracingWindow(100, 1, native_heap_reader())
    for _ in range(steps):
        kept.append(bytes(300))  # has grown
        window.step_done()
    for lines in (window.so_far(), window.close()):
        assert (Path(lines[0].filename).name, lines[0].lineno) == (HERE, number_of("has grown"))
        assert 300 <= lines[0].bytes_per_step <= 400
    assert not tracemalloc.is_tracing()


def test_a_window_cut_short_still_ends_tracing():
    window = TracingWindow(100, 1, native_heap_reader())
    window.step_done()
    assert tracemalloc.is_tracing()
    assert window.close() == ()


def test_a_forgotten_window_ends_tracing():
    window = TracingWindow(100, 1, native_heap_reader())
    window.step_done()
    assert tracemalloc.is_tracing()
    del window
    assert not tracemalloc.is_tracing()


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_interrupt_before_the_call_leaves_no_profiler_behind(goes_on):
    window = TracingWindow(100, 1, native_heap_reader())
    window.before_call()
    if goes_on:
        window.before_call()
        window.after_call()
        assert sys.getprofile() is None
    window.close()
    assert sys.getprofile() is None


def line(kind: str, bytes_per_step: float) -> TopLine:
    return TopLine(kind, "file.py", 1, int(100 * bytes_per_step), 100, bytes_per_step)


def test_lines_that_cannot_explain_the_leak_are_left_out():
    small, large, call = line("python", 20), line("python", 500), line("native", 400)
    lines = [small, call, large]
    assert relevant_lines(lines, {}) == (large, small)
    assert relevant_lines(lines, {"python": 550.0}) == (large,)
    assert relevant_lines(lines, {"native": 1000.0}, untraced=450.0) == (large, call)
    assert relevant_lines(lines, {"native": 1000.0}, untraced=50.0) == (large,)
    assert relevant_lines(lines, {"native": 1000.0, "python": 100.0}, untraced=450.0) == (large, call, small)
    assert relevant_lines(lines, {"native": 10_000.0}, untraced=10_000.0) == ()
