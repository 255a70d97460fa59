"""The arguments of the memory profiling wrappers, checked."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fleet_gym.profiling.sinks import checked_log_path
from fleet_gym.profiling.verdict import LEAK_THRESHOLD

Mode = Literal["trace", "light", "auto", "off"]
MODES: tuple[Mode, ...] = ("trace", "light", "auto", "off")


@dataclass(frozen=True)
class MemorySettings:
    """See `MemoryProfilingWrapper` for what the arguments mean.

    Raises:
        ValueError: when one is out of range.
    """

    interval: int = 100
    mode: Mode = "trace"
    nframe: int = 1
    leak_threshold: float = LEAK_THRESHOLD
    memory_limit_mb: float | None = None
    diagnosis_steps: int | None = None
    log_path: Path | None = None
    tensorboard_dir: Path | None = None

    @classmethod
    def checked(
        cls,
        *,
        profiling_interval: Any,
        mode: Any,
        nframe: Any,
        leak_threshold: Any,
        memory_limit_mb: Any,
        diagnosis_steps: Any,
        log_path: Any,
        tensorboard_dir: Any,
    ) -> MemorySettings:
        """Makes settings of raw arguments."""
        if not isinstance(mode, str) or mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        if tensorboard_dir is not None and not isinstance(tensorboard_dir, (str, Path)):
            raise ValueError(f"tensorboard_dir: expected a path, got {tensorboard_dir!r}")
        return cls(
            interval=whole_number("profiling_interval", profiling_interval),
            mode=mode,
            nframe=whole_number("nframe", nframe, most=65535),
            leak_threshold=_positive("leak_threshold", leak_threshold),
            memory_limit_mb=None if memory_limit_mb is None else _positive("memory_limit_mb", memory_limit_mb),
            diagnosis_steps=None
            if diagnosis_steps is None
            else whole_number("diagnosis_steps", diagnosis_steps, least=2),
            log_path=checked_log_path(log_path),
            tensorboard_dir=None if tensorboard_dir is None else Path(tensorboard_dir),
        )


def whole_number(name: str, value: Any, least: int = 1, most: float = math.inf) -> int:
    """Returns `value` as int.

    Raises:
        ValueError: when it is not a whole number between `least` and `most`.
    """
    # ValueError for a wrong type too: one kind of error for a wrong number, whatever is wrong with it.
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value) <= most:
        bound = "" if most == math.inf else f" and at most {most}"
        raise ValueError(f"{name}: expected a whole number, at least {least}{bound}, got {value!r}")
    return int(value)


def checked_flag(name: str, value: Any) -> bool:
    """Returns `value` if it is True or False.

    Raises:
        TypeError: for anything else, such as ``"no"``, which Python takes for true.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")
    return float(value)
