"""Pictures of a run's memory records: a PNG and an HTML page that works without a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fleet_gym.pages import render_page, write_page
from fleet_gym.profiling.intervals import MemoryRecord
from fleet_gym.profiling.verdict import MIN_INTERVALS

LINES = {
    "current_mb": "current (mean)",
    "peak_max_mb": "peak",
    "rss_mb": "RSS",
    "uss_mb": "USS",
    "native_mb": "native heap",
    "workers_mb": "workers",
    "encoders_mb": "encoders",
}


SPARSE = ("uss_mb", "encoders_mb")
"""Read now and then: in records of other intervals the latest value stands, which is not drawn again."""


def plotted_lines(records: Sequence[MemoryRecord]) -> dict[str, list[float | None]]:
    """Returns MiB by title, per record, of everything that was ever above zero; None where it was not read."""
    lines = {title: [_value(record, name) for record in records] for name, title in LINES.items()}
    return {title: values for title, values in lines.items() if any(values)}


def _value(record: MemoryRecord, name: str) -> float | None:
    is_stale = name in SPARSE and record.uss_step not in (None, record.step)
    value: float | None = None if is_stale else getattr(record, name)
    return value


def sparse_titles() -> list[str]:
    """Returns the titles of the lines that are read now and then."""
    return [LINES[name] for name in SPARSE]


def write_png(records: Sequence[MemoryRecord], path: Path) -> None:
    """Draws memory over steps.

    Args:
        records: at least one.
        path: of the PNG.

    Raises:
        ImportError: without the extra ``plots``.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a PNG needs matplotlib: pip install 'fleet-gym[plots]'") from None
    steps = [record.step for record in records]
    figure = Figure(figsize=(10, 6), layout="constrained")
    memory, growth = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for title, values in plotted_lines(records).items():
        known = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
        memory.plot(*zip(*known, strict=True), ":." if title in sparse_titles() else "-", label=title)
    lows, highs = [record.min_mb for record in records], [record.max_mb for record in records]
    memory.fill_between(steps, lows, highs, alpha=0.2)
    memory.set(ylabel="MiB", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=len(LINES), fontsize="small")  # inside it would hide a line
    memory.grid(alpha=0.3)
    width = max(1, steps[0]) * 0.9
    growth.bar(steps, [record.growth_mb for record in records], width=-width, align="edge")
    growth.set(xlabel="step", ylabel="growth, MiB")
    growth.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def write_html(records: Sequence[MemoryRecord], path: Path, title: str) -> None:
    """Writes one self-contained page: point for values, click a name to hide it, drag to zoom, double-click to go back.

    Args:
        records: at least one.
        path: of the page.
        title: heading.
    """
    data = {
        "steps": [record.step for record in records],
        "lines": plotted_lines(records),
        "sparse": sparse_titles(),
        "growth": [record.growth_mb for record in records],
        "verdicts": dict(records[-1].verdicts),
        "undecided": f"Not enough data for a verdict: {len(records)} of {MIN_INTERVALS} intervals.",
    }
    # "<" is escaped so that no text in the data can end the script element.
    write_page(path, render_page("memory_report.html", title=title, data=json.dumps(data).replace("<", "\\u003c")))
