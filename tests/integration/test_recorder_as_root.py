"""The recorder on a full disk and as a user with narrow limits; mounting and changing the user need root."""

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap

import av
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video import VideoEncodeError, parse_episode_video_filename
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(kilobytes):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], check=True)
        return folder

    yield mount
    subprocess.run(["umount", "--lazy", folder], check=False)


class Noise(CodedColorVectorEnv):
    """Its images do not compress."""

    def _images(self):
        rng = np.random.default_rng(int(self.steps.sum()))
        return {
            camera: rng.integers(0, 255, (self.num_envs, *size, 3), "uint8") for camera, size in self.cameras.items()
        }


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
@pytest.mark.parametrize("steps", [20, 200])
def test_a_full_disk_is_told(small_disk, backend, steps):
    folder = small_disk(48)
    recorder = CameraObsVideoRecorder(Noise([steps], {"front": (128, 128)}), folder, backend=backend)
    recorder.reset()

    def record():
        for _ in range(steps):
            recorder.step(None)
        recorder.close()

    with pytest.raises(VideoEncodeError, match=r"env 0, camera 'front', episode 0"):
        record()
    assert not list(folder.glob("*.mp4"))
    with contextlib.suppress(OSError, VideoEncodeError):  # there may be no room for the log either
        recorder.close()


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_files_that_were_whole_before_the_disk_filled_stay_whole(small_disk, backend):
    folder = small_disk(400)
    env = Noise([3, 400], {"front": (128, 128)}, AutoresetMode.SAME_STEP)
    recorder = CameraObsVideoRecorder(env, folder, backend=backend, env_indices=[0, 1])
    recorder.reset()

    def record():
        for _ in range(400):
            recorder.step(None)
        recorder.close()

    with pytest.raises(VideoEncodeError):
        record()
    with contextlib.suppress(OSError, VideoEncodeError):
        recorder.close()
    whole = sorted(folder.glob("*.mp4"))
    assert whole
    for path in whole:
        assert parse_episode_video_filename(path).env == 0
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 4


SCRIPT = """
    import resource, sys
    from gymnasium.vector import AutoresetMode
    from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
    from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
    cameras = {name: (128, 128) for name in "abc"}
    env = CodedColorVectorEnv([8] * 64, cameras, AutoresetMode.SAME_STEP)
    recorder = CameraObsVideoRecorder(env, sys.argv[1])
    recorder.reset()
    for _ in range(9):
        recorder.step(None)
    recorder.close()
"""


def as_nobody(*arguments):
    # An interpreter below /root stays readable with this one capability.
    caps = "-all,+dac_read_search"
    user = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", f"--inh-caps={caps}", f"--ambient-caps={caps}"]
    return subprocess.run([*user, sys.executable, *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture
def open_folder(tmp_path):
    """A folder of nobody's, with every folder above it passable."""
    folder = tmp_path / "videos"
    folder.mkdir()
    shutil.chown(folder, NOBODY)
    for parent in folder.parents:
        if parent.stat().st_uid == os.getuid() and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o011)
    return folder


def test_many_streams_within_narrow_limits(open_folder):
    done = as_nobody("-c", textwrap.dedent(SCRIPT), str(open_folder))
    assert done.returncode == 0, done.stderr
    files = list(open_folder.glob("*.mp4"))
    assert len(files) == 64 * 3
    for path in files[::16]:
        name = parse_episode_video_filename(path)
        with av.open(str(path)) as container:
            frames = [decode_color(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
        assert frames == [(name.env % 32, 0, t) for t in range(9)]


def test_a_folder_of_somebody_else_is_a_permission_error(tmp_path, open_folder):
    (tmp_path / "mine").mkdir(mode=0o755)
    code = textwrap.dedent(SCRIPT).split("recorder.reset")[0]
    done = as_nobody("-c", code, str(tmp_path / "mine"))
    assert done.returncode == 1
    assert "PermissionError" in done.stderr
    assert list((tmp_path / "mine").iterdir()) == []


def test_moviepy_beyond_the_limit_of_descriptors_is_told_and_what_was_open_is_whole(tmp_path):
    code = textwrap.dedent(SCRIPT).replace("sys.argv[1])", "sys.argv[1], backend='moviepy')")
    code = code.replace(
        "    recorder.step(None)",
        "    try:\n        recorder.step(None)\n    except RuntimeError as error:\n        print(error)",
    )
    code = code.replace("[8] * 64", "[8] * 12").replace("range(9)", "range(8)")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert "Too many open files" in done.stdout
    files = list(tmp_path.glob("*.mp4"))
    assert 10 < len(files) < 36
    for path in files[::6]:
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 9
