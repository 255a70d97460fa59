from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fleet_gym.video.ffmpeg_process import FfmpegProcess, interrupts_kept_off

FRAME_BYTES = 300_000  # more than the pipe takes at once, so that a frame is written in parts


def feed(path: Path) -> FfmpegProcess:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=path.open("wb"), stderr=subprocess.PIPE)
    return FfmpegProcess(process, timeout=10.0, frame_bytes=FRAME_BYTES)


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupts():
    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_at_any_moment_leaves_whole_frames(tmp_path, interrupts):
    random = np.random.default_rng(5)
    process = feed(tmp_path / "frames")
    hits = 0
    image = np.empty(FRAME_BYTES, dtype=np.uint8)
    for number in range(250):
        image[:] = number
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 5e-4))
            process.write(image, drop=False)
            while True:
                pass
        except Interrupted:
            hits += 1
        image[:] = 255  # an interrupted frame is the one that was handed over, not what became of its memory
    process.wait()
    data = np.fromfile(tmp_path / "frames", dtype=np.uint8)
    assert len(data) == process.frames * FRAME_BYTES
    frames = data.reshape(-1, FRAME_BYTES)
    assert (frames == frames[:, :1]).all()
    values = frames[:, 0].astype(int)
    assert (np.diff(values) > 0).all()
    assert hits == 250
    assert len(values) > 10


def test_a_frame_is_not_lost_between_two_others(tmp_path):
    process = feed(tmp_path / "frames")
    for value in range(20):
        assert process.write(np.full(FRAME_BYTES, value, dtype=np.uint8), drop=False)
    assert process.frames == 20
    process.wait()
    data = np.fromfile(tmp_path / "frames", dtype=np.uint8).reshape(20, FRAME_BYTES)
    assert (data == np.arange(20)[:, None]).all()


def test_children_do_not_hear_an_interrupt():
    code = "import sys, time; print('ready', flush=True); sys.stdin.read(); print('read all')"
    with interrupts_kept_off():
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30)[0] == "read all\n"
    assert child.returncode == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
