"""Two runs side by side: which pairs, which differences, which words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet_gym.evaluation import EvaluationResult, compare, write_comparison
from fleet_gym.evaluation.play import Episode

CONFIG = {"env": "Coin-v0", "policy": "a", "max_steps": 5}


def run(seeds: range, shift: float = 0.0, wins: float = 0.5, policy: str = "a") -> EvaluationResult:
    """Episodes whose return is mostly decided by their seed."""
    episodes = []
    for index, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        hard, luck = rng.random(), np.random.default_rng([seed, len(policy)]).normal(0.0, 0.1)
        episodes.append(
            Episode(
                index=index, env=0, episode=index, seed=seed, steps=5, episode_return=10 * hard + shift + luck,
                success=bool(hard < wins), collisions=None, terminated=True, truncated=False,
            )
        )  # fmt: skip
    return EvaluationResult(tuple(episodes), config={**CONFIG, "policy": policy}, versions={"python": "3.11"})


def test_paired_seeds_show_a_difference_that_averages_hide() -> None:
    a, b = run(range(60)), run(range(60), shift=0.3, policy="bc")
    paired = next(metric for metric in compare(a, b).metrics if metric.name == "return")
    assert paired.verdict == "better"
    assert paired.difference.low < 0.3 < paired.difference.high
    assert paired.difference.n == 60
    elsewhere = run(range(1000, 1060), shift=0.3, policy="bc")
    comparison = compare(a, elsewhere)
    assert comparison.pairs == ()
    assert any(note.startswith("Unpaired: of 60 and 60 seeds 0 are common") for note in comparison.notes)
    unpaired = next(metric for metric in comparison.metrics if metric.name == "return")
    assert unpaired.verdict == "no difference"
    width = unpaired.difference.high - unpaired.difference.low
    assert width > 5 * (paired.difference.high - paired.difference.low)


def test_pairs_have_the_same_seed_whatever_their_order() -> None:
    a, b = run(range(30)), run(range(40))
    b = replace(b, episodes=tuple(reversed(b.episodes)))
    comparison = compare(a, b)
    assert len(comparison.pairs) == 30
    assert all(one.seed == other.seed for one, other in comparison.pairs)
    assert any("over the 30 seeds that both have, of 30 and 40" in note for note in comparison.notes)
    (difference,) = (metric.difference for metric in comparison.metrics if metric.name == "return")
    assert difference.value == pytest.approx(0.0, abs=1e-12)
    assert (difference.low, difference.high) == (difference.value, difference.value)


def test_successes_are_tested_on_the_pairs_that_differ() -> None:
    comparison = compare(run(range(100), wins=0.5), run(range(100), wins=0.7))
    success = comparison.metrics[0]
    wins = sum(a.success != b.success for a, b in comparison.pairs)
    assert success.name == "success"
    assert success.p_value == pytest.approx(2.0 / 2**wins)  # all of them the same way
    assert success.verdict == "better"
    assert compare(run(range(100), wins=0.7), run(range(100), wins=0.5)).metrics[0].verdict == "worse"
    alone = compare(run(range(100), wins=0.5), run(range(500, 600), wins=0.7)).metrics[0]
    assert "Fisher" in alone.method
    assert alone.p_value is not None


def test_lengths_differ_but_are_neither_better_nor_worse() -> None:
    a = run(range(20))
    b = replace(a, episodes=tuple(replace(episode, steps=9) for episode in a.episodes))
    (length,) = (metric for metric in compare(a, b).metrics if metric.name == "length")
    assert (length.difference.value, length.verdict) == (4.0, "differs")


def test_runs_of_one_environment_made_otherwise_are_compared_with_a_note() -> None:
    a = run(range(20))
    b = replace(a, config={**CONFIG, "max_steps": 9}, versions={"python": "3.10"})
    notes = compare(a, b).notes
    assert "The environments differ: max_steps: 5 and 9." in notes
    assert "The versions differ: python 3.11 and 3.10." in notes
    assert compare(a, a).notes == ()


def test_only_what_environments_are_makes_them_differ() -> None:
    settings = {"robot": "diffbot", "task": {"num_obstacles": 4, "lidar_rays": 0}}
    a = replace(run(range(20)), config={**CONFIG, "env_kwargs": {}, "env_settings": settings})
    b = replace(a, config={**a.config, "env_kwargs": {"robot": "diffbot", "task_kwargs": {"num_obstacles": 4}}})
    assert compare(a, b).notes == ()
    other = {**settings, "task": {"num_obstacles": 8, "lidar_rays": 0}}
    b = replace(a, config={**a.config, "env_settings": other})
    assert compare(a, b).notes == ("The environments differ: task.num_obstacles: 4 and 8.",)
    old = replace(a, config={**CONFIG, "env_kwargs": {"robot": "husky"}})  # of a version that did not write settings
    assert compare(a, old).notes == ("The environments differ: env_kwargs.robot: None and 'husky'.",)


def test_runs_of_different_environments_are_refused() -> None:
    other = replace(run(range(20)), config={**CONFIG, "env": "Pole-v1"})
    with pytest.raises(ValueError, match="of the same environment, got 'Coin-v0' and 'Pole-v1'"):
        compare(run(range(20)), other)


def test_the_confidence_is_that_of_all_intervals() -> None:
    wide, narrow = (
        compare(run(range(50)), run(range(50), shift=1.0, wins=0.6, policy="bc"), confidence=c) for c in (0.99, 0.8)
    )
    for one, other in zip(wide.metrics, narrow.metrics, strict=True):
        if one.name != "length":
            assert one.difference.high - one.difference.low > other.difference.high - other.difference.low
    with pytest.raises(ValueError, match="confidence"):
        compare(run(range(5)), run(range(5)), confidence=0)


def test_the_page_says_both_runs_and_their_difference(tmp_path: Path) -> None:
    a, b = run(range(60)), run(range(60), shift=0.3, wins=0.6, policy="<b>")
    comparison = compare(a, b)
    page = write_comparison(comparison, tmp_path)
    assert page == tmp_path / "compare.html"
    text = page.read_text(encoding="utf-8")
    assert "<b> in" not in text
    assert "&lt;b&gt; in Coin-v0" in text
    assert re.findall(r'data-metric="(\w+)"', text) == ["success", "return", "length"]
    counts = [
        int(count) for count in re.findall(r'<td class="number">(\d+)</td>', text[text.index("contingency") :])[:4]
    ]
    assert sum(counts) == 60
    assert counts[1] == 0  # nobody lost what the first run won
    assert counts[2] == sum(x.success != y.success for x, y in comparison.pairs)
    listed = text[text.index('id="pairs"') :]
    first = re.search(r'<tr><td class="number">(\d+)</td>', listed)
    assert first is not None
    assert int(first[1]) in {x.seed for x, y in comparison.pairs if x.success != y.success}
    assert not re.findall(r"https?://", text)


def test_averages_of_both_runs_are_at_the_confidence_of_the_comparison() -> None:
    a, b = replace(run(range(50)), confidence=0.5), replace(run(range(50), policy="bc"), confidence=0.999)
    same = compare(run(range(50)), run(range(50), policy="bc"))
    for one, other in zip(compare(a, b).metrics, same.metrics, strict=True):
        assert (one.first, one.second, one.difference) == (other.first, other.second, other.difference)
        assert one.p_value == other.p_value


def test_one_episode_shows_nothing_and_few_little(tmp_path: Path) -> None:
    one = compare(run(range(1)), run(range(1), shift=5.0, policy="bc"))
    verdicts = {metric.name: metric.verdict for metric in one.metrics}
    assert verdicts == {"success": "no difference", "return": "one episode", "length": "one episode"}
    text = write_comparison(one, tmp_path).read_text(encoding="utf-8")
    assert text.count("One episode shows nothing.") == 2
    assert text.count("no interval") == 6
    assert any("fewer than 20 episodes are too narrow" in note for note in one.notes)
    assert not any("too narrow" in note for note in compare(run(range(20)), run(range(20), policy="bc")).notes)


def test_what_was_run_stands_side_by_side_and_differences_stand_out(tmp_path: Path) -> None:
    a, b = run(range(20)), run(range(20), policy="bc")
    b = replace(b, versions={"python": "3.11", "torch": "2"})
    text = write_comparison(compare(a, b), tmp_path).read_text(encoding="utf-8")
    facts = text[text.index('id="facts"') :]
    rows = re.findall(r"<tr( class=.differs.)?><td>(.*?)</td><td.*?>(.*?)</td><td.*?>(.*?)</td></tr>", facts)
    assert [row[1:] for row in rows if row[0]] == [("policy", "a", "bc"), ("torch", "", "2")]
    a, b = (replace(one, config={**one.config, "env_settings": {"task": {"rays": n}}}) for n, one in enumerate((a, b)))
    text = write_comparison(compare(a, b), tmp_path).read_text(encoding="utf-8")
    assert '<tr class="differs"><td>task.rays</td><td class="text">0</td><td class="text">1</td></tr>' in text
    assert ("", "max steps", "5", "5") in rows
    assert "only pairs with videos" not in text
