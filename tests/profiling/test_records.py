"""Interval records: kept in fixed memory, written and read back as JSON lines and CSV, sent to TensorBoard."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from fleet_gym.profiling.intervals import MemoryRecord, RecordStore, Samples
from fleet_gym.profiling.sinks import Csv, JsonLines, open_sinks, read_records

RECORD = MemoryRecord(
    step=200,
    steps=100,
    time_s=1.25,
    source="rss",
    current_mb=80.123456789,
    min_mb=79.5,
    max_mb=81.0,
    peak_mb=80.5,
    peak_max_mb=82.0,
    growth_mb=-0.004,
    rss_mb=81.0,
    uss_mb=None,
    native_mb=31.0,
    python_blocks=123456,
    resets=2,
    step_native_bytes=1200,
    reset_native_bytes=-400,
    num_workers=4,
    workers_mb=120.5,
    num_encoders=1,
    encoders_mb=30.25,
    limit_mb=24000.0,
    steps_per_second=80.0,
    verdicts={"python": "stable", "native": "leak", "rss": "not enough data"},
)


def test_the_documented_line():
    assert RECORD.line() == (
        "[MEMORY] Last 100 steps: current=80.12MB (min=79.50, max=81.00), peak=80.50MB (max=82.00), growth=-0.00MB"
    )


def test_the_other_line():
    assert RECORD.plus_line("note") == (
        "[MEMORY+] source=rss rss=81.00MB native=31.00MB blocks=123456 step=+12B/call reset=-200B/call (x2) "
        "workers=120.50MB (x4) encoders=30.25MB (x1) limit=24000MB "
        "verdict: python stable, native leak, rss not enough data note"
    )
    bare = replace(RECORD, uss_mb=5.0, native_mb=None, resets=0, num_workers=0, num_encoders=0, verdicts={})
    assert bare.plus_line() == (
        "[MEMORY+] source=rss rss=81.00MB uss=5.00MB native=unknown blocks=123456 step=+12B/call limit=24000MB"
    )


def test_samples():
    samples = Samples()
    assert (samples.mean, samples.peak_mean) == (0, 0)
    for level, peak in ((5, 9), (2, 11), (8, 10)):
        samples.add(level, peak)
    assert (samples.low, samples.high, samples.mean) == (2, 8, 5)
    assert (samples.peak_mean, samples.peak_high) == (10, 11)
    samples.add(1, 30)
    assert (samples.low, samples.high, samples.mean, samples.peak_mean, samples.peak_high) == (1, 8, 4, 15, 30)
    samples.clear()
    samples.add(7, 7)
    assert (samples.low, samples.high, samples.mean, samples.peak_mean, samples.peak_high) == (7, 7, 7, 7, 7)


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_samples_of_any_number_are_summed_up_exactly(count):
    rng = np.random.default_rng(count)
    levels = rng.integers(0, 1 << 42, count)
    peaks = levels + rng.integers(0, 1 << 42, count)
    samples = Samples()
    for number, (level, peak) in enumerate(zip(levels.tolist(), peaks.tolist(), strict=True)):
        samples.add(level, peak)
        if number % 100 == 7:
            assert samples.high == levels[: number + 1].max(), "a look in between"
    assert (samples.low, samples.high, samples.peak_high) == (levels.min(), levels.max(), peaks.max())
    assert samples.mean == sum(levels.tolist()) / count
    assert samples.peak_mean == sum(peaks.tolist()) / count


def test_a_record_of_values_is_one_like_any_other():
    record = MemoryRecord.of(RECORD.as_dict())
    assert record == RECORD
    assert record.line() == RECORD.line()
    assert replace(record, step=3).step == 3
    with pytest.raises(FrozenInstanceError):
        record.step = 3
    assert set(RECORD.as_dict()) == {field.name for field in fields(MemoryRecord)}


def test_an_older_uss_reading_says_of_when_it_is():
    assert "uss=5.00MB (as of step 100) native" in replace(RECORD, uss_mb=5.0, uss_step=100).plus_line()
    assert "uss=5.00MB native" in replace(RECORD, uss_mb=5.0, uss_step=200).plus_line()


def test_the_store_gives_back_what_it_got_and_forgets_the_oldest():
    store = RecordStore(3)
    assert store.latest() == ()
    assert store.last() is None
    records = [replace(RECORD, step=step, uss_mb=None if step % 2 else 3.5) for step in range(5)]
    for record in records:
        store.append(record)
    assert list(store.latest()) == records[2:]
    assert store.last() == records[-1]
    assert isinstance(store.last().step, int)


@pytest.mark.parametrize("sink", [JsonLines, Csv])
def test_files_read_back_as_written(sink, tmp_path):
    path = tmp_path / ("run.jsonl" if sink is JsonLines else "run.csv")
    records = [RECORD, replace(RECORD, step=300, uss_mb=12.5, native_mb=None, verdicts={})]
    writer = sink(path)
    for record in records:
        writer.write(record)
        assert len(read_records(path)) == record.step // 100 - 1, "a record is on disk when it was written"
    writer.close()
    writer.close()
    assert read_records(path) == records


@pytest.mark.parametrize("sink", [JsonLines, Csv])
def test_a_file_has_one_writer_at_a_time(sink, tmp_path):
    path = tmp_path / ("run.jsonl" if sink is JsonLines else "run.csv")
    writer = sink(path)
    writer.write(RECORD)
    with pytest.raises(OSError, match=r"log_path: .*another profiler has it open"):
        sink(path)
    writer.write(RECORD)
    context = multiprocessing.get_context("fork")
    done = context.Event()
    worker = context.Process(target=done.wait)  # has the file open too
    worker.start()
    writer.close()
    assert read_records(path) == [RECORD, RECORD]
    sink(path).close()
    done.set()
    worker.join()
    assert read_records(path) == []


def test_a_file_of_a_process_that_was_killed_can_be_written_again(tmp_path):
    path = tmp_path / "run.jsonl"
    script = (
        "import os, signal, sys; from fleet_gym.profiling.sinks import JsonLines; from pathlib import Path;"
        "sink = JsonLines(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    JsonLines(path).close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rss_mb", "much"),
        ("rss_mb", None),
        ("rss_mb", float("nan")),
        ("uss_mb", [3]),
        ("native_mb", True),
        ("step", None),
        ("step", "1"),
        ("python_blocks", 1.5),
        ("source", 3),
        ("verdicts", ["leak"]),
        ("verdicts", {"rss": 1}),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_field(tmp_path, name, value):
    path = tmp_path / "run.jsonl"
    rows = [RECORD.as_dict(), {**RECORD.as_dict(), name: value}, RECORD.as_dict()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=rf"run.jsonl, line 2: expected a memory record \({name}: expected "):
        read_records(path)


def test_nan_in_a_table_names_its_field(tmp_path):
    path = tmp_path / "run.csv"
    writer = Csv(path)
    for record in (RECORD, replace(RECORD, rss_mb=float("nan")), RECORD):
        writer.write(record)
    writer.close()
    with pytest.raises(
        ValueError, match=r"line 3: expected a memory record \(rss_mb: expected a finite number, got nan"
    ):
        read_records(path)


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = JsonLines(path)
    writer.write(RECORD)
    writer.close()
    path.write_text(path.read_text() + json.dumps(RECORD.as_dict())[:40])
    assert read_records(path) == [RECORD]


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 3}\n')
    with pytest.raises(ValueError, match=r"run.jsonl, line 1: expected a memory record"):
        read_records(path)
    with pytest.raises(ValueError, match=r"run.txt: expected a file ending in .jsonl or .csv"):
        read_records(tmp_path / "run.txt")
    assert read_records_of_empty(tmp_path) == []


def read_records_of_empty(folder):
    (folder / "empty.jsonl").write_text("")
    return read_records(folder / "empty.jsonl")


def test_tensorboard_gets_scalars_over_steps(tmp_path):
    (board,) = open_sinks(None, tmp_path)
    board.write(RECORD)
    board.close()
    # In a process of its own: TensorBoard's reader leaves warnings about protocol buffers behind.
    script = (
        "import sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1])\n"
        "events.Reload()\n"
        "for tag in sorted(events.Tags()['tensors']):\n"
        "    event = events.Tensors(tag)[0]\n"
        "    print(tag, event.step, round(event.tensor_proto.float_val[0], 3))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "memory/rss_mb 200 81.0" in lines
    assert "memory/leak/native 200 1.0" in lines
    assert "memory/leak/python 200 0.0" in lines
    assert not any("uss" in line for line in lines)


def test_tensorboard_missing_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(ImportError, match=r"pip install 'fleet-gym\[tensorboard\]'"):
        open_sinks(tmp_path / "run.jsonl", tmp_path)
    assert list(tmp_path.iterdir()) == []
