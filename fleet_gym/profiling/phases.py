"""Named phases of a step: which part of it takes the time.

Code that has parts worth telling apart marks them::

    with phase("render"):
        ...

That costs a function call and a look at the thread, unless the running step belongs to a `TimeProfilingWrapper`, which
binds its `PhaseClock` to the thread for as long as its ``step`` runs.
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
        taken: of them, told by `PhaseClock.take`.
        began: as said above, None while it does not run.
        outer: `began` of the run around the innermost one, and what is around that; None without one.
    """

    __slots__ = ("began", "clock", "name", "outer", "seconds", "taken")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self.clock = clock
        self.name = name
        self.seconds = self.taken = 0.0
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


class _Thread:
    """What is timed on one thread.

    Attributes:
        phases: those of the innermost clock whose step is running, None while there is none.
    """

    __slots__ = ("phases",)

    def __init__(self) -> None:
        self.phases: Phases | None = None


_threads: dict[int, _Thread] = {}  # those that ever timed a step


def _this_thread() -> _Thread:
    return _threads.setdefault(get_ident(), _Thread())


def phase(name: str) -> AbstractContextManager[None]:
    """Marks a part of a step; a no-op unless a `TimeProfilingWrapper` is timing the step that runs on this thread.

    Phases may nest; a moment counts for the innermost one only.

    Args:
        name: ``"dynamics"``, ``"task"``, ``"render"`` and ``"record"`` in this package; any name of your own works,
            other than ``"step"`` and ``"total"``, which the line needs for itself.

    Raises:
        ValueError: for such a name, where a step is timed.
    """
    if not _threads:
        return NO_PHASE
    thread = _threads.get(get_ident())
    if thread is None or thread.phases is None:
        return NO_PHASE
    return thread.phases[name]


class PhaseClock:
    """Splits wall time between phases. Every moment from construction on counts for exactly one of them.

    Not for use by two threads at a time.

    Attributes:
        phases: all there are, by name; ``phases[name]`` makes what is missing. ``"other"`` is what remains of
            `charged` when the rest is taken off.
        charged: to all phases together, s.
    """

    OUTSIDE = "outside"
    OTHER = "other"

    def __init__(self) -> None:
        self.phases = Phases(self)
        self.charged = 0.0
        self._other = self.phases[self.OTHER]
        self.phases[self.OUTSIDE]  # made here, and told even when it took no time
        self._enclosing: Phases | None = None
        self._before: dict[str, float] = {}
        self._outside_taken = 0.0
        self._thread = _Thread()
        self._began = self._charged_before = 0.0
        self._born = perf_counter()

    def begin_step(self) -> None:
        """Makes `phase` on this thread use this clock, until `end_step`.

        When another clock is bound already (a wrapper inside a wrapper), it is told the phases as well.
        """
        self._thread = thread = _this_thread()
        enclosing = thread.phases
        if enclosing is not None and enclosing is not self.phases:  # its own: an interrupt came between two lines
            self._enclosing = enclosing
            self._before = self._seconds()
        thread.phases = self.phases
        self._charged_before = self.charged
        self._began = perf_counter()

    def end_step(self) -> float:
        """Ends what `begin_step` began and returns the seconds in between; those in no phase count for ``"other"``."""
        duration = perf_counter() - self._began
        self.charged = self._charged_before + duration
        if self._enclosing is None:
            self._thread.phases = None
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
        phases, append = self.phases, durations.append
        number, thread = 0, _Thread()  # of the latest step

        def step(actions: Any) -> Any:
            if get_ident() != number or thread.phases is not None:
                return general(actions)
            charged = self.charged
            began = perf_counter()
            try:  # around all of it: Ctrl+C may come between any two lines
                thread.phases = phases
                result = env.step(actions)
                duration = perf_counter() - began
                self.charged = charged + duration
                thread.phases = None
            except BaseException:
                if thread.phases is not None:
                    thread.phases = None
                    self._stop_phases(began, charged)
                    duration = perf_counter() - began
                    self.charged = charged + duration
                    append(duration)
                flush()
                raise
            append(duration)
            if len(durations) >= full:
                flush()
            return result

        def general(actions: Any) -> Any:
            nonlocal number, thread
            number, thread = get_ident(), _this_thread()
            if thread.phases is None:
                return step(actions)
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
        charged, seconds = self.charged, {}
        self._other.seconds += charged - sum(self._seconds().values())
        for name, one in self.phases.items():
            seconds[name] = one.seconds - one.taken
            one.taken = one.seconds
        for began, name in self._running():
            own = now - charged - began
            seconds[name] += own
            self.phases[name].taken += own
            charged += own
        outside = now - self._born - charged
        seconds[self.OUTSIDE] += outside - self._outside_taken
        self._outside_taken = outside
        for name, own in seconds.items():
            if own < 0.0:  # differences of large numbers may miss zero by a rounding
                seconds[name] = 0.0
        return seconds

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
        self._thread.phases = enclosing
        self._enclosing = None
        for name, seconds in self._seconds().items():
            gained = seconds - self._before.get(name, 0.0)
            if gained and name not in (self.OTHER, self.OUTSIDE):
                enclosing[name].seconds += gained
                enclosing.clock.charged += gained

    def _seconds(self) -> dict[str, float]:
        return {name: one.seconds for name, one in self.phases.items()}
