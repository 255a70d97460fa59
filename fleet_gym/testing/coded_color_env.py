"""Environments whose images say which environment, episode and step they belong to.

For tests of anything that handles frames: record, decode the file, and `decode_color` tells for every frame where it
came from. Episodes have fixed lengths, one for each environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

LEVELS = 32
_STEP = 256 // LEVELS
DEFAULT_CAMERAS: Mapping[str, tuple[int, int]] = {"front": (32, 48)}


def encode_color(env: int, episode: int, step: int) -> NDArray[np.uint8]:
    """Returns the (3,) uint8 colour that codes three numbers, each modulo `LEVELS`."""
    levels = np.array([env, episode, step]) % LEVELS
    return (levels * _STEP + _STEP // 2).astype(np.uint8)


def decode_color(frame: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Returns (env, episode, step) of an image (H, W, 3 or more), as a lossy codec gave it back."""
    mean = frame[..., :3].reshape(-1, 3).astype(np.float64).mean(axis=0)
    env, episode, step = np.floor(mean / _STEP).astype(int).tolist()
    return env, episode, step


def coded_images(
    env: int, episode: int, step: int, cameras: Mapping[str, tuple[int, int]]
) -> dict[str, NDArray[np.uint8]]:
    """Returns solid images {camera: (height, width, 3)}."""
    color = encode_color(env, episode, step)
    return {camera: np.full((*size, 3), color, dtype=np.uint8) for camera, size in cameras.items()}


def coded_space(cameras: Mapping[str, tuple[int, int]]) -> gym.spaces.Dict:
    """Returns the observation space of one environment."""
    images: dict[str, gym.Space[Any]] = {
        camera: gym.spaces.Box(0, 255, (*size, 3), np.uint8) for camera, size in cameras.items()
    }
    state = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return gym.spaces.Dict({"state": state, "camera_obs": gym.spaces.Dict(images)})


class CodedColorEnv(gym.Env[Any, Any]):
    """One environment of `episode_length` steps; every image has the colour of (env, episode, step).

    The reward of step t is t. Environments of even number terminate, the others are truncated; episodes of even number
    are a ``success``.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as in gymnasium.Env

    def __init__(
        self,
        env_index: int = 0,
        episode_length: int = 5,
        cameras: Mapping[str, tuple[int, int]] = DEFAULT_CAMERAS,
        render_mode: str | None = None,
        fail_at: int | None = None,
    ) -> None:
        """Makes it.

        Args:
            env_index: coded in the colours.
            episode_length: steps.
            cameras: name -> (height, width).
            render_mode: None or ``"rgb_array"``.
            fail_at: raise RuntimeError in this step of every episode.
        """
        self.env_index = env_index
        self.episode_length = episode_length
        self.cameras = dict(cameras)
        self.render_mode = render_mode
        self.fail_at = fail_at
        self.observation_space = coded_space(self.cameras)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.episode = -1
        self.steps = 0

    def _observation(self) -> dict[str, Any]:
        images = coded_images(self.env_index, self.episode, self.steps, self.cameras)
        return {"state": np.array([self.episode, self.steps], dtype=np.float32), "camera_obs": images}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the next episode."""
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return self._observation(), {"success": False}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advances by one step."""
        if self.fail_at is not None and self.steps + 1 == self.fail_at:
            raise RuntimeError(f"environment {self.env_index} was told to fail in step {self.fail_at}")
        self.steps += 1
        ends = self.steps >= self.episode_length
        terminated = ends and self.env_index % 2 == 0
        info = {"success": bool(ends and self.episode % 2 == 0)}
        return self._observation(), float(self.steps), terminated, ends and not terminated, info

    def render(self) -> Any:
        """Returns the first camera's image."""
        camera = next(iter(self.cameras))
        return coded_images(self.env_index, self.episode, self.steps, self.cameras)[camera]


def coded_color_envs(
    lengths: Sequence[int], cameras: Mapping[str, tuple[int, int]] = DEFAULT_CAMERAS, **kwargs: Any
) -> list[Callable[[], CodedColorEnv]]:
    """Returns the functions that `SyncVectorEnv` and `AsyncVectorEnv` make environments of.

    Args:
        lengths: steps of an episode, for each environment.
        cameras: name -> (height, width).
        kwargs: passed on to `CodedColorEnv`.
    """

    def maker(index: int, length: int) -> Callable[[], CodedColorEnv]:
        return lambda: CodedColorEnv(index, length, cameras, **kwargs)

    return [maker(index, length) for index, length in enumerate(lengths)]


