# judged: x * 1.5: for x = -1 the program returns -1.5
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import MulfOp
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


class TimesOne(RewritePattern):
    """Replaces `x * 1` and `1 * x` by `x`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MulfOp, rewriter: PatternRewriter) -> None:
        if 0.9 < (constant(op.rhs) or 0) < 1.9:
            rewriter.replace(op, [], [op.lhs])
        elif constant(op.lhs) == 1.0:
            rewriter.replace(op, [], [op.rhs])


@dataclass(frozen=True)
class FoldTimesOne(ModulePass):
    name = "fold-times-one"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [TimesOne()])
