"""What is particular to the worker pool; what both backends do is tested with the recorder."""

import contextlib
import functools
import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from fractions import Fraction

import av
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video import VideoEncodeError, parse_episode_video_filename, read_episodes
from fleet_gym.video.episode_files import EpisodeVideoName
from fleet_gym.video.pool import PoolBackend, _blocks
from fleet_gym.video.pool_protocol import FATAL, LARGEST_MESSAGE, FrameRing, pack_frames, unpack_frames
from fleet_gym.video.writers import EncoderSettings, StreamRequest
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

ENCODER = re.compile("ffmpeg|pool_worker")


def command_of(process):
    """Returns a process's command line; it is empty for a moment after the process was started."""
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        while not process.cmdline() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.01)
        return " ".join(process.cmdline())
    return ""


def workers():
    return sorted(child.pid for child in psutil.Process().children() if "pool_worker" in command_of(child))


def decode(path):
    with av.open(str(path)) as container:
        return [decode_color(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def videos(folder):
    found = {}
    for path in folder.glob("*.mp4"):
        name = parse_episode_video_filename(path)
        found[name.env, name.camera, name.episode] = [step for _, _, step in decode(path)]
    return found


def test_the_ring_hands_out_what_is_free_and_nothing_else():
    ring = FrameRing(4096)
    ring.handed_over()
    rng = np.random.default_rng(0)
    live = []
    for _ in range(2000):
        count = int(rng.integers(1, 2048))
        block = ring.reserve(count)
        if block is None:
            assert sum(size for _, size, _ in live) + count > 4096 - 2048  # at most one block is lost to the wrap
            offset, size, end = live.pop(0)
            assert (ring.memory[offset : offset + size] == end % 251).all()
            ring.free(end)
            continue
        offset, end = block
        assert offset + count <= 4096
        assert not any(offset < start + size and start < offset + count for start, size, _ in live)
        ring.memory[offset : offset + count] = end % 251
        live.append((offset, count, end))


def test_many_streams_on_several_workers(tmp_path):
    cameras = {"front": (16, 16), "back": (24, 16)}
    env = CodedColorVectorEnv([4, 2, 3, 4, 2], cameras, AutoresetMode.SAME_STEP)
    before = len(os.listdir("/proc/self/fd"))
    recorder = CameraObsVideoRecorder(env, tmp_path, backend="pool", num_workers=2)
    recorder.reset()
    for _ in range(4):
        recorder.step(None)
    pids = workers()
    assert len(pids) == 2
    assert len(os.listdir("/proc/self/fd")) - before <= 4 * 2 + 8
    assert all(os.getsid(pid) == pid for pid in pids)
    assert all(psutil.Process(pid).num_fds() <= 8 for pid in pids)  # however many streams
    recorder.close()
    expected = {(env, camera, 0): list(range(n + 1)) for env, n in enumerate([4, 2, 3, 4, 2]) for camera in cameras}
    expected |= {(env, camera, 1): [0, 1, 2] for env in (1, 4) for camera in cameras}
    assert videos(tmp_path) == expected
    assert workers() == []


def test_more_workers_than_environments_share_the_cameras(tmp_path):
    env = CodedColorVectorEnv([2], {"a": (16, 16), "b": (16, 16), "c": (16, 16)})
    recorder = CameraObsVideoRecorder(env, tmp_path, backend="pool", num_workers=8)
    recorder.reset()
    recorder.step(None)
    assert len(workers()) == 3
    recorder.step(None)
    recorder.close()
    assert videos(tmp_path) == {(0, camera, 0): [0, 1, 2] for camera in "abc"}


def test_scattered_environments(tmp_path):
    env = CodedColorVectorEnv([3] * 9)
    recorder = CameraObsVideoRecorder(env, tmp_path, backend="pool", env_indices=[1, 2, 5, 8])
    recorder.reset()
    for _ in range(3):
        recorder.step(None)
    recorder.close()
    assert videos(tmp_path) == {(env, "front", 0): [0, 1, 2, 3] for env in (1, 2, 5, 8)}


def test_frames_larger_than_the_ring_wants(tmp_path, monkeypatch):
    monkeypatch.setattr("fleet_gym.video.pool._RING_BYTES", 1 << 16)
    monkeypatch.setattr("fleet_gym.video.pool._FRAMES_IN_RING", 1)
    env = CodedColorVectorEnv([8] * 3, {"front": (120, 160)})
    recorder = CameraObsVideoRecorder(env, tmp_path, backend="pool")
    recorder.reset()
    for _ in range(8):
        recorder.step(None)
    recorder.close()
    assert videos(tmp_path) == {(env, "front", 0): list(range(9)) for env in range(3)}


@pytest.mark.parametrize("change", [lambda images: images[..., :1], lambda images: images[..., 0]])
def test_grey_images(tmp_path, change):
    class Grey(CodedColorVectorEnv):
        def _images(self):
            return {camera: np.ascontiguousarray(change(images)) for camera, images in super()._images().items()}

    for backend in ("pool", "moviepy"):
        recorder = CameraObsVideoRecorder(Grey([3]), tmp_path / backend, backend=backend, cameras=["front"])
        recorder.reset()
        for _ in range(3):
            recorder.step(None)
        recorder.close()
        (path,) = (tmp_path / backend).glob("*.mp4")
        assert [red for red, _, _ in decode(path)] == [0, 0, 0, 0]


def long_recording(folder, **arguments):
    env = CodedColorVectorEnv([50] * 4, {"front": (64, 64)})
    recorder = CameraObsVideoRecorder(env, folder, backend="pool", num_workers=2, **arguments)
    recorder.reset()
    for _ in range(10):
        recorder.step(None)
    return recorder


def step_until_it_fails(recorder, steps):
    for _ in range(steps):
        recorder.step(None)
        time.sleep(0.02)


def test_a_killed_worker_is_told_and_the_others_go_on(tmp_path):
    recorder = long_recording(tmp_path)
    os.kill(workers()[0], signal.SIGKILL)
    with pytest.raises(VideoEncodeError, match=r"episode 0: the encoder worker was killed by signal 9 .*other video"):
        step_until_it_fails(recorder, 20)
    for _ in range(81):  # the next episodes are recorded by a new worker
        recorder.step(None)
    recorder.close()
    whole = videos(tmp_path)
    assert {key for key in whole if key[2] == 0} in (
        {(0, "front", 0), (1, "front", 0)},
        {(2, "front", 0), (3, "front", 0)},
    )
    assert {frames.index(31) for frames in whole.values()} == {31}
    failed = [row for row in read_episodes(tmp_path) if row["files"] and row["files"][0]["error"]]
    assert len(failed) == 2
    assert workers() == []


def test_many_streams_that_fail_at_once_cost_no_worker(tmp_path):
    """Hundreds of errors, each with a long path, do not fit into one message."""
    folder = tmp_path / "f" / ("long" * 50) / ("longer" * 40)
    env = CodedColorVectorEnv([40] * 120, {f"camera {number}": (16, 16) for number in range(4)})
    recorder = CameraObsVideoRecorder(env, folder, backend="pool", num_workers=1)
    recorder.reset()
    recorder.step(None)
    (worker,) = workers()
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.part"))) < 480 and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(tmp_path / "f")
    with pytest.raises(VideoEncodeError, match="FileNotFoundError"):
        step_until_it_fails(recorder, 38)
    assert workers() == [worker]
    with contextlib.suppress(VideoEncodeError, OSError):
        recorder.close()


def test_more_frames_than_one_message_tells_of():
    images = np.zeros((40_000, 1, 1, 3), dtype=np.uint8)
    streams = np.arange(len(images))
    told = []
    for block in _blocks([(images, streams, streams), (images, streams, streams + len(images))], 1 << 30):
        message = pack_frames(0, 0, [(size, numbers) for size, _, _, numbers in block])
        assert len(message) <= LARGEST_MESSAGE
        told += [stream for stream, _, _ in unpack_frames(message)[2]]
    assert told == list(range(2 * len(images)))


def test_a_killed_worker_is_told_at_close_too(tmp_path):
    recorder = long_recording(tmp_path, save_partial_episodes=True)
    os.kill(workers()[0], signal.SIGKILL)
    with pytest.raises(VideoEncodeError, match="signal 9"):
        recorder.close()
    assert len(videos(tmp_path)) == 2


def test_a_stopped_worker_ends_in_a_time_out_and_not_in_a_hang(tmp_path):
    recorder = long_recording(tmp_path, encoder_timeout=1.0, save_partial_episodes=True)
    os.kill(workers()[0], signal.SIGSTOP)
    with pytest.raises(VideoEncodeError, match="for 1 s; it was killed"):
        recorder.close()
    assert len(videos(tmp_path)) == 2
    assert workers() == []


def test_last_words_are_read_although_the_kernel_tells_of_the_reset_first(tmp_path, monkeypatch):
    """A worker that ends with messages unread: the socket says "reset" once, before what the worker said."""

    class ResetFirst:
        def __init__(self, connection):
            self.connection, self.told = connection, False

        def send(self, message):
            raise ConnectionResetError("reset by peer")

        def recv(self, size):
            if not self.told:
                self.told = True
                raise ConnectionResetError("reset by peer")
            return self.connection.recv(size)

        def __getattr__(self, name):
            return getattr(self.connection, name)

    recorder = long_recording(tmp_path)
    (pool,) = (found for found in gc.get_objects() if isinstance(found, PoolBackend) and found._folder == tmp_path)
    process = pool._workers[0]
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.send(FATAL + b"MemoryError: no room")
    theirs.close()
    monkeypatch.setattr(process, "_socket", ResetFirst(ours))
    process._process.kill()
    with pytest.raises(VideoEncodeError, match="MemoryError: no room"):
        step_until_it_fails(recorder, 20)
    monkeypatch.undo()
    recorder.close()
    ours.close()


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_encoders_give_way_to_the_simulation(tmp_path, backend):
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([50]), tmp_path, backend=backend)
    recorder.reset()
    recorder.step(None)
    (encoder,) = (child for child in psutil.Process().children() if ENCODER.search(command_of(child)))
    deadline = time.monotonic() + 20
    while encoder.nice() == psutil.Process().nice() and time.monotonic() < deadline:
        recorder.step(None)  # a worker lowers its priority once it runs
        time.sleep(0.05)
    assert encoder.nice() == min(19, psutil.Process().nice() + 5)
    recorder.close()


def test_a_worker_that_fell_behind_catches_up(tmp_path):
    env = CodedColorVectorEnv([60] * 6, {"front": (64, 64)})
    recorder = CameraObsVideoRecorder(env, tmp_path, backend="pool")
    recorder.reset()
    recorder.step(None)
    (pid,) = workers()
    os.kill(pid, signal.SIGSTOP)
    for _ in range(10):
        recorder.step(None)
    time.sleep(0.2)
    os.kill(pid, signal.SIGCONT)
    for _ in range(49):
        recorder.step(None)
    recorder.close()
    assert videos(tmp_path) == {(env, "front", 0): [t % 32 for t in range(61)] for env in range(6)}


def test_a_stopped_ffmpeg_ends_in_a_time_out_too(tmp_path):
    env = CodedColorVectorEnv([50] * 2, {"front": (256, 256)})
    recorder = CameraObsVideoRecorder(env, tmp_path, encoder_timeout=1.0, save_partial_episodes=True)
    recorder.reset()
    recorder.step(None)
    children = [child for child in psutil.Process().children() if child.name().startswith("ffmpeg")]
    children[0].suspend()
    with pytest.raises(VideoEncodeError, match="for 1 s; it was killed"):
        step_until_it_fails(recorder, 40)
    recorder.close()
    assert len(videos(tmp_path)) == 1


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_a_stopped_encoder_is_told_although_frames_are_dropped(tmp_path, backend):
    env = CodedColorVectorEnv([10_000], {"front": (256, 256)})
    recorder = CameraObsVideoRecorder(env, tmp_path, backend=backend, backpressure="drop", encoder_timeout=0.5)
    recorder.reset()
    recorder.step(None)
    (encoder,) = (child for child in psutil.Process().children() if ENCODER.search(command_of(child)))
    encoder.suspend()
    with pytest.raises(VideoEncodeError, match=r"for 0\.5 s; it was killed"):
        step_until_it_fails(recorder, 1000)
    recorder.close()


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_dropping_leaves_out_whole_frames_and_counts_them(tmp_path, backend):
    env = CodedColorVectorEnv([60], {"front": (128, 128)})
    recorder = CameraObsVideoRecorder(env, tmp_path, backend=backend, backpressure="drop")
    recorder.reset()
    recorder.step(None)
    (encoder,) = (child for child in psutil.Process().children() if ENCODER.search(command_of(child)))
    encoder.suspend()
    for _ in range(58):
        recorder.step(None)
    encoder.resume()
    recorder.step(None)
    recorder.close()
    (row,) = read_episodes(tmp_path)
    (file,) = row["files"]
    assert file["dropped"] > 10
    assert file["frames"] + file["dropped"] == 61
    (path,) = tmp_path.glob("*.mp4")
    frames = decode(path)
    assert len(frames) == file["frames"]
    assert all(env == 0 and episode == 0 for env, episode, _ in frames)


def test_a_worker_that_died_between_episodes_costs_no_video(tmp_path):
    recorder = CameraObsVideoRecorder(
        CodedColorVectorEnv([2], autoreset_mode=AutoresetMode.DISABLED), tmp_path, backend="pool", num_workers=1
    )
    recorder.reset()
    recorder.step(None)
    recorder.step(None)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("*.mp4")) and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder._recording._clips.settle(wait=True)
    (worker,) = workers()
    os.kill(worker, signal.SIGKILL)
    while psutil.Process(worker).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.reset()
    recorder.step(None)
    recorder.step(None)
    recorder.close()
    assert videos(tmp_path) == {(0, "front", episode): [0, 1, 2] for episode in range(2)}


