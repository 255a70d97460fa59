"""What the tests of the recorder share: environments whose images say what they are of, and what was recorded."""

import time

import av
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, coded_color_envs, decode_color

MODES = list(AutoresetMode)


def make_env(kind, lengths, mode, **kwargs):
    if kind == "native":
        return CodedColorVectorEnv(lengths, autoreset_mode=mode, **kwargs)
    cls = SyncVectorEnv if kind == "sync" else AsyncVectorEnv
    return cls(coded_color_envs(lengths, **kwargs), autoreset_mode=mode)


def run(recorder, steps, reset=True, seed=None):
    """Steps a recorder as its autoreset mode wants it."""
    if reset:
        recorder.reset(seed=seed)
    done = np.zeros(recorder.num_envs, dtype=bool)
    actions = np.zeros((recorder.num_envs, 1), dtype=np.float32)
    for _ in range(steps):
        if recorder.autoreset_mode == AutoresetMode.DISABLED and done.any():
            recorder.reset(options={"reset_mask": done.copy()})
        _, _, terminated, truncated, _ = recorder.step(actions)
        done = np.asarray(terminated) | np.asarray(truncated)


def decode(path):
    """Returns (env, episode, step) of every frame."""
    with av.open(str(path)) as container:
        return [decode_color(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def wait_for(folder, pattern, count):
    deadline = time.monotonic() + 30
    while len(list(folder.glob(pattern))) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return list(folder.glob(pattern))


def videos(folder):
    return {path.name: decode(path) for path in sorted(folder.glob("*.mp4"))}
