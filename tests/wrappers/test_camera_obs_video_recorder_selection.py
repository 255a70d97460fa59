"""What is recorded and what is kept. The writers only remember frames: encoding is tested elsewhere."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.save_video import capped_cubic_video_schedule
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, coded_color_envs, decode_color
from fleet_gym.video import FrameFormat, read_episodes
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder


class TextWriter:
    """Writes each frame's code as text, so that the files can be deleted and read like videos."""

    def __init__(self, filename, size, fps, **_):
        self.filename, self.fps, self.frames = filename, fps, []

    def write_frame(self, frame):
        self.frames.append(decode_color(frame))

    def close(self):
        Path(self.filename).write_text(json.dumps({"fps": self.fps, "frames": self.frames}))


def record(folder, lengths=(3, 5), mode=AutoresetMode.NEXT_STEP, steps=12, env=None, **arguments):
    env = CodedColorVectorEnv(lengths, autoreset_mode=mode) if env is None else env
    recorder = CameraObsVideoRecorder(env, folder, "p", writer_factory=TextWriter, **arguments)
    recorder.reset(seed=7)
    for _ in range(steps):
        recorder.step(None)
    recorder.close()
    return files(folder)


def files(folder):
    """Returns {(env, episode, rest of the name): steps of the frames}."""
    found = {}
    for path in sorted(folder.glob("*.mp4")):
        frames = json.loads(path.read_text())["frames"]
        env, episode = frames[0][:2]
        assert {tuple(frame[:2]) for frame in frames} == {(env, episode)}
        rest = path.name.removeprefix(f"p-env{env}-front-episode-{episode}").removesuffix(".mp4")
        found[env, episode, rest] = [frame[2] for frame in frames]
    return found


def whole(length):
    return list(range(length + 1))


def test_env_indices(tmp_path):
    assert set(record(tmp_path, env_indices=[1])) == {(1, 0, ""), (1, 1, "")}


def test_cameras(tmp_path):
    env = CodedColorVectorEnv([2], {"front": (8, 8), "back": (8, 8)})
    record(tmp_path, env=env, steps=2, cameras=["back"])
    assert [path.name for path in tmp_path.glob("*.mp4")] == ["p-env0-back-episode-0.mp4"]


def test_episode_trigger_of_one_parameter(tmp_path):
    found = record(tmp_path, lengths=(1, 2), steps=20, episode_trigger=capped_cubic_video_schedule)
    assert set(found) == {(0, 0, ""), (0, 1, ""), (0, 8, ""), (1, 0, ""), (1, 1, "")}


@pytest.mark.parametrize(
    "trigger", [lambda env, episode: env == episode, lambda env, episode=0, /: env == 1, lambda *, flag=0: True]
)
def test_episode_trigger_of_two_parameters_is_told_apart(tmp_path, trigger):
    expected = {0: {(0, 0, ""), (1, 1, "")}, 1: {(0, 1, ""), (1, 1, "")}}
    if trigger.__kwdefaults__:
        with pytest.raises(ValueError, match="episode_trigger"):
            record(tmp_path, episode_trigger=trigger)
    else:
        assert set(record(tmp_path, episode_trigger=trigger)) == expected[int(trigger.__defaults__ is not None)]


def test_video_length(tmp_path):
    found = record(tmp_path, lengths=(5, 9), steps=6, video_length=4)
    # What was cut to length is whole although its episode was not over.
    assert found == {(0, 0, ""): [0, 1, 2, 3], (1, 0, ""): [0, 1, 2, 3]}
    rows = read_episodes(tmp_path)
    assert [(row["env"], row["steps"], row["terminated"], row["interrupted"]) for row in rows] == [
        (0, 5, True, False),
        (1, 6, False, True),
    ]


def test_video_length_of_one(tmp_path):
    assert record(tmp_path, lengths=(2,), steps=5, video_length=1) == {(0, 0, ""): [0], (0, 1, ""): [0]}


