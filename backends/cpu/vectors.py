"""Vector primitives over one block of a row, as LLVM code that numba inlines.

Numba leaves a loop that takes float maxima scalar, because its comparison carries no promise about
NaN.  Here a block of `BLOCK` floats is straight-line code on vectors of 16 lanes, legal on any
target: LLVM splits them where registers are narrower.  Arrays have to be contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "BLOCK",
    "CHORD",
    "CLOSE_ERROR",
    "bit_count",
    "bits_of_double",
    "bits_of_float",
    "block_above",
    "block_close",
    "block_max",
    "block_max64",
    "block_max128",
    "block_stats",
    "double_of_bits",
    "float_of_bits",
    "mask_at_least",
    "pointer",
    "trailing_zeros",
    "wide_max",
]

BLOCK: Final = 256
"""Floats in a block."""
CHORD: Final = 1.0614757
"""Largest value of (1 + f) / 2**f for f in [0, 1), rounded up."""
CLOSE_ERROR: Final = 3e-5
"""Relative error of `block_close`."""

_LANES: Final = 16
# Minimax polynomial of 2**f / (1 + f) in powers of 1 + f, lowest power first.
_CORRECTION: Final = (
    2.467732668,
    -3.583719969,
    3.435415745,
    -1.737766504,
    0.470364958,
    -0.05205235630,
)
_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INT, _LANES)

_Combine = Callable[[ir.Value, ir.Value], ir.Value]


def _splat(builder: ir.IRBuilder, value: ir.Value, lanes: int = _LANES) -> ir.Value:
    """Return a vector with `value` in every lane."""
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    one = builder.insert_element(empty, value, _INT(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_INT, lanes), [0] * lanes))


def _load(
    context: Any,
    builder: ir.IRBuilder,
    array_type: Any,
    array: Any,
    at: ir.Value,
    lanes: int = _LANES,
) -> ir.Value:
    """Return array[at : at + lanes]; a float's alignment is enough."""
    data = context.make_array(array_type)(context, builder, array).data
    vector = ir.VectorType(_FLOAT, lanes).as_pointer()
    loaded = builder.load(builder.bitcast(builder.gep(data, [at]), vector))
    loaded.align = 4
    return loaded


def _folded(builder: ir.IRBuilder, vectors: Sequence[ir.Value], combine: _Combine) -> ir.Value:
    """Combine all lanes of all vectors into one scalar."""
    vector = reduce(combine, vectors)
    lanes = _LANES
    while lanes > 1:
        lanes //= 2
        halves = [
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(_INT, lanes), list(range(s, s + lanes)))
            )
            for s in (0, lanes)
        ]
        vector = combine(*halves)
    return builder.extract_element(vector, _INT(0))


def _larger(builder: ir.IRBuilder) -> _Combine:
    """Return a maximum that is one instruction and that a NaN on the left never wins."""
    return lambda new, old: builder.select(builder.fcmp_ordered(">", new, old), new, old)


