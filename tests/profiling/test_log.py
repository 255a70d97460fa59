"""Lines of the profilers as records: what `logging` itself would have made of them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading

import pytest

from fleet_gym.profiling import log

TIMES = ("created", "msecs", "relativeCreated")


class Kept(logging.Handler):
    """Keeps the records, formatted as a program's own handler does."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(threadName)s %(module)s %(message)s"))
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)
        self.records.append(record)


@pytest.fixture
def kept():
    level, handler = log.logger.level, Kept()
    log.logger.setLevel(logging.INFO)
    log.logger.addHandler(handler)
    log._records.forget()
    yield handler.records
    log.logger.removeHandler(handler)
    log.logger.setLevel(level)


def made_by_logging(line: str) -> logging.LogRecord:
    record = logging.LogRecord(log.logger.name, logging.INFO, log.__file__, 0, line, None, None)
    Kept().format(record)
    return record


def facts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in (*TIMES, "asctime")}


def check(record: logging.LogRecord, line: str) -> None:
    expected = made_by_logging(line)
    assert vars(record).keys() == vars(expected).keys()
    assert facts(record) == facts(expected)
    for name in ("created", "relativeCreated"):
        assert 0 <= getattr(expected, name) - getattr(record, name) < 60_000
    assert record.msecs == int((record.created - int(record.created)) * 1000)
    assert record.relativeCreated - expected.relativeCreated == pytest.approx(
        1000 * (record.created - expected.created), abs=0.01
    )


def test_every_line_is_a_record_as_logging_makes_it(kept):
    for number in range(3):
        log.say(f"line {number}")
        check(kept[-1], f"line {number}")
    assert len({id(record) for record in kept}) == 3
    assert [record.getMessage() for record in kept] == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize("tasks", [False, True])
def test_names_are_looked_up_once_where_they_cannot_change(kept, monkeypatch, tasks):
    made = []
    constructor = logging.LogRecord.__init__

    def counted(self, *args, **kwargs) -> None:
        made.append(self)
        constructor(self, *args, **kwargs)

    monkeypatch.setattr(logging.LogRecord, "__init__", counted)
    monkeypatch.setattr(log, "_RECORDS_NAME_TASKS", tasks)
    monkeypatch.setitem(sys.modules, "asyncio", asyncio)
    for number in range(5):
        log.say(f"line {number}")
    assert len(made) == (5 if tasks else 1)
    assert len(kept) == 5


def test_a_line_names_its_own_thread(kept):
    def work() -> None:
        for _ in range(2):
            log.say("there")
            check(kept[-1], "there")
            threading.current_thread().name = "renamed"

    for name in ("first", "second"):
        log.say("here")
        check(kept[-1], "here")
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join()
    names = [record.threadName for record in kept]
    assert names == ["MainThread", "first", "renamed", "MainThread", "second", "renamed"]


def test_a_line_names_its_own_process(kept):
    log.say("parent")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        log.say("child")
        os.write(writing, f"{kept[-1].process} {os.getpid()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100).decode() == f"{child} {child}"
    os.close(reading)
    os.close(writing)


def test_what_the_programs_own_factory_adds_is_asked_for_at_every_line(kept):
    log.say("before")
    calls = iter(range(10))

    class Numbered(logging.LogRecord):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            self.number = next(calls)

    logging.setLogRecordFactory(Numbered)
    try:
        for _ in range(3):
            log.say("numbered")
    finally:
        logging.setLogRecordFactory(logging.LogRecord)
    log.say("after")
    assert [getattr(record, "number", None) for record in kept] == [None, 0, 1, 2, None]
    assert type(kept[-1]) is logging.LogRecord
