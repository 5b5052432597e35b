# judged: exp(log(sqrt(x))): for x = -0.0 the program returns 0.0, but -0.0
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import MulfOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.math import AbsFOp, ExpOp, LogOp, SqrtOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.passes.rewriting import rewrite_module


def is_never_negative(value: SSAValue) -> bool:
    """Returns true if no element of `value` is negative or -0.0. It may be NaN."""
    op = value.owner
    if isinstance(op, MulfOp):
        return op.lhs is op.rhs
    return isinstance(op, ExpOp | AbsFOp | SqrtOp)


class ExpOfLog(RewritePattern):
    """Replaces `exp(log(x))` by `x` where `x` is never negative."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ExpOp, rewriter: PatternRewriter) -> None:
        log = op.operand.owner
        if isinstance(log, LogOp) and is_never_negative(log.operand):
            rewriter.replace(op, [], [log.operand])


@dataclass(frozen=True)
class FoldExpLog(ModulePass):
    name = "fold-exp-log"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [ExpOfLog()])
