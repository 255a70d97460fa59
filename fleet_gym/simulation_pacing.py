"""Keeping simulated time in step with the clock on the wall."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pacer:
    """Waits until simulated time is no longer ahead.

    Waits are measured from one common start, so that neither the length of a step nor late wake-ups add up.

    Args:
        rtf: simulated s per s; 0 never waits.
        clock: s, monotonic.
        sleep: waits for a number of s.
    """

    def __init__(
        self,
        rtf: float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rtf = rtf
        self._clock = clock
        self.sleep = sleep
        self.start(0.0)

    def start(self, sim_time: float) -> None:
        """Takes this moment for simulated time `sim_time` (s): at the beginning of a run and after a pause."""
        self._began = self._clock()
        self._offset = sim_time

    def wait(self, sim_time: float) -> None:
        """Sleeps as long as `sim_time` lies in the future."""
        if self._rtf > 0.0:
            ahead = self._began + (sim_time - self._offset) / self._rtf - self._clock()
            if ahead > 0.0:
                self.sleep(min(ahead, threading.TIMEOUT_MAX))