def test_episode_trigger_without_a_signature(tmp_path):
    assert set(record(tmp_path, lengths=(2,), episode_trigger={0, 2}.__contains__)) == {(0, 0, ""), (0, 2, "")}


def test_step_trigger_begins_clips_in_the_middle(tmp_path):
    found = record(tmp_path, lengths=(20, 20), steps=12, step_trigger=lambda step: step in (0, 2, 7), video_length=3)
    clips = {"": [0, 1, 2], "-from2": [2, 3, 4], "-from7": [7, 8, 9]}
    # At step 2 the first clip has just its third frame: the next begins with the same observation.
    assert found == {(env, 0, name): frames for env in range(2) for name, frames in clips.items()}
    assert [row["start_step"] for row in read_episodes(tmp_path) if row["env"] == 0] == [0, 2, 7]


def test_step_trigger_without_a_length_records_to_the_end(tmp_path):
    found = record(tmp_path, lengths=(5,), steps=11, step_trigger=lambda step: step == 2)
    assert found == {(0, 0, "-from2"): [2, 3, 4, 5]}


def test_step_and_episode_triggers_together(tmp_path):
    found = record(
        tmp_path,
        lengths=(3,),
        steps=8,
        step_trigger=lambda step: step == 5,
        episode_trigger=lambda episode: episode == 0,
    )
    assert found == {(0, 0, ""): [0, 1, 2, 3], (0, 1, "-from1"): [1, 2, 3]}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_stride_takes_every_nth_and_the_last_and_keeps_the_speed(tmp_path, mode):
    found = record(tmp_path, lengths=(7, 4), mode=mode, steps=7, stride=3)
    assert found[0, 0, ""] == [0, 3, 6, 7]
    assert found[1, 0, ""] == [0, 3, 4]
    assert json.loads((tmp_path / "p-env0-front-episode-0.mp4").read_text())["fps"] == 10 / 3


def test_keep_sees_the_outcome(tmp_path):
    seen = []

    def failures(episode):
        seen.append(
            (episode.env, episode.episode, episode.success, episode.steps, episode.episode_return, episode.seed)
        )
        assert episode.info["success"] == episode.success
        return not episode.success

    found = record(tmp_path, lengths=(3,), mode=AutoresetMode.SAME_STEP, steps=12, keep=failures)
    assert set(found) == {(0, 1, ""), (0, 3, "")}
    assert seen == [(0, e, e % 2 == 0, 3, 6.0, 7 if e == 0 else None) for e in range(4)]
    assert [(row["episode"], bool(row["files"])) for row in read_episodes(tmp_path)] == [
        (0, False), (1, True), (2, False), (3, True),
    ]  # fmt: skip


def test_keep_decides_over_cut_clips_too(tmp_path):
    found = record(tmp_path, lengths=(5,), steps=11, video_length=3, keep=lambda episode: not episode.success)
    assert found == {(0, 1, ""): [0, 1, 2]}


def test_keep_last(tmp_path):
    found = record(tmp_path, lengths=(2, 2), mode=AutoresetMode.SAME_STEP, steps=8, keep_last=3)
    assert set(found) == {(1, 2, ""), (0, 3, ""), (1, 3, "")}
    assert [row["files"][0]["exists"] for row in read_episodes(tmp_path)] == [False] * 5 + [True] * 3


def test_max_disk_mb(tmp_path):
    record(tmp_path / "free", lengths=(2,), mode=AutoresetMode.SAME_STEP, steps=8)
    size = next((tmp_path / "free").glob("*.mp4")).stat().st_size
    (tmp_path / "tight").mkdir()
    (tmp_path / "tight" / "p-env0-front-episode-77.mp4").write_text('{"frames": [[0, 77, 0]]}')
    found = record(
        tmp_path / "tight", lengths=(2,), mode=AutoresetMode.SAME_STEP, steps=8, max_disk_mb=2.5 * size / 1e6
    )
    assert set(found) == {(0, 2, ""), (0, 3, ""), (0, 77, "")}  # what others made is not touched


