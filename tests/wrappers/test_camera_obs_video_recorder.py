import contextlib
import functools
import gc
import os
import time
from fractions import Fraction
from unittest.mock import MagicMock

import av
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from recorded_videos import MODES, make_env, run, videos

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, coded_color_envs, decode_color
from fleet_gym.testing.frame_counting_writer import FrameCountingWriter
from fleet_gym.video import VideoEncodeError, parse_episode_video_filename, read_episodes
from fleet_gym.wrappers import camera_obs_video_recorder
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder


@pytest.fixture(params=["moviepy", "pool"])
def record(request):
    """Makes recorders of one backend."""
    return functools.partial(CameraObsVideoRecorder, backend=request.param)


def test_every_camera_has_its_file(tmp_path, record):
    cameras = {"front": (32, 48), "a/b": (16, 16), "a_b": (16, 32), "../x": (64, 16), "env1-y": (16, 16)}
    recorder = record(CodedColorVectorEnv([2, 2], cameras), tmp_path / "videos", "p")
    run(recorder, 2)
    recorder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["videos"]
    parsed = {}
    for name, frames in videos(tmp_path / "videos").items():
        name = parse_episode_video_filename(name)
        parsed[name.env, name.camera] = frames
    assert parsed == {(env, camera): [(env, 0, t) for t in range(3)] for env in range(2) for camera in cameras}


def test_nothing_is_changed_on_the_way_through(tmp_path, record):
    plain = make_env("sync", [3, 4], AutoresetMode.SAME_STEP)
    recorder = record(make_env("sync", [3, 4], AutoresetMode.SAME_STEP), tmp_path)
    actions = np.zeros((2, 1), dtype=np.float32)
    ours, theirs = [recorder.reset(seed=1)], [plain.reset(seed=1)]
    for _ in range(5):
        ours.append(recorder.step(actions))
        theirs.append(plain.step(actions))
    recorder.close()
    for mine, other in zip(ours, theirs, strict=True):
        assert data_equivalence(mine[:-1], other[:-1], exact=True)
        assert mine[-1].keys() == other[-1].keys()


class Tensor:
    """Behaves like a torch tensor on a GPU: no NumPy before it came to the CPU."""

    def __init__(self, array, on_cpu=False):
        self.array, self.on_cpu = array, on_cpu
        self.shape, self.dtype = array.shape, f"torch.{array.dtype}"

    def __len__(self):
        return len(self.array)

    def __array__(self, *_, **__):
        raise TypeError("can't convert device tensor to numpy")

    def __or__(self, other):
        return Tensor(self.array | other.array)

    def detach(self):
        return self

    def cpu(self):
        return Tensor(self.array, on_cpu=True)

    def numpy(self):
        assert self.on_cpu
        return self.array


def test_torch_like_frames_and_flags(tmp_path, record):
    env = CodedColorVectorEnv([3, 2], autoreset_mode=AutoresetMode.NEXT_STEP, convert=Tensor)
    recorder = record(env, tmp_path)
    recorder.reset()
    for _ in range(3):
        recorder.step(np.zeros((2, 1)))
    recorder.close()
    assert videos(tmp_path) == {
        "robot-cam-env0-front-episode-0.mp4": [(0, 0, t) for t in range(4)],
        "robot-cam-env1-front-episode-0.mp4": [(1, 0, t) for t in range(3)],
    }


def test_a_raising_environment_leaves_no_encoder_and_its_own_exception(tmp_path, record):
    env = SyncVectorEnv(coded_color_envs([9, 9], fail_at=4))
    recorder = record(env, tmp_path, save_partial_episodes=True)
    with pytest.raises(RuntimeError, match="was told to fail in step 4"):
        run(recorder, 5)
    assert videos(tmp_path) == {
        f"robot-cam-env{i}-front-episode-0-partial.mp4": [(i, 0, t) for t in range(4)] for i in range(2)
    }
    assert all(row["crashed"] for row in read_episodes(tmp_path))
    recorder.close()
    assert len(videos(tmp_path)) == 2


def test_a_second_run_replaces_nothing(tmp_path, record):
    for _ in range(3):
        recorder = record(make_env("native", [2], MODES[0]), tmp_path)
        run(recorder, 2)
        recorder.close()
    names = [f"robot-cam-env0-front-episode-0{suffix}.mp4" for suffix in ("", "-run2", "-run3")]
    assert list(videos(tmp_path)) == sorted(names)
    assert [row["files"][0]["file"] for row in read_episodes(tmp_path)] == names


