"""Named phases of a step: which part of it takes the time.

Code that has parts worth telling apart marks them::

    with phase("render"):
        ...

That costs a function call and nothing else unless the running step belongs to a `TimeProfilingWrapper`, which binds
its `PhaseClock` to the thread for as long as its ``step`` runs.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from contextlib import AbstractContextManager
from threading import get_ident
from time import perf_counter
from types import TracebackType
from typing import Any


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


class Phase:
    """One name's accumulator, a context manager. One object per name serves every use, inside itself too.

    Every moment counts for the innermost phase only, without a word to the one around it: `began` is the time of entry
    less all that had been charged by then, so at the exit whatever was charged in between drops out.

    Attributes:
        clock: whose it is.
        name: its name.
        seconds: charged so far.
        began: as said above, None while it does not run.
        outer: `began` of the run around the innermost one, and what is around that; None without one.
    """

    __slots__ = ("began", "clock", "name", "outer", "seconds")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self.clock = clock
        self.name = name
        self.seconds = 0.0
        self.began: float | None = None
        self.outer: tuple[float, Any] | None = None

    def __enter__(self) -> None:
        if self.began is not None:
            self.outer = (self.began, self.outer)
        self.began = perf_counter() - self.clock.charged

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        clock = self.clock
        charged = perf_counter() - self.began  # type: ignore[operator]  # entered before
        self.seconds += charged - clock.charged
        clock.charged = charged
        if self.outer is None:  # as leave does, without a call
            self.began = None
        else:
            self.leave()

    def leave(self) -> None:
        """Ends the innermost run without charging anything."""
        self.began, self.outer = self.outer or (None, None)


#: What the line of a `TimeProfilingWrapper` says of its own.
RESERVED = ("step", "total")


class Phases(dict[str, Phase]):
    """The phases of one clock by name, made when first asked for.

    Args:
        clock: whose they are.

    Raises:
        ValueError: for what cannot be a phase's name, from ``phases[name]``.
    """

    def __init__(self, clock: PhaseClock) -> None:
        super().__init__()
        self.clock = clock

    def __missing__(self, name: str) -> Phase:
        checked_name(name)
        made = self[name] = Phase(self.clock, name)
        return made


def checked_name(name: Any) -> str:
    """Returns `name` if it can be a phase's.

    Raises:
        ValueError: when it cannot: a line that names it must stay one, and be read without doubt.
    """
    if not isinstance(name, str) or not name.isprintable() or not name or name in RESERVED:
        taken = " and ".join(RESERVED)
        raise ValueError(f"name: expected the name of a phase, printable and other than {taken}, got {name!r}")
    return name


_bound: dict[int, Phases] = {}  # by thread; empty unless a timed step is running somewhere


def phase(name: str) -> AbstractContextManager[None]:
    """Marks a part of a step; a no-op unless a `TimeProfilingWrapper` is timing the step that runs on this thread.

    Phases may nest; a moment counts for the innermost one only.

    Args:
        name: ``"dynamics"``, ``"task"``, ``"render"`` and ``"record"`` in this package; any name of your own works,
            other than ``"step"`` and ``"total"``, which the line needs for itself.

    Raises:
        ValueError: for such a name, where a step is timed.
    """
    if not _bound:
        return NO_PHASE
    try:
        return _bound[get_ident()][name]
    except KeyError:  # another thread's step
        return NO_PHASE


class PhaseClock:
    """Splits wall time between phases. Every moment from construction on counts for exactly one of them.

    Not for use by two threads at a time.

    Attributes:
        phases: all there are, by name; ``phases[name]`` makes what is missing.
        charged: to all phases together, s.
    """

    OUTSIDE = "outside"
    OTHER = "other"

    def __init__(self) -> None:
        self.phases = Phases(self)
        self.charged = 0.0
        self._outside, self._other = self.phases[self.OUTSIDE], self.phases[self.OTHER]
        self._enclosing: Phases | None = None
        self._before: dict[str, float] = {}
        self._taken: dict[str, float] = {}
        self._thread = 0
        self._began = self._charged_before = 0.0
        self._born = perf_counter()

    def begin_step(self) -> None:
        """Makes `phase` on this thread use this clock, until `end_step`.

        When another clock is bound already (a wrapper inside a wrapper), it is told the phases as well.
        """
        self._thread = thread = get_ident()
        if _bound:
            enclosing = _bound.get(thread)
            if enclosing is not self.phases:  # else an interrupt came between two lines of an earlier step
                self._enclosing = enclosing
                self._before = self._seconds()
        _bound[thread] = self.phases
        self._charged_before = self.charged
        self._began = perf_counter()

    def end_step(self) -> float:
        """Ends what `begin_step` began and returns the seconds in between; those in no phase count for ``"other"``."""
        duration = self._end(self._began, self._charged_before)
        if self._enclosing is None:
            _bound.pop(self._thread, None)
        else:
            self._tell(self._enclosing)
        return duration

    def timed(
        self, env: Any, durations: MutableSequence[float], full: int, flush: Callable[[], None]
    ) -> Callable[[Any], Any]:
        """Returns ``env.step`` made between `begin_step` and `end_step`.

        Everything is at hand in the function's cells, and both are written out for the ordinary case: beside a step of
        0.2 ms every attribute and call is seen.

        Args:
            env: whose ``step`` is called.
            durations: seconds of each step are appended to it.
            full: length of `durations` at which `flush` is called; it is called when a step raises, too.
            flush: is to empty `durations`.
        """
        bound, phases, other, append = _bound, self.phases, self._other, durations.append

        def step(actions: Any) -> Any:
            if bound:
                return general(actions)
            thread = get_ident()
            charged = self.charged
            began = perf_counter()
            try:  # around all of it: Ctrl+C may come between any two lines
                bound[thread] = phases
                result = env.step(actions)
                # As _end does.
                duration = perf_counter() - began
                other.seconds += duration - (self.charged - charged)
                self.charged = charged + duration
                del bound[thread]
            except BaseException:
                if bound.pop(thread, None) is not None:
                    self._stop_phases(began, charged)
                    append(self._end(began, charged))
                flush()
                raise
            append(duration)
            if len(durations) >= full:
                flush()
            return result

        def general(actions: Any) -> Any:
            self.begin_step()
            try:
                result = env.step(actions)
            except BaseException:
                self._stop_phases(self._began, self._charged_before)
                append(self.end_step())
                flush()
                raise
            append(self.end_step())
            if len(durations) >= full:
                flush()
            return result

        return step

    def _end(self, began: float, charged: float) -> float:
        """Charges what is in no phase to ``"other"``; returns the seconds since `began`."""
        duration = perf_counter() - began
        self._other.seconds += duration - (self.charged - charged)
        self.charged = charged + duration
        return duration

    def _stop_phases(self, began: float, charged: float) -> None:
        """Ends phases that began in a step which an interrupt left in the middle of their own entry or exit.

        Others have ended by themselves, however the step did.
        """
        for one in self.phases.values():
            while one.began is not None and one.began > began - charged:
                one.leave()

    def take(self) -> dict[str, float]:
        """Returns the seconds of every phase since the last call, those of running ones so far included."""
        now = perf_counter()
        totals = self._seconds()
        charged = self.charged
        for began, name in self._running():
            own = now - charged - began
            totals[name] += own
            charged += own
        totals[self.OUTSIDE] += now - self._born - charged
        before, self._taken = self._taken, totals
        # Clamped: differences of large numbers may miss zero by a rounding.
        return {name: max(0.0, seconds - before.get(name, 0.0)) for name, seconds in totals.items()}

    def _running(self) -> list[tuple[float, str]]:
        """Returns when running phases began, and their names, innermost first."""
        running = []
        for name, one in self.phases.items():
            run: Any = (one.began, one.outer)
            while run is not None and run[0] is not None:
                running.append((run[0], name))
                run = run[1]
        return sorted(running, reverse=True)

    def _tell(self, enclosing: Phases) -> None:
        """Moves what the step's phases took from the enclosing clock's running phase to phases of the same names."""
        _bound[self._thread] = enclosing
        self._enclosing = None
        for name, seconds in self._seconds().items():
            gained = seconds - self._before.get(name, 0.0)
            if gained and name not in (self.OTHER, self.OUTSIDE):
                enclosing[name].seconds += gained
                enclosing.clock.charged += gained

    def _seconds(self) -> dict[str, float]:
        return {name: one.seconds for name, one in self.phases.items()}
