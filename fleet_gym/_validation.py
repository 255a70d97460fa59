"""Checks of arguments that several modules share. Each error names argument, expectation and value."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np


def positive_int(name: str, value: Any, maximum: int | None = None) -> int:
    """Returns `value` as int if it is a whole number of at least 1 and, if given, at most `maximum`.

    Raises:
        TypeError: for anything but an integer (bool included).
        ValueError: below 1 or above `maximum`.
    """
    return _int_in(name, value, 1, maximum)


def non_negative_int(name: str, value: Any) -> int:
    """Returns `value` as int if it is a whole number of at least 0.

    Raises:
        TypeError: for anything but an integer (bool included).
        ValueError: below 0.
    """
    return _int_in(name, value, 0, None)


def _int_in(name: str, value: Any, minimum: int, maximum: int | None) -> int:
    message = f"{name}: expected an int >= {minimum}{'' if maximum is None else f' and <= {maximum}'}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        raise ValueError(message)
    return number


def flag(name: str, value: Any) -> bool:
    """Returns `value` as bool if it is one, NumPy's included.

    Raises:
        TypeError: for anything else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


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


def finite_floats(
    name: str,
    values: Any,
    count: int,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    exclusive: bool = False,
) -> tuple[float, ...]:
    """Returns `values` as floats if they are `count` numbers as `finite_float` takes them.

    Raises:
        TypeError: for anything but real numbers one after the other.
        ValueError: too many or too few, or one that is NaN, infinite or out of range.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected {count} numbers, got {values!r}")
    numbers_given = tuple(values)
    if len(numbers_given) != count:
        raise ValueError(f"{name}: expected {count} numbers, got {values!r}")
    return tuple(
        finite_float(f"{name}[{index}]", value, minimum=minimum, maximum=maximum, exclusive=exclusive)
        for index, value in enumerate(numbers_given)
    )


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Returns `value` if it is one of `choices`.

    Raises:
        ValueError: otherwise.
    """
    names = tuple(choices)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, names))}, got {value!r}")
    return value
