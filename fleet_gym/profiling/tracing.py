"""One `tracemalloc` session per process, shared by everybody here who wants one and left as found.

`tracemalloc` is process-wide: one frame limit, one peak, one switch. A `TraceLease` gives each holder its own peak and
stops tracing with the last holder, unless somebody else had started it: then limit, peak and switch stay theirs.
"""

from __future__ import annotations

import os
import threading
import tracemalloc


class _Session:
    """The state all leases share. Guarded by `lock`."""

    def __init__(self, nframe: int) -> None:
        self.lock = threading.RLock()
        self.owned = not tracemalloc.is_tracing()
        if self.owned:
            tracemalloc.start(nframe)
        self.lost = False
        self.is_simple = self.owned  # until a second lease is taken: nobody else's peak to keep
        self.leases: list[TraceLease] = []
        self.seen_peak = 0
        self.last_current = 0
        self.current = self.peak = 0
        # Known to tracemalloc as long as nobody stops or clears it: the only way to notice a stop followed by a start.
        self._witness = bytearray(64)

    def is_disturbed(self) -> bool:
        return not tracemalloc.is_tracing() or tracemalloc.get_object_traceback(self._witness) is None

    def read(self) -> bool:
        """Reads the traced heap into `current` and `peak`; False once the session is lost.

        Few objects are made here: each would be traced.
        """
        self.current, self.peak = tracemalloc.get_traced_memory()
        if self.lost or (self.peak < self.last_current and self.is_disturbed()) or not self.peak:
            self.lost = True
            return False
        self.last_current = self.current
        if self.owned:
            tracemalloc.reset_peak()
        elif self.peak <= self.seen_peak:  # not ours to reset: an old peak says nothing about this sample
            self.seen_peak = self.peak
            self.peak = self.current
        else:
            self.seen_peak = self.peak
        return True


_session: _Session | None = None
_session_lock = threading.RLock()  # garbage collection may release a lease while one is taken


class TraceLease:
    """A share in the process's tracing session, from construction to `release`.

    Args:
        nframe: frames kept per allocation; counts only for the one who starts the session.

    Attributes:
        is_owner: False when somebody else had started tracing.
        current: bytes at the latest sample.
        peak: the highest they were between the sample before and that one.
    """

    def __init__(self, nframe: int = 1) -> None:
        global _session
        with _session_lock:
            session = _session
            if session is not None:
                session.is_simple = False
                session.leases.append(self)  # before the checks: a lease freed meanwhile must not be the last one
                if session.lost or session.is_disturbed():
                    session.leases.remove(self)
                    session.lost = True
                    session = None
            if session is None:
                session = _session = _Session(nframe)
                session.leases.append(self)
            self._session = session
        self.is_owner = self._session.owned
        self.current = self.peak = self._pending_peak = 0

    @property
    def is_lost(self) -> bool:
        """Whether somebody stopped or cleared the tracing under us: no figure of this lease can be trusted any more."""
        session = self._session
        if not session.lost and session.is_disturbed():
            session.lost = True
        return session.lost

    def sample(self) -> bool:
        """Reads the traced heap into `current` and `peak`.

        In a session started by somebody else a peak below that session's own is not known, and `current` stands in.

        Returns:
            False once the session is lost.
        """
        session = self._session
        if session.is_simple:
            self.current, self.peak = tracemalloc.get_traced_memory()
            if self.peak >= session.last_current:
                session.last_current = self.current
                tracemalloc.reset_peak()
                return True
        with session.lock:
            if not session.read():
                return False
            peak = session.peak
            for lease in session.leases:
                if lease._pending_peak < peak:
                    lease._pending_peak = peak
            self.current = session.current
            self.peak, self._pending_peak = self._pending_peak, session.current
        return True

    def release(self) -> None:
        """Gives the share back; the last one stops the tracing if it was started here. A second call does nothing."""
        global _session
        with _session_lock:
            session = self._session
            if self not in session.leases:
                return
            session.leases.remove(self)
            if session.leases:
                return
            if session.owned and not session.lost and not session.is_disturbed():
                tracemalloc.stop()
            if _session is session:
                _session = None


def _leave_to_parent() -> None:
    """In a forked child: a worker would pay for a tracing it cannot report."""
    global _session, _session_lock
    _session_lock = threading.RLock()
    if _session is not None:
        if _session.owned and tracemalloc.is_tracing():
            tracemalloc.stop()
        _session.lock = threading.RLock()
        _session.lost = True
        _session = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
