"""The manners of profiling output: one logger, seen without configuration, never a hand on the root logger."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

logger = logging.getLogger("fleet_gym.profiling")

if TYPE_CHECKING:
    _TextHandler = logging.StreamHandler[TextIO]
else:
    _TextHandler = logging.StreamHandler  # cannot be subscripted before Python 3.11


class _StderrHandler(_TextHandler):
    """Writes to whatever ``sys.stderr`` is at the time, and steps aside once the root logger has a handler."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.INFO)
        self.setFormatter(logging.Formatter("%(message)s"))
        self.addFilter(lambda record: not logging.getLogger().handlers)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


# Records name the running asyncio task, which may be another one at every line.
_RECORDS_NAME_TASKS = sys.version_info >= (3, 12)


class _Records:
    """Makes records of lines, in half of the time that `logging.LogRecord` takes.

    A line is made so rarely that nothing of it is in the processor's caches, and looking up the names of file, thread
    and process again costs more than everything else about it. What differs between two lines of a thread is their
    text and time; the rest is taken from the thread's line before.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets the line before: this may be another process now."""
        self._before: tuple[threading.Thread | None, dict[str, Any]] = (None, {})

    def make(self, line: str) -> logging.LogRecord:
        """Returns a record, of the program's own factory if it has one: formats may need what that adds."""
        factory = logging.getLogRecordFactory()
        thread = threading.current_thread()
        thread_before, before = self._before
        if (
            factory is not logging.LogRecord
            or thread is not thread_before
            or (_RECORDS_NAME_TASKS and "asyncio" in sys.modules)
        ):
            record = factory(logger.name, logging.INFO, __file__, 0, line, None, None)
            if factory is logging.LogRecord:
                self._before = (thread, dict(vars(record)))
            return record
        now = time.time()
        record = object.__new__(logging.LogRecord)
        record.__dict__ = {
            **before,
            "msg": line,
            "created": now,
            "msecs": int((now - int(now)) * 1000) + 0.0,
            "relativeCreated": before["relativeCreated"] + 1000 * (now - before["created"]),
            "threadName": thread.name,
        }
        return record


_records = _Records()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_records.forget)


def say(line: str) -> None:
    """Logs a line at INFO without looking for the caller, which would take as long as everything else about it."""
    if logger.isEnabledFor(logging.INFO):
        logger.handle(_records.make(line))


def make_lines_visible() -> None:
    """Attaches a handler to the logger ``fleet_gym`` that prints INFO lines to stderr, if nobody else would show them.

    Does nothing when the root logger or ``fleet_gym`` has a handler already: whoever configured logging decides.
    """
    package = logging.getLogger("fleet_gym")
    if logging.getLogger().handlers or package.handlers:
        return
    package.addHandler(_StderrHandler())
    if package.level == logging.NOTSET:
        package.setLevel(logging.INFO)
