"""Where interval records go besides the log: JSON lines, CSV, TensorBoard."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Protocol, TextIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from fleet_gym.profiling.intervals import MemoryRecord

SUFFIXES = (".jsonl", ".csv")
_WHERE_FROM = "what MemoryProfilingWrapper(..., log_path=...) wrote"


class Sink(Protocol):
    """Takes records as they come."""

    def write(self, record: MemoryRecord) -> None:
        """Takes one record; what was written survives a crash of the process."""
        ...

    def close(self) -> None:
        """Ends the output; calling it again does nothing."""
        ...


def _opened(path: Path, header: str = "") -> TextIO:
    """Opens an empty file for this writer alone: two would write over each other's lines."""
    try:
        file = path.open("a", encoding="utf-8", newline="", buffering=1)
        if not _locked(file):
            file.close()
            raise OSError(errno.EBUSY, "another profiler has it open: close that one, or give each a file of its own")
        if path.stat().st_size:
            file.truncate(0)
        file.write(header)
        return file
    except OSError as error:
        raise OSError(
            error.errno, f"log_path: expected a file that can be written ({error.strerror})", str(path)
        ) from None


def _locked(file: TextIO) -> bool:
    """Locks a file until it is closed; False when somebody else has. Where files cannot be locked nobody has."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _closed(file: TextIO) -> None:
    if fcntl is not None and not file.closed:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked worker that lives on has the file open too
    file.close()


class JsonLines:
    """One JSON object per interval and line."""

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)

    def __str__(self) -> str:
        return self._file.name

    def write(self, record: MemoryRecord) -> None:
        """Writes one line."""
        self._file.write(json.dumps(record.as_dict()) + "\n")

    def close(self) -> None:
        """Closes the file."""
        _closed(self._file)


class Csv:
    """One row per interval; verdicts as ``name=status`` pairs separated by semicolons, unknown values empty."""

    def __init__(self, path: Path) -> None:
        names = [field.name for field in fields(MemoryRecord)]
        self._file = _opened(path, ",".join(names) + "\r\n")
        self._writer = csv.DictWriter(self._file, names)

    def __str__(self) -> str:
        return self._file.name

    def write(self, record: MemoryRecord) -> None:
        """Writes one row."""
        row = record.as_dict()
        row["verdicts"] = ";".join(f"{name}={status}" for name, status in record.verdicts.items())
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        _closed(self._file)


def _tensorboard_writer() -> Any:
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise ImportError("tensorboard_dir needs TensorBoard: pip install 'fleet-gym[tensorboard]'") from None
    return Writer


class TensorBoard:
    """Scalars ``memory/*`` over steps.

    Args:
        writer: a `tensorboard.summary.Writer`.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __str__(self) -> str:
        return "TensorBoard"

    def write(self, record: MemoryRecord) -> None:
        """Writes every number of the record."""
        for name, value in record.as_dict().items():
            if name not in ("step", "steps", "source", "verdicts", "uss_step") and value is not None:
                self._writer.add_scalar(f"memory/{name}", float(value), record.step)
        for name, status in record.verdicts.items():
            self._writer.add_scalar(f"memory/leak/{name}", float(status == "leak"), record.step)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


def checked_log_path(log_path: Any) -> Path | None:
    """Returns `log_path` as a path if records can be written in the format its suffix names.

    Raises:
        ValueError: for another suffix, or what is no path.
    """
    if log_path is None:
        return None
    if not isinstance(log_path, (str, Path)) or Path(log_path).suffix not in SUFFIXES:
        raise ValueError(f"log_path: expected a path ending in {' or '.join(SUFFIXES)}, got {log_path!r}")
    return Path(log_path)


def open_sinks(log_path: Path | None, tensorboard_dir: Path | None) -> list[Sink]:
    """Opens what was asked for.

    Raises:
        OSError: naming ``log_path``, when the file cannot be written.
        ImportError: without the extra ``tensorboard``.
    """
    make_writer = None if tensorboard_dir is None else _tensorboard_writer()
    sinks: list[Sink] = []
    if log_path is not None:
        sinks.append(JsonLines(log_path) if log_path.suffix == ".jsonl" else Csv(log_path))
    if make_writer is not None:
        sinks.append(TensorBoard(make_writer(str(tensorboard_dir))))
    return sinks


def read_records(path: str | Path) -> list[MemoryRecord]:
    """Reads what `JsonLines` or `Csv` wrote; a last line cut off by a crash is left out.

    Raises:
        ValueError: when the file holds something else, naming file and line.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a file ending in {' or '.join(SUFFIXES)}, {_WHERE_FROM}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; expected {_WHERE_FROM}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[tuple[int, Any]]
            rows = list(enumerate(csv.DictReader(file), 2)) if path.suffix == ".csv" else list(enumerate(file, 1))
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"{path}: not a text file; expected {_WHERE_FROM}") from None
    records = []
    for number, row in rows:
        try:
            records.append(_from_csv(row) if path.suffix == ".csv" else _from_json(row))
        except (ValueError, KeyError, TypeError) as error:
            if number == rows[-1][0] and records:
                break
            raise ValueError(
                f"{path}, line {number}: expected a memory record ({_reason(error)}), {_WHERE_FROM}"
            ) from None
    return records


def _reason(error: Exception) -> str:
    return f"there is no field {error}" if isinstance(error, KeyError) else str(error)


def _from_json(line: str) -> MemoryRecord:
    values = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    if unknown := sorted(values.keys() - {field.name for field in fields(MemoryRecord)}):
        raise ValueError(f"it has a field {unknown[0]!r}")
    for field in fields(MemoryRecord):
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise KeyError(field.name)
    return _checked(MemoryRecord(**values))


def _from_csv(row: Mapping[str, str]) -> MemoryRecord:
    values: dict[str, Any] = {}
    for field in fields(MemoryRecord):
        if field.name not in row and field.default is not MISSING:  # written by an earlier version
            continue
        text = row[field.name]
        if field.name == "verdicts":
            values[field.name] = dict(pair.split("=", 1) for pair in text.split(";")) if text else {}
        elif field.name == "source":
            values[field.name] = text
        elif text == "" and "None" in str(field.type):
            values[field.name] = None
        else:
            values[field.name] = int(text) if str(field.type).startswith("int") else float(text)
    return _checked(MemoryRecord(**values))


def _checked(record: MemoryRecord) -> MemoryRecord:
    """Returns `record` if every value is of its field's kind.

    Raises:
        ValueError: naming the field that is not.
    """
    for field in fields(MemoryRecord):
        kind, value = str(field.type), getattr(record, field.name)
        if field.name == "verdicts":
            fits, expected = _are_texts(value), "statuses by signal"
        elif kind == "str":
            fits, expected = isinstance(value, str), "a text"
        else:
            fits, expected = _is_number(value, kind), "a whole number" if kind.startswith("int") else "a finite number"
        if not fits:
            raise ValueError(f"{field.name}: expected {expected}, got {value!r}")
    return record


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair)


def _is_number(value: Any, kind: str) -> bool:
    if value is None:
        return "None" in kind
    whole = kind.startswith("int")
    return type(value) is int or (type(value) is float and math.isfinite(value) and not whole)
