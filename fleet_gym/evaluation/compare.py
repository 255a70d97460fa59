"""Two evaluations side by side: differences with intervals, on the same seeds where both have them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fleet_gym._rounding import column_format, significant
from fleet_gym.evaluation.charts import Chart, histogram, scatter
from fleet_gym.evaluation.env_facts import differing_settings
from fleet_gym.evaluation.play import Episode
from fleet_gym.evaluation.report import (
    METHODS,
    TITLES,
    few_episodes_note,
    format_estimate,
    format_interval,
    format_value,
    is_single,
    run_facts,
    run_title,
)
from fleet_gym.evaluation.results import EvaluationResult
from fleet_gym.evaluation.run_folder import read_run
from fleet_gym.evaluation.statistics import (
    Estimate,
    bootstrap_difference,
    bootstrap_mean,
    checked_confidence,
    fisher_p_value,
    mcnemar_p_value,
    paired_share_difference,
    share_difference,
)
from fleet_gym.pages import page_path, render_page, write_page
from fleet_gym.video.episode_log import read_episodes

#: Runs are paired when at least this share of the smaller one's seeds is in the other one too.
MIN_COMMON = 0.5
MAX_LISTED = 200
_BETTER = {"success": 1, "return": 1, "collisions": -1}
_OWN_CONFIG = (
    "policy",
    "policy_sha256",
    "episodes",
    "num_envs",
    "seed",
    "videos",
    "cameras",
    "frame_source",
    "camera_size",
    "profile",
    "confidence",
)


@dataclass(frozen=True)
class MetricDifference:
    """One metric of two runs.

    Attributes:
        name: ``"success"``, ``"return"``, ``"length"`` or ``"collisions"``.
        first: of run A, over all its episodes, at the comparison's confidence.
        second: of run B, likewise.
        difference: B - A; paired: over the common seeds.
        p_value: that the shares of successes are the same; None for other metrics.
        method: how interval and p-value were found.
    """

    name: str
    first: Estimate
    second: Estimate
    difference: Estimate
    p_value: float | None
    method: str

    @property
    def verdict(self) -> str:
        """``"better"`` or ``"worse"`` (of B, where a metric has a good end), ``"differs"``, or ``"no difference"``.

        ``"one episode"`` where that is all there is: it shows nothing.
        """
        if is_single(self.name, self.difference):
            return "one episode"
        if self.difference.low <= 0 <= self.difference.high:
            return "no difference"
        direction = _BETTER.get(self.name, 0) * (1 if self.difference.value > 0 else -1)
        return {1: "better", -1: "worse", 0: "differs"}[direction]


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        first: run A.
        second: run B.
        pairs: episodes of the same seed; empty when the runs are not paired.
        metrics: those both runs have.
        notes: what a reader should know: unpaired seeds, environments that differ.
    """

    first: EvaluationResult
    second: EvaluationResult
    pairs: tuple[tuple[Episode, Episode], ...]
    metrics: tuple[MetricDifference, ...]
    notes: tuple[str, ...]


def compare(
    first: EvaluationResult | str | os.PathLike[str],
    second: EvaluationResult | str | os.PathLike[str],
    *,
    confidence: float = 0.95,
) -> Comparison:
    """Compares two evaluations.

    Episodes of the same seed are pairs: what makes one hard makes its partner hard too, so that differences of pairs
    say more than the difference of two averages. Where fewer than half of the seeds are common the runs are compared
    unpaired, and a note says so.

    Args:
        first: run A, or its folder.
        second: run B, or its folder.
        confidence: of the intervals, above 0 and below 1.

    Raises:
        ValueError: when a folder has no results, or the runs are of different environments.
    """
    confidence = checked_confidence(confidence)
    a, b = (run if isinstance(run, EvaluationResult) else read_run(run) for run in (first, second))
    if a.config.get("env") != b.config.get("env"):
        raise ValueError(
            "runs: expected two evaluations of the same environment, got "
            f"{a.config.get('env')!r} and {b.config.get('env')!r}"
        )
    by_seed = {episode.seed: episode for episode in a.episodes}
    pairs = tuple((by_seed[episode.seed], episode) for episode in b.episodes if episode.seed in by_seed)
    # Pairs of episodes that have little to do with each other are no worse than none: intervals hold all the same.
    if len(pairs) < MIN_COMMON * min(len(a.episodes), len(b.episodes)):
        pairs = ()
    averages = [_at(run, confidence).metrics for run in (a, b)]
    metrics = tuple(
        _difference(name, first, averages[1][name], _samples(name, a, b, pairs), bool(pairs), confidence)
        for name, first in averages[0].items()
        if name in averages[1]
    )
    few = few_episodes_note({metric.name: metric.difference for metric in metrics})
    return Comparison(a, b, pairs, metrics, (*_notes(a, b, pairs), *filter(None, [few])))


