"""Numbers as readers see them."""

from __future__ import annotations

import pytest

from fleet_gym._rounding import column_format, formatted, number_format, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.0, "0"), (5, "5"), (0.5, "0.5"), (9.99999, "10"), (4.4031, "4.403"), (-18.319, "-18.32"),
        (23456.7, "23457"), (4321987.4, "4321987"), (0.00012345, "0.0001234"), (2.6667e-9, "2.667e-09"),
        (-1e300, "-1e+300"),
    ],
)  # fmt: skip
def test_significant_digits_without_an_exponent_where_that_is_readable(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("values", "scale", "texts"),
    [
        ((3.941, 3.28, 4.26), 0.98, ["3.94", "3.28", "4.26"]),
        ((8.4e-6, -7.6e-5, 9.1e-5), 1.67e-4, ["0.00001", "-0.00008", "0.00009"]),
        ((25215.7, -284418.8, 319904.0), 604322.8, ["25216", "-284419", "319904"]),
        ((12345.678, 12345.671, 12345.689), 0.018, ["12345.678", "12345.671", "12345.689"]),
        ((200.0, 200.0, 200.0), 0.0, ["200.00", "200.00", "200.00"]),
        ((1 / 3, 1 / 3, 1 / 3), 1e-17, ["0.333", "0.333", "0.333"]),
        ((3e-5, 3e-5, 3e-5), 0.0, ["0.0000300", "0.0000300", "0.0000300"]),
        ((-1e-4, 0.0, 0.5), 0.5, ["0.00", "0.00", "0.50"]),
        ((2.5e-9, 1e-9, 4e-9), 3e-9, ["2.500e-09", "1.000e-09", "4.000e-09"]),
    ],
)
def test_an_average_has_the_digits_that_its_interval_can_tell_apart(
    values: tuple[float, ...], scale: float, texts: list[str]
) -> None:
    form = number_format(values, scale=scale, decimals=2)
    assert [formatted(value, form) for value in values] == texts


def test_a_column_shows_its_largest_number_well() -> None:
    assert column_format([5.231, -18.3]) == column_format([]) == column_format([0.0]) == ".3f"
    assert formatted(3e-5, column_format([3e-5, 1e-6])) == "0.0000300"
    assert formatted(12345.6, column_format([12345.6])) == "12346"
    assert formatted(0.0, ".2f", signed=True) == "+0.00"
    assert formatted(-0.001, ".2f", signed=True) == "+0.00"
