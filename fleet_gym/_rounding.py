"""Numbers as text for readers: as many digits as they deserve, whatever their size."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: Beyond these sizes exponents are easier to read than zeros.
_SMALLEST, _LARGEST = 1e-6, 1e12
#: From here on decimals say nothing next to the digits before them.
_LARGE = 1e4


def significant(value: float, digits: int = 4) -> str:
    """Returns a number with that many significant digits; those before the point are all kept."""
    if value and not _SMALLEST <= abs(value) < _LARGEST:
        return f"{value:.{digits}g}"
    text = f"{value:.{_decimals(value, digits)}f}"
    return _unsigned_zero(text.rstrip("0").rstrip(".") if "." in text else text)


def number_format(values: Iterable[float], *, scale: float, decimals: int) -> str:
    """Returns the format in which to show numbers together.

    Args:
        values: finite.
        scale: what has to be told apart, such as the width of an interval: it gets two significant digits. 0: the
            numbers are one and the same.
        decimals: at least so many, unless the values are large.
    """
    largest = max((abs(value) for value in values), default=0.0)
    if largest and not _SMALLEST <= largest < _LARGEST:
        return ".3e"
    needed = _decimals(scale if scale > _SMALLEST * largest else largest / 10, 2)
    return f".{needed if largest >= _LARGE else max(needed, decimals)}f"


def column_format(values: Iterable[float], decimals: int = 3) -> str:
    """Returns the format of a column of numbers: the largest has three significant digits or more."""
    column = list(values)
    largest = max((abs(value) for value in column), default=0.0)
    return number_format(column, scale=largest / 10, decimals=decimals)


def formatted(value: float, form: str, *, signed: bool = False) -> str:
    """Returns a number in a format of this module; zero has no minus."""
    text = _unsigned_zero(format(value, form))
    return text if not signed or text.startswith("-") else f"+{text}"


def _decimals(value: float, digits: int) -> int:
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def _unsigned_zero(text: str) -> str:
    return text.removeprefix("-") if float(text) == 0 else text
