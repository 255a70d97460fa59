"""Which frames an episode's video has, whatever happens to the episode: resets, joins, one step, none."""

import functools
import logging

import pytest
from gymnasium.vector import AutoresetMode
from recorded_videos import MODES, make_env, run, videos, wait_for

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
from fleet_gym.testing.frame_counting_writer import FrameCountingWriter
from fleet_gym.video import VideoEncodeError, parse_episode_video_filename, read_episodes
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder


@pytest.fixture(params=["moviepy", "pool"])
def record(request):
    """Makes recorders of one backend."""
    return functools.partial(CameraObsVideoRecorder, backend=request.param)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async", "native"])
def test_every_file_is_t0_to_tT_of_one_episode(tmp_path, record, mode, kind):
    lengths = [3, 4, 1] if kind == "native" else [2, 4]
    recorder = record(make_env(kind, lengths, mode), tmp_path)
    run(recorder, 5)
    recorder.close()
    found = videos(tmp_path)
    for name, frames in found.items():
        parsed = parse_episode_video_filename(name)
        assert frames == [(parsed.env, parsed.episode, t) for t in range(lengths[parsed.env] + 1)]
        assert parsed.camera == "front"
    cycle = 1 if mode == AutoresetMode.NEXT_STEP else 0  # a step is spent on the reset
    expected = sum((5 + cycle) // (length + cycle) for length in lengths)
    assert len(found) == expected
    assert not list(tmp_path.glob("*.part"))
    rows = read_episodes(tmp_path)
    assert sorted(file["file"] for row in rows for file in row["files"]) == sorted(found)
    for row in (row for row in rows if not row["interrupted"]):
        length = lengths[row["env"]]
        assert row["steps"] == length
        assert row["return"] == length * (length + 1) / 2
        assert row["terminated"] == (row["env"] % 2 == 0)
        assert row["truncated"] == (row["env"] % 2 == 1)
        assert row["success"] == (row["episode"] % 2 == 0)
        assert row["files"][0]["frames"] == length + 1
        assert row["files"][0]["bytes"] == (tmp_path / row["files"][0]["file"]).stat().st_size


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep", [True, False])
def test_an_explicit_reset_makes_the_episode_partial(tmp_path, record, mode, keep):
    recorder = record(make_env("native", [3], mode), tmp_path, save_partial_episodes=keep)
    run(recorder, 2)
    run(recorder, 3)
    run(recorder, 1)
    recorder.close()
    whole = {"robot-cam-env0-front-episode-1.mp4": [(0, 1, t) for t in range(4)]}
    last = 3 if mode == AutoresetMode.SAME_STEP else 2
    partial = {
        "robot-cam-env0-front-episode-0-partial.mp4": [(0, 0, t) for t in range(3)],
        f"robot-cam-env0-front-episode-{last}-partial.mp4": [(0, last, t) for t in range(2)],
    }
    assert videos(tmp_path) == (whole | partial if keep else whole)
    rows = read_episodes(tmp_path)
    assert [(row["episode"], row["interrupted"], len(row["files"])) for row in rows] == [
        (0, True, int(keep)),
        (1, False, 1),
        (last, True, int(keep)),
    ]


def test_an_episode_without_a_step_leaves_nothing(tmp_path, record):
    recorder = record(make_env("native", [3, 3], MODES[0]), tmp_path, save_partial_episodes=True)
    recorder.reset()
    recorder.reset()
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_an_episode_without_a_step_leaves_the_file_of_another_recorder(tmp_path, record):
    first, second = (record(make_env("native", [3], MODES[0]), tmp_path) for _ in range(2))
    run(first, 2)
    (part,) = wait_for(tmp_path, "*.part", 1)
    second.reset()
    second.reset()
    second.close()
    assert part.exists()
    run(first, 1, reset=False)
    first.close()
    assert videos(tmp_path) == {"robot-cam-env0-front-episode-0.mp4": [(0, 0, t) for t in range(4)]}


def test_a_video_whose_name_was_taken_leaves_the_file_of_another_recorder(tmp_path, record):
    first = record(make_env("native", [3], MODES[0]), tmp_path)
    second = record(make_env("native", [3], MODES[0]), tmp_path, overwrite="error")
    second.reset()
    run(first, 2)
    (part,) = wait_for(tmp_path, "*.part", 1)

    def step_and_close():
        run(second, 1, reset=False)
        second.close()

    with pytest.raises(VideoEncodeError, match="robot-cam-env0-front-episode-0"):
        step_and_close()
    second.close()
    assert part.exists()
    run(first, 1, reset=False)
    first.close()
    assert videos(tmp_path) == {"robot-cam-env0-front-episode-0.mp4": [(0, 0, t) for t in range(4)]}


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (3, 2)])
def test_an_episode_joined_before_any_image_was_seen(tmp_path, record, length, stride):
    env = make_env("native", [length], AutoresetMode.SAME_STEP, final_obs=False)
    env.reset()
    recorder = record(env, tmp_path, stride=stride, episode_trigger=lambda episode: episode != 1)
    run(recorder, 3 * length, reset=False)
    recorder.close()
    taken = range(0, length, stride)
    joined = [(0, 0, t) for t in taken if t > 0]
    expected = {"robot-cam-env0-front-episode-0.mp4": joined} if joined else {}
    expected["robot-cam-env0-front-episode-2.mp4"] = [(0, 2, t) for t in taken]
    assert videos(tmp_path) == expected
    row = next(iter(read_episodes(tmp_path)))
    assert (row["episode"], row["first_frame"]) == (0, "missing")


