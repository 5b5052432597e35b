"""Constant folding of payload ops: comparisons of values with a known range, and ops with constant operands."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation

from . import AssertOp, Predicate, SelectOp, element_type


def decided(predicate: Predicate, lo: float, hi: float) -> bool | None:
    """Returns the result of comparing a number with 0, or None if it depends on the number.

    Args:
        predicate: the comparison.
        lo: smallest possible value of the number.
        hi: largest possible value of the number.
    """
    always, never = {
        Predicate.LT: (hi < 0, lo >= 0),
        Predicate.LE: (hi <= 0, lo > 0),
        Predicate.GT: (lo > 0, hi <= 0),
        Predicate.GE: (lo >= 0, hi < 0),
        Predicate.EQ: (lo == hi == 0, lo > 0 or hi < 0),
        Predicate.NE: (lo > 0 or hi < 0, lo == hi == 0),
    }[predicate]
    return True if always else False if never else None


def same_as_operand(op: Operation, numbers: Sequence[float | None]) -> int | None:
    """Returns the position of the operand that the result of `op` equals, or None.

    `numbers` has the constant value of each operand, or None. For example, `x * 1` equals operand 0.
    """
    if isinstance(op, SelectOp):
        return None if numbers[0] is None else 1 if numbers[0] else 2
    if isinstance(op, AssertOp):
        return 0 if numbers[1] else None
    for position, number in enumerate(numbers[:2]):
        if number is None:
            continue
        if isinstance(op, arith.AndIOp | arith.OrIOp) and element_type(op.result.type) == i1:
            return position if bool(number) == isinstance(op, arith.OrIOp) else 1 - position
        if isinstance(op, arith.MulfOp) and number == 1:
            return 1 - position
    return None
