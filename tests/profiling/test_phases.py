"""Phases: charged to the innermost name, to the clock bound to the thread, to nobody otherwise."""

from __future__ import annotations

import contextlib
import threading

import pytest

from fleet_gym.profiling import phases
from fleet_gym.profiling.phases import NO_PHASE, PhaseClock, phase


class Time:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def step(clock: PhaseClock):
    clock.begin_step()
    try:
        yield
    finally:
        clock.end_step()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(phases, "perf_counter", clock)
    return clock


def nonzero(seconds: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in seconds.items() if value}


def test_without_a_bound_clock_a_phase_is_the_shared_no_op():
    assert phase("render") is NO_PHASE
    PhaseClock()
    assert phase("render") is NO_PHASE
    with phase("render"):
        pass


def test_every_moment_counts_once_for_the_innermost_phase(time):
    clock = PhaseClock()
    time.now += 1
    with step(clock):
        time.now += 2
        with phase("dynamics"):
            time.now += 4
            with phase("render"):
                time.now += 8
            time.now += 16
        time.now += 32
    time.now += 64
    assert clock.take() == {"outside": 65, "other": 34, "dynamics": 20, "render": 8}
    assert nonzero(clock.take()) == {}


def test_a_step_returns_its_duration(time):
    clock = PhaseClock()
    clock.begin_step()
    time.now += 3
    with phase("task"):
        time.now += 4
    assert clock.end_step() == 7


class Steps:
    """Steps by doing `work`."""

    def __init__(self, work) -> None:
        self.step = work


def test_a_timed_step_is_a_step(time):
    inner, outer = PhaseClock(), PhaseClock()
    durations: dict[str, list[float]] = {"inner": [], "outer": []}
    flushed: list[int] = []

    def work(seconds: float) -> str:
        time.now += 1
        with phase("task"):
            time.now += seconds
        return "done"

    step = inner.timed(Steps(work), durations["inner"], 2, lambda: flushed.append(len(durations["inner"])))
    assert step(2) == "done"
    assert flushed == []
    time.now += 8

    def around(argument: float) -> str:
        time.now += 16
        return step(argument)

    assert outer.timed(Steps(around), durations["outer"], 5, lambda: None)(4) == "done"
    assert durations == {"inner": [3, 5], "outer": [21]}
    assert flushed == [2]
    assert nonzero(inner.take()) == {"other": 2, "task": 6, "outside": 24}
    assert nonzero(outer.take()) == {"other": 17, "task": 4, "outside": 11}
    assert phase("task") is NO_PHASE


@pytest.mark.parametrize("inside_another", [False, True])
def test_a_timed_step_that_raises_is_a_step_too(time, inside_another):
    clock, durations, flushed = PhaseClock(), [], []

    def fail(seconds: float) -> None:
        with phase("task"):
            time.now += seconds
            raise KeyError(seconds)

    timed = clock.timed(Steps(fail), durations, 5, lambda: flushed.append(len(durations)))
    with pytest.raises(KeyError), step(PhaseClock()) if inside_another else contextlib.nullcontext():
        timed(2)
    assert (durations, flushed) == ([2], [1])
    assert phase("task") is NO_PHASE
    assert nonzero(clock.take()) == {"task": 2}


def test_a_phase_ended_by_an_exception_is_ended(time):
    clock = PhaseClock()

    def fail() -> None:
        with step(clock), phase("task"):
            time.now += 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert phase("task") is NO_PHASE
    time.now += 2
    assert nonzero(clock.take()) == {"task": 1, "outside": 2}


def test_a_running_phase_is_taken_so_far(time):
    clock = PhaseClock()
    with clock.phases["policy"]:
        time.now += 1
        assert nonzero(clock.take()) == {"policy": 1}
        time.now += 2
    assert nonzero(clock.take()) == {"policy": 2}


def test_another_threads_phases_are_not_charged(time):
    clock = PhaseClock()
    seen: list[object] = []
    with step(clock):
        thread = threading.Thread(target=lambda: seen.append(phase("render")))
        thread.start()
        thread.join()
    assert seen == [NO_PHASE]


def test_a_clock_around_another_is_told_its_phases(time):
    inner, outer = PhaseClock(), PhaseClock()
    with step(outer):
        time.now += 1
        with step(inner):
            time.now += 2
            with phase("dynamics"):
                time.now += 4
        with phase("record"):
            time.now += 8
    assert nonzero(inner.take()) == {"outside": 9, "other": 2, "dynamics": 4}
    assert nonzero(outer.take()) == {"other": 3, "dynamics": 4, "record": 8}


def test_a_phase_inside_itself_counts_every_moment_once(time):
    clock = PhaseClock()
    with step(clock), phase("task"):
        time.now += 1
        with phase("task"):
            time.now += 2
            with phase("render"):
                time.now += 4
        time.now += 8
    assert nonzero(clock.take()) == {"task": 11, "render": 4}


def test_running_phases_are_taken_so_far_the_innermost_first(time):
    clock = PhaseClock()
    time.now += 1
    with clock.phases["rollout"]:
        time.now += 2
        with clock.phases["policy"]:
            time.now += 4
            assert nonzero(clock.take()) == {"outside": 1, "rollout": 2, "policy": 4}
            time.now += 8
        time.now += 16
        assert nonzero(clock.take()) == {"rollout": 16, "policy": 8}
        time.now += 32
    assert nonzero(clock.take()) == {"rollout": 32}


class Interrupted:
    """In place of `perf_counter`: Ctrl+C comes at the given calls, between two lines of the clock's own."""

    def __init__(self, time: Time, *at: int) -> None:
        self.time, self.at, self.calls = time, at, 0

    def __call__(self) -> float:
        self.calls += 1
        if self.calls in self.at:
            raise KeyboardInterrupt
        return self.time.now


@pytest.mark.parametrize("inside_another", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
def test_an_interrupt_anywhere_in_a_step_leaves_nothing_running(time, monkeypatch, at, inside_another):
    clock, durations = PhaseClock(), []

    def work(seconds: float) -> None:
        time.now += seconds
        with phase("task"):
            time.now += seconds
            with phase("render"):
                time.now += seconds

    timed = clock.timed(Steps(work), durations, 1000, lambda: None)
    around = PhaseClock().timed(Steps(timed), [], 1000, lambda: None) if inside_another else timed
    monkeypatch.setattr(phases, "perf_counter", Interrupted(time, at))
    with contextlib.suppress(KeyboardInterrupt):
        around(1.0)
    monkeypatch.setattr(phases, "perf_counter", time)
    assert phase("task") is NO_PHASE
    clock.take()
    around(1.0)
    time.now += 8
    assert nonzero(clock.take()) == {"other": 1, "task": 1, "render": 1, "outside": 8}


def test_a_phase_around_steps_outlives_one_that_raises(time):
    clock = PhaseClock()

    def fail(seconds: float) -> None:
        time.now += seconds
        raise KeyError

    timed = clock.timed(Steps(fail), [], 5, lambda: None)
    time.now += 1
    with clock.phases["rollout"]:
        time.now += 2
        with pytest.raises(KeyError):
            timed(4)
        time.now += 8
    assert nonzero(clock.take()) == {"outside": 1, "rollout": 10, "other": 4}


@pytest.mark.parametrize("name", ["step", "total", "", "a\nb", 3, None])
def test_a_name_that_would_spoil_the_line_is_refused_where_a_step_is_timed(name):
    with phase(name):
        pass
    with step(PhaseClock()), pytest.raises(ValueError, match=r"name: expected the name of a phase, printable .*got "):
        phase(name)