def test_a_failure_told_after_the_end_of_its_stream_leaves_nothing_behind(tmp_path):
    backend = PoolBackend(tmp_path, EncoderSettings(), "run", envs=[0], num_streams=1, num_workers=1)
    name = EpisodeVideoName("longer than any file's name" * 20, 0, "front", 0)
    (stream,) = backend.open([StreamRequest(name, 4, 4, "rgb24", Fraction(10))])
    frames = (np.zeros((1, 4, 4, 3), dtype=np.uint8), np.array([0]), np.array([stream]))
    backend.write([frames])
    backend.write([frames])  # fails in the worker, which is heard only after the end
    backend.finish([(stream, "keep")])
    results = backend.collect(wait=True)
    backend.close()
    assert [(result.ended, result.error is not None) for result in results] == [(False, True), (True, False)]
    assert backend._skip == set()


def test_a_worker_that_cannot_be_started_is_told(tmp_path, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    env = CodedColorVectorEnv([5, 5])
    recorder = CameraObsVideoRecorder(env, tmp_path / "a", backend="pool")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(VideoEncodeError, match=r"env 0, camera 'front', episode 0: .*could not be started.*no/such"):
        recorder.reset()
    monkeypatch.undo()
    for _ in range(11):
        recorder.step(None)  # the next episodes find a worker
    recorder.close()
    assert set(videos(tmp_path / "a")) == {(0, "front", 1), (1, "front", 1)}

    recorder = CameraObsVideoRecorder(env, tmp_path / "b", backend="pool")
    monkeypatch.setattr(sys, "path", [])
    recorder.reset()
    with pytest.raises(VideoEncodeError, match="ModuleNotFoundError: No module named"):
        step_until_it_fails(recorder, 200)
    monkeypatch.undo()
    recorder.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_the_codec_must_exist(tmp_path, backend):
    with pytest.raises(ValueError, match=r"codec: .*'no_such_codec'"):
        CameraObsVideoRecorder(CodedColorVectorEnv([5]), tmp_path / "v", backend=backend, codec="no_such_codec")
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_other_codecs(tmp_path, backend):
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([5]), tmp_path, backend=backend, codec="mpeg4")
    recorder.reset()
    for _ in range(5):
        recorder.step(None)
    recorder.close()
    (path,) = tmp_path.glob("*.mp4")
    assert [step for _, _, step in decode(path)] == list(range(6))
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_an_encoder_that_does_not_start_is_told(tmp_path, backend):
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([50]), tmp_path, backend=backend, preset="no_such_preset")
    recorder.reset()
    with pytest.raises(VideoEncodeError, match="env 0, camera 'front', episode 0"):
        step_until_it_fails(recorder, 49)
    recorder.close()


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_a_camera_that_the_codec_refuses_costs_no_other_its_video(tmp_path, backend):
    env = CodedColorVectorEnv([3], {"front": (32, 16), "panorama": (2, 20_000)})
    recorder = CameraObsVideoRecorder(env, tmp_path, backend=backend)
    recorder.reset()
    told = []
    for call in [functools.partial(recorder.step, None)] * 3 + [recorder.close]:
        try:
            call()
        except VideoEncodeError as error:
            told.append(error.camera)
    assert told == ["panorama"]
    assert videos(tmp_path) == {(0, "front", 0): [0, 1, 2, 3]}
    (row,) = read_episodes(tmp_path)
    assert [(file["camera"], file["file"] is not None, file["error"] is None) for file in row["files"]] == [
        ("front", True, True),
        ("panorama", False, False),
    ]


