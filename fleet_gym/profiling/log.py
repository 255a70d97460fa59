"""The manners of profiling output: one logger, seen without configuration, never a hand on the root logger."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

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


def say(line: str) -> None:
    """Logs a line at INFO without looking for the caller, which would take as long as everything else about it."""
    if logger.isEnabledFor(logging.INFO):
        make = logging.getLogRecordFactory()  # formats may need what a factory of the program's adds
        logger.handle(make(logger.name, logging.INFO, __file__, 0, line, None, None))


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
