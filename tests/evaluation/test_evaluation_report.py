"""What the report says and that nothing in it comes from elsewhere."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from coin_env import CoinEnv, coin_envs, idle

from fleet_gym.evaluation import EvaluationResult, evaluate, write_report
from fleet_gym.evaluation.run_folder import replace_text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> EvaluationResult:
    return evaluate(
        coin_envs(3),
        idle,
        episodes=40,
        out=tmp_path_factory.mktemp("report") / "run",
        config={"note": "<script>alert(1)"},
    )


@pytest.fixture(scope="module")
def page(run: EvaluationResult) -> str:
    assert run.folder is not None
    return (run.folder / "report.html").read_text(encoding="utf-8")


def test_headline_metrics_come_with_interval_and_number_of_episodes(run: EvaluationResult, page: str) -> None:
    cards = re.findall(r'<div class="card" data-metric="(\w+)">(.*?)</div>\s*<p>(.*?)</p>', page, re.DOTALL)
    assert [name for name, _, _ in cards] == ["success", "return", "length"]
    assert all("n = 40" in text for _, _, text in cards)
    success = run.success
    assert success is not None
    assert f"{100 * success.value:.1f} %" in cards[0][1]
    assert f"{100 * success.low:.1f} to {100 * success.high:.1f} %" in cards[0][1]
    assert f"{run.mean_return.low:.2f} to {run.mean_return.high:.2f}" in cards[1][1]


def test_the_charts_are_there(page: str) -> None:
    titles = re.findall(r'aria-label="([^"]+)"', page)
    assert titles == [
        "headline metrics", "Returns", "Lengths", "Success per world", "Memory of the process", "Where the time goes",
    ]  # fmt: skip
    assert page.count("<svg") == 5


def test_every_episode_is_listed_with_its_seed(run: EvaluationResult, page: str) -> None:
    table = page[page.index('id="all-episodes"') :]
    rows = re.findall(r'<tr><td class="number">(\d+)</td><td class="number">(\d+)</td>', table)
    assert [(int(index), int(seed)) for index, seed in rows] == [(e.index, e.seed) for e in run.episodes]


def test_nothing_is_loaded_from_elsewhere_and_text_is_escaped(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]*"', page)
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)
    assert "@import" not in page
    assert "<script>alert(1)" not in page
    assert html.escape("<script>alert(1)") in page


def test_the_report_can_be_written_again_from_the_folder(run: EvaluationResult, page: str) -> None:
    assert run.folder is not None
    assert write_report(run.folder) == run.folder / "report.html"
    assert (run.folder / "report.html").read_text(encoding="utf-8") == page


def test_a_result_without_files_has_no_report() -> None:
    result = evaluate(coin_envs(1), idle, episodes=1, profile="off")
    with pytest.raises(ValueError, match="run: expected an evaluation that wrote files"):
        write_report(result)


def test_sessions_of_a_resumed_run_follow_each_other_in_the_plots(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(episode: object) -> None:
        stops.append(episode)
        if len(stops) == 20:
            raise Stop

    stops: list[object] = []
    with pytest.raises(Stop):
        evaluate(coin_envs(2), idle, episodes=60, out=tmp_path / "run", on_episode=stop)
    result = evaluate(coin_envs(2), idle, episodes=60, out=tmp_path / "run")
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    steps = [int(step) for step in re.findall(r"<title>step (\d+)", text)]
    memory = steps[: len(steps) // 2]
    assert memory == sorted(set(memory))
    assert memory[-1] > result.timings["steps"]
    assert "episodes are from sessions before" in text
    # A kill may cut off the last line of a log.
    log = tmp_path / "run" / "time-1.jsonl"
    replace_text(log, log.read_text() + '{"step": 3')
    write_report(tmp_path / "run")


def test_the_page_says_why_there_is_no_success_rate(tmp_path: Path) -> None:
    class Silent(CoinEnv):
        def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
            return (*super().step(action)[:4], {})

    from gymnasium.vector import SyncVectorEnv

    env = SyncVectorEnv([Silent] * 2, autoreset_mode="Disabled")
    evaluate(env, idle, episodes=3, out=tmp_path / "run", profile="off")
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "No success rate" in text
    assert "Not profiled" in text
    assert "No episode was recorded" in text
