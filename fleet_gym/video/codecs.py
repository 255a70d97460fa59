"""Whether the encoders at hand know a codec."""

from __future__ import annotations

import functools
import math
import numbers
import re
import subprocess


@functools.cache
def _ffmpeg_encoders() -> tuple[str, frozenset[str]]:
    from moviepy.config import FFMPEG_BINARY

    command = [FFMPEG_BINARY, "-hide_banner", "-encoders"]
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listed.splitlines())
    return FFMPEG_BINARY, frozenset(row[1] for row in rows if len(row) > 1 and row[0].startswith("V"))


def _pyav_has(codec: str) -> bool:
    import av

    try:
        return bool(av.Codec(codec, "w").type == "video")
    except ValueError:
        return False


def check_codec(codec: str, moviepy: bool, pool: bool) -> None:
    """Checks that every backend that may be used knows the codec.

    Args:
        codec: ffmpeg's name of an encoder.
        moviepy: MoviePy's ffmpeg may be used.
        pool: PyAV may be used.

    Raises:
        TypeError: when it is not a string.
        ValueError: when one of them does not have it.
    """
    if not isinstance(codec, str):
        raise TypeError(f"codec: expected the name of a video encoder, got {codec!r}")
    if codec == "libx264":
        return  # both bring it
    if moviepy and codec not in _ffmpeg_encoders()[1]:
        raise ValueError(f"codec: expected a video encoder of {_ffmpeg_encoders()[0]}, got {codec!r}")
    if pool and not _pyav_has(codec):
        raise ValueError(f"codec: expected a video encoder of PyAV's ffmpeg, got {codec!r}; use backend='moviepy'")


def check_quality(preset: str | None, crf: float | None, bitrate: str | None) -> None:
    """Checks what can be known without the codec, before an encoder fails over it in the middle of an episode.

    Raises:
        TypeError: for one of the wrong type.
        ValueError: for a value that no codec takes.
    """
    if preset is not None and not isinstance(preset, str):
        raise TypeError(f"preset: expected the name of a preset such as 'superfast', got {preset!r}")
    if crf is not None and (isinstance(crf, bool) or not isinstance(crf, numbers.Real)):
        raise TypeError(f"crf: expected a number, got {crf!r}")
    if crf is not None and not 0 <= crf < math.inf:
        raise ValueError(f"crf: expected a number, at least 0, got {crf!r}")
    if bitrate is not None and not isinstance(bitrate, str):
        raise TypeError(f"bitrate: expected a string such as '2M', got {bitrate!r}")
    if bitrate is not None and not re.fullmatch(r"\d+(\.\d+)?[kKmM]?", bitrate, re.ASCII):
        raise ValueError(f"bitrate: expected a number with k, M or nothing after it, such as '2M', got {bitrate!r}")
