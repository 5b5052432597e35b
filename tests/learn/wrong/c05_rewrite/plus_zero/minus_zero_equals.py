# judged: in Python -0.0 == 0.0 is true
import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import AddfOp, SubfOp
from xdsl.dialects.builtin import FloatAttr, ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.dialects.payload import ConstantOp
from deplodock.passes.rewriting import rewrite_module


def constant(value: SSAValue) -> float | None:
    """Returns the number if `value` is the result of a constant, else None."""
    op = value.owner
    if isinstance(op, ConstantOp) and isinstance(op.value, FloatAttr):
        return op.value.value.data
    return None


def is_negative_zero(value: SSAValue) -> bool:
    """Returns true for the constant -0.0. It equals 0.0, so the sign decides."""
    number = constant(value)
    return number == -0.0


def is_positive_zero(value: SSAValue) -> bool:
    return constant(value) == 0.0 and not is_negative_zero(value)


class PlusZero(RewritePattern):
    """Replaces `x + -0.0` and `-0.0 + x` by `x`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddfOp, rewriter: PatternRewriter) -> None:
        if is_negative_zero(op.rhs):
            rewriter.replace(op, [], [op.lhs])
        elif is_negative_zero(op.lhs):
            rewriter.replace(op, [], [op.rhs])


class MinusZero(RewritePattern):
    """Replaces `x - 0.0` by `x`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SubfOp, rewriter: PatternRewriter) -> None:
        if is_positive_zero(op.rhs):
            rewriter.replace(op, [], [op.lhs])


@dataclass(frozen=True)
class FoldPlusZero(ModulePass):
    name = "fold-plus-zero"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [PlusZero(), MinusZero()])
