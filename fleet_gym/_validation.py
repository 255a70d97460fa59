"""Checks of arguments that several modules share. Each error names argument, expectation and value."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any


def positive_int(name: str, value: Any) -> int:
    """Returns `value` as int if it is a whole number of at least 1.

    Raises:
        TypeError: for anything but an integer (bool included).
        ValueError: below 1.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected an int >= 1, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: expected an int >= 1, got {value!r}")
    return int(value)


def non_negative_int(name: str, value: Any) -> int:
    """Returns `value` as int if it is a whole number of at least 0.

    Raises:
        TypeError: for anything but an integer (bool included).
        ValueError: below 0.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected an int >= 0, got {value!r}")
    if value < 0:
        raise ValueError(f"{name}: expected an int >= 0, got {value!r}")
    return int(value)


def finite_float(
    name: str, value: Any, *, minimum: float = -math.inf, maximum: float = math.inf, exclusive: bool = False
) -> float:
    """Returns `value` as float if it is a finite number from `minimum` (above it, if `exclusive`) to `maximum`.

    Raises:
        TypeError: for anything but a real number (bool included).
        ValueError: when it is NaN, infinite or out of range.
    """
    bound = "" if minimum == -math.inf else f" {'>' if exclusive else '>='} {minimum:g}"
    bound += "" if maximum == math.inf else f"{' and' if bound else ''} <= {maximum:g}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a finite number{bound}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an int that no float can hold
        number = math.inf
    if not math.isfinite(number) or not minimum <= number <= maximum or (exclusive and number == minimum):
        raise ValueError(f"{name}: expected a finite number{bound}, got {value!r}")
    return number


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Returns `value` if it is one of `choices`.

    Raises:
        ValueError: otherwise.
    """
    names = tuple(choices)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, names))}, got {value!r}")
    return value
