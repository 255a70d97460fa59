"""Recorders that are killed: what is on the disk, and what the next one makes of it."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import av
import psutil
import pytest

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video import parse_episode_video_filename, read_episodes
from fleet_gym.video.recovery import discard_leftovers, recover_leftovers
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

SCRIPT = """
    import sys, time
    from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
    from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

    folder, backend, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    env = CodedColorVectorEnv([10**6], {"front": (48, 64), "back": (48, 64)})
    recorder = CameraObsVideoRecorder(env, folder, backend=backend)
    recorder.reset()
    for _ in range(steps):
        recorder.step(None)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def victim(tmp_path):
    """Starts recorders in processes of their own, each the leader of a group; ends what is left of them."""
    started = []

    def start(folder, backend, steps):
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), backend, str(steps)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process, psutil.Process(process.pid).children(recursive=True)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def decode(path):
    """Returns the steps that can be decoded."""
    steps = []
    with av.open(str(path)) as container:
        try:
            for frame in container.decode(video=0):
                steps.append(decode_color(frame.to_ndarray(format="rgb24"))[2])
        except av.FFmpegError:
            return steps
    return steps


def wait_for_parts(folder, count):
    deadline = time.monotonic() + 20
    while len(list(folder.glob("*.part"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps(count):
    return [t % 32 for t in range(count)]


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_everything_is_killed(tmp_path, victim, backend):
    process, encoders = victim(tmp_path, backend, 400)
    os.killpg(process.pid, signal.SIGKILL)
    for encoder in encoders:
        encoder.kill()
    process.wait()
    psutil.wait_procs(encoders, timeout=5)
    assert not list(tmp_path.glob("*.mp4"))
    parts = sorted(tmp_path.glob("*.mp4.part"))
    assert len(parts) == 2
    counts = {}
    for part in parts:
        found = decode(part)
        assert len(found) >= 340
        assert found == steps(len(found))
        counts[part.name] = len(found)

    CameraObsVideoRecorder(CodedColorVectorEnv([5]), tmp_path).close()
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".recorder-*"))
    videos = sorted(tmp_path.glob("*.mp4"))
    assert [path.name.replace("-partial.mp4", ".mp4.part") for path in videos] == [part.name for part in parts]
    for path, part in zip(videos, parts, strict=True):
        assert decode(path) == steps(counts[part.name])
        with av.open(str(path)) as container:
            assert container.streams.video[0].frames == counts[part.name]
            assert container.streams.video[0].average_rate == 10
    (row,) = read_episodes(tmp_path)
    assert (row["env"], row["episode"], row["crashed"], row["recovered"], row["return"]) == (0, 0, True, True, None)
    assert {file["camera"]: file["frames"] for file in row["files"]} == {
        camera: counts[f"robot-cam-env0-{camera}-episode-0.mp4.part"] for camera in ("front", "back")
    }
    assert all(file["exists"] and file["size"] == [64, 48] for file in row["files"])


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_python_alone_is_killed(tmp_path, victim, backend):
    process, encoders = victim(tmp_path, backend, 400)
    process.kill()
    process.wait()
    psutil.wait_procs(encoders, timeout=20)
    assert not [encoder for encoder in encoders if encoder.is_running()]
    assert not list(tmp_path.glob("*.mp4"))
    recovered = recover_leftovers(tmp_path)
    assert len(recovered) == 2
    for video in recovered:
        assert video.frames == 401
        assert decode(video.path) == steps(401)


def die_before_rows_are_written(folder):
    """A recorder dies with one episode's videos whole and another's cut, before it writes a row."""
    code = """
        import os, pathlib, sys, time
        from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
        from fleet_gym.video.pool import PoolBackend
        from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

        env = CodedColorVectorEnv([2, 9], {"front": (32, 48), "odd": (33, 17)})
        recorder = CameraObsVideoRecorder(env, sys.argv[1], backend="pool")
        recorder.reset()
        PoolBackend.collect = lambda *_: []  # it dies before it hears of the files
        for _ in range(3):
            recorder.step(None)
        while len(list(pathlib.Path(sys.argv[1]).glob("*.mp4"))) < 2:
            time.sleep(0.02)
        os._exit(9)
    """
    ended_with = subprocess.run([sys.executable, "-c", textwrap.dedent(code), folder], timeout=60).returncode
    assert ended_with == 9


def repeat_until_its_worker_is_gone(function, folder):
    (lock,) = folder.glob(".recorder-*.lock")
    deadline = time.monotonic() + 30
    while lock.exists() and time.monotonic() < deadline:
        function(folder)
        time.sleep(0.1)


def test_videos_finished_after_the_kill_are_logged_too(tmp_path):
    """A worker outlives its recorder by the moment it takes to finish its files; nobody is left to write their rows."""
    folder = tmp_path / "videos"
    die_before_rows_are_written(folder)
    repeat_until_its_worker_is_gone(recover_leftovers, folder)
    ended, cut = sorted(read_episodes(folder), key=lambda row: row["env"])
    assert (ended["env"], ended["episode"], ended["steps"], ended["fps"]) == (0, 0, 2, "10")
    assert (ended["recovered"], ended["crashed"], ended["last_frame"]) == (True, False, "recorded")
    assert [(file["camera"], file["frames"], file["size"], file["coded_size"]) for file in ended["files"]] == [
        ("front", 3, [48, 32], [48, 32]),
        ("odd", 3, [17, 33], [18, 34]),
    ]
    assert all(file["exists"] and file["bytes"] > 0 for file in ended["files"])
    assert (cut["env"], cut["recovered"], cut["crashed"], cut["last_frame"]) == (1, True, True, "missing")
    recover_leftovers(folder)
    assert len(read_episodes(folder)) == 2


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_files_of_a_live_recorder_are_left_alone(tmp_path, victim, backend):
    process, _ = victim(tmp_path, backend, 40)
    wait_for_parts(tmp_path, 2)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert recover_leftovers(tmp_path) == []
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([2, 2]), tmp_path, backend=backend)
    recorder.reset()
    recorder.step(None)
    wait_for_parts(tmp_path, 4)
    other = CameraObsVideoRecorder(CodedColorVectorEnv([2, 2]), tmp_path, backend=backend)
    assert len(list(tmp_path.glob("*.part"))) == 4
    other.close()
    recorder.step(None)
    recorder.close()
    # Both wrote to one folder at once, with the same prefix: no file is shared.
    after = {path.name for path in tmp_path.iterdir()}
    assert after - set(before) == {
        "episodes.jsonl", "robot-cam-env0-front-episode-0-run2.mp4", "robot-cam-env1-front-episode-0.mp4"
    }  # fmt: skip
    assert set(before) <= after
    assert all(decode(path) == [0, 1, 2] for path in tmp_path.glob("*.mp4"))
    assert all(parse_episode_video_filename(path) for path in tmp_path.glob("*.mp4"))
    process.kill()


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_leftovers_are_discarded_but_for_those_of_live_recorders(tmp_path, victim, caplog, backend):
    dead, encoders = victim(tmp_path, backend, 400)
    recorder = CameraObsVideoRecorder(CodedColorVectorEnv([9]), tmp_path, "other", backend=backend)
    recorder.reset()
    recorder.step(None)
    wait_for_parts(tmp_path, 3)
    (live,) = tmp_path.glob("other*.part")
    os.killpg(dead.pid, signal.SIGKILL)
    for encoder in encoders:
        encoder.kill()
    dead.wait()
    psutil.wait_procs(encoders, timeout=5)
    kept = tmp_path / "robot-cam-env7-front-episode-0.mp4"
    kept.write_bytes(b"a video")
    kept.with_name(kept.name + ".part.unreadable").write_bytes(b"set aside before")
    discard_leftovers(tmp_path)
    assert set(tmp_path.glob("*.mp4*")) == {kept, live}
    recorder.close()
    assert caplog.records == []


