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


class PlusZero(RewritePattern):
    """Replaces `x + 0` by `x`. Right for all numbers except one: which, and for which zero is it right?"""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddfOp, rewriter: PatternRewriter) -> None:
        # math.copysign(1.0, number) is -1.0 for the number -0.0, and 1.0 for 0.0.
        if constant(op.rhs) == 0.0:
            rewriter.replace(op, [], [op.lhs])
        elif constant(op.lhs) == 0.0:
            rewriter.replace(op, [], [op.rhs])


class MinusZero(RewritePattern):
    """Replaces `x - 0` by `x`, for the zero for which this is right."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SubfOp, rewriter: PatternRewriter) -> None:
        # x - 0 means x + (-0).
        ...


@dataclass(frozen=True)
class FoldPlusZero(ModulePass):
    name = "fold-plus-zero"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [PlusZero(), MinusZero()])
