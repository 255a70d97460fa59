"""Exact numbers of episodes, known seeds, no bias, and intervals that hold the truth."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import av
import gymnasium as gym
import numpy as np
import pytest
from coin_env import MEAN_RETURN, SUCCESS, CoinEnv, coin_envs, idle, truth
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fleet_gym import Camera, FleetVectorEnv
from fleet_gym.evaluation import EvaluationResult, evaluate, read_run
from fleet_gym.evaluation.play import Plan
from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video.episode_log import read_episodes

REPETITIONS = 150


def test_every_world_plays_its_share_and_every_seed_is_played_once() -> None:
    env = coin_envs(4)
    result = evaluate(env, idle, episodes=10, seed=5, profile="off")
    assert [episode.index for episode in result.episodes] == list(range(10))
    assert result.seeds == list(range(5, 15))
    assert [(world.env, world.episodes) for world in result.worlds] == [(0, 3), (1, 3), (2, 2), (3, 2)]
    assert [(episode.env, episode.episode) for episode in result.episodes[:5]] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
        (0, 1),
    ]
    for episode in result.episodes:
        won, total = truth(episode.seed)
        assert (episode.success, episode.terminated, episode.truncated) == (won, won, not won)
        assert episode.steps == (1 if won else 6)
        assert episode.episode_return == pytest.approx(total)


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_the_episodes_are_the_same_whatever_the_number_of_worlds(num_envs: int) -> None:
    def play(worlds: int) -> list[tuple[Any, ...]]:
        with_lidar = {"num_obstacles": 2, "lidar_rays": 4}
        env = FleetVectorEnv(
            worlds,
            num_robots=2,
            robot="diffbot",
            autoreset_mode="Disabled",
            max_episode_steps=15,
            task_kwargs=with_lidar,
        )
        try:
            result = evaluate(env, "random", episodes=7, seed=3, profile="off")
        finally:
            env.close()
        return [(e.seed, e.steps, e.episode_return, e.success, e.collisions) for e in result.episodes]

    assert play(num_envs) == play(2)


def test_short_episodes_are_not_preferred() -> None:
    """Successes are six times as short here: the first 80 episodes to end hold far too many."""
    env = coin_envs(80)
    wins = [episode.success for episode in evaluate(env, idle, episodes=80, profile="off").episodes]
    assert np.mean(wins) == pytest.approx(np.mean([truth(seed)[0] for seed in range(80)]))
    env.reset(seed=0)
    first: list[bool] = []
    while len(first) < 80:
        _, _, terminated, truncated, _ = env.step(np.zeros((80, 1)))
        over = terminated | truncated
        first += terminated[over].tolist()
        if over.any():
            env.reset(options={"reset_mask": over})
    assert np.mean(first[:80]) > np.mean(wins) + 0.08


def test_intervals_hold_the_known_truth_as_often_as_they_say() -> None:
    env = coin_envs(40)
    results = [
        evaluate(env, idle, episodes=40, seed=1000 * repetition, profile="off") for repetition in range(REPETITIONS)
    ]
    held = [s.low <= SUCCESS <= s.high for result in results if (s := result.success) is not None]
    assert len(held) == REPETITIONS
    assert 0.91 <= np.mean(held) <= 0.985
    means = [result.mean_return for result in results]
    assert 0.88 <= np.mean([mean.low <= MEAN_RETURN <= mean.high for mean in means]) <= 0.985
    assert np.mean([mean.value for mean in means]) == pytest.approx(MEAN_RETURN, rel=0.05)


def test_policies_are_told_which_episodes_begin() -> None:
    class Listener:
        def __init__(self) -> None:
            self.told: list[tuple[int, int]] = []

        def begin_episodes(self, worlds: Any, seeds: Any) -> None:
            self.told += zip(worlds.tolist(), seeds, strict=True)

        def __call__(self, observation: Any) -> Any:
            return idle(observation)

    policy = Listener()
    evaluate(coin_envs(3), policy, episodes=7, seed=20, profile="off")
    for world in range(3):
        told = [seed for where, seed in policy.told if where == world]
        planned = [20 + index for index in range(7) if index % 3 == world]
        assert told[: len(planned)] == planned


def test_an_environment_given_stays_open_and_one_made_is_closed() -> None:
    env = coin_envs(2)
    evaluate(env, idle, episodes=2)
    assert not env.closed
    env.reset(seed=0)
    made: list[SyncVectorEnv] = []

    def factory() -> SyncVectorEnv:
        made.append(coin_envs(2))
        return made[0]

    evaluate(factory, idle, episodes=2)
    assert made[0].closed


def test_a_failing_policy_leaves_the_environment_open_and_is_heard() -> None:
    def broken(observation: Any) -> Any:
        raise RuntimeError("no idea")

    env = coin_envs(2)
    with pytest.raises(RuntimeError, match="no idea"):
        evaluate(env, broken, episodes=2)
    assert not env.closed


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EvaluationResult, list[Any]]:
    """Episodes of 5 and 7 steps with coded frames, six of eleven recorded."""
    folder = tmp_path_factory.mktemp("evaluation") / "run"
    env = CodedColorVectorEnv([5, 7], {"front": (32, 48), "back": (32, 48)}, AutoresetMode.DISABLED)
    told: list[Any] = []
    result = evaluate(
        env, lambda observation: np.zeros((2, 1)), episodes=11, out=folder, videos=6, on_episode=told.append
    )
    return folder, result, told


def test_there_is_a_row_for_every_episode_with_or_without_videos(
    recorded: tuple[Path, EvaluationResult, list[Any]],
) -> None:
    folder, result, told = recorded
    rows = sorted(read_episodes(folder), key=lambda row: row["index"])
    assert len(rows) == len(result.episodes) == len(told) == 11
    for row, episode in zip(rows, result.episodes, strict=True):
        assert row["return"] == episode.episode_return == sum(range(1, episode.steps + 1))
        assert (row["steps"], row["seed"], row["success"]) == (episode.steps, episode.seed, episode.success)
        assert (row["env"], row["episode"]) == (episode.env, episode.episode)
        assert (row["terminated"], row["truncated"]) == (episode.terminated, episode.truncated)
        assert len(row["files"]) == (2 if episode.index < 6 else 0)
        assert set(row) == set(rows[0])  # the recorder's columns, all of them


def test_videos_show_their_episodes_from_reset_to_end(recorded: tuple[Path, EvaluationResult, list[Any]]) -> None:
    folder, result, _ = recorded
    expected = {
        f"robot-cam-env{e.env}-{camera}-episode-{e.episode}.mp4": e
        for e in result.episodes[:6]
        for camera in ("front", "back")
    }
    assert {path.name for path in folder.glob("*.mp4")} == set(expected)
    for name, episode in expected.items():
        with av.open(str(folder / name)) as container:
            frames = [decode_color(f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
        assert [step for _, _, step in frames] == list(range(episode.steps + 1))
        assert {(env, index) for env, index, _ in frames} == {(episode.env, episode.episode)}


def test_results_are_read_back_as_they_were(recorded: tuple[Path, EvaluationResult, list[Any]]) -> None:
    folder, result, _ = recorded
    again = read_run(folder)
    assert again == result
    document = json.loads((folder / "results.json").read_text())
    assert document["seeds"] == list(range(11))
    assert document["metrics"]["success"]["n"] == 11
    assert set(document["versions"]) >= {"python", "fleet-gym", "gymnasium", "numpy"}
    assert document["timings"]["steps"] > 0
    assert document["memory"]["highest_rss_mb"] > 10


def test_a_finished_run_is_read_and_not_played_again(recorded: tuple[Path, EvaluationResult, list[Any]]) -> None:
    folder, result, _ = recorded
    env = CodedColorVectorEnv([5, 7], {"front": (32, 48), "back": (32, 48)}, AutoresetMode.DISABLED)

    def never(observation: Any) -> Any:
        raise AssertionError("played again")

    never.__qualname__, never.__module__ = str(result.config["policy"]).split(":")[1], __name__
    told: list[Any] = []
    assert evaluate(env, never, episodes=11, out=folder, videos=6, on_episode=told.append) == result
    assert told == list(result.episodes)


@pytest.mark.parametrize("stop_after", [1, 4, 9])
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, stop_after: int) -> None:
    class Enough(Exception):
        pass

    def make() -> CodedColorVectorEnv:
        return CodedColorVectorEnv([3, 5], {"front": (32, 48)}, AutoresetMode.DISABLED)

    ended: list[Any] = []

    def stop(episode: Any) -> None:
        ended.append(episode)
        if len(ended) == stop_after:
            raise Enough

    def policy(observation: Any) -> Any:
        return np.zeros((2, 1))

    with pytest.raises(Enough):
        evaluate(make, policy, episodes=9, out=tmp_path / "cut", videos=4, on_episode=stop)
    resumed = evaluate(make, policy, episodes=9, out=tmp_path / "cut", videos=4)
    whole = evaluate(make, policy, episodes=9, out=tmp_path / "whole", videos=4)
    assert resumed.timings["resumed_episodes"] >= stop_after - 2
    assert resumed.episodes == whole.episodes
    assert resumed.metrics == whole.metrics
    names = [sorted(path.name for path in (tmp_path / run).glob("*.mp4*")) for run in ("cut", "whole")]
    assert names[0] == names[1]
    assert len(read_episodes(tmp_path / "cut")) == 9
    assert (tmp_path / "cut" / "report.html").exists()


@pytest.mark.parametrize("resets", [1, 3])
def test_an_environment_that_was_used_before_is_evaluated_as_a_new_one(tmp_path: Path, resets: int) -> None:
    class Enough(Exception):
        pass

    def stop(episode: Any) -> None:
        if episode.index == 3:
            raise Enough

    def policy(observation: Any) -> Any:
        return np.zeros((2, 1))

    def make() -> CodedColorVectorEnv:
        return CodedColorVectorEnv([3, 5], {"front": (32, 48)}, AutoresetMode.DISABLED)

    new, used = make(), make()
    for seed in range(resets):
        used.reset(seed=seed)
        used.step(np.zeros((2, 1)))
    used.reset(options={"reset_mask": np.array([False, True])})  # worlds need not be equally far
    expected = evaluate(new, policy, episodes=7, out=tmp_path / "new", videos=4)
    with pytest.raises(Enough):
        evaluate(used, policy, episodes=7, out=tmp_path / "used", videos=4, on_episode=stop)
    result = evaluate(used, policy, episodes=7, out=tmp_path / "used", videos=4)
    assert result.timings["resumed_episodes"] > 0
    assert result.metrics["length"] == expected.metrics["length"]
    rows, planned = (
        sorted(
            (row["index"], row["episode"], row["seed"], row["steps"], [file["file"] for file in row["files"]])
            for row in read_episodes(tmp_path / run)
        )
        for run in ("used", "new")
    )
    assert rows == planned
    assert len(rows) == 7
    for *_, steps, files in rows[:4]:
        with av.open(str(tmp_path / "used" / files[0])) as container:
            frames = [decode_color(f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
        assert [step for _, _, step in frames] == list(range(steps + 1))


def test_a_fleet_that_was_used_before_is_recorded(tmp_path: Path) -> None:
    env = FleetVectorEnv(
        2,
        num_robots=2,
        robot="diffbot",
        autoreset_mode="Disabled",
        max_episode_steps=4,
        cameras=[Camera("above", 32, 32, position=(0.0, -2.5, 4.0), target=(0.0, 0.0, 0.0))],
        camera_obs=False,
    )
    for out in ("first", "second"):
        result = evaluate(env, "scripted", episodes=3, seed=5, out=tmp_path / out, profile="off")
        assert [episode.index for episode in result.episodes] == [0, 1, 2]
        assert [row["seed"] for row in sorted(read_episodes(tmp_path / out), key=lambda row: row["index"])] == [5, 6, 7]
    env.close()
    names = [sorted(path.name for path in (tmp_path / out).glob("*.mp4")) for out in ("first", "second")]
    assert names[0] == names[1]
    assert len(names[0]) == 3


def test_without_a_success_in_the_infos_there_is_no_success_rate() -> None:
    class Silent(CoinEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return (*super().step(action)[:4], {})

    result = evaluate(SyncVectorEnv([Silent] * 2, autoreset_mode="Disabled"), idle, episodes=3, profile="off")
    assert result.success is None
    assert set(result.metrics) == {"return", "length"}
    assert all(world.success is None for world in result.worlds)


def test_more_worlds_than_episodes_play_only_the_episodes() -> None:
    result = evaluate(coin_envs(5), idle, episodes=2, profile="off")
    assert result.seeds == [0, 1]
    assert Plan(2, 5, 0).shares.tolist() == [1, 1, 0, 0, 0]


def test_rewards_that_are_not_finite_are_an_error() -> None:
    class Broken(CoinEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, math.nan, terminated, truncated, info

    with pytest.raises(ValueError, match=r"env: expected 1 finite rewards, got \[nan\]"):
        evaluate(SyncVectorEnv([Broken], autoreset_mode="Disabled"), idle, episodes=1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"episodes": 0}, ValueError, "episodes: expected an int >= 1, got 0"),
        ({"episodes": 2.5}, TypeError, "episodes"),
        ({"seed": -1}, ValueError, "seed: expected an int >= 0, got -1"),
        ({"confidence": 1}, ValueError, "confidence: expected a number above 0 and below 1, got 1"),
        ({"videos": -1}, ValueError, "videos"),
        ({"cameras": "front"}, TypeError, "cameras: expected a list of camera names, got 'front'"),
        ({"frame_source": "screen"}, ValueError, "frame_source"),
        ({"profile": "trace"}, ValueError, "profile: expected one of 'light', 'auto', 'off', got 'trace'"),
        ({"policy": "nobody"}, ValueError, "policy: expected 'scripted', 'random', a file"),
        ({"policy": "scripted"}, ValueError, "got 'scripted', which drives Navigation only"),
        ({"policy": 3}, TypeError, "policy: expected a name or a function"),
        ({"env": 3}, TypeError, "env: expected a gymnasium.vector.VectorEnv"),
        ({"env": coin_envs(2, AutoresetMode.NEXT_STEP)}, ValueError, "expected autoreset_mode=AutoresetMode.DISABLED"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    valid: dict[str, Any] = {"env": coin_envs(2), "policy": idle, "episodes": 3, "out": tmp_path / "run"}
    with pytest.raises(error, match=message):
        evaluate(**{**valid, **arguments})
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match="with another run: seed is 0 there, 1 here"):
        evaluate(coin_envs(2), idle, episodes=3, seed=1, out=tmp_path / "run")
    with pytest.raises(ValueError, match="with another run: num_envs is 2 there, 3 here"):
        evaluate(coin_envs(3), idle, episodes=3, out=tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"out: expected a new folder or one of the same run, got .* with other files"):
        evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "letters")
    with pytest.raises(NotADirectoryError, match="out: expected a folder, got the file"):
        evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "letters" / "a.txt")
    (tmp_path / "letters" / "a.txt").unlink()
    (tmp_path / "letters" / "run.json").write_text("{")
    with pytest.raises(ValueError, match="got a damaged"):
        evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "letters")


def test_an_environment_made_otherwise_is_another_run(tmp_path: Path) -> None:
    def fleet(**task_kwargs: Any) -> FleetVectorEnv:
        arguments: dict[str, Any] = {"num_robots": 1, "robot": "diffbot", "max_episode_steps": 3}
        return FleetVectorEnv(1, **arguments, autoreset_mode="Disabled", task_kwargs=task_kwargs)

    out = tmp_path / "run"
    played = evaluate(fleet, "scripted", episodes=1, out=out, profile="off")
    again = evaluate(lambda: fleet(collision_cost=0.5), "scripted", episodes=1, out=out, profile="off")
    assert again == played
    with pytest.raises(ValueError, match=r"another run: env_settings.task.collision_cost is 0.5 there, 0.25 here"):
        evaluate(lambda: fleet(collision_cost=0.25), "scripted", episodes=1, out=out, profile="off")


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (
            np.zeros((3, 1)),
            ValueError,
            r"policy: expected actions of shape \(2, 1\) float32, a row per world, got \(3, 1\)",
        ),
        (np.zeros(2), ValueError, r"policy: expected actions of shape \(2, 1\) float32, a row per world, got \(2,\)"),
        ([[0.0], [0.0, 1.0]], ValueError, r"policy: expected actions of shape \(2, 1\) .*got list"),
        (None, TypeError, r"policy: expected actions of shape \(2, 1\) .*got dtype object"),
    ],
)
def test_actions_of_another_shape_are_the_policys_fault(actions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate(coin_envs(2), lambda observation: actions, episodes=2)


def test_a_discrete_action_is_a_whole_number() -> None:
    env = gym.make_vec(
        "CartPole-v1", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED}
    )
    with pytest.raises(TypeError, match=r"policy: expected actions of shape \(2,\) int64.* got dtype float64"):
        evaluate(env, lambda observation: np.zeros(2), episodes=2)
    assert len(evaluate(env, lambda observation: [0, 1], episodes=2).episodes) == 2
    env.close()


def test_a_run_that_fails_at_once_leaves_the_folder_to_a_mended_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="camera_obs"):
        evaluate(coin_envs(2), idle, episodes=3, out=tmp_path, cameras=["left"], frame_source="obs")
    assert list(tmp_path.iterdir()) == []
    evaluate(coin_envs(2), idle, episodes=3, out=tmp_path)


def test_going_on_with_other_versions_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "run")
    assert caplog.records == []
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    run["versions"]["numpy"] = "1.0"
    (tmp_path / "run" / "run.json").write_text(json.dumps(run))
    (tmp_path / "run" / "results.json").unlink()
    evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "run")
    (record,) = caplog.records
    assert record.name == "fleet_gym.evaluation"
    assert f"begun with numpy 1.0, now {np.__version__}" in record.getMessage()


def test_two_at_once_cannot_evaluate_into_one_folder(tmp_path: Path) -> None:
    def intrude(episode: Any) -> None:
        with pytest.raises(ValueError, match="into which another process evaluates"):
            evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "run")

    evaluate(coin_envs(2), idle, episodes=3, out=tmp_path / "run", on_episode=intrude)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "got something else"), ("[]", "damaged"), ('{"format": "other"}', "expected one of this version")],
)
def test_reading_what_is_no_evaluation_says_so(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_run(tmp_path)
