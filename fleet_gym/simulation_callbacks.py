"""When callbacks are due: exact counts of steps, no sums of floating-point times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fleet_gym._validation import finite_float

#: Decimal fractions such as 0.1 and divisions such as 1 / 240 are meant, not their nearest binary numbers.
_LARGEST_DENOMINATOR = 10**6
#: What is smaller than this needs larger denominators.
_SMALL = 1e-3


def exact(value: float) -> Fraction:
    """The simple fraction that a float >= 0 stands for."""
    if 0.0 < value < _SMALL:
        return 1 / exact(1.0 / value) if value > _SMALL**4 else Fraction(value)
    return Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)


def steps_in(duration: float, control_dt: float) -> int:
    """Number of steps that cover a duration (s)."""
    return -int(-exact(duration) // exact(control_dt))


@dataclass
class Callback:
    """A function and how often it is called.

    Attributes:
        function: called with the simulation and the simulated time since its last call, s.
        per_step: calls per step, at most 1.
        last_step: step of its last call, or of its registration.
    """

    function: Callable[[Any, float], object]
    per_step: Fraction
    last_step: int

    def is_due(self, step: int) -> bool:
        """Whether this step completes another period since step 0."""
        return step * self.per_step // 1 > (step - 1) * self.per_step // 1


def make_callback(
    function: Callable[[Any, float], object], frequency: float | None, control_dt: float, step: int
) -> Callback:
    """Checks what `MultiRobotSimulationCore.register_callback` is given.

    Raises:
        TypeError: not a function, or a frequency that is no number.
        ValueError: a frequency that is not positive, or higher than that of steps.
    """
    if not callable(function):
        raise TypeError(f"callback: expected a function of (sim_core, dt), got {function!r}")
    if frequency is None:
        return Callback(function, Fraction(1), step)
    frequency = finite_float("frequency", frequency, minimum=0.0, exclusive=True)
    per_step = exact(frequency) * exact(control_dt)
    if per_step > 1:
        raise ValueError(
            f"frequency: expected at most {1 / control_dt:g} Hz, once per step of {control_dt:g} s, got {frequency:g}"
        )
    return Callback(function, per_step, step)
