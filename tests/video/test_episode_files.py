import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_gym.video import EpisodeVideoName, format_episode_video_filename, parse_episode_video_filename
from fleet_gym.video.episode_files import claim, publish

NAME = EpisodeVideoName("run", 0, "front", 3)


def test_the_documented_form():
    assert format_episode_video_filename("robot-cam", 3, "front", 12) == "robot-cam-env3-front-episode-12.mp4"
    assert (
        format_episode_video_filename("p", 0, "a/b", 1, start_step=7, partial=True, run=2)
        == "p-env0-a%2Fb-episode-1-from7-partial-run2.mp4"
    )


@given(
    prefix=st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
    | st.sampled_from(["a-env1", "x-env0-y-episode-3", "-", "env2-"]),
    env=st.integers(0, 2000),
    camera=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
    | st.sampled_from(
        ["a/b", "a_b", "../x", "env3-x", "x-env3-y", "env7", "c-episode-2", "c-run2", "-partial", "%65nv1"]
    ),
    episode=st.integers(0, 10**6),
    start_step=st.integers(0, 5000),
    partial=st.booleans(),
    run=st.integers(1, 30),
)
def test_every_name_parses_back(prefix, env, camera, episode, start_step, partial, run):
    name = EpisodeVideoName(prefix, env, camera, episode, start_step, partial, run)
    assert "/" not in name.filename
    assert parse_episode_video_filename(name.filename) == name
    assert parse_episode_video_filename(os.path.join("some", "folder", name.filename)) == name


@pytest.mark.parametrize("name", ["video.mp4", "a-env0-front-episode-1.avi", "a-env0-front-episode-1.mp4.part", ""])
def test_other_names_are_not_ours(name):
    assert parse_episode_video_filename(name) is None


@pytest.mark.parametrize(
    "arguments", [("", 0, "c", 0), ("a/b", 0, "c", 0), ("a", -1, "c", 0), ("a", 0, "", 0), ("a", 0, "c" * 300, 0)]
)
def test_impossible_names_are_refused(arguments):
    with pytest.raises(ValueError, match=r"expected"):
        format_episode_video_filename(*arguments)


def test_unique_never_replaces(tmp_path):
    (tmp_path / NAME.filename).write_text("precious")
    first = claim(tmp_path, NAME, "unique")
    second = claim(tmp_path, NAME, "unique")
    assert [first.run, second.run] == [2, 3]
    part = tmp_path / (first.filename + ".part")
    part.write_text("new")
    (tmp_path / first.filename).write_text("somebody was faster")
    final = publish(part, first, "unique")
    assert final.name == "run-env0-front-episode-3-run3.mp4"
    assert (tmp_path / NAME.filename).read_text() == "precious"
    assert (tmp_path / first.filename).read_text() == "somebody was faster"
    assert final.read_text() == "new"
    assert not part.exists()


def test_error_refuses_a_taken_name(tmp_path):
    (tmp_path / NAME.filename).touch()
    with pytest.raises(FileExistsError):
        claim(tmp_path, NAME, "error")
    part = tmp_path / "x.part"
    part.touch()
    with pytest.raises(FileExistsError):
        publish(part, NAME, "error")
    assert part.exists()


def test_replace_replaces(tmp_path):
    (tmp_path / NAME.filename).write_text("old")
    name = claim(tmp_path, NAME, "replace")
    assert name == NAME
    part = tmp_path / (NAME.filename + ".part")
    part.write_text("new")
    assert publish(part, name, "replace").read_text() == "new"


def test_the_part_file_is_announced_before_it_appears(tmp_path):
    seen = []
    claim(tmp_path, NAME, "unique", lambda name: seen.append((name, (tmp_path / name).exists())))
    assert seen == [(NAME.filename + ".part", False)]


def test_publishing_works_without_hard_links(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    (tmp_path / NAME.filename).write_text("precious")
    part = tmp_path / "x.part"
    part.write_text("new")
    assert publish(part, NAME, "unique").read_text() == "new"
    assert (tmp_path / NAME.filename).read_text() == "precious"