def test_whole_videos_without_a_row_are_discarded_too(tmp_path):
    die_before_rows_are_written(tmp_path)
    repeat_until_its_worker_is_gone(discard_leftovers, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_keeps_what_was_recorded(tmp_path):
    code = textwrap.dedent(SCRIPT).replace("backend=backend)", "backend=backend, save_partial_episodes=True)")
    code = code.replace("time.sleep(60)", "while True:\n    recorder.step(None)\n    time.sleep(0.01)")
    command = [sys.executable, "-c", code, str(tmp_path), "moviepy", "30"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: the ffmpegs get it too
    _, errors = process.communicate(timeout=30)
    assert errors.strip().endswith("KeyboardInterrupt")
    videos = sorted(tmp_path.glob("*-partial.mp4"))
    assert len(videos) == 2
    for path in videos:
        found = decode(path)
        assert len(found) > 30
        assert found == steps(len(found))


def test_files_that_cannot_be_read_are_set_aside(tmp_path):
    (tmp_path / "p-env0-c-episode-0.mp4.part").touch()
    (tmp_path / "p-env0-c-episode-1.mp4.part").write_bytes(b"not a video")
    (tmp_path / "something else.mp4.part").write_bytes(b"of somebody else")
    found = recover_leftovers(tmp_path)
    assert [(video.frames, video.path and video.path.name) for video in found] == [
        (0, None), (0, "p-env0-c-episode-1.mp4.part.unreadable"),
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "p-env0-c-episode-1.mp4.part.unreadable", "something else.mp4.part",
    ]  # fmt: skip
    assert recover_leftovers(tmp_path) == []


def test_recorders_of_other_machines_count_as_live(tmp_path):
    part = tmp_path / "p-env0-c-episode-1.mp4.part"
    part.write_bytes(b"not a video")
    lock = tmp_path / ".recorder-abc.lock"
    lock.write_text(f"host=another-machine\n{part.name}\n")
    assert recover_leftovers(tmp_path) == []
    assert lock.exists()
    assert len(recover_leftovers(tmp_path, any_host=True)) == 1
    assert not lock.exists()