def test_own_columns(tmp_path):
    record(tmp_path, (3,), steps=3, episode_columns=lambda episode: {"difficulty": np.float32(0.5), "tags": ["a"]})
    (row,) = read_episodes(tmp_path)
    assert (row["difficulty"], row["tags"], row["steps"]) == (0.5, ["a"], 3)


def test_the_log_is_json_whatever_the_figures_are(tmp_path):
    class Endless(CodedColorVectorEnv):
        def step(self, actions):
            observation, reward, *rest = super().step(actions)
            return observation, reward + np.inf, *rest

    recorder = CameraObsVideoRecorder(Endless([2]), tmp_path, episode_columns=lambda episode: {"loss": [np.nan, 1.0]})
    recorder.reset()
    for _ in range(2):
        recorder.step(None)
    recorder.close()
    (line,) = (tmp_path / "episodes.jsonl").read_text().splitlines()
    row = json.loads(line, parse_constant=pytest.fail)
    assert (row["return"], row["loss"]) == (None, [None, 1.0])


@pytest.mark.parametrize(
    ("columns", "error"), [({"env": 1}, ValueError), ({"x": object()}, TypeError), (["x"], TypeError)]
)
def test_impossible_columns_are_refused(tmp_path, columns, error):
    with pytest.raises(error, match=r"episode_columns|JSON"):
        record(tmp_path, (3,), steps=3, episode_columns=lambda episode: columns)


class OneBugError(Exception):
    """Raised by a function of the user's."""


def fail_for_env_0(episode):
    if episode.env == 0:
        raise OneBugError(f"episode {episode.episode}")
    return {"fine": True}


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
@pytest.mark.parametrize("name", ["keep", "episode_columns"])
def test_a_function_that_raises_costs_no_video(tmp_path, name, backend):
    env = CodedColorVectorEnv([3, 3, 5], autoreset_mode=AutoresetMode.NEXT_STEP)
    recorder = CameraObsVideoRecorder(env, tmp_path, "p", backend=backend, **{name: fail_for_env_0})
    recorder.reset(seed=7)
    recorder.step(None)
    recorder.step(None)
    with pytest.raises(OneBugError, match="episode 0"):
        recorder.step(None)
    recorder.close()
    names = {f"p-env{env}-front-episode-0.mp4" for env in (0, 1)}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "episodes.jsonl"}
    rows = read_episodes(tmp_path)
    assert {(row["env"], row["crashed"]) for row in rows} == {(0, False), (1, False), (2, True)}
    assert {file["file"]: file["frames"] for row in rows for file in row["files"]} == dict.fromkeys(names, 4)
    assert [row.get("fine") for row in rows if row["env"] == 1] == [True if name == "episode_columns" else None]


def test_a_function_that_raises_at_close_is_told_and_the_environment_closed(tmp_path):
    env = CodedColorVectorEnv([5])
    recorder = CameraObsVideoRecorder(env, tmp_path, "p", backend="moviepy", episode_columns=fail_for_env_0)
    recorder.reset(seed=7)
    recorder.step(None)
    with pytest.raises(OneBugError, match="episode 0"):
        recorder.close()
    assert env.closed
    assert [path.name for path in tmp_path.iterdir()] == ["episodes.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"preset": 3}, TypeError),
        ({"crf": "x"}, TypeError),
        ({"crf": True}, TypeError),
        ({"crf": -1}, ValueError),
        ({"crf": float("nan")}, ValueError),
        ({"bitrate": 2_000_000}, TypeError),
        ({"bitrate": "fast"}, ValueError),
        ({"bitrate": ""}, ValueError),
    ],
)
def test_a_quality_that_no_codec_takes_is_refused_at_construction(tmp_path, arguments, error):
    with pytest.raises(error, match=f"{next(iter(arguments))}: expected"):
        CameraObsVideoRecorder(CodedColorVectorEnv([2]), tmp_path / "videos", **arguments)
    assert not (tmp_path / "videos").exists()


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_an_encoder_may_be_given_all_the_time_there_is(tmp_path, backend):
    recorder = CameraObsVideoRecorder(
        CodedColorVectorEnv([2]), tmp_path, "p", backend=backend, encoder_timeout=float("inf"), bitrate="1.5M"
    )
    recorder.reset()
    recorder.step(None)
    recorder.step(None)
    recorder.close()
    assert (tmp_path / "p-env0-front-episode-0.mp4").exists()


