"""Encoders give way to the simulation that feeds them."""

from __future__ import annotations

import contextlib
import os

_NICER_BY = 5


def give_way(pid: int = 0) -> None:
    """Lowers the priority of a process (this one by default), where the system lets us.

    When all cores are busy the step goes on and the encoder catches up; the ring and the pipes bound how far it may
    fall behind.
    """
    with contextlib.suppress(OSError):  # it ended a moment ago
        os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, pid) + _NICER_BY))