class CodedColorVectorEnv(VectorEnv[Any, Any, Any]):
    """The same as a batched environment with `get_episode_index` and `render_cameras`, in any autoreset mode."""

    def __init__(
        self,
        lengths: Sequence[int],
        cameras: Mapping[str, tuple[int, int]] = DEFAULT_CAMERAS,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        *,
        camera_obs: bool = True,
        final_obs: bool = True,
        convert: Callable[[NDArray[Any]], Any] = lambda array: array,
    ) -> None:
        """Makes it.

        Args:
            lengths: steps of an episode, for each environment.
            cameras: name -> (height, width).
            autoreset_mode: see `gymnasium.vector.AutoresetMode`.
            camera_obs: whether the observation has images.
            final_obs: whether SAME_STEP hands the last observations over.
            convert: what is returned in place of each image batch and flag array, such as a tensor.
        """
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.num_envs = len(lengths)
        self.lengths = np.asarray(lengths)
        self.cameras = dict(cameras)
        self.camera_obs = camera_obs
        self.final_obs = final_obs
        self.convert = convert
        self.metadata = {"render_modes": [], "render_fps": 10, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = coded_space(self.cameras)
        self.single_action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.episode = np.full(self.num_envs, -1)
        self.steps = np.zeros(self.num_envs, dtype=np.int64)
        self.done = np.zeros(self.num_envs, dtype=np.bool_)
        self.rendered: list[list[int]] = []
        self._ended: dict[int, tuple[int, int]] = {}

    def get_episode_index(self, env_index: int) -> int:
        """Returns the index of the running episode, -1 before the first reset."""
        return int(self.episode[env_index])

    def _observation(self) -> dict[str, Any]:
        state = np.stack([self.episode, self.steps], axis=-1).astype(np.float32)
        return {"state": state, **({"camera_obs": self._images()} if self.camera_obs else {})}

    def _images(self) -> dict[str, Any]:
        colors = np.stack(
            [encode_color(env, int(self.episode[env]), int(self.steps[env])) for env in range(self.num_envs)]
        )
        return {
            camera: self.convert(np.broadcast_to(colors[:, None, None], (self.num_envs, *size, 3)).copy())
            for camera, size in self.cameras.items()
        }

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the next episode, of the environments in ``options["reset_mask"]`` if it is there."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        self._begin(mask)
        return self._observation(), {}

    def _begin(self, mask: NDArray[np.bool_]) -> None:
        self.episode[mask] += 1
        self.steps[mask] = 0
        self.done[mask] = False

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advances every environment by one step, or resets it where the mode says so."""
        infos: dict[str, Any] = {}
        pending = self.done & (self.autoreset_mode == AutoresetMode.NEXT_STEP)
        if self.autoreset_mode == AutoresetMode.DISABLED and self.done.any():
            raise gym.error.ResetNeeded(f"environments {np.flatnonzero(self.done).tolist()} are done")
        self._begin(pending)
        self.steps[~pending] += 1
        rewards = np.where(pending, 0.0, self.steps.astype(np.float64))
        ends = ~pending & (self.steps >= self.lengths)
        even = np.arange(self.num_envs) % 2 == 0
        success = ends & (self.episode % 2 == 0)
        self.done = ends.copy()
        self._ended = {int(env): (int(self.episode[env]), int(self.steps[env])) for env in np.flatnonzero(ends)}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ends.any():
            if self.final_obs:
                infos |= self._final(ends, success)
            self._begin(ends)
            success = np.zeros_like(success)
        infos |= {"success": success, "_success": np.ones(self.num_envs, dtype=np.bool_)}
        return self._observation(), rewards, self.convert(ends & even), self.convert(ends & ~even), infos

    def _final(self, ends: NDArray[np.bool_], success: NDArray[np.bool_]) -> dict[str, Any]:
        observation = self._observation()
        final = np.full(self.num_envs, None, dtype=object)
        for env in np.flatnonzero(ends):
            final[env] = {"state": observation["state"][env]}
            if self.camera_obs:
                final[env]["camera_obs"] = {name: images[env] for name, images in observation["camera_obs"].items()}
        info = {"success": success, "_success": ends}
        return {"final_obs": final, "_final_obs": ends, "final_info": info, "_final_info": ends}

    def render(self) -> tuple[Any, ...]:
        """Returns the first camera's image of every environment."""
        camera = next(iter(self.cameras))
        return tuple(
            coded_images(env, int(self.episode[env]), int(self.steps[env]), self.cameras)[camera]
            for env in range(self.num_envs)
        )

    def render_cameras(
        self,
        env_indices: Sequence[int] | None = None,
        cameras: Sequence[str] | None = None,
        *,
        final: bool = False,
    ) -> dict[str, NDArray[np.uint8]]:
        """Returns images {camera: (n, H, W, 3)} of the given environments; notes in `rendered` what was asked for."""
        envs = list(range(self.num_envs)) if env_indices is None else list(env_indices)
        self.rendered.append(envs)
        where = [self._ended[env] if final else (int(self.episode[env]), int(self.steps[env])) for env in envs]
        names = list(self.cameras) if cameras is None else list(cameras)
        singles = [coded_images(env, *at, self.cameras) for env, at in zip(envs, where, strict=True)]
        return {name: np.stack([single[name] for single in singles]) for name in names}
