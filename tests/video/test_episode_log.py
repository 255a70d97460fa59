import json
import multiprocessing
import os

import numpy as np
import pytest

from fleet_gym.video import EpisodeRecord, read_episodes
from fleet_gym.video.episode_log import EPISODE_LOG, VideoFile, append_episodes
from fleet_gym.video.infos import env_info, last_info, seeds_of, success_of


def test_a_row_comes_back(tmp_path):
    record = EpisodeRecord(3, 5, seed=9, steps=7, episode_return=1.5, success=True, columns={"tag": "x"})
    record.files.append(VideoFile("front", "a.mp4", 8, 0, (64, 48), (64, 48), 123))
    append_episodes(tmp_path, [record.row()])
    (tmp_path / "a.mp4").touch()
    (row,) = read_episodes(tmp_path)
    assert (row["env"], row["episode"], row["return"], row["tag"]) == (3, 5, 1.5, "x")
    assert row["files"] == [
        {
            "camera": "front", "file": "a.mp4", "frames": 8, "dropped": 0, "size": [64, 48], "coded_size": [64, 48],
            "bytes": 123, "error": None, "exists": True,
        }
    ]  # fmt: skip


def test_a_row_cut_off_by_a_crash_spoils_nothing(tmp_path):
    append_episodes(tmp_path, [{"env": 0, "episode": 0}])
    with open(tmp_path / EPISODE_LOG, "a") as file:
        file.write('{"env": 1, "epis')
    append_episodes(tmp_path, [{"env": 2, "episode": 0}])
    assert [row["env"] for row in read_episodes(tmp_path)] == [0, 2]


@pytest.mark.parametrize(
    "line",
    [
        '{"episode_index": 0, "tasks": ["x"], "length": 10}',
        '{"env": 0, "episode": 1, "files": null}',
        '{"env": 0, "episode": 1, "files": ["a.mp4"]}',
        '{"env": 0, "episode": 1, "steps": "many"}',
        "[1]",
    ],
)
def test_rows_of_another_kind_are_left_out(tmp_path, line):
    (tmp_path / EPISODE_LOG).write_text(line + "\n")
    append_episodes(tmp_path, [{"env": 2, "episode": 0, "files": [{"camera": "front"}]}])
    (row,) = read_episodes(tmp_path)
    assert row["env"] == 2
    (file,) = row["files"]
    assert (file["file"], file["frames"], file["error"], file["exists"]) == (None, 0, None, False)


def _write_many(folder, env):
    for episode in range(200):
        append_episodes(folder, [{"env": env, "episode": episode, "padding": "x" * 500}])


def test_processes_write_whole_rows(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_many, args=(tmp_path, env)) for env in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = (tmp_path / EPISODE_LOG).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert sorted((row["env"], row["episode"]) for row in rows) == [(e, k) for e in range(3) for k in range(200)]


def test_reading_what_is_not_there(tmp_path):
    assert read_episodes(tmp_path) == []
    with pytest.raises(NotADirectoryError, match="nowhere"):
        read_episodes(tmp_path / "nowhere")


def test_infos_of_one_environment():
    infos = {
        "success": np.array([True, False]), "_success": np.array([True, True]),
        "speed": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "nested": {"x": np.array([5, 6]), "_x": np.array([True, False])},
        "only_zero": np.array([7, 0]), "_only_zero": np.array([True, False]),
    }  # fmt: skip
    info = env_info(infos, 0)
    assert info["speed"].tolist() == [1.0, 2.0]
    assert {key: value for key, value in info.items() if key != "speed"} == {
        "success": True, "nested": {"x": 5}, "only_zero": 7,
    }  # fmt: skip
    assert set(env_info(infos, 1)) == {"success", "speed", "nested"}
    assert success_of(env_info(infos, 1)) is False
    assert success_of({"is_success": np.float32(1)}) is True
    assert success_of({}) is None


def test_the_last_infos_come_from_final_info():
    mask = np.array([False, True])
    infos = {
        "success": np.array([False, False]),
        "final_info": {"success": mask, "_success": mask}, "_final_info": mask,
    }  # fmt: skip
    assert last_info(infos, 1) == {"success": True}
    assert last_info(infos, 0) == {"success": False}
    older = {"final_info": np.array([None, {"success": True}], dtype=object), "_final_info": mask}
    assert last_info(older, 1) == {"success": True}


def test_seeds_are_spread_as_gymnasium_does():
    assert seeds_of(5, 3) == [5, 6, 7]
    assert seeds_of([4, None, 2], 3) == [4, None, 2]
    assert seeds_of(np.array([4, 3]), 2) == [4, 3]
    assert seeds_of(None, 2) == [None, None]


def test_half_a_write_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    append_episodes(tmp_path, [{"env": 0}])
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="bytes written"):
        append_episodes(tmp_path, [{"env": 1}, {"env": 2}, {"env": 3}])
    monkeypatch.undo()
    append_episodes(tmp_path, [{"env": 1}, {"env": 2}, {"env": 3}])
    assert (tmp_path / "episodes.jsonl").read_text() == '{"env": 0}\n{"env": 1}\n{"env": 2}\n{"env": 3}\n'
