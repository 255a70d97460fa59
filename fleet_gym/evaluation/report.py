"""``report.html``: an evaluation on one self-contained page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet_gym._rounding import column_format, formatted, number_format
from fleet_gym.evaluation.charts import MAX_ROWS, Chart, histogram, lines, shares, stacked
from fleet_gym.evaluation.env_facts import flat_settings
from fleet_gym.evaluation.instruments import read_time_records
from fleet_gym.evaluation.results import EvaluationResult
from fleet_gym.evaluation.run_folder import MEMORY_LOG, REPORT, TIME_LOG, read_run, session_logs
from fleet_gym.evaluation.statistics import RESAMPLES, Estimate
from fleet_gym.pages import render_page, write_page
from fleet_gym.video.gallery import GalleryEpisode, gallery_context, gallery_episodes

#: Rows of the table of all episodes: more make a page slow.
MAX_LISTED = 2000
TITLES = {"success": "Success", "return": "Return", "length": "Length", "collisions": "Collisions"}
#: The bootstrap of `bootstrap_mean`, in brief.
METHODS = f"BCa, {RESAMPLES} resamples"
#: Values from which on a bootstrap interval holds about what it promises.
MANY_ENOUGH = 20
#: Those of the rest of the page, in place of the gallery's own.
_WORDS = {"env": "world", "environment": "world", "order": "episode"}
_MEANINGS = {
    "success": "Share of episodes whose last step the environment called a success.",
    "return": "Sum of an episode's rewards, averaged over episodes.",
    "length": "Steps of an episode, averaged over episodes.",
    "collisions": "Collisions that began in an episode, averaged over episodes.",
}


@dataclass(frozen=True)
class MetricCard:
    """A headline figure as the page shows it, in words and numbers."""

    name: str
    title: str
    value: str
    interval: str
    explanation: str


def write_report(run: EvaluationResult | str | Path) -> Path:
    """Writes ``report.html`` into the folder of a finished evaluation and returns its path.

    Args:
        run: the result of an evaluation that wrote files, or its folder.

    Raises:
        ValueError: when there are no results, or the evaluation wrote no files.
    """
    result = run if isinstance(run, EvaluationResult) else read_run(run)
    folder = result.folder
    if folder is None:
        raise ValueError("run: expected an evaluation that wrote files (out=...), got one that did not")
    episodes = [_worded(episode) for episode in sorted(gallery_episodes(folder, folder), key=_index)]
    profiles = [*_memory_charts(folder), *_time_charts(folder)]
    text = render_page(
        "evaluation/report.html.j2",
        title=run_title(result),
        lead=_lead(result),
        metrics=metric_cards(result),
        says_success=result.success is not None,
        spread=_spread(result),
        few=few_episodes_note(result.metrics),
        worlds_note=_worlds_note(result),
        profiles=profiles,
        profile_note=_profile_note(result),
        facts=run_facts(result),
        listed=result.episodes[:MAX_LISTED],
        num_episodes=len(result.episodes),
        form=column_format(episode.episode_return for episode in result.episodes),
        **gallery_context(episodes, _WORDS),
    )
    return write_page(folder / REPORT, text)


def run_title(result: EvaluationResult) -> str:
    """Returns what was evaluated where, in one line."""
    return f"{result.config.get('policy', 'policy')} in {result.config.get('env', 'environment')}"


def _lead(result: EvaluationResult) -> str:
    seeds, worlds = result.seeds, len(result.worlds)
    many = f"{len(seeds)} episodes with seeds {seeds[0]} to {seeds[-1]}"
    played = many if len(seeds) > 1 else f"1 episode with seed {seeds[0]}"
    return (
        f"{played}, played in {worlds} world{'s' if worlds > 1 else ''}, each its fixed share. "
        f"Intervals are at {100 * result.confidence:g}\N{NO-BREAK SPACE}%: of evaluations like this, so many hold the "
        "true value."
    )


def metric_cards(result: EvaluationResult) -> list[MetricCard]:
    """Returns the headline figures."""
    cards = []
    for name, estimate in result.metrics.items():
        method = "Wilson score interval" if name == "success" else f"Bootstrap interval ({METHODS})"
        cards.append(
            MetricCard(
                name,
                TITLES[name],
                format_value(name, estimate),
                format_interval(name, estimate),
                f"{_MEANINGS[name]} {method}, {_count(estimate)}.",
            )
        )
    return cards


def format_value(name: str, estimate: Estimate, *, signed: bool = False) -> str:
    """Returns a metric's value as text: shares in per cent, differences of shares in points."""
    return f"{_texts(name, estimate, signed)[0]}{_unit(name, signed)}"


def format_interval(name: str, estimate: Estimate, *, signed: bool = False) -> str:
    """Returns the ends of a metric's interval as text, or that there is none: one value says nothing of others."""
    if is_single(name, estimate):
        return "no interval"
    _, low, high = _texts(name, estimate, signed)
    return f"{low} to {high}{_unit(name, signed)}"


def format_estimate(name: str, estimate: Estimate) -> str:
    """Returns a metric with its interval and number of episodes as text."""
    return f"{format_value(name, estimate)} ({format_interval(name, estimate)}), {_count(estimate)}"


def _count(estimate: Estimate) -> str:
    return f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{estimate.n}"


def is_single(name: str, estimate: Estimate) -> bool:
    """Whether an average is of one value, so that its bootstrap interval means nothing."""
    return name != "success" and estimate.n == 1