def test_overwrite_error_and_replace(tmp_path, record):
    recorder = record(make_env("native", [2], MODES[0]), tmp_path)
    run(recorder, 2)
    recorder.close()
    recorder = record(make_env("native", [2], MODES[0]), tmp_path, overwrite="error")
    with pytest.raises(FileExistsError, match="episode-0"):
        run(recorder, 2)
    recorder.close()
    recorder = record(make_env("native", [4], MODES[0]), tmp_path, overwrite="replace")
    run(recorder, 4)
    recorder.close()
    assert videos(tmp_path) == {"robot-cam-env0-front-episode-0.mp4": [(0, 0, t) for t in range(5)]}
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("fps", [Fraction(30000, 1001), Fraction(1, 400)])
def test_the_rate_is_stored_exactly(tmp_path, record, fps):
    recorder = record(make_env("native", [3], MODES[0]), tmp_path, fps=fps)
    run(recorder, 3)
    recorder.close()
    with av.open(str(next(tmp_path.glob("*.mp4")))) as container:
        stream = container.streams.video[0]
        times = [frame.pts * stream.time_base for frame in container.decode(stream)]
    assert times == [t / Fraction(fps) for t in range(4)]
    assert read_episodes(tmp_path)[0]["fps"] == str(Fraction(fps))


def test_the_rate_comes_from_the_metadata(tmp_path):
    env = make_env("native", [3], MODES[0])
    assert CameraObsVideoRecorder(env, tmp_path).fps == 10
    env.metadata["render_fps"] = 1 / 0.03
    assert CameraObsVideoRecorder(env, tmp_path).fps == Fraction(100, 3)
    del env.metadata["render_fps"]
    with pytest.raises(ValueError, match="render_fps"):
        CameraObsVideoRecorder(env, tmp_path)


@pytest.mark.parametrize("size", [(241, 321), (32, 47)])
def test_odd_sizes_play_everywhere(tmp_path, record, size):
    recorder = record(CodedColorVectorEnv([2], {"front": size}), tmp_path)
    run(recorder, 2)
    recorder.close()
    path = next(tmp_path.glob("*.mp4"))
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        assert context.pix_fmt == "yuv420p"
        coded = (context.width, context.height)
        frame = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert coded == (size[1] + size[1] % 2, size[0] + size[0] % 2)
    assert decode_color(frame[: size[0], : size[1]]) == (0, 0, 0)
    (file,) = read_episodes(tmp_path)[0]["files"]
    assert (tuple(file["size"]), tuple(file["coded_size"])) == ((size[1], size[0]), coded)


def top_level_boxes(path):
    data, boxes = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        size = int.from_bytes(data[8:16], "big") if size == 1 else size
        boxes.append(data[4:8].decode())
        data = data[size:]
    return boxes


def test_a_finished_file_is_an_ordinary_mp4(tmp_path, record):
    recorder = record(make_env("native", [70], MODES[0]), tmp_path)
    run(recorder, 70)
    recorder.close()
    boxes = top_level_boxes(next(tmp_path.glob("*.mp4")))
    assert boxes.count("moov") == 1
    assert "moof" not in boxes


def test_a_dead_encoder_is_named_and_the_others_go_on(tmp_path):
    recorder = CameraObsVideoRecorder(make_env("native", [40, 40], MODES[0], cameras={"front": (256, 256)}), tmp_path)
    run(recorder, 3)
    children = sorted(encoders())
    assert len(children) == 2
    os.kill(children[0], 9)
    with pytest.raises(VideoEncodeError, match=r"env 0, camera 'front', episode 0: .*signal 9") as caught:
        run(recorder, 37, reset=False)
    assert (caught.value.env, caught.value.camera, caught.value.episode) == (0, "front", 0)
    run(recorder, 36, reset=False)
    recorder.close()
    found = videos(tmp_path)
    assert found["robot-cam-env1-front-episode-0.mp4"] == [(1, 0, t % 32) for t in range(41)]
    assert "robot-cam-env0-front-episode-0.mp4" not in found
    rows = {(row["env"], row["episode"]): row["files"][0]["error"] for row in read_episodes(tmp_path)}
    assert "signal 9" in rows[0, 0]
    assert rows[1, 0] is None