def _multiply_add(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    product = builder.fmul(x, y, flags=("contract",))
    return builder.fadd(product, z, flags=("contract",))


def _chord(
    builder: ir.IRBuilder, x: ir.Value, slope: ir.Value, offset: ir.Value, *, close: bool
) -> ir.Value:
    """Return 2**y, 0 to 6.2 % too large, for y + 127 = (x * slope + offset) / 2**23.

    The bits of a float are a straight line between powers of two.  Underflow, -inf and NaN give 0:
    the clamp comes before the conversion, which is undefined outside of 32 bits.  It is at 1/2, which
    converts to 0 as well, because LLVM makes two instructions of a maximum with 0.
    """
    line = _multiply_add(builder, x, slope, offset)
    half = _splat(builder, _FLOAT(0.5))
    line = builder.select(builder.fcmp_ordered(">", line, half), line, half)
    bits = builder.fptosi(line, _INTS)
    bound = builder.bitcast(bits, _FLOATS)
    if not close:
        return bound
    fraction = builder.and_(bits, _splat(builder, _INT(0x7FFFFF)))
    mantissa = builder.bitcast(builder.or_(fraction, _splat(builder, _INT(0x3F800000))), _FLOATS)
    correction = _splat(builder, _FLOAT(_CORRECTION[-1]))
    for coefficient in _CORRECTION[-2::-1]:
        term = _splat(builder, _FLOAT(coefficient))
        correction = _multiply_add(builder, correction, mantissa, term)
    return builder.fmul(bound, correction)


def _maximum_of(size: int) -> Any:
    """Make f(x, at): the maximum of x[at : at + size]; NaN counts as -inf."""

    @intrinsic
    def maximum(_typing: Any, x: Any, _at: Any) -> Any:
        def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            tops = [_splat(builder, _FLOAT(-math.inf))] * 4
            for step in range(size // _LANES):
                at = builder.add(args[1], _LONG(step * _LANES))
                new = _load(context, builder, signature.args[0], args[0], at)
                tops[step % 4] = _larger(builder)(new, tops[step % 4])
            return _folded(builder, tops, _larger(builder))

        return types.float32(x, types.int64), code

    return maximum


def _mass_above(*, close: bool) -> Any:
    """Make f(x, at, slope, offset, floor): the block's summed 2**y over x > floor."""

    @intrinsic
    def mass(_typing: Any, x: Any, _at: Any, _slope: Any, _offset: Any, _floor: Any) -> Any:
        def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            slope, offset, floor = (_splat(builder, one) for one in args[2:])
            sums = [_splat(builder, _FLOAT(0))] * 2
            for step in range(BLOCK // _LANES):
                at = builder.add(args[1], _LONG(step * _LANES))
                new = _load(context, builder, signature.args[0], args[0], at)
                more = builder.fadd(
                    sums[step % 2], _chord(builder, new, slope, offset, close=close)
                )
                counts = builder.fcmp_ordered(">", new, floor)
                sums[step % 2] = builder.select(counts, more, sums[step % 2])
            return _folded(builder, sums, builder.fadd)

        return types.float32(x, types.int64, *[types.float32] * 3), code

    return mass


@intrinsic
def block_stats(_typing: Any, x: Any, _at: Any, _slope: Any, _offset: Any) -> Any:
    """(x, at, slope, offset) -> (maximum, bound of the mass) of a block, in one pass."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        slope, offset = _splat(builder, args[2]), _splat(builder, args[3])
        tops = [_splat(builder, _FLOAT(-math.inf))] * 2
        sums = [_splat(builder, _FLOAT(0))] * 2
        for step in range(BLOCK // _LANES):
            at, lane = builder.add(args[1], _LONG(step * _LANES)), step % 2
            new = _load(context, builder, signature.args[0], args[0], at)
            tops[lane] = _larger(builder)(new, tops[lane])
            bound = _chord(builder, new, slope, offset, close=False)
            sums[lane] = builder.fadd(sums[lane], bound)
        both = [_folded(builder, tops, _larger(builder)), _folded(builder, sums, builder.fadd)]
        return context.make_tuple(builder, signature.return_type, both)

    returned = types.UniTuple(types.float32, 2)
    return returned(x, types.int64, types.float32, types.float32), code


@intrinsic
def mask_at_least(_typing: Any, x: Any, _at: Any, _least: Any) -> Any:
    """(x, at, least) -> 64 bits; bit j says x[at + j] >= least."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        values = _load(context, builder, signature.args[0], args[0], args[1], 64)
        reached = builder.fcmp_ordered(">=", values, _splat(builder, args[2], 64))
        return builder.bitcast(reached, _LONG)

    return types.uint64(x, types.int64, types.float32), code


@intrinsic
def trailing_zeros(_typing: Any, _value: Any) -> Any:
    """Return the number of the lowest bit that is set; 64 if none is."""
    zero_counts = ir.Constant(ir.IntType(1), 0)
    return (
        types.int64(types.uint64),
        lambda _context, builder, _signature, args: builder.cttz(args[0], zero_counts),
    )


@intrinsic
def bit_count(_typing: Any, _value: Any) -> Any:
    """Return how many bits are set."""
    return (
        types.int64(types.uint64),
        lambda _context, builder, _signature, args: builder.ctpop(args[0]),
    )


@intrinsic
def pointer(_typing: Any, _address: Any) -> Any:
    """Return an address as a pointer, for `numba.carray`."""
    return (
        types.voidptr(types.int64),
        lambda _context, builder, _signature, args: builder.inttoptr(args[0], cgutils.voidptr_t),
    )


def _bits(source: Any, target: Any, to: ir.Type) -> Any:
    """Make a function that reads the bits of one type as another type."""

    @intrinsic
    def read(_typing: Any, _value: Any) -> Any:
        return target(source), lambda _c, builder, _s, args: builder.bitcast(args[0], to)

    return read


block_max64, block_max128, block_max = _maximum_of(64), _maximum_of(128), _maximum_of(BLOCK)
wide_max = _maximum_of(8 * BLOCK)
block_above, block_close = _mass_above(close=False), _mass_above(close=True)
bits_of_float = _bits(types.float32, types.int32, _INT)
float_of_bits = _bits(types.int32, types.float32, _FLOAT)
bits_of_double = _bits(types.float64, types.int64, _LONG)
double_of_bits = _bits(types.int64, types.float64, ir.DoubleType())