def _texts(name: str, estimate: Estimate, signed: bool) -> list[str]:
    percent = name == "success"
    values = [100 * v if percent else v for v in (estimate.value, estimate.low, estimate.high)]
    form = number_format(values, scale=values[2] - values[1], decimals=1 if percent else 2)
    return [formatted(value, form, signed=signed) for value in values]


def _unit(name: str, signed: bool) -> str:
    return "" if name != "success" else " points" if signed else " %"


def few_episodes_note(estimates: Mapping[str, Estimate]) -> str:
    """Returns what to know about intervals of few values, empty when there are enough."""
    fewest = min((estimate.n for name, estimate in estimates.items() if name != "success"), default=MANY_ENOUGH)
    if fewest >= MANY_ENOUGH:
        return ""
    return (
        f"Bootstrap intervals of fewer than {MANY_ENOUGH} episodes are too narrow: those few know nothing of rarer "
        "ones. Play more."
    )


def _spread(result: EvaluationResult) -> list[Chart]:
    charts = [
        histogram("Returns", "return", {"": [episode.episode_return for episode in result.episodes]}),
        histogram("Lengths", "steps", {"": [episode.steps for episode in result.episodes]}, whole=True),
    ]
    rows = [
        (f"{world.env}", s.value, s.low, s.high, f"world {world.env}: {_share(s)} of {s.n} episodes")
        for world in result.worlds
        if (s := world.success) is not None
    ]
    if rows:
        charts.append(shares("Success per world", "share of successes, with its interval", rows))
    return charts


def _worlds_note(result: EvaluationResult) -> str:
    worlds = len(result.worlds)
    if result.success is None or worlds <= MAX_ROWS:
        return ""
    return f"Success is shown of the first {MAX_ROWS} of {worlds} worlds; results.json has all of them."


def _share(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f} % ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def _index(episode: GalleryEpisode) -> tuple[bool, int]:
    """Orders by the index over all worlds, as everything else on the page; what has none comes last."""
    index = episode.columns.get("index")
    return (False, index) if isinstance(index, int) else (True, 0)


def _worded(episode: GalleryEpisode) -> GalleryEpisode:
    """Counts episodes over all worlds, as the rest of the page does, and leaves out columns without a value."""
    columns = {name: value for name, value in episode.columns.items() if value is not None}
    index = columns.pop("index", None)
    title = "" if index is None else f"episode {index} \N{MIDDLE DOT} world {episode.env}"
    return replace(episode, columns=columns, title=title)


def _memory_charts(folder: Path) -> list[Chart]:
    from fleet_gym.profiling.plots import LINES, plotted_lines
    from fleet_gym.profiling.sinks import read_records

    records, offset = [], 0
    for log in session_logs(folder, MEMORY_LOG):
        session = read_records(log)
        records += [replace(record, step=record.step + offset) for record in session]
        offset = records[-1].step if records else 0
    if not records:
        return []
    shown: dict[str, list[float | None]] = plotted_lines(records)
    if all(record.source == "rss" for record in records):
        for name in ("current_mb", "peak_max_mb"):  # without tracing they are the RSS once more
            shown.pop(LINES[name], None)
    return [lines("Memory of the process", "step", "MiB", [record.step for record in records], shown)]


def _time_charts(folder: Path) -> list[Chart]:
    records: list[Mapping[str, Any]] = []
    offset = 0
    for log in session_logs(folder, TIME_LOG):
        records += [{**record, "step": record["step"] + offset} for record in read_time_records(log)]
        offset = records[-1]["step"] if records else 0
    if not records:
        return []
    names = sorted(
        {name for record in records for name in record["phases_ms"]},
        key=lambda name: -sum(record["phases_ms"].get(name, 0.0) for record in records),
    )
    parts = {name: [record["phases_ms"].get(name, 0.0) for record in records] for name in names}
    return [stacked("Where the time goes", "step", "ms per step", [record["step"] for record in records], parts)]


def _profile_note(result: EvaluationResult) -> str:
    timings, memory = result.timings, result.memory
    parts = [
        f"{timings.get('steps', 0)} steps of all worlds took {timings.get('wall_s', 0.0):.1f} s, "
        f"{timings.get('cpu_s', 0.0):.1f} s of them on the processor (this process)."
    ]
    if timings.get("resumed_episodes"):
        parts.append(f"{timings['resumed_episodes']} episodes are from sessions before.")
    if memory:
        said = set(memory["verdicts"].values()) - {"not enough data"}
        leaks = [name for name, status in memory["verdicts"].items() if status == "leak"]
        parts.append(f"Highest resident memory {memory['highest_rss_mb']:.0f} MiB.")
        if leaks:
            parts.append(f"The profiler calls it a leak: {', '.join(leaks)}.")
        elif said:
            parts.append("The profiler sees no leak.")
        else:
            parts.append("Too short a run to tell whether it leaks.")
    return " ".join(parts)


def run_facts(result: EvaluationResult) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns tables of configuration, environment and versions: (heading, rows of name and value)."""
    config = dict(result.config)
    settings = flat_settings(config.pop("env_settings", {}))
    return [
        (
            "Configuration",
            [(name.replace("_", " "), _text(value)) for name, value in config.items() if value is not None],
        ),
        ("Environment", [(name, _text(value)) for name, value in settings.items() if value is not None]),
        ("Versions", list(result.versions.items())),
    ]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(entry, str) for entry in value):
        return ", ".join(value)
    return json.dumps(value)