@pytest.mark.parametrize("keep", [True, False])
def test_a_dead_encoder_leaves_the_video_it_was_to_replace(tmp_path, keep):
    final = tmp_path / "robot-cam-env0-front-episode-0.mp4"
    final.write_bytes(b"of an earlier run")
    env = make_env("native", [40], MODES[0], cameras={"front": (256, 256)})
    recorder = CameraObsVideoRecorder(env, tmp_path, overwrite="replace", save_partial_episodes=keep)
    run(recorder, 3)
    os.kill(*encoders(), 9)
    with pytest.raises(VideoEncodeError, match="signal 9"):
        run(recorder, 30, reset=False)
    recorder.close()
    assert [path.name for path in tmp_path.glob("*.mp4")] == [final.name]
    assert final.read_bytes() == b"of an earlier run"
    assert [file["file"] for row in read_episodes(tmp_path) for file in row["files"]] == [None]


def test_an_encoder_that_cannot_be_started_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("moviepy.video.io.ffmpeg_writer.FFMPEG_BINARY", "/no/such/ffmpeg")
    recorder = CameraObsVideoRecorder(make_env("native", [3], MODES[0]), tmp_path, backend="moviepy")
    with pytest.raises(VideoEncodeError, match="no/such/ffmpeg"):
        run(recorder, 1)
    run(recorder, 2, reset=False)
    recorder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["episodes.jsonl"]
    assert "no/such/ffmpeg" in read_episodes(tmp_path)[0]["files"][0]["error"]


def command_of(process):
    """Returns a process's command line; it is empty for a moment after the process was started."""
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        while not process.cmdline() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.01)
        return " ".join(process.cmdline())
    return ""


def encoders():
    """Returns the ids of this process's encoder processes."""
    children = psutil.Process().children(recursive=True)
    commands = {child.pid: command_of(child) for child in children}
    return [pid for pid, command in commands.items() if "ffmpeg" in command or "pool_worker" in command]


class ModestVectorEnv:
    """What `MagicMock(spec=VectorEnv)` offers at construction: num_envs and metadata, and calls that are recorded."""

    def __new__(cls, steps):
        env = MagicMock(spec=VectorEnv)
        env.num_envs = 2
        env.metadata = {"render_fps": 10}
        frames = {"camera_obs": {"front": np.zeros((2, 8, 8, 3), dtype=np.uint8)}}
        flags = np.zeros(2, dtype=bool)
        env.reset.return_value = (frames, {})
        env.step.side_effect = [(frames, np.zeros(2), flags | (t == steps - 1), flags, {}) for t in range(steps)]
        return env


def test_unit_tests_can_count_frames_by_patching(tmp_path, mocker):
    writers = []

    def make(*args, **kwargs):
        writers.append(FrameCountingWriter(*args, **kwargs))
        return writers[-1]

    mocker.patch.object(camera_obs_video_recorder, "FFMPEG_VideoWriter", make)
    recorder = CameraObsVideoRecorder(ModestVectorEnv(steps=4), tmp_path)
    recorder.reset()
    for _ in range(4):
        recorder.step(None)
    recorder.close()
    assert [writer.frames_written for writer in writers] == [5, 5]
    assert all(writer.closed and writer.size == (8, 8) and writer.fps == 10 for writer in writers)
    names = [f"robot-cam-env{env}-front-episode-0.mp4" for env in range(2)]
    assert [writer.filename for writer in writers] == [str(tmp_path / name) for name in names]
    assert not list(tmp_path.glob("*.part"))


def test_patching_counts_at_any_number_of_streams(tmp_path, mocker):
    make = mocker.patch.object(camera_obs_video_recorder, "FFMPEG_VideoWriter", side_effect=FrameCountingWriter)
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([2] * 20), tmp_path, max_writer_processes=4)
    run(recorder, 2)
    recorder.close()
    assert make.call_count == 20
    assert not encoders()


