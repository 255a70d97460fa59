"""``fleet-gym memory``: a run's memory records as a table, a PNG and an HTML page, or as a live line."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from fleet_gym.profiling.intervals import MemoryRecord
from fleet_gym.profiling.signals import MIB
from fleet_gym.profiling.verdict import BLOCK_BYTES, BLOCKS_THRESHOLD, MIN_INTERVALS, LeakVerdict, judge

SIGNALS = {
    "current_mb": "current",
    "rss_mb": "RSS",
    "uss_mb": "USS",
    "native_mb": "native heap",
    "workers_mb": "workers",
    "encoders_mb": "encoders",
}
UNJUDGED = ("uss_mb", "encoders_mb")  # read now and then; a process per episode
WIDTH = 110


def memory(
    records: Annotated[Path, typer.Argument(help="What MemoryProfilingWrapper(..., log_path=...) wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; beside the records by default.")] = None,
    png: Annotated[
        bool | None, typer.Option(help="Draw a PNG (needs the extra plots); by default where that is installed.")
    ] = None,
    html: Annotated[bool, typer.Option(help="Write an interactive HTML page.")] = True,
    follow: Annotated[bool, typer.Option(help="Show the latest interval of a running run until Ctrl+C.")] = False,
) -> None:
    """Show the memory of a run: a table with verdicts, and plots."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    if follow:
        follow_records(records, console)
        return
    report_records(records, console, out=out, png=png, html=html)


def report_records(
    path: Path, console: Console, *, out: Path | None = None, png: bool | None = None, html: bool = True
) -> None:
    """Prints the table of a run and draws it.

    Args:
        path: JSON lines or CSV.
        console: prints there.
        out: folder of the pictures, made if missing; the records' own by default.
        png: whether to draw one; None: if matplotlib is there, with a hint if not.
        html: whether to write one.

    Raises:
        ImportError: when a PNG is asked for without matplotlib.
        ValueError: when the file holds no records.
        OSError: when it cannot be read, or the pictures cannot be written.
    """
    from fleet_gym.profiling.plots import write_html, write_png
    from fleet_gym.profiling.sinks import read_records

    records = read_records(path)
    if not records:
        raise ValueError(
            f"{path}: expected at least one memory record, got an empty file. A record is written when an interval"
            " ends: after profiling_interval steps, and at close"
        )
    console.print(memory_table(records))
    folder = path.parent if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    if png is None:
        png = importlib.util.find_spec("matplotlib") is not None
        if not png:
            console.print("no PNG without matplotlib: pip install 'fleet-gym[plots]'", markup=False, soft_wrap=True)
    if png:
        write_png(records, folder / f"{path.stem}.png")
        console.print(escape(str(folder / f"{path.stem}.png")), soft_wrap=True)
    if html:
        write_html(records, folder / f"{path.stem}.html", f"Memory of {path.absolute().parent.name}/{path.name}")
        console.print(escape(str(folder / f"{path.stem}.html")), soft_wrap=True)


def memory_table(records: Sequence[MemoryRecord]) -> Table:
    """Returns a table with a row per signal that was ever above zero, with a verdict on its interval values."""
    last = records[-1]
    title = f"{last.step} steps, {last.time_s:.1f} s, source {last.source}, limit {last.limit_mb:.0f} MB"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("signal")
    for name in ("first", "last", "lowest", "highest", "bytes/step"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for name, title in SIGNALS.items():
        known = [(record.step, getattr(record, name)) for record in records if getattr(record, name) is not None]
        values = [value for _, value in known]
        if not any(values):
            continue
        verdict = None if name in UNJUDGED else judge([step for step, _ in known], [value * MIB for value in values])
        table.add_row(title, *_figures(values, ".2f"), *_said(verdict))
    blocks = [record.python_blocks for record in records]
    verdict = judge([record.step for record in records], [BLOCK_BYTES * count for count in blocks], BLOCKS_THRESHOLD)
    table.add_row("blocks", *_figures(blocks, "d"), *_said(verdict))
    table.caption = f"MiB; blocks of Python's allocator: their number, at {BLOCK_BYTES} bytes each"
    table.caption_justify = "left"
    return table


def _figures(values: Sequence[float], form: str) -> list[str]:
    return [format(value, form) for value in (values[0], values[-1], min(values), max(values))]


def _said(verdict: LeakVerdict | None) -> tuple[str, str]:
    if verdict is None:
        return "", ""
    colour = {"leak": "red", "stable": "green"}.get(verdict.status, "dim")
    status: str = verdict.status
    if verdict.intervals < MIN_INTERVALS:
        status = f"{status} ({verdict.intervals} of {MIN_INTERVALS} intervals)"
    return f"{verdict.bytes_per_step:+.0f}", f"[{colour}]{status}[/{colour}]"


def follow_records(path: Path, console: Console, *, poll_s: float = 0.5) -> None:
    """Shows the latest record of a file that a run is writing, until interrupted.

    Args:
        path: JSON lines or CSV; may still be missing or empty.
        console: shows it there.
        poll_s: seconds between looks at the file.
    """
    from fleet_gym.profiling.live import live_line
    from fleet_gym.profiling.sinks import read_records

    seen = -1
    with Live(live_line(None), console=console, auto_refresh=False) as live:
        try:
            while True:
                size = path.stat().st_size if path.exists() else 0
                if size != seen and size:
                    records = read_records(path)
                    if records:
                        live.update(live_line(records[-1]), refresh=True)
                seen = size
                time.sleep(poll_s)
        except KeyboardInterrupt:
            return