@pytest.mark.parametrize("more_steps", [0, 4])
def test_rows_that_could_not_be_written_are_written_with_the_next_or_at_close(tmp_path, more_steps):
    env = CodedColorVectorEnv([2], autoreset_mode=AutoresetMode.SAME_STEP)
    recorder = CameraObsVideoRecorder(env, tmp_path, "p", writer_factory=TextWriter)
    recorder.reset()
    recorder.step(None)
    (tmp_path / "episodes.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        recorder.step(None)
    (tmp_path / "episodes.jsonl").rmdir()
    for _ in range(more_steps):
        recorder.step(None)
    recorder.close()
    rows = read_episodes(tmp_path)
    assert rows[0]["episode"] == 0
    assert [row["episode"] for row in rows] == sorted({row["episode"] for row in rows})
    assert {file["file"] for row in rows for file in row["files"]} == {path.name for path in tmp_path.glob("*.mp4")}


@pytest.mark.parametrize("folder", [3, None])
def test_a_folder_that_is_no_path(folder):
    with pytest.raises(TypeError, match="video_folder: expected a path, got"):
        CameraObsVideoRecorder(CodedColorVectorEnv([2]), folder)


def test_seeds_are_logged(tmp_path):
    record(tmp_path, lengths=(2, 2), steps=2)
    assert [row["seed"] for row in read_episodes(tmp_path)] == [7, 8]


def test_rewards_that_are_not_one_number_each_are_no_reason_not_to_record(tmp_path):
    class Multi(CodedColorVectorEnv):
        def step(self, actions):
            observation, rewards, *rest = super().step(actions)
            return observation, np.stack([rewards, rewards]), *rest

    assert record(tmp_path, env=Multi([2]), steps=2) == {(0, 0, ""): [0, 1, 2]}
    assert read_episodes(tmp_path)[0]["return"] is None


class BareImageEnv(gym.Env):
    """Its observation is the image itself, as CarRacing's."""

    def __init__(self, wrap=None):
        self.inner = coded_color_envs([3])[0]()
        self.wrap = wrap
        image = self.inner.observation_space["camera_obs"]["front"]
        self.observation_space = image if wrap is None else gym.spaces.Dict({wrap: image})
        self.action_space = self.inner.action_space
        self.metadata = self.inner.metadata

    def _out(self, observation):
        image = observation["camera_obs"]["front"]
        return image if self.wrap is None else {self.wrap: image}

    def reset(self, *, seed=None, options=None):
        observation, info = self.inner.reset(seed=seed)
        return self._out(observation), info

    def step(self, action):
        observation, *rest = self.inner.step(action)
        return self._out(observation), *rest


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(("wrap", "key", "camera"), [(None, (), "obs"), ("pixels", "pixels", "pixels")])
def test_other_places_in_the_observation(tmp_path, mode, wrap, key, camera):
    env = SyncVectorEnv([lambda: BareImageEnv(wrap)], autoreset_mode=mode)
    recorder = CameraObsVideoRecorder(env, tmp_path, "p", writer_factory=TextWriter, camera_obs_key=key)
    recorder.reset()
    for _ in range(3):
        recorder.step(env.action_space.sample())
    recorder.close()
    frames = json.loads((tmp_path / f"p-env0-{camera}-episode-0.mp4").read_text())["frames"]
    assert frames == [[0, 0, t] for t in range(4)]


def test_a_key_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"camera_obs_key=\('state', 'eye'\).*'eye'"):
        record(tmp_path, camera_obs_key=("state", "eye"))
    with pytest.raises(ValueError, match=r"\['camera_obs', 'state'\]"):
        record(tmp_path, camera_obs_key="cameras")


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_frames_from_render(tmp_path, mode, caplog):
    env = SyncVectorEnv(coded_color_envs([2, 3], render_mode="rgb_array"), autoreset_mode=mode)
    recorder = CameraObsVideoRecorder(env, tmp_path, "p", writer_factory=TextWriter, frame_source="render")
    recorder.reset()
    for _ in range(6):
        recorder.step(env.action_space.sample())
    recorder.close()
    found = {}
    for path in tmp_path.glob("*.mp4"):
        for env_index, episode, step in json.loads(path.read_text())["frames"]:
            found.setdefault((env_index, episode), []).append(step)
    lost = 1 if mode == AutoresetMode.SAME_STEP else 0
    assert found[0, 0] == [0, 1, 2][: 3 - lost]
    assert found[0, 1] == [0, 1, 2][: 3 - lost]
    assert found[1, 0] == [0, 1, 2, 3][: 4 - lost]
    whole = [row for row in read_episodes(tmp_path) if not row["interrupted"]]
    assert {row["last_frame"] for row in whole} == {"missing" if lost else "recorded"}
    assert sum("last frame" in record.message for record in caplog.records) == lost


