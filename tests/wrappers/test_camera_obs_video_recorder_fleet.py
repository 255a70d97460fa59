"""The recorder around the suite's own environment, on its real pictures."""

import av
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym.vector_env import FleetVectorEnv
from fleet_gym.video import read_episodes
from fleet_gym.world.cameras import Camera
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

CAMERA = Camera("top", 48, 32, position=(0.0, 0.1, 9.0), target=(0.0, 0.0, 0.0))
LENGTH = 3


def fleet(mode, **arguments):
    return FleetVectorEnv(
        2, num_robots=2, robot="diffbot", cameras=(CAMERA,), max_episode_steps=LENGTH, autoreset_mode=mode, **arguments
    )


def drive(env, steps):
    """Returns the images of every (world, episode) as the environment returned them."""
    seen = {}
    actions = np.ones(env.action_space.shape, dtype=np.float32)
    done = np.zeros(env.num_envs, dtype=bool)

    def note(observation, world):
        episode = env.unwrapped.get_episode_index(world)
        seen.setdefault((world, episode), []).append(observation["camera_obs"]["top"][world].copy())

    observation, _ = env.reset(seed=5)
    for world in range(env.num_envs):
        note(observation, world)
    for _ in range(steps):
        if env.autoreset_mode == AutoresetMode.DISABLED and done.any():
            observation, _ = env.reset(options={"reset_mask": done.copy()})
            for world in np.flatnonzero(done):
                note(observation, world)
        observation, _, terminated, truncated, infos = env.step(actions)
        done = terminated | truncated
        for world in range(env.num_envs):
            if "final_obs" in infos and infos["final_obs"][world] is not None:
                episode = env.unwrapped.get_episode_index(world) - 1
                seen[world, episode].append(infos["final_obs"][world]["camera_obs"]["top"].copy())
            note(observation, world)
    return seen


def decode(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_files_hold_what_the_environment_showed(tmp_path, mode, backend):
    recorder = CameraObsVideoRecorder(fleet(mode), tmp_path, backend=backend, crf=1)
    seen = drive(recorder, 2 * LENGTH + 1)
    recorder.close()
    rows = [row for row in read_episodes(tmp_path) if row["files"]]
    assert {(row["env"], row["episode"]) for row in rows} == {
        (world, episode) for world in (0, 1) for episode in (0, 1)
    }
    for row in rows:
        frames = decode(tmp_path / row["files"][0]["file"])
        expected = seen[row["env"], row["episode"]]
        assert len(frames) == len(expected) == LENGTH + 1
        for frame, image in zip(frames, expected, strict=True):
            assert np.abs(frame.astype(int) - image.astype(int)).mean() < 8  # chroma is stored at half resolution
        assert row["truncated"]
        assert row["success"] is False
        assert row["seed"] is not None
    assert rows[0]["fps"] == "10"


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_cameras_that_are_not_observed_can_be_recorded(tmp_path, mode):
    recorder = CameraObsVideoRecorder(
        fleet(mode, camera_obs=False), tmp_path, frame_source="env", env_indices=[1], backend="moviepy"
    )
    recorder.reset(seed=5)
    for _ in range(LENGTH):
        recorder.step(np.ones(recorder.action_space.shape, dtype=np.float32))
    recorder.close()
    (path,) = tmp_path.glob("*.mp4")
    assert path.name == "robot-cam-env1-top-episode-0.mp4"
    assert len(decode(path)) == LENGTH + 1
