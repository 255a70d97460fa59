"""What the report says and that nothing in it comes from elsewhere."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coin_env import CoinEnv, coin_envs, idle

from fleet_gym import FleetVectorEnv
from fleet_gym.evaluation import EvaluationResult, evaluate, read_run, write_report
from fleet_gym.evaluation.results import FORMAT
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
    assert all("n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}40" in text for _, _, text in cards)
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


class Priced(CoinEnv):
    """Pays in a currency of another order of magnitude."""

    def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, PRICE[0] * (reward + 0.25), terminated, truncated, info


PRICE = [1.0]


@pytest.mark.parametrize("price", [1e-5, 1.0, 1e6])
def test_returns_of_any_size_keep_their_digits(price: float, tmp_path: Path) -> None:
    from gymnasium.vector import SyncVectorEnv

    PRICE[0] = price
    env = SyncVectorEnv([Priced] * 2, autoreset_mode="Disabled")
    result = evaluate(env, idle, episodes=30, out=tmp_path / "run", profile="off")
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    card = text[text.index('data-metric="return"') :]
    low, high = map(float, re.findall(r'"interval-text">(\S+) to (\S+)</div>', card)[0])
    width = result.mean_return.high - result.mean_return.low
    assert (low, high) == pytest.approx((result.mean_return.low, result.mean_return.high), abs=width / 10)
    listed = re.findall(r'<td class="number">(-?[\d.]+)</td><td>(?:yes|no)', text[text.index('id="all-episodes"') :])
    returns = [episode.episode_return for episode in result.episodes]
    assert [float(value) for value in listed] == pytest.approx(returns, abs=max(returns) / 100)
    assert max(map(len, listed)) <= 11


def test_one_episode_has_no_interval(tmp_path: Path) -> None:
    evaluate(coin_envs(1), idle, episodes=1, out=tmp_path / "run", profile="off")
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "1 episode with seed 0, played in 1 world" in text
    assert text.count('<div class="interval-text">no interval</div>') == 2
    assert "fewer than 20 episodes are too narrow" in text


def test_the_environments_settings_have_a_row_each(tmp_path: Path) -> None:
    env = FleetVectorEnv(1, num_robots=1, robot="diffbot", autoreset_mode="Disabled", max_episode_steps=2)
    evaluate(env, "scripted", episodes=1, out=tmp_path / "run", profile="off", videos=0)
    env.close()
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    rows = dict(re.findall(r"<tr><td>(\S+)</td><td class=.text.>(.*?)</td></tr>", text))
    assert (rows["robot"], rows["dynamics"], rows["task.num_obstacles"]) == ("diffbot", "kinematic", "4")
    assert "task.goal_radius" not in rows  # nobody asked for one
    assert "{" not in "".join(rows.values())


def test_enough_episodes_need_no_warning(page: str) -> None:
    assert "too narrow" not in page


def test_the_page_says_how_many_worlds_it_shows(tmp_path: Path) -> None:
    result = evaluate(coin_envs(45), idle, episodes=45, out=tmp_path / "run", profile="off")
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Success is shown of the first 40 of 45 worlds" in text
    silent = replace(result, episodes=tuple(replace(episode, success=None) for episode in result.episodes))
    assert "of 45 worlds;" not in write_report(silent).read_text(encoding="utf-8")


def test_videos_are_in_the_order_of_the_episodes(tmp_path: Path) -> None:
    from gymnasium.vector import AutoresetMode

    from fleet_gym.testing.coded_color_env import CodedColorVectorEnv

    env = CodedColorVectorEnv([9, 2, 4], {"front": (64, 64)}, AutoresetMode.DISABLED)
    evaluate(env, lambda observation: np.zeros((3, 1)), episodes=6, out=tmp_path / "run", profile="off")
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>(episode .*?)\s*<span", text)
    assert headings == [f"episode {k} \N{MIDDLE DOT} world {k % 3}" for k in range(6)]
    # Videos are of worlds and of episodes over all of them, as charts and tables are.
    shown = text[text.index('<form id="controls">') : text.index('<p id="nothing"')]
    assert "log</option>" not in shown
    assert not re.findall(r">\s*env\b", shown, flags=re.IGNORECASE)


WHOLE = {"format": FORMAT, "config": {}, "versions": {}, "timings": {}, "memory": {}}
EPISODE = {
    "index": 0, "env": 0, "episode": 0, "seed": 0, "steps": 1, "episode_return": 1.0, "success": None,
    "collisions": None, "terminated": True, "truncated": False,
}  # fmt: skip
METRICS = {"return": {"confidence": 0.95}}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({**WHOLE, "metrics": METRICS}, "one without 'episodes'"),
        ({**WHOLE, "metrics": METRICS, "episodes": [{"a": 1}]}, "others"),
        ({**WHOLE, "metrics": METRICS, "episodes": []}, "damaged"),
        ({**WHOLE, "metrics": METRICS, "episodes": [EPISODE], "config": []}, "damaged"),
        ({**WHOLE, "metrics": {"return": {"confidence": 7}}, "episodes": [EPISODE]}, "confidence: expected"),
        ({**WHOLE, "metrics": {"return": {"confidence": "x"}}, "episodes": [EPISODE]}, "others"),
    ],
)
def test_damaged_results_are_refused_with_what_is_wrong(document: dict[str, object], said: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"run .*{said}"):
        read_run(tmp_path)


def test_a_folder_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got one that is not there: "):
        read_run(tmp_path / "typo")
    with pytest.raises(ValueError, match="got something else: "):
        read_run(tmp_path)
