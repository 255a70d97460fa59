"""Named phases of a step: which part of it takes the time.

Code that has parts worth telling apart marks them::

    with phase("render"):
        ...

That costs a function call and nothing else unless the running step belongs to a `TimeProfilingWrapper`, which binds
its `PhaseClock` to the thread for as long as its ``step`` runs.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType


class _NoPhase:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


NO_PHASE: AbstractContextManager[None] = _NoPhase()
"""The context manager that measures nothing."""

_bound_clocks: list[PhaseClock] = []  # over all threads: an empty list is the cheapest question `phase` can ask
_thread = threading.local()


def phase(name: str) -> AbstractContextManager[None]:
    """Marks a part of a step; a no-op unless a `TimeProfilingWrapper` is timing the step that runs on this thread.

    Phases may nest; a moment counts for the innermost one only.

    Args:
        name: ``"dynamics"``, ``"task"``, ``"render"`` and ``"record"`` in this package; any name of your own works.
    """
    if not _bound_clocks:
        return NO_PHASE
    clock: PhaseClock | None = getattr(_thread, "clock", None)
    return NO_PHASE if clock is None else clock.phase(name)


class _Phase:
    """One name's accumulator. The clock keeps the nesting, so that one object per name serves every use."""

    __slots__ = ("clock", "name", "seconds")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self.clock = clock
        self.name = name
        self.seconds = 0.0

    def __enter__(self) -> None:
        clock = self.clock
        now = perf_counter()
        current = clock.current
        current.seconds += now - clock.mark
        clock.mark = now
        clock.outer.append(current)
        clock.current = self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        clock = self.clock
        now = perf_counter()
        clock.current.seconds += now - clock.mark
        clock.mark = now
        clock.current = clock.outer.pop()


class PhaseClock:
    """Splits wall time between phases. Every moment from construction on counts for exactly one of them.

    Not for use by two threads at a time.

    Attributes:
        current: the running phase.
        outer: the phases around it, outermost first.
        mark: `time.perf_counter` when the running phase was last charged, s.
    """

    OUTSIDE = "outside"

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self.outer: list[_Phase] = []
        self.current = self.phase(self.OUTSIDE)
        self.mark = perf_counter()

    def phase(self, name: str) -> _Phase:
        """Returns the context manager that charges time to `name` on this clock."""
        found = self._phases.get(name)
        if found is None:
            found = self._phases[name] = _Phase(self, name)
        return found

    def bound(self, name: str) -> AbstractContextManager[None]:
        """Returns a context manager that charges time to `name` and makes `phase` on this thread use this clock.

        When another clock is bound already (a wrapper inside a wrapper), it is told the phases as well.
        """
        return _Bound(self, name)

    def take(self) -> dict[str, float]:
        """Returns the seconds of every phase since the last call, and starts again from zero."""
        now = perf_counter()
        self.current.seconds += now - self.mark
        self.mark = now
        taken = {name: phase.seconds for name, phase in self._phases.items()}
        for phase_ in self._phases.values():
            phase_.seconds = 0.0
        return taken

    def _seconds(self) -> dict[str, float]:
        return {name: phase.seconds for name, phase in self._phases.items()}

    def _move(self, name: str, seconds: float) -> None:
        self.phase(name).seconds += seconds
        self.current.seconds -= seconds


class _Bound:
    __slots__ = ("_before", "_clock", "_phase", "_previous")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock = clock
        self._phase = clock.phase(name)
        self._previous: PhaseClock | None = None
        self._before: dict[str, float] = {}

    def __enter__(self) -> None:
        self._previous = getattr(_thread, "clock", None)
        _thread.clock = self._clock
        _bound_clocks.append(self._clock)
        self._phase.__enter__()
        if self._previous is not None:
            self._before = self._clock._seconds()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._phase.__exit__(exc_type, exc, traceback)
        _bound_clocks.remove(self._clock)
        _thread.clock = self._previous
        if self._previous is not None:
            for name, seconds in self._clock._seconds().items():
                if name != self._phase.name and (gained := seconds - self._before.get(name, 0.0)):
                    self._previous._move(name, gained)
