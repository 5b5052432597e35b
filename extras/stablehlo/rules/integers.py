"""Arithmetic of integers as StableHLO defines it: division by zero, shifts by any amount, and unsigned integers."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1, i64
from xdsl.ir import Operation, SSAValue

from ....dialects.payload import element_type
from ....dialects.tensor.builder import width_of
from ..registry import Builder, HloOperation, number_of, rule


def least(width: int) -> int:
    """Returns the smallest signed integer of `width` bits, whose only bit is the sign."""
    return -1 << (width - 1)


def ordered(b: Builder, x: SSAValue, unsigned: bool) -> SSAValue:
    """Returns integers whose signed order is the order of `x`: the sign bit of unsigned ones is inverted.

    Args:
        b: builder of the operation.
        x: integers.
        unsigned: whether they are unsigned.
    """
    width = width_of(element_type(x.type))
    return b.math(arith.XOrIOp, x, b.like(x, least(width))) if unsigned and width > 1 else x


def quotient(b: Builder, x: SSAValue, y: SSAValue, unsigned: bool) -> SSAValue:
    """Returns the truncated quotient. Division by zero is -1, all bits; the least integer by -1 is itself.

    Args:
        b: builder of the operation.
        x: dividend.
        y: divisor.
        unsigned: whether the operands are unsigned.
    """
    zero = b.cmp("eq", y, 0)
    one = b.like(y, 1)
    if unsigned:
        return b.select(zero, b.like(x, -1), b.math(arith.DivUIOp, x, b.select(zero, one, y)))
    negated = b.cmp("eq", y, -1)
    safe = b.select(b.either(zero, negated), one, y)
    return b.select(zero, b.like(x, -1), b.select(negated, b.neg(x), b.div(x, safe)))


def remainder(b: Builder, x: SSAValue, y: SSAValue, unsigned: bool) -> SSAValue:
    """Returns the remainder, with the sign of the dividend; the dividend itself for a divisor of zero.

    Args:
        b: builder of the operation.
        x: dividend.
        y: divisor.
        unsigned: whether the operands are unsigned.
    """
    zero = b.cmp("eq", y, 0)
    one = b.like(y, 1)
    if unsigned:
        return b.select(zero, x, b.math(arith.RemUIOp, x, b.select(zero, one, y)))
    safe = b.select(b.either(zero, b.cmp("eq", y, -1)), one, y)
    return b.select(zero, x, b.rem(x, safe))


def extremum(b: Builder, x: SSAValue, y: SSAValue, largest: bool) -> SSAValue:
    """Returns the larger or smaller one of unsigned integers.

    Args:
        b: builder of the operation.
        x: integers.
        y: integers.
        largest: whether the larger one is returned.
    """
    return b.math(arith.MaxUIOp if largest else arith.MinUIOp, x, y)


def extended(b: Builder, x: SSAValue) -> SSAValue:
    """Returns unsigned integers of at most 32 bits as i64."""
    width = width_of(element_type(x.type))
    wide = b.cast(x, i64)
    return b.both(wide, b.like(wide, (1 << width) - 1))


_SHIFTS: dict[str, type[Operation]] = {
    "stablehlo.shift_left": arith.ShLIOp,
    "stablehlo.shift_right_arithmetic": arith.ShRSIOp,
    "stablehlo.shift_right_logical": arith.ShRUIOp,
}


@rule(*_SHIFTS)
def shift(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    # The amount is unsigned. An amount of the width or more shifts all bits out.
    if op.element == i1:
        raise op.refuse("shifts of booleans are not supported")
    assert isinstance(op.element, IntegerType)
    width, amount = op.element.bitwidth, number_of(y)
    if amount is not None and 0 <= amount < width:
        return b.math(_SHIFTS[op.name], x, y)
    legal = b.both(b.cmp("ge", y, 0), b.cmp("lt", y, width))
    if op.name == "stablehlo.shift_right_arithmetic":
        return b.math(arith.ShRSIOp, x, b.select(legal, y, b.like(y, width - 1)))
    shifted = b.math(_SHIFTS[op.name], x, b.select(legal, y, b.like(y, 0)))
    return b.select(legal, shifted, b.like(x, 0))


@rule("stablehlo.popcnt")
def count_ones(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    # Sums of the bits in groups of 2, 4, 8, ... bits. Each mask has the lower half of every group.
    width = width_of(op.element)
    for half in (1 << n for n in range(width.bit_length() - 1)):
        mask = b.like(x, sum(((1 << half) - 1) << start for start in range(0, width, 2 * half)))
        upper = b.math(arith.ShRUIOp, x, b.like(x, half))
        x = b.add(b.both(x, mask), b.both(upper, mask))
    return x


@rule("stablehlo.count_leading_zeros")
def count_leading_zeros(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    # The highest one is copied to all lower bits.
    width = width_of(op.element)
    for n in range(width.bit_length() - 1):
        x = b.either(x, b.math(arith.ShRUIOp, x, b.like(x, 1 << n)))
    return b.sub(b.like(x, width), count_ones(b, op, x))
