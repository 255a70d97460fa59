"""Small operations for compiled loops that numba types and lowers in a fraction of the time of NumPy's.

Compiling a loop costs about 1 ms per operator, 3 ms per array element with a cast and 7 ms per conditional expression;
each of these costs less than 1 ms. Element access checks nothing and knows no negative indices.
"""
# numba passes these functions types and values of its own, which have no annotations.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import lower_builtin

_F64, _I64 = types.float64, types.int64


def _operation(function: Callable[..., Any]) -> Any:
    """Makes an operation of a function from argument types to a signature and a generator of code.

    As `numba.extending.intrinsic` does, whose typing looks through all of numba's registries at every call.
    """

    @functools.wraps(function)
    def operation(*_arguments: Any) -> Any:
        raise TypeError(f"{function.__name__}: expected to be called by compiled code")

    class Template(AbstractTemplate):
        key = operation

        def generic(self, args, _kws):
            return function(*args)[0]

    def lower(context, builder, signature, values):
        return function(*signature.args)[1](context, builder, signature, values)

    infer_global(operation, types.Function(Template))
    lower_builtin(operation, types.VarArg(types.Any))(lower)
    return operation


def _pointer(context, builder, array_type, values) -> Any:
    array, row, width, column = values
    model = context.data_model_manager[array_type]
    data = builder.extract_value(array, model.get_field_position("data"))
    return builder.gep(builder.gep(data, [builder.mul(row, width)]), [column])


def _loaded(array, result):
    def generate(context, builder, _signature, values):
        value = builder.load(_pointer(context, builder, array, values))
        return context.cast(builder, value, array.dtype, result)

    return result(array, _I64, _I64, _I64), generate


@_operation
def load(array, row, width, column):
    """``array[row * width + column]`` of a flat array, in the array's own type."""
    return _loaded(array, array.dtype)


@_operation
def number(array, row, width, column):
    """``float64(array[row * width + column])`` of a flat array."""
    return _loaded(array, _F64)


@_operation
def whole(array, row, width, column):
    """``int64(array[row * width + column])`` of a flat array of integers."""
    return _loaded(array, _I64)


@_operation
def store(array, row, width, column, value):
    """``array[row * width + column] = value`` in a flat array, cast to its type."""
    value_type = types.unliteral(value)

    def generate(context, builder, _signature, values):
        cast = context.cast(builder, values[4], value_type, array.dtype)
        builder.store(cast, _pointer(context, builder, array, values[:4]))
        return context.get_dummy_value()

    return types.none(array, _I64, _I64, _I64, value_type), generate


@_operation
def select(condition, chosen, otherwise):
    """``chosen if condition else otherwise``, both computed; the type is that of `chosen`."""
    result = types.unliteral(chosen)

    def generate(_context, builder, _signature, values):
        return builder.select(*values)

    return result(types.boolean, result, result), generate


@_operation
def minimum(first, second):
    """Smaller of two float64; `first` when they do not compare."""

    def generate(_context, builder, _signature, values):
        return builder.select(builder.fcmp_ordered("<", values[1], values[0]), values[1], values[0])

    return _F64(_F64, _F64), generate


@_operation
def maximum(first, second):
    """Larger of two float64; `first` when they do not compare."""

    def generate(_context, builder, _signature, values):
        return builder.select(builder.fcmp_ordered(">", values[1], values[0]), values[1], values[0])

    return _F64(_F64, _F64), generate


@_operation
def floor(value):
    """Largest whole float64 that is not above the value."""

    def generate(_context, builder, _signature, values):
        return builder.call(builder.module.declare_intrinsic("llvm.floor", [ir.DoubleType()]), values)

    return _F64(_F64), generate


@_operation
def ceil(value):
    """Smallest whole float64 that is not below the value."""

    def generate(_context, builder, _signature, values):
        return builder.call(builder.module.declare_intrinsic("llvm.ceil", [ir.DoubleType()]), values)

    return _F64(_F64), generate


@_operation
def dot3(ax, ay, az, bx, by, bz):
    """``ax * bx + ay * by + az * bz``, summed from the left."""

    def generate(_context, builder, _signature, values):
        ax, ay, az, bx, by, bz = values
        return builder.fadd(builder.fadd(builder.fmul(ax, bx), builder.fmul(ay, by)), builder.fmul(az, bz))

    return _F64(_F64, _F64, _F64, _F64, _F64, _F64), generate


@_operation
def dot_at(array, row, width, column, x, y, z):
    """`dot3` of three numbers of a flat array, from ``array[row * width + column]`` on, and x, y, z."""
    element = array.dtype

    def generate(context, builder, _signature, values):
        first = _pointer(context, builder, array, values[:4])
        products = []
        for position, factor in enumerate(values[4:]):
            value = builder.load(builder.gep(first, [values[3].type(position)]))
            products.append(builder.fmul(context.cast(builder, value, element, _F64), factor))
        return builder.fadd(builder.fadd(products[0], products[1]), products[2])

    return _F64(array, _I64, _I64, _I64, _F64, _F64, _F64), generate


@_operation
def det2(a, b, c, d):
    """``a * d - b * c``."""

    def generate(_context, builder, _signature, values):
        a, b, c, d = values
        return builder.fsub(builder.fmul(a, d), builder.fmul(b, c))

    return _F64(_F64, _F64, _F64, _F64), generate


@_operation
def along(start, steps, slope):
    """``start + steps * slope``."""

    def generate(_context, builder, _signature, values):
        return builder.fadd(values[0], builder.fmul(values[1], values[2]))

    return _F64(_F64, _F64, _F64), generate


@_operation
def byte_of(value, index):
    """Byte `index` of an int64, counted from the lowest."""

    def generate(_context, builder, _signature, values):
        shift = builder.mul(values[1], values[1].type(8))
        return builder.and_(builder.lshr(values[0], shift), values[0].type(255))

    return _I64(_I64, _I64), generate


@_operation
def part_of(fixed, count):
    """``floor(f * count)`` as int64, where the lower 32 bits of `fixed` are the binary digits of f < 1."""

    def generate(_context, builder, _signature, values):
        fraction = builder.and_(values[0], values[0].type(0xFFFFFFFF))
        return builder.lshr(builder.mul(fraction, values[1]), values[0].type(32))

    return _I64(_I64, _I64), generate
