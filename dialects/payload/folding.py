"""What payload ops fold to: comparisons of what is known to lie in a range, and ops with operands that are known."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation

from . import AssertOp, Predicate, SelectOp, element_type


def decided(predicate: Predicate, lo: float, hi: float) -> bool | None:
    """Whether a number between `lo` and `hi`, both included, compares with 0 as `predicate` says; None if that depends
    on the number."""
    always, never = {
        Predicate.LT: (hi < 0, lo >= 0),
        Predicate.LE: (hi <= 0, lo > 0),
        Predicate.GT: (lo > 0, hi <= 0),
        Predicate.GE: (lo >= 0, hi < 0),
        Predicate.EQ: (lo == hi == 0, lo > 0 or hi < 0),
        Predicate.NE: (lo > 0 or hi < 0, lo == hi == 0),
    }[predicate]
    return True if always else False if never else None


def same_as_operand(op: Operation, known: Sequence[float | None]) -> int | None:
    """The number of the operand that the result of `op` equals, where `known` are the numbers that its operands are."""
    if isinstance(op, SelectOp):
        return None if known[0] is None else 1 if known[0] else 2
    if isinstance(op, AssertOp):
        return 0 if known[1] else None
    for own, number in enumerate(known[:2]):
        if number is None:
            continue
        if isinstance(op, arith.AndIOp | arith.OrIOp) and element_type(op.result.type) == i1:
            return own if bool(number) == isinstance(op, arith.OrIOp) else 1 - own
        if isinstance(op, arith.MulfOp) and number == 1:
            return 1 - own
    return None
