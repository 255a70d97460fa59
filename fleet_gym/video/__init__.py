"""Episode videos: who decides which frame goes where, how it is encoded, and what is written down about it."""

from __future__ import annotations

from fleet_gym.video.episode_files import (
    EpisodeVideoName,
    format_episode_video_filename,
    parse_episode_video_filename,
)
from fleet_gym.video.episode_log import EpisodeRecord, VideoFile, read_episodes
from fleet_gym.video.errors import VideoEncodeError
from fleet_gym.video.frames import FrameFormat

__all__ = [
    "EpisodeRecord",
    "EpisodeVideoName",
    "FrameFormat",
    "VideoEncodeError",
    "VideoFile",
    "format_episode_video_filename",
    "parse_episode_video_filename",
    "read_episodes",
]