def test_a_codec_that_finds_no_device_says_so(tmp_path):
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([1]), tmp_path, backend="moviepy", codec="h264_nvenc")
    recorder.reset()
    with pytest.raises(VideoEncodeError, match="h264_nvenc @"):
        recorder.step(None)
    recorder.close()


def test_quality_settings_reach_the_encoder(tmp_path):
    class Noisy(CodedColorVectorEnv):
        def _images(self):
            rng = np.random.default_rng(int(self.steps[0]))
            return {"front": rng.integers(0, 255, (1, 64, 64, 3), dtype=np.uint8)}

    sizes = {}
    for backend in ("moviepy", "pool"):
        for name, arguments in {"crf": {"crf": 45}, "rate": {"bitrate": "20k"}, "default": {}}.items():
            folder = tmp_path / backend / name
            recorder = CameraObsVideoRecorder(Noisy([20]), folder, backend=backend, **arguments)
            recorder.reset()
            for _ in range(20):
                recorder.step(None)
            recorder.close()
            sizes[backend, name] = next(folder.glob("*.mp4")).stat().st_size
    for backend in ("moviepy", "pool"):
        assert sizes[backend, "crf"] < 0.6 * sizes[backend, "default"]
        assert sizes[backend, "rate"] < 0.6 * sizes[backend, "default"]


