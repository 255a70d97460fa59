"""Ctrl+C while a world moves: it is heard once the step is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """A ``with`` block in which SIGINT can be held back; blocks may nest.

    Python handles a signal after whatever compiled code it came in, and compiled code is most of a step: without this
    robots would have moved and the clock would not. Outside the main thread, and where SIGINT is not handled in Python,
    it does nothing.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._before: Callable[[int, FrameType | None], object] | None = None
        self._is_held = self._is_pending = False

    def __enter__(self) -> Interrupts:
        self._depth += 1
        if self._depth == 1:
            self._is_held = self._is_pending = False
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._before is not None:
            before, self._before = self._before, None
            if signal.getsignal(signal.SIGINT) == self._handle:  # nobody has set another one meanwhile
                signal.signal(signal.SIGINT, before)

    def hold(self) -> None:
        """From now on an interrupt waits."""
        self._is_held = True

    def release(self) -> None:
        """From now on an interrupt is heard at once; one that waits goes on waiting for `deliver`."""
        self._is_held = False

    def deliver(self) -> None:
        """Lets an interrupt be heard that came while they were held.

        Raises:
            KeyboardInterrupt: as the program's handler does.
        """
        if self._is_pending and self._before is not None:
            self._is_pending = False
            self._before(signal.SIGINT, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._is_pending = True
        elif self._before is not None:
            self._before(number, frame)
