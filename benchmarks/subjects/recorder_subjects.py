"""What `benchmarks/recorder.py` records, and the recorders it compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

FPS = 20


class PatternEnv(VectorEnv[Any, Any, Any]):
    """Cameras that see something moving; all environments end together, and reset in the same step."""

    def __init__(self, num_envs: int, cameras: int, size: tuple[int, int], length: int) -> None:
        self.num_envs, self.length, self.steps = num_envs, length, 0
        self.metadata = {"render_fps": FPS, "autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}
        self.render_mode = "rgb_array"
        self.single_observation_space = self.observation_space = gym.spaces.Dict()
        height, width = size
        y, x = np.mgrid[:height, :width]
        base = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1).astype(np.uint8)
        scenes = np.stack([np.roll(base, 7 * env, axis=1) for env in range(num_envs)])
        self.images = []
        for k in range(4):  # a still scene with two things moving in it, as robots do
            images = scenes.copy()
            images[:, height // 4 : height // 2, width // 8 * k : width // 8 * (k + 2)] = 40 + 50 * k
            images[:, height // 8 * (k + 2) : height // 8 * (k + 3), width // 2 : width // 4 * 3] = (200, 60, 40)
            self.images.append(images)
        self.names = [f"camera{i}" for i in range(cameras)]

    def observation(self) -> dict[str, Any]:
        """Returns the cameras' images."""
        views = {name: self.images[(self.steps + i) % 4].copy() for i, name in enumerate(self.names)}
        return {"camera_obs": views}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins anew."""
        self.steps = 0
        return self.observation(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advances all environments."""
        self.steps += 1
        done = np.full(self.num_envs, self.steps >= self.length)
        observation, infos = self.observation(), {}
        if done.all():
            final = np.full(self.num_envs, None, dtype=object)
            for env in range(self.num_envs):
                final[env] = {"camera_obs": {name: v[env] for name, v in observation["camera_obs"].items()}}
            infos = {"final_obs": final, "_final_obs": done}
            observation, infos = self.reset()[0], infos
        return observation, np.zeros(self.num_envs), done, np.zeros(self.num_envs, dtype=bool), infos

    def render(self) -> tuple[Any, ...]:
        """Returns the image of every environment."""
        return tuple(self.images[self.steps % 4])


class ArenaRecorder(VectorWrapper[Any, Any, Any, Any, Any]):
    """Frames of going-on environments are written in `step`; the writers of ended ones are closed there."""

    def __init__(self, env: VectorEnv[Any, Any, Any], folder: str | Path) -> None:
        super().__init__(env)
        self.folder, self.writers, self.episode = Path(folder), {}, np.zeros(env.num_envs, dtype=int)

    def step(self, actions: Any) -> Any:
        """Steps and writes."""
        result = self.env.step(actions)
        done = result[2] | result[3]
        for camera, images in result[0]["camera_obs"].items():
            for env in np.flatnonzero(~done).tolist():
                if (env, camera) not in self.writers:
                    name = self.folder / f"arena-env{env}-{camera}-episode-{self.episode[env]}.mp4"
                    size = (images.shape[2], images.shape[1])
                    self.writers[env, camera] = FFMPEG_VideoWriter(str(name), size, FPS, threads=1)
                self.writers[env, camera].write_frame(images[env])
        for env in np.flatnonzero(done).tolist():
            for key in [key for key in self.writers if key[0] == env]:
                self.writers.pop(key).close()
            self.episode[env] += 1
        return result

    def close(self, **kwargs: Any) -> None:
        """Closes the writers."""
        for writer in self.writers.values():
            writer.close()
        self.env.close(**kwargs)


def make_recorder(kind: str, env: VectorEnv[Any, Any, Any], folder: str | Path) -> VectorEnv[Any, Any, Any]:
    if kind in ("moviepy", "pool"):
        return CameraObsVideoRecorder(env, folder, backend=kind)
    if kind == "arena":
        return ArenaRecorder(env, folder)
    if kind == "gymnasium":
        from gymnasium.wrappers.vector import RecordVideo

        gym.logger.min_level = gym.logger.ERROR
        return RecordVideo(env, str(folder), episode_trigger=lambda _: True)
    return env


class TinyEnv(VectorEnv[Any, Any, Any]):
    """Two environments with three cameras each, all of which get the step's one TinyRenderer image."""

    def __init__(self) -> None:
        from fleet_gym._pybullet import DirectClient, pybullet

        self.num_envs = 2
        self.metadata = {"render_fps": FPS, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.client, self.p, self.steps = DirectClient(), pybullet(), 0
        self.client.load_urdf("plane.urdf")
        self.client.load_urdf("r2d2.urdf", basePosition=[0, 0, 0.5])
        self.client.load_urdf("kuka_iiwa/model.urdf", basePosition=[1, 0, 0])
        self.projection = self.p.computeProjectionMatrixFOV(60, 320 / 240, 0.1, 20)

    def observation(self) -> dict[str, Any]:
        """Returns the cameras' images."""
        p, angle = self.p, 0.02 * self.steps
        eye = [3 * np.cos(angle), 3 * np.sin(angle), 1.5]
        view = p.computeViewMatrix(eye, [0.5, 0, 0.5], [0, 0, 1])
        image = p.getCameraImage(
            320, 240, view, self.projection, renderer=p.ER_TINY_RENDERER, physicsClientId=self.client.id
        )[2]
        frame = np.ascontiguousarray(np.reshape(image, (240, 320, 4))[..., :3]).astype(np.uint8)
        return {"camera_obs": {name: np.stack([frame, frame]) for name in "abc"}}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins anew."""
        self.steps = 0
        return self.observation(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advances all environments."""
        self.steps += 1
        none = np.zeros(2, dtype=bool)
        return self.observation(), np.zeros(2), none, none, {}
