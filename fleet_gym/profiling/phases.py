"""Named phases of a step: which part of it takes the time.

Code that has parts worth telling apart marks them::

    with phase("render"):
        ...

That costs a function call and nothing else unless the running step belongs to a `TimeProfilingWrapper`, which binds
its `PhaseClock` to the thread for as long as its ``step`` runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from threading import get_ident
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


_bound: dict[int, PhaseClock] = {}  # by thread; empty unless a timed step is running somewhere


def phase(name: str) -> AbstractContextManager[None]:
    """Marks a part of a step; a no-op unless a `TimeProfilingWrapper` is timing the step that runs on this thread.

    Phases may nest; a moment counts for the innermost one only.

    Args:
        name: ``"dynamics"``, ``"task"``, ``"render"`` and ``"record"`` in this package; any name of your own works.
    """
    if not _bound:
        return NO_PHASE
    clock = _bound.get(get_ident())
    if clock is None:
        return NO_PHASE
    return clock.phases.get(name) or clock.phase(name)


class Phase:
    """One name's accumulator, a context manager.

    The clock keeps the nesting, so that one object per name serves every use.

    Attributes:
        clock: whose it is.
        name: its name.
        seconds: charged so far.
    """

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
        phases: all there are, by name.
    """

    OUTSIDE = "outside"
    OTHER = "other"

    def __init__(self) -> None:
        self.phases: dict[str, Phase] = {}
        self.outer: list[Phase] = []
        self.current = self.phase(self.OUTSIDE)
        self._other = self.phase(self.OTHER)
        self._enclosing: PhaseClock | None = None
        self._before: dict[str, float] = {}
        self._thread = 0
        self._began = 0.0
        self.mark = perf_counter()

    def phase(self, name: str) -> Phase:
        """Returns the context manager that charges time to `name` on this clock."""
        found = self.phases.get(name)
        if found is None:
            found = self.phases[name] = Phase(self, name)
        return found

    def begin_step(self) -> None:
        """Charges time to ``"other"`` and makes `phase` on this thread use this clock, until `end_step`.

        When another clock is bound already (a wrapper inside a wrapper), it is told the phases as well.
        """
        self._thread = thread = get_ident()
        if _bound:
            self._enclosing = _bound.get(thread)
            self._before = self._seconds()
        _bound[thread] = self
        current = self.current
        self.outer.append(current)
        now = perf_counter()
        current.seconds += now - self.mark
        self.mark = self._began = now
        self.current = self._other

    def end_step(self) -> float:
        """Ends what `begin_step` began and returns the seconds in between."""
        now = perf_counter()
        self.current.seconds += now - self.mark
        self.mark = now
        self.current = self.outer.pop()
        if self._enclosing is None:
            del _bound[self._thread]
        else:
            self._tell(self._enclosing)
        return now - self._began

    def take(self) -> dict[str, float]:
        """Returns the seconds of every phase since the last call, and starts again from zero."""
        now = perf_counter()
        self.current.seconds += now - self.mark
        self.mark = now
        taken = self._seconds()
        for one in self.phases.values():
            one.seconds = 0.0
        return taken

    def _tell(self, enclosing: PhaseClock) -> None:
        """Moves what the step's phases took from the enclosing clock's running phase to phases of the same names."""
        _bound[self._thread] = enclosing
        self._enclosing = None
        for name, seconds in self._seconds().items():
            gained = seconds - self._before.get(name, 0.0)
            if gained and name not in (self.OTHER, self.OUTSIDE):
                enclosing.phase(name).seconds += gained
                enclosing.current.seconds -= gained

    def _seconds(self) -> dict[str, float]:
        return {name: one.seconds for name, one in self.phases.items()}