def _at(run: EvaluationResult, confidence: float) -> EvaluationResult:
    """Returns a run with intervals of this comparison's confidence, whatever that of the evaluation was."""
    return run if run.confidence == confidence else replace(run, confidence=confidence)


def _samples(
    name: str, a: EvaluationResult, b: EvaluationResult, pairs: Sequence[tuple[Episode, Episode]]
) -> tuple[list[float], list[float]]:
    one, other = (_values(name, [pair[k] for pair in pairs] or run.episodes) for k, run in enumerate((a, b)))
    return one, other


def _values(name: str, episodes: Sequence[Episode]) -> list[float]:
    field = {"return": "episode_return", "length": "steps"}.get(name, name)
    return [float(getattr(episode, field)) for episode in episodes]


def _difference(
    name: str, first: Estimate, second: Estimate, samples: tuple[list[float], list[float]], paired: bool, level: float
) -> MetricDifference:
    one, other = samples
    p_value = None
    if name == "success" and paired:
        difference = paired_share_difference(one, other, level)
        p_value = mcnemar_p_value(one, other)
        method = "Newcombe's paired score interval, McNemar's exact test"
    elif name == "success":
        difference = share_difference(first, second)
        p_value = fisher_p_value(first, second)
        method = "Newcombe's score interval, Fisher's exact test"
    elif paired:
        difference = bootstrap_mean([y - x for x, y in zip(one, other, strict=True)], level)
        method = f"Bootstrap of the paired differences ({METHODS})"
    else:
        difference = bootstrap_difference(one, other, level)
        method = "Bootstrap of both samples (percentiles)"
    return MetricDifference(name, first, second, difference, p_value, method)


def _notes(a: EvaluationResult, b: EvaluationResult, pairs: Sequence[Any]) -> list[str]:
    notes = []
    common = len(set(a.seeds) & set(b.seeds))
    if not pairs:
        notes.append(
            f"Unpaired: of {len(a.seeds)} and {len(b.seeds)} seeds {common} are common. Evaluate both on the same "
            "seeds for narrower intervals."
        )
    elif len(pairs) < max(len(a.episodes), len(b.episodes)):
        notes.append(
            f"Differences are over the {len(pairs)} seeds that both have, of {len(a.seeds)} and {len(b.seeds)}; the "
            "averages of each run are over all of its episodes."
        )
    differing = _differing_environments(a.config, b.config)
    if differing:
        said = "; ".join(f"{name}: {one!r} and {other!r}" for name, (one, other) in differing.items())
        notes.append(f"The environments differ: {said}.")
    changed = [name for name in a.versions if b.versions.get(name, a.versions[name]) != a.versions[name]]
    if changed:
        said = "; ".join(f"{name} {a.versions[name]} and {b.versions[name]}" for name in changed)
        notes.append(f"The versions differ: {said}.")
    return notes