def test_render_without_images_is_told(tmp_path):
    env = SyncVectorEnv(coded_color_envs([2]))
    env.render = lambda: None
    recorder = CameraObsVideoRecorder(env, tmp_path, writer_factory=TextWriter, frame_source="render")
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        recorder.reset()


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_frames_drawn_on_demand_are_only_those_recorded(tmp_path, mode):
    lengths = [3, 4] + [50] * 8
    env = CodedColorVectorEnv(lengths, {"front": (8, 8), "back": (8, 8)}, mode, camera_obs=False)
    found = record(
        tmp_path, env=env, steps=4, frame_source="env", cameras=["front"], env_indices=[0, 1],
        episode_trigger=lambda env, episode: episode == 0,
    )  # fmt: skip
    assert found == {(0, 0, ""): whole(3), (1, 0, ""): whole(4)}
    assert {index for rendered in env.rendered for index in rendered} == {0, 1}
    assert sum(len(rendered) for rendered in env.rendered) == 4 + 5  # each frame once, and no other


def test_on_demand_needs_an_environment_that_can(tmp_path):
    recorder = CameraObsVideoRecorder(SyncVectorEnv(coded_color_envs([2])), tmp_path, frame_source="env")
    with pytest.raises(ValueError, match="render_cameras"):
        recorder.reset()


class FloatEnv(CodedColorVectorEnv):
    """Hands the images out through a function of the uint8 batch."""

    def __init__(self, change):
        super().__init__([2, 2])
        self.change = change

    def _images(self):
        return {camera: self.change(images) for camera, images in super()._images().items()}


@pytest.mark.parametrize(
    ("change", "image_format"),
    [
        (lambda images: images.astype(np.float32) / 255, FrameFormat(value_range=(0, 1))),
        (lambda images: np.moveaxis(images, -1, 1), FrameFormat(channels_first=True)),
        (lambda images: np.moveaxis(images / 127.5 - 1, -1, 1), FrameFormat(value_range=(-1, 1), channels_first=True)),
        (lambda images: np.concatenate([images, images[..., :1]], axis=-1), FrameFormat()),
    ],
)
def test_image_formats(tmp_path, change, image_format):
    found = record(tmp_path, env=FloatEnv(change), steps=2, cameras=["front"], frame_formats={"front": image_format})
    assert found == {(env, 0, ""): [0, 1, 2] for env in range(2)}


def test_float_images_without_a_range_are_refused(tmp_path):
    with pytest.raises(ValueError, match="value_range"):
        record(tmp_path, env=FloatEnv(lambda images: images / 255.0), cameras=["front"])
    with pytest.raises(ValueError, match="channels"):
        record(tmp_path, env=FloatEnv(lambda images: np.moveaxis(images, -1, 1)), cameras=["front"])
    assert not list(tmp_path.glob("*.mp4"))
