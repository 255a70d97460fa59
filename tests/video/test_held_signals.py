from __future__ import annotations

import signal
import threading

import pytest

from fleet_gym.video import held_signals
from fleet_gym.video.held_signals import HeldSignals


class Ended(BaseException):
    pass


@pytest.fixture
def terminate():
    """Gives SIGTERM a handler that raises, as programs have that want to leave by their `finally`."""

    def handler(number, frame):
        raise Ended

    before = signal.signal(signal.SIGTERM, handler)
    yield handler
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, before)


def hold(*numbers):
    """Raises signals while they are held back; yields after each."""
    with HeldSignals():
        for number in numbers:
            signal.raise_signal(number)
            yield number


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Ended)])
def test_a_handler_waits_for_the_end(terminate, number, error):
    held = hold(number)
    assert next(held) == number
    with pytest.raises(error):
        next(held)


def test_they_wait_however_often_they_come(terminate):
    held = hold(*[signal.SIGINT] * 20)
    assert [next(held) for _ in range(20)] == [signal.SIGINT] * 20
    with pytest.raises(KeyboardInterrupt):
        next(held)


def test_one_that_comes_again_much_later_is_let_through(terminate, monkeypatch):
    monkeypatch.setattr(held_signals, "PATIENCE", -1.0)
    held = hold(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(held)
    monkeypatch.undo()


def test_all_that_came_are_told(terminate):
    held = hold(signal.SIGTERM, signal.SIGINT)
    assert (next(held), next(held)) == (signal.SIGTERM, signal.SIGINT)
    with pytest.raises(Ended) as caught:
        next(held)
    assert isinstance(caught.value.__context__, KeyboardInterrupt)


def test_it_may_be_nested(terminate):
    outer = hold(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    next(outer)
    inner = hold(signal.SIGTERM)
    next(inner)
    assert list(inner) == []
    with pytest.raises(Ended):
        next(outer)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_a_handler_set_meanwhile_stays(terminate):
    def other(number, frame):
        pass

    with HeldSignals():
        signal.signal(signal.SIGTERM, other)
    assert signal.signal(signal.SIGTERM, terminate) is other


def test_what_has_no_handler_in_python_is_left_alone():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with HeldSignals():
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert signal.signal(signal.SIGUSR1, before) is signal.SIG_IGN


def test_in_other_threads_it_does_nothing():
    entered = []

    def enter():
        with HeldSignals():
            entered.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [signal.default_int_handler]
