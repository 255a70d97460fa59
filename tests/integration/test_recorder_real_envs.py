"""The recorder around environments nobody here wrote: CarRacing, CartPole by render(), and panda-gym's arm.

Needs ``gymnasium[box2d,classic-control]`` and ``panda-gym``.
"""

import av
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AddRenderObservation, TimeLimit

from fleet_gym.video import parse_episode_video_filename, read_episodes
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

LENGTH = 6
SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def car_racing():
    return TimeLimit(gym.make("CarRacing-v3", max_episode_steps=-1).unwrapped, LENGTH)


def cart_pole():
    return gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=LENGTH)


def panda():
    import panda_gym  # noqa: F401 - registers its environments

    env = gym.make("PandaReach-v3", render_width=96, render_height=64, renderer="Tiny", max_episode_steps=LENGTH)
    return AddRenderObservation(env, render_only=False, render_key="wrist", obs_key="state")


def play(env, folder, steps, **arguments):
    """Records and returns what the environment showed: {(env, episode): images} of whole episodes."""
    recorder = CameraObsVideoRecorder(env, folder, crf=1, **arguments)
    key = arguments.get("camera_obs_key")
    by_render = arguments.get("frame_source") == "render"

    def images(observation, single=None):
        if by_render:
            return recorder.render()
        return observation if key == () else observation[key]

    recorder.action_space.seed(1)
    observation, _ = recorder.reset(seed=1)
    shown = {(i, 0): [np.array(images(observation)[i])] for i in range(env.num_envs)}
    episode, pending = [0] * env.num_envs, [False] * env.num_envs
    for _ in range(steps):
        observation, _, terminated, truncated, infos = recorder.step(recorder.action_space.sample())
        for i in range(env.num_envs):
            image = np.array(images(observation)[i])
            if pending[i]:
                episode[i] += 1
                shown[i, episode[i]] = [image]
                pending[i] = False
                continue
            done = terminated[i] or truncated[i]
            if done and env.metadata["autoreset_mode"] == SAME_STEP:
                shown[i, episode[i]].append(np.array(images(infos["final_obs"][i])))
                episode[i] += 1
                shown[i, episode[i]] = [image]
            else:
                shown[i, episode[i]].append(image)
                pending[i] = bool(done)
    recorder.close()
    return shown


def assert_recorded(folder, shown, camera, episodes, tolerance):
    rows = [row for row in read_episodes(folder) if not row["interrupted"]]
    assert {(row["env"], row["episode"]) for row in rows} == episodes
    for row in rows:
        (file,) = row["files"]
        assert parse_episode_video_filename(file["file"]).camera == camera
        with av.open(str(folder / file["file"])) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        expected = shown[row["env"], row["episode"]]
        assert len(frames) == len(expected) == row["steps"] + 1
        for frame, image in zip(frames, expected, strict=True):
            cropped = frame[: image.shape[0], : image.shape[1]].astype(int)
            assert np.abs(cropped - image.astype(int)).mean() < tolerance


@pytest.mark.parametrize("cls", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_car_racing_whose_observation_is_the_image(tmp_path, cls, mode, backend):
    env = cls([car_racing] * 2, autoreset_mode=mode)
    shown = play(env, tmp_path, 14, fps=50, camera_obs_key=(), backend=backend)
    # Grass and track differ by little: the tolerance is that of chroma at half the resolution.
    assert_recorded(tmp_path, shown, "obs", {(i, e) for i in range(2) for e in range(2)}, tolerance=6)


@pytest.mark.parametrize("backend", ["moviepy", "pool"])
def test_cart_pole_by_render(tmp_path, backend):
    env = SyncVectorEnv([cart_pole] * 2)
    shown = play(env, tmp_path, 13, frame_source="render", backend=backend)
    assert_recorded(tmp_path, shown, "render", {(i, e) for i in range(2) for e in range(2)}, tolerance=3)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_panda_gym_with_a_camera_in_its_observation(tmp_path, mode):
    env = SyncVectorEnv([panda], autoreset_mode=mode)
    shown = play(env, tmp_path, LENGTH + 1, fps=25, camera_obs_key="wrist", backend="pool")
    assert_recorded(tmp_path, shown, "wrist", {(0, 0)}, tolerance=6)
    assert read_episodes(tmp_path)[0]["success"] is not None