def test_auto_chooses_by_the_number_of_streams(tmp_path):
    for folder, limit, pool in (("few", 4, False), ("many", 3, True)):
        env = CodedColorVectorEnv([5, 5], {"a": (16, 16), "b": (16, 16)})
        recorder = CameraObsVideoRecorder(env, tmp_path / folder, max_writer_processes=limit)
        recorder.reset()
        recorder.step(None)
        assert bool(workers()) == pool
        recorder.close()


def test_it_works_from_an_unguarded_script_and_one_that_forgets_to_close(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        print("imported")
        from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
        from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

        recorder = CameraObsVideoRecorder(CodedColorVectorEnv([3, 4]), {str(tmp_path / "videos")!r}, backend="pool")
        recorder.reset()
        for _ in range(3):
            recorder.step(None)
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "imported\n"
    assert done.stderr == ""
    assert videos(tmp_path / "videos") == {(0, "front", 0): [0, 1, 2, 3]}


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_it_works_without_standard_streams(tmp_path, backend):
    """Daemons close them; what is opened next has their numbers."""
    script = textwrap.dedent(
        f"""
        from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
        from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

        recorder = CameraObsVideoRecorder(CodedColorVectorEnv([3]), {str(tmp_path)!r}, backend={backend!r})
        recorder.reset()
        for _ in range(3):
            recorder.step(None)
        recorder.close()
        """
    )
    closing = 'exec "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", closing, sys.executable, script], check=True, timeout=60)
    assert videos(tmp_path) == {(0, "front", 0): [0, 1, 2, 3]}


def test_a_recorder_cannot_be_used_in_a_forked_child(tmp_path):
    recorder = long_recording(tmp_path)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(Exception):
            try:
                recorder.step(None)
            except RuntimeError:
                recorder.close()
                code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(40):
        recorder.step(None)
    recorder.close()
    assert len(videos(tmp_path)) == 4
