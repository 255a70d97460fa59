"""Ctrl-C at any moment of a step or a reset, and going on afterwards."""

from __future__ import annotations

import signal
import sys

import av
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, decode_color
from fleet_gym.video import parse_episode_video_filename, read_episodes
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder


class InterruptAtLine:
    """Raises a real SIGINT when the recorder's code has come so many lines further."""

    def __init__(self, lines):
        self.lines = lines

    def __enter__(self):
        sys.settrace(self._call)

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, event, argument):
        name = frame.f_code.co_filename
        return self._line if "/fleet_gym/video/" in name or name.endswith("camera_obs_video_recorder.py") else None

    def _line(self, frame, event, argument):
        if event == "line":
            self.lines -= 1
            if self.lines == 0:
                signal.raise_signal(signal.SIGINT)
        return self._line


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(("backend", "interrupts"), [("moviepy", 25), ("pool", 120)])
def test_an_interrupt_at_any_moment_spoils_nothing(tmp_path, backend, interrupts, mode):
    random = np.random.default_rng(1)
    others = psutil.Process().children(recursive=True)  # as multiprocessing's, when another test used it
    env = CodedColorVectorEnv([3, 2], autoreset_mode=mode)
    recorder = CameraObsVideoRecorder(env, tmp_path, backend=backend, save_partial_episodes=True, encoder_timeout=5.0)
    recorder.reset()
    hits = 0
    for _ in range(interrupts):
        try:
            with InterruptAtLine(random.integers(1, 400)):
                while True:
                    recorder.step(None)
        except KeyboardInterrupt:
            hits += 1
        recorder.reset()
        for _ in range(random.integers(1, 4)):
            recorder.step(None)
    recorder.close()
    assert hits == interrupts
    assert [child for child in psutil.Process().children(recursive=True) if child not in others] == []
    logged = [(file["file"], file["frames"], row) for row in read_episodes(tmp_path) for file in row["files"]]
    on_disk = sorted(path.name for path in tmp_path.iterdir() if path.name != "episodes.jsonl")
    assert sorted(name for name, _, _ in logged) == on_disk
    for name, frames, row in logged:
        parsed = parse_episode_video_filename(name)
        with av.open(str(tmp_path / name)) as container:
            shown = [decode_color(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
        assert [step for _, _, step in shown] == list(range(frames))
        assert {env for env, _, _ in shown} == {parsed.env} == {row["env"]}
        assert frames == row["steps"] + 1
        assert parsed.partial == (not row["terminated"] and not row["truncated"])