def _differing_environments(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Returns (A's, B's) of what makes the environments, by name."""
    # What an environment says of itself has the defaults in it, how somebody asked for it has not.
    less = "env_kwargs" if a.get("env_settings") and b.get("env_settings") else "env_settings"
    one, other = ({name: c[name] for name in c if name not in (*_OWN_CONFIG, less)} for c in (a, b))
    found = differing_settings(one, other)
    return {name.removeprefix("env_settings."): values for name, values in found.items()}


def write_comparison(comparison: Comparison, page: str | os.PathLike[str]) -> Path:
    """Writes the comparison as one self-contained page.

    Args:
        comparison: of two runs.
        page: a file ending in ``.html``, or a folder for a ``compare.html``.

    Returns:
        The page's path.

    Raises:
        ValueError: when it is neither.
        OSError: when it cannot be written.
    """
    path = page_path("page", page, "compare.html")
    a, b = comparison.first, comparison.second
    rows = [_card(metric) for metric in comparison.metrics]
    text = render_page(
        "evaluation/compare.html.j2",
        runs=[(name, run_title(run), _folder(run)) for name, run in (("A", a), ("B", b))],
        lead=_lead(comparison),
        notes=comparison.notes,
        metrics=rows,
        charts=_charts(comparison),
        contingency=_contingency(comparison),
        listed=_listed(comparison, path.absolute().parent),
        form=column_format(value for pair in comparison.pairs for value in _returns(pair)),
        max_listed=MAX_LISTED,
        facts=_facts(a, b),
    )
    return write_page(path, text)


def _facts(a: EvaluationResult, b: EvaluationResult) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Returns tables as `run_facts` does: (heading, rows of name, A's and B's value)."""
    tables = []
    for (heading, first), (_, second) in zip(run_facts(a), run_facts(b), strict=True):
        one, other = dict(first), dict(second)
        tables.append((heading, [(name, one.get(name, ""), other.get(name, "")) for name in {**one, **other}]))
    return tables


def _folder(run: EvaluationResult) -> str:
    return "" if run.folder is None else str(run.folder)


def _lead(comparison: Comparison) -> str:
    level = f"{100 * comparison.metrics[0].difference.confidence:g} %"
    what = (
        f"over {len(comparison.pairs)} pairs of episodes with the same seed" if comparison.pairs else "of unpaired runs"
    )
    return f"Differences B - A {what}, with {level} intervals. An interval that holds 0 shows no difference."


def _card(metric: MetricDifference) -> dict[str, Any]:
    return {
        "name": metric.name,
        "title": TITLES[metric.name],
        "value": format_value(metric.name, metric.difference, signed=True),
        "interval": format_interval(metric.name, metric.difference, signed=True),
        "runs": [("A", format_estimate(metric.name, metric.first)), ("B", format_estimate(metric.name, metric.second))],
        "p_value": None if metric.p_value is None else p_text(metric.p_value),
        "verdict": metric.verdict,
        "n": metric.difference.n,
        "method": metric.method,
    }


def _returns(pair: tuple[Episode, Episode]) -> tuple[float, float]:
    return pair[0].episode_return, pair[1].episode_return


def p_text(p_value: float) -> str:
    """Returns a p-value with as many digits as it deserves."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _charts(comparison: Comparison) -> list[Chart]:
    runs = {"A": comparison.first.episodes, "B": comparison.second.episodes}
    charts = [
        histogram("Returns", "return", {name: _values("return", run) for name, run in runs.items()}),
        histogram("Lengths", "steps", {name: _values("length", run) for name, run in runs.items()}, whole=True),
    ]
    if comparison.pairs:
        points = [
            (x, y, f"seed {a.seed}: A {significant(x)}, B {significant(y)}")
            for a, b in comparison.pairs
            for x, y in [_returns((a, b))]
        ]
        charts.append(scatter("Returns of each seed", "return of A", "return of B", points))
    return charts


def _contingency(comparison: Comparison) -> list[list[int]] | None:
    """Returns counts of pairs [[both, A only], [B only, neither]] by success; None when that is not known."""
    pairs = comparison.pairs
    if not pairs or any(a.success is None or b.success is None for a, b in pairs):
        return None
    counts = [[0, 0], [0, 0]]
    for a, b in pairs:
        counts[int(not a.success)][int(not b.success)] += 1
    return counts


def _listed(comparison: Comparison, base: Path) -> list[dict[str, Any]]:
    """Returns the pairs that ended differently, then those whose returns differ most."""
    videos = [_videos(run, base) for run in (comparison.first, comparison.second)]
    ordered = sorted(
        comparison.pairs,
        key=lambda pair: (pair[0].success == pair[1].success, -abs(pair[1].episode_return - pair[0].episode_return)),
    )
    return [
        {"a": a, "b": b, "videos": [videos[0].get(a.index, []), videos[1].get(b.index, [])]}
        for a, b in ordered[:MAX_LISTED]
    ]


def _videos(run: EvaluationResult, base: Path) -> Mapping[int, list[tuple[str, str]]]:
    """Returns (camera, link) of the videos of each recorded episode."""
    if run.folder is None or not run.folder.is_dir():
        return {}
    found = {}
    for row in read_episodes(run.folder):
        paths = [
            (file["camera"], run.folder.absolute() / file["file"]) for file in row.get("files", []) if file["exists"]
        ]
        links = [(camera, quote(os.path.relpath(path, base).replace(os.sep, "/"))) for camera, path in paths]
        if links and isinstance(row.get("index"), int):
            found[row["index"]] = links
    return found
