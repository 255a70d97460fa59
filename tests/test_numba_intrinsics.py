"""The operations of compiled loops, against the NumPy expressions they stand for."""

import gc
import math

import numba
import numpy as np
import pytest

from fleet_gym import _numba
from fleet_gym._numba_intrinsics import (
    along,
    byte_of,
    ceil,
    det2,
    dot3,
    floor,
    load,
    maximum,
    minimum,
    number,
    part_of,
    select,
    store,
    whole,
)


@_numba.compiled_like_numpy
def copy_elements(source, target):
    for i in range(len(source)):
        store(target, 0, 0, i, number(source, i // 3, 3, i % 3))
    return load(source, 1, 3, 1), whole(source, 0, 1, 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_elements_are_found_by_row_and_column(dtype):
    source, target = np.array([3, 1, 4, 1, 5, 9], dtype=dtype), np.zeros(6, dtype=np.float32)
    loaded, second = copy_elements(source, target)
    np.testing.assert_array_equal(target, source)
    assert (loaded, second) == (5, 4)


@_numba.compiled_like_numpy
def arithmetic(a, b, out):
    out[0], out[1], out[2], out[3] = minimum(a, b), maximum(a, b), floor(a), ceil(a)
    out[4], out[5], out[6] = dot3(a, b, 2.0, b, 3.0, a), det2(a, b, 3.0, 4.0), along(a, b, 3.0)
    out[7], out[8] = select(a < b, a, 7.0), select(a < 1, 1, 2)


@pytest.mark.parametrize(("a", "b"), [(1.5, -2.25), (-0.5, 0.5), (math.nan, 1.0), (1.0, math.nan)])
def test_arithmetic_is_that_of_python(a, b):
    out = np.zeros(9)
    arithmetic(a, b, out)
    expected = [
        min(a, b), max(a, b), np.floor(a), np.ceil(a), a * b + b * 3.0 + 2.0 * a, a * 4.0 - b * 3.0, a + b * 3.0,
        a if a < b else 7.0, 1 if a < 1 else 2,
    ]  # fmt: skip
    np.testing.assert_array_equal(out, expected)


@_numba.compiled_like_numpy
def bits(value, count):
    return byte_of(value, 0), byte_of(value, 1), byte_of(value, 2), part_of(value, count)


@pytest.mark.parametrize("value", [0x123456, 0x80000000, -1, 0x1FFFFFFFF])
def test_bytes_and_fractions(value):
    fraction = (value & 0xFFFFFFFF) / 2**32
    expected = (value & 255, (value >> 8) & 255, (value >> 16) & 255, int(fraction * 640))
    assert bits(value, 640) == expected


def test_the_garbage_collector_rests_while_compiling_and_comes_back():
    seen = []

    def spy(value):
        return value + 1

    class Listener(numba.core.event.Listener):
        def on_start(self, event):
            seen.append(gc.isenabled())

        def on_end(self, event):
            pass

    listener = Listener()
    numba.core.event.register("numba:compile", listener)
    try:
        function = numba.njit(spy)  # not cached: a second run would have nothing to compile
        _numba._compile_without_collecting(function)
        function.compile((numba.int64,))
    finally:
        numba.core.event.unregister("numba:compile", listener)
    assert seen
    assert gc.isenabled()
    with pytest.raises(numba.core.errors.TypingError):
        function.compile((numba.types.unicode_type,))
    assert gc.isenabled()


def test_a_counter_that_begins_at_zero_compiles_its_callee_once():
    @_numba.compiled_inner
    def beside(count):
        return count + 1

    @numba.njit
    def loop(n):
        count = 0
        for _ in range(n):
            count = beside(count)
        return count

    assert loop(5) == 5
    assert beside.signatures == [(numba.int64,)]