def test_a_first_frame_alone_has_no_file(tmp_path, record):
    recorder = record(make_env("native", [3, 3], AutoresetMode.SAME_STEP), tmp_path)
    run(recorder, 3)
    wait_for(tmp_path, "*.mp4", 2)
    assert sorted(path.name for path in tmp_path.glob("*.mp4*")) == [
        f"robot-cam-env{env}-front-episode-0.mp4" for env in range(2)
    ]
    run(recorder, 1, reset=False)
    recorder.close()
    assert videos(tmp_path)["robot-cam-env0-front-episode-0.mp4"] == [(0, 0, t) for t in range(4)]


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_of_which_only_one_frame_is_handed_over(tmp_path, record, mode):
    recorder = record(make_env("native", [1], mode, final_obs=False), tmp_path)
    run(recorder, 1)
    recorder.close()
    last = [] if mode == AutoresetMode.SAME_STEP else [(0, 0, 1)]
    assert videos(tmp_path) == {"robot-cam-env0-front-episode-0.mp4": [(0, 0, 0), *last]}


def test_rows_of_many_episodes_that_end_together_are_written_over_a_few_steps(tmp_path):
    env = make_env("native", [6] * 100, AutoresetMode.SAME_STEP)
    recorder = CameraObsVideoRecorder(env, tmp_path, writer_factory=FrameCountingWriter)
    run(recorder, 5)
    counts = []
    for _ in range(7):
        run(recorder, 1, reset=False)
        counts.append(len(read_episodes(tmp_path)))
    assert counts == [25, 43, 59, 75, 91, 100, 125]
    recorder.close()
    rows = read_episodes(tmp_path)
    assert sorted((row["episode"], row["env"]) for row in rows) == [(e, env) for e in range(2) for env in range(100)]


def test_stepping_before_a_reset_of_the_recorder(tmp_path, record):
    env = make_env("sync", [4], AutoresetMode.NEXT_STEP)
    env.reset()
    recorder = record(env, tmp_path)
    run(recorder, 9, reset=False)
    recorder.close()
    assert videos(tmp_path) == {
        "robot-cam-env0-front-episode-0.mp4": [(0, 0, t) for t in range(1, 5)],
        "robot-cam-env0-front-episode-1.mp4": [(0, 1, t) for t in range(5)],
    }
    assert [row["first_frame"] for row in read_episodes(tmp_path)] == ["missing", "recorded"]


@pytest.mark.parametrize("mode", MODES)
def test_joining_in_the_ending_step_keeps_the_old_index(tmp_path, record, mode):
    env = make_env("native", [1], mode)
    env.reset()
    recorder = record(env, tmp_path)
    run(recorder, 1, reset=False)
    recorder.close()
    assert videos(tmp_path) == {"robot-cam-env0-front-episode-0.mp4": [(0, 0, 1)]}


def test_a_masked_reset_leaves_the_others_running(tmp_path, record):
    recorder = record(make_env("sync", [3, 6], AutoresetMode.DISABLED), tmp_path)
    run(recorder, 6)
    recorder.close()
    assert videos(tmp_path) == {
        "robot-cam-env0-front-episode-0.mp4": [(0, 0, t) for t in range(4)],
        "robot-cam-env0-front-episode-1.mp4": [(0, 1, t) for t in range(4)],
        "robot-cam-env1-front-episode-0.mp4": [(1, 0, t) for t in range(7)],
    }


def test_same_step_without_a_final_observation_is_marked(tmp_path, caplog):
    env = CodedColorVectorEnv([3], autoreset_mode=AutoresetMode.SAME_STEP, final_obs=False)
    recorder = CameraObsVideoRecorder(env, tmp_path)
    with caplog.at_level(logging.WARNING, "fleet_gym.video"):
        run(recorder, 6)
    recorder.close()
    assert list(videos(tmp_path).values()) == [[(0, e, t) for t in range(3)] for e in range(2)]
    assert [row["last_frame"] for row in read_episodes(tmp_path)] == ["missing"] * 2
    assert len(caplog.records) == 1
