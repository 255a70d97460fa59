"""Ctrl+C as the terminal sends it, at the worst moment: right after robots have moved."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from fleet_gym import MultiRobotSimulationCore
from fleet_gym.dynamics import kinematic
from fleet_gym.simulation_interrupts import Interrupts


@pytest.fixture(autouse=True)
def handler():
    """A process started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def ctrl_c_in_step(monkeypatch):
    """Sends the signal from within the compiled step; Python handles it as soon as it returns."""
    compiled, when = kinematic.step_worlds, set()

    def step_worlds(*arguments):
        result = compiled(*arguments)
        ctrl_c_in_step.steps += 1
        if ctrl_c_in_step.steps in when:
            interrupt()
        return result

    def arm(*steps):
        ctrl_c_in_step.steps = 0
        when.update(steps)

    monkeypatch.setattr(kinematic, "step_worlds", step_worlds)
    arm()
    return arm


def crowd():
    sim = MultiRobotSimulationCore(arena_size=8.0, seed=3)
    for robot in sim.spawn_random("diffbot", 40):
        sim.random_walk(robot)
    sim.step_once()
    return sim


def test_what_ctrl_c_ended_goes_on_as_if_nothing_had_been(ctrl_c_in_step, handler):
    with crowd() as whole, crowd() as parted:
        calls = [[], []]
        for sim, seen in zip((whole, parted), calls, strict=True):
            sim.register_callback(lambda core, dt, seen=seen: seen.append((core.step_count, dt)), frequency=5)
        whole.run_simulation(duration=6.0)
        ctrl_c_in_step(7, 8, 30)
        made = [parted.run_simulation(duration=100.0) for _ in range(3)]
        assert made == [7, 1, 22]
        assert signal.getsignal(signal.SIGINT) is handler
        parted.run_simulation(duration=3.0)
        assert parted.step_count == whole.step_count
        np.testing.assert_array_equal(parted.state.position, whole.state.position)
        np.testing.assert_array_equal(parted.contacts(), whole.contacts())
        assert calls[0] == calls[1]


def test_a_single_step_is_whole_too(ctrl_c_in_step, handler):
    with crowd() as sim:
        ctrl_c_in_step(1)
        with pytest.raises(KeyboardInterrupt):
            sim.step_once()
        assert sim.step_count == 2
        assert signal.getsignal(signal.SIGINT) is handler
        assert sim.step_once()


def test_a_callback_that_steps_itself_loses_no_interrupt(ctrl_c_in_step):
    with crowd() as sim:
        sim.register_callback(lambda core, dt: core.step_once() if core.step_count == 3 else None)
        ctrl_c_in_step(2)
        assert sim.run_simulation(duration=5.0) == 3
        assert sim.step_count == 4
        assert sim.run_simulation(duration=0.5) == 5


def test_what_a_callback_raised_leaves_no_interrupt_behind(ctrl_c_in_step):
    def leave(core, dt):
        if core.step_count == 2:
            raise KeyboardInterrupt

    with crowd() as sim:
        sim.register_callback(leave)
        ctrl_c_in_step(1)
        assert sim.run_simulation(duration=1.0) == 1
        assert sim.run_simulation(duration=0.5) == 5


def test_a_handler_of_the_programs_own_is_called(ctrl_c_in_step):
    with crowd() as sim:
        heard = []
        own = lambda number, frame: heard.append(sim.step_count)  # noqa: E731
        signal.signal(signal.SIGINT, own)
        ctrl_c_in_step(2)
        assert sim.run_simulation(duration=0.5) == 5
        assert heard == [3]
        assert signal.getsignal(signal.SIGINT) is own


def test_a_handler_that_was_set_meanwhile_stays():
    other = lambda number, frame: None  # noqa: E731
    with Interrupts():
        signal.signal(signal.SIGINT, other)
    assert signal.getsignal(signal.SIGINT) is other


def test_who_ignores_interrupts_goes_on_ignoring_them():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with MultiRobotSimulationCore() as sim:
        sim.register_callback(lambda core, dt: interrupt())
        assert sim.run_simulation(duration=0.5) == 5
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
