"""`fleet-gym memory`: table, PNG, page and live line of a run's records."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from test_records import RECORD
from typer.testing import CliRunner

from fleet_gym.profiling import command
from fleet_gym.profiling.live import MemoryColumn, live_line
from fleet_gym.profiling.plots import plotted_lines, write_html, write_png
from fleet_gym.profiling.sinks import JsonLines


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    sink = JsonLines(path)
    for index in range(1, 81):
        sink.write(
            replace(RECORD, step=100 * index, rss_mb=80.0 + index, native_mb=30.0, num_encoders=0, encoders_mb=0.0)
        )
    sink.close()
    return path


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(command.memory)
    return app


def test_table_png_and_page(app, run_file, tmp_path):
    out = tmp_path / "pictures"
    result = CliRunner().invoke(app, [str(run_file), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert re.search(r"RSS\s+81.00\s+160.00\s+81.00\s+160.00\s+\+10486\s+leak", result.output)
    assert re.search(r"native heap\s+30.00\s+30.00\s+30.00\s+30.00\s+\+0\s+stable", result.output)
    assert "USS" not in result.output
    assert re.search(r"blocks\s+123456\s+123456\s+123456\s+123456\s+\+0\s+stable", result.output)
    with Image.open(out / "run.png") as image:
        assert image.format == "PNG"
        assert len(set(image.convert("RGB").resize((100, 60)).getdata())) > 20
    page = (out / "run.html").read_text()
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL).group(1))
    assert data["steps"][-1] == 8000
    assert data["lines"]["RSS"][:2] == [81.0, 82.0]
    assert "USS" not in data["lines"]
    assert data["verdicts"]["native"] == "leak"
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_no_line_of_the_picture_is_hidden(tmp_path):
    levels = {
        "rss_mb": 100.0,
        "native_mb": 10.0,
        "current_mb": 11.0,
        "peak_max_mb": 11.0,
        "min_mb": 11.0,
        "max_mb": 11.0,
    }
    record = replace(RECORD, num_workers=0, workers_mb=0.0, num_encoders=0, encoders_mb=0.0, **levels)
    write_png([replace(record, step=100 * index) for index in range(1, 81)], tmp_path / "run.png")
    with Image.open(tmp_path / "run.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    coloured = (pixels.max(axis=2) - pixels.min(axis=2) > 60).sum(axis=1)
    rows = np.flatnonzero(coloured > 0.97 * coloured.max())
    assert coloured.max() > 0.8 * pixels.shape[1], "lines go from side to side"
    assert rows[-1] - rows[0] > 100, "the high one, too"


def test_pictures_can_be_left_out(app, run_file):
    result = CliRunner().invoke(app, [str(run_file), "--no-png", "--no-html"])
    assert result.exit_code == 0
    assert [path.name for path in run_file.parent.iterdir()] == ["run.jsonl"]


def test_bad_files_are_named(run_file, tmp_path):
    console = Console(file=io.StringIO())
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"empty.jsonl: expected at least one memory record"):
        command.report_records(tmp_path / "empty.jsonl", console)
    with pytest.raises(FileNotFoundError, match=r"missing.jsonl: no such file; expected what MemoryProfilingWrapper"):
        command.report_records(tmp_path / "missing.jsonl", console)
    (tmp_path / "bytes.jsonl").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(ValueError, match=r"bytes.jsonl: not a text file"):
        command.report_records(tmp_path / "bytes.jsonl", console)
    (tmp_path / "other.jsonl").write_text('{"loss": 0.1}\n')
    with pytest.raises(ValueError, match=r"other.jsonl, line 1: expected a memory record \(it has a field 'loss'\)"):
        command.report_records(tmp_path / "other.jsonl", console)
    (tmp_path / "other.csv").write_text("loss\n0.1\n")
    with pytest.raises(ValueError, match=r"other.csv, line 2: expected a memory record \(there is no field 'step'\)"):
        command.report_records(tmp_path / "other.csv", console)
    with pytest.raises(ValueError, match=r"run.txt: expected a file ending in .jsonl or .csv"):
        command.report_records(tmp_path / "run.txt", console)


def test_growing_blocks_are_a_leak_in_the_table():
    records = [replace(RECORD, step=100 * n, python_blocks=50_000 + 100 * n) for n in range(1, 81)]
    console = Console(file=io.StringIO(), width=110)
    console.print(command.memory_table(records))
    assert re.search(r"blocks\s+50100\s+58000\s+50100\s+58000\s+\+64\s+leak", console.file.getvalue())


def test_an_old_uss_reading_is_not_drawn_again():
    records = [replace(RECORD, step=100 * n, uss_mb=70.0, uss_step=100 if n < 3 else 300) for n in range(1, 5)]
    assert plotted_lines(records)["USS"] == [70.0, None, 70.0, None]
    assert "uss=70.00MB " in records[0].plus_line()
    assert "uss=70.00MB (as of step 100) " in records[1].plus_line()


def test_a_png_without_matplotlib_names_the_command(monkeypatch, run_file):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'fleet-gym\[plots\]'"):
        command.report_records(run_file, Console(file=io.StringIO()))


def test_text_in_the_data_cannot_end_the_script(tmp_path):
    path = tmp_path / "page.html"
    write_html([replace(RECORD, verdicts={"</script><b>": "leak"})], path, "<title>")
    page = path.read_text()
    assert "</script><b>" not in page
    assert "<h1>&lt;title&gt;</h1>" in page


def test_lines_never_above_zero_are_not_drawn():
    lines = plotted_lines([replace(RECORD, num_workers=0, workers_mb=0.0)])
    assert "workers" not in lines
    assert "USS" not in lines
    assert lines["RSS"] == [81.0]


def test_live_line():
    assert live_line(None).plain == "memory: no interval yet"
    assert live_line(RECORD).plain == (
        "memory 80.1 MB (peak 82.0, -0.00) rss 81 native 31 workers 120 encoders 30 LEAK: native"
    )
    calm = replace(RECORD, verdicts={"rss": "stable"}, num_workers=0, num_encoders=0, native_mb=None)
    assert live_line(calm).plain == "memory 80.1 MB (peak 82.0, -0.00) rss 81 stable"


def test_progress_column_shows_the_latest_interval():
    class Env:
        last_memory_record = RECORD

    stream = io.StringIO()
    with Progress(MemoryColumn(Env()), console=Console(file=stream, width=120, force_terminal=False)) as progress:
        progress.add_task("run", total=1)
    assert "memory 80.1 MB" in stream.getvalue()


def test_follow_shows_new_records_until_interrupted(monkeypatch, run_file):
    shown: list[str] = []
    stream = io.StringIO()

    def sleep(seconds: float) -> None:
        shown.append(stream.getvalue())
        if len(shown) == 1:
            sink = run_file.read_text().splitlines()[-1].replace('"current_mb": 80.12', '"current_mb": 99.12')
            run_file.write_text(run_file.read_text() + sink + "\n")
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    command.follow_records(run_file, Console(file=stream, width=120, force_terminal=True))
    assert "memory 80.1 MB" in shown[0]
    assert "memory 99.1 MB" in shown[1]


def test_without_matplotlib_the_page_is_written_and_the_picture_hinted_at(app, run_file, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    result = CliRunner().invoke(app, [str(run_file)])
    assert result.exit_code == 0
    assert "pip install 'fleet-gym[plots]'" in result.output
    assert run_file.with_suffix(".html").exists()
    assert not run_file.with_suffix(".png").exists()


def test_the_table_says_how_many_intervals_a_verdict_needs(app, run_file, tmp_path):
    short = tmp_path / "short.jsonl"
    short.write_text("".join(run_file.read_text().splitlines(keepends=True)[:10]))
    result = CliRunner().invoke(app, [str(short), "--no-png", "--no-html"])
    assert "not enough data (10 of 60 intervals)" in result.output


def test_the_page_says_that_a_verdict_needs_more_and_whose_memory_it_is(app, tmp_path):
    run = tmp_path / "my run" / "memory.jsonl"
    run.parent.mkdir()
    sink = JsonLines(run)
    for step in (50, 100):
        sink.write(replace(RECORD, step=step, verdicts={}))
    sink.close()
    assert CliRunner().invoke(app, [str(run), "--no-png"]).exit_code == 0
    page = run.with_suffix(".html").read_text()
    assert "Not enough data for a verdict: 2 of 60 intervals." in page
    assert "<h1>Memory of my run/memory.jsonl</h1>" in page