class BareTensor:
    """Tensor enough for images and flags: nothing but ``cpu().numpy()`` and a length."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def cpu(self):
        return self

    def numpy(self):
        return self.array


def test_images_that_say_little_about_themselves(tmp_path):
    writers = []

    def make(*args, **kwargs):
        writers.append(FrameCountingWriter(*args, **kwargs))
        return writers[-1]

    env = CodedColorVectorEnv([2, 3], convert=BareTensor)
    recorder = CameraObsVideoRecorder(env, tmp_path, writer_factory=make)
    recorder.reset()
    for _ in range(3):
        recorder.step(None)
    recorder.close()
    assert [writer.frames_written for writer in writers] == [3, 4]


def test_a_factory_is_handed_rgb_frames_and_its_failure_is_told(tmp_path):
    class Picky(FrameCountingWriter):
        def write_frame(self, frame):
            assert frame.shape == (32, 48, 3)
            assert frame.dtype == np.uint8
            assert frame.flags.c_contiguous
            super().write_frame(frame)
            if self.frames_written == 3:
                raise ConnectionError("the cloud is full")

    recorder = CameraObsVideoRecorder(make_env("native", [5], MODES[0]), tmp_path, writer_factory=Picky)
    with pytest.raises(VideoEncodeError, match="the cloud is full"):
        run(recorder, 4)
    recorder.close()


def test_a_writer_that_writes_files_keeps_the_naming_rules(tmp_path):
    class Textual(FrameCountingWriter):
        def close(self):
            super().close()
            with open(self.filename, "w") as file:
                file.write(str(self.frames_written))

    for _ in range(2):
        env = make_env("native", [2], MODES[0])
        recorder = CameraObsVideoRecorder(env, tmp_path, save_partial_episodes=True, writer_factory=Textual)
        run(recorder, 4)
        recorder.close()
    assert {path.name: path.read_text() for path in tmp_path.glob("*.mp4")} == {
        "robot-cam-env0-front-episode-0.mp4": "3",
        "robot-cam-env0-front-episode-0-run2.mp4": "3",
        "robot-cam-env0-front-episode-1-partial.mp4": "2",
        "robot-cam-env0-front-episode-1-partial-run2.mp4": "2",
    }


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name_prefix": "a/b"}, ValueError, "name_prefix"),
        ({"name_prefix": 3}, TypeError, "name_prefix"),
        ({"fps": 0}, ValueError, "fps"),
        ({"fps": float("nan")}, ValueError, "fps"),
        ({"fps": True}, TypeError, "fps"),
        ({"cameras": "front"}, TypeError, "cameras"),
        ({"cameras": []}, ValueError, "cameras"),
        ({"cameras": ["a", "a"]}, ValueError, "cameras"),
        ({"env_indices": [2]}, ValueError, "env_indices"),
        ({"env_indices": [0.5]}, TypeError, "env_indices"),
        ({"frame_source": "eyes"}, ValueError, "frame_source"),
        ({"camera_obs_key": 3}, TypeError, "camera_obs_key"),
        ({"episode_trigger": 3}, TypeError, "episode_trigger"),
        ({"episode_trigger": lambda a, b, c: True}, ValueError, "episode_trigger"),
        ({"step_trigger": 3}, TypeError, "step_trigger"),
        ({"video_length": 0}, ValueError, "video_length"),
        ({"stride": 0}, ValueError, "stride"),
        ({"stride": 1.5}, TypeError, "stride"),
        ({"keep": True}, TypeError, "keep"),
        ({"keep_last": 0}, ValueError, "keep_last"),
        ({"max_disk_mb": -1}, ValueError, "max_disk_mb"),
        ({"overwrite": "yes"}, ValueError, "overwrite"),
        ({"backend": "gstreamer"}, ValueError, "backend"),
        ({"encoder_timeout": 0}, ValueError, "encoder_timeout"),
        ({"frame_formats": {"front": (0, 1)}}, TypeError, "frame_formats"),
        ({"backend": "pool", "writer_factory": FrameCountingWriter}, ValueError, "writer_factory|backend"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        CameraObsVideoRecorder(make_env("native", [2, 2], MODES[0]), tmp_path / "videos", **arguments)
    assert not (tmp_path / "videos").exists()


def test_a_folder_that_cannot_be_written_is_told_at_construction(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        CameraObsVideoRecorder(make_env("native", [2], MODES[0]), tmp_path / "file")
    with pytest.raises(OSError, match="nowhere"):
        CameraObsVideoRecorder(make_env("native", [2], MODES[0]), "/proc/nowhere")


def test_unknown_cameras_are_told_with_the_known_ones(tmp_path):
    recorder = CameraObsVideoRecorder(make_env("native", [2], MODES[0]), tmp_path, cameras=["back"])
    with pytest.raises(ValueError, match=r"\['front'\].*\['back'\]"):
        recorder.reset()
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([2], camera_obs=False), tmp_path)
    with pytest.raises(ValueError, match="camera_obs"):
        recorder.reset()
    assert list(tmp_path.iterdir()) == []


def test_a_frame_unlike_the_first_is_refused_before_it_is_written(tmp_path, record):
    env = make_env("native", [9], MODES[0])
    recorder = record(env, tmp_path, save_partial_episodes=True)
    run(recorder, 2)
    env.convert = lambda array: array[:, :16] if array.ndim == 4 else array
    with pytest.raises(ValueError, match=r"'front'.*\(32, 48, 3\) uint8.*\(16, 48, 3\) uint8"):
        recorder.step(None)
    recorder.close()
    assert videos(tmp_path) == {"robot-cam-env0-front-episode-0-partial.mp4": [(0, 0, t) for t in range(3)]}


def test_a_camera_that_is_gone_is_named(tmp_path, record):
    recorder = record(make_env("native", [3], MODES[0], cameras={"a": (16, 16), "b": (16, 16)}), tmp_path)
    recorder.reset()
    recorder.env.reset = lambda **_: ({"camera_obs": {"a": np.zeros((1, 16, 16, 3), dtype=np.uint8)}}, {})
    with pytest.raises(ValueError, match=r"camera 'b': expected images in the observation .* got \['a'\]"):
        recorder.reset()
    recorder.close()


def test_a_camera_whose_name_no_file_can_have_is_told_at_the_first_frame(tmp_path, record):
    recorder = record(make_env("native", [3], MODES[0], cameras={"a": (16, 16), "ж" * 100: (16, 16)}), tmp_path)
    with pytest.raises(ValueError, match="name_prefix, camera: expected names that make a file name of at most 250"):
        recorder.reset()
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_close_twice_and_use_after_close(tmp_path):
    recorder = CameraObsVideoRecorder(make_env("native", [2], MODES[0]), tmp_path)
    run(recorder, 1)
    recorder.close()
    recorder.close()
    with pytest.raises(RuntimeError, match="open"):
        recorder.step(None)


def test_a_forgotten_recorder_leaves_no_encoder(tmp_path, record):
    recorder = record(make_env("native", [9], MODES[0]), tmp_path, save_partial_episodes=True)
    run(recorder, 3)
    assert encoders()
    del recorder
    gc.collect()
    assert not encoders()
    assert videos(tmp_path) == {"robot-cam-env0-front-episode-0-partial.mp4": [(0, 0, t) for t in range(4)]}


def test_a_forked_child_holds_no_encoder(tmp_path, record):
    recorder = record(make_env("native", [9], MODES[0]), tmp_path, encoder_timeout=5)
    run(recorder, 8)
    release_reading, release_writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release_writing)
        os.read(release_reading, 1)  # until the parent's end is closed
        os._exit(0)
    os.close(release_reading)
    try:
        run(recorder, 1, reset=False)  # ends the episode: would wait for the child
        recorder.close()
        assert len(videos(tmp_path)) == 1
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.close(release_writing)
        os.waitpid(child, 0)


def test_lifetimes_leak_nothing(tmp_path, record):
    def cycle(number):
        recorder = record(make_env("native", [3, 2], MODES[0]), tmp_path / str(number))
        run(recorder, 5)
        recorder.close()

    cycle("warm-up")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        cycle(number)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not encoders()


def test_what_wrappers_forward(tmp_path):
    env = make_env("native", [2], AutoresetMode.SAME_STEP)
    recorder = CameraObsVideoRecorder(env, tmp_path)
    assert recorder.autoreset_mode is AutoresetMode.SAME_STEP
    assert recorder.last_profiling is None
    with recorder.phase("policy"):
        pass
    env.phase, env.last_profiling = "phase of {}".format, {"step": 1}
    assert recorder.phase("policy") == "phase of policy"
    assert recorder.last_profiling == {"step": 1}


def test_a_folder_that_cannot_be_is_named_with_its_argument(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(FileExistsError, match=r"video_folder: expected a folder that can be written, got .*file"):
        CameraObsVideoRecorder(SyncVectorEnv(coded_color_envs([2])), taken, fps=10)
