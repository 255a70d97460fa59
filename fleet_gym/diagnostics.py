"""What ``fleet-gym check`` and ``fleet-gym info`` report about an installation."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: Distributions whose versions decide what works.
DISTRIBUTIONS = ("gymnasium", "pybullet", "numpy", "numba", "moviepy", "imageio-ffmpeg", "av", "psutil", "pydantic")


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: what was checked.
        ok: whether it works.
        detail: what was found, or what went wrong.
        remedy: what to do; empty when it works.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def check_python() -> str:
    """Checks that PyBullet publishes wheels for this interpreter."""
    found = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform} {platform.machine()}"
    if platform.python_implementation() != "CPython" or sys.version_info[:2] not in ((3, 10), (3, 11)):
        raise RuntimeError(found)
    return found


def check_imports() -> str:
    """Imports every required distribution."""
    modules = ("gymnasium", "numpy", "numba", "moviepy", "imageio_ffmpeg", "av", "psutil", "pydantic", "yaml", "jinja2")
    for module in modules:
        importlib.import_module(module)
    return f"{len(modules)} libraries"


def check_pybullet() -> str:
    """Opens and closes a physics client."""
    from fleet_gym._pybullet import DirectClient

    DirectClient().close()
    return f"{importlib.metadata.version('pybullet')} with NumPy, opens a DIRECT client"


def check_ffmpeg() -> str:
    """Runs the ffmpeg that encodes the videos."""
    import imageio_ffmpeg

    path = imageio_ffmpeg.get_ffmpeg_exe()
    output = subprocess.run([path, "-version"], capture_output=True, text=True, check=True, timeout=30).stdout
    return f"{path} ({output.split(' Copyright')[0].splitlines()[0]})"


def check_numba_cache() -> str:
    """Compiles a function and looks whether its machine code is kept for the next process."""
    from fleet_gym._numba import compiled

    function: Any = compiled(_answer)
    if function() != 42:
        raise RuntimeError("numba compiled a function that returns a wrong result")
    folder = function.stats.cache_path
    if folder is None or not os.access(folder, os.W_OK):
        raise RuntimeError("no writable folder: everything is compiled again in every process")
    return str(folder)


def _answer() -> int:
    return 42


def check_environment() -> str:
    """Steps a tiny environment with a camera, records an episode and decodes the video."""
    import av

    from fleet_gym import Camera, CameraObsVideoRecorder, FleetVectorEnv

    camera = Camera("check", 64, 48, position=(0.0, -6.0, 6.0), target=(0.0, 0.0, 0.0))
    with tempfile.TemporaryDirectory() as folder:
        env = CameraObsVideoRecorder(FleetVectorEnv(1, num_robots=1, cameras=[camera], max_episode_steps=2), folder)
        try:
            observation, _ = env.reset(seed=0)
            if np.ptp(observation["camera_obs"]["check"]) == 0:
                raise RuntimeError("the camera's image is a single colour")
            for _ in range(2):
                env.step(np.zeros(env.action_space.shape, dtype=np.float32))
        finally:
            env.close()
        (video,) = Path(folder).glob("*.mp4")
        with av.open(str(video)) as container:
            frames = sum(1 for _ in container.decode(video=0))
        if frames != 3:
            raise RuntimeError(f"expected 3 frames in the video of a 2-step episode, got {frames}")
    return "2 steps, 3 frames drawn, encoded and decoded"


#: name, check, what to do when it fails. Ordered so that the first failure is the cause of later ones.
CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("python", check_python, "use CPython 3.10 or 3.11: PyBullet has no wheel for others"),
    ("libraries", check_imports, "pip install --upgrade fleet-gym"),
    ("pybullet", check_pybullet, "pip install --force-reinstall --only-binary=:all: pybullet"),
    ("ffmpeg", check_ffmpeg, "pip install --force-reinstall imageio-ffmpeg, or point IMAGEIO_FFMPEG_EXE to an ffmpeg"),
    ("numba cache", check_numba_cache, "point NUMBA_CACHE_DIR to a writable folder"),
    (
        "environment",
        check_environment,
        "mend what failed above; if nothing did, please report it with `fleet-gym info`",
    ),
)


def run_checks() -> Iterator[CheckResult]:
    """Runs all checks, one after the other; a failing one does not stop the others."""
    for name, check, remedy in CHECKS:
        try:
            detail = check()
        except Exception as error:  # reporting whatever is broken is the purpose of this loop
            message = " ".join(str(error).split()) or "no message"
            yield CheckResult(name, False, f"{type(error).__name__}: {message}", remedy)
        else:
            yield CheckResult(name, True, detail)


def collect_info() -> dict[str, Any]:
    """Returns versions, machine, known robots and paths, ready for JSON."""
    import imageio_ffmpeg
    import psutil

    import fleet_gym
    from fleet_gym._pybullet import pybullet_data_path
    from fleet_gym.world.robots import known_robots

    return {
        "fleet_gym": importlib.metadata.version("fleet-gym"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(psutil.Process().cpu_affinity()),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "versions": {name: importlib.metadata.version(name) for name in DISTRIBUTIONS},
        "robots": list(known_robots()),
        "paths": {
            "package": str(Path(fleet_gym.__file__).parent),
            "pybullet_data": pybullet_data_path(),
            "ffmpeg": imageio_ffmpeg.get_ffmpeg_exe(),
        },
    }
