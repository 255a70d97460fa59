"""Holds back the program's signal handlers while something must not be left half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes ten times as long, to turn numbers into enums
import threading
import time
from types import FrameType, TracebackType
from typing import Any

PATIENCE = 5.0  # seconds
_HELD = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGALRM, _signal.SIGUSR1, _signal.SIGUSR2)


class HeldSignals:
    """A context within which handlers written in Python, such as that of Ctrl-C, wait for its end.

    One that raises would leave the bookkeeping of a step half done wherever it was. A signal that comes again after
    `PATIENCE` is let through, so that a program that waits for something stuck can still be ended by hand. Only
    Python's main thread runs handlers; in any other this does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._noted: dict[int, float] = {}  # when they came

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _HELD:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    _signal.signal(number, self._note)
        except BaseException:
            self._give_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._give_back()
        self._raise_noted()

    def _note(self, number: int, frame: FrameType | None) -> None:
        came = self._noted.setdefault(number, time.monotonic())
        if time.monotonic() - came > PATIENCE:
            del self._noted[number]
            self._before[number](number, frame)

    def _raise_noted(self) -> None:
        try:
            while self._noted:
                _signal.raise_signal(self._noted.popitem()[0])
        finally:  # one may raise
            if self._noted:
                self._raise_noted()

    def _give_back(self) -> None:
        try:
            while self._before:
                number, handler = next(iter(self._before.items()))
                current = _signal.signal(number, handler)
                if current != self._note and current != handler:  # somebody set another one meanwhile
                    _signal.signal(number, current)
                del self._before[number]
        finally:  # one that is back already may raise
            if self._before:
                self._give_back()
