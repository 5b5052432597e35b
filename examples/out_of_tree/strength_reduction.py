"""A pass of somebody else's: one pattern, one pass. `pip install .` makes `dl-opt` know it."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import AddfOp, MulfOp
from xdsl.dialects.builtin import FloatAttr, ModuleOp
from xdsl.ir import OpResult
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.dialects.payload import ConstantOp
from deplodock.passes.rewriting import rewrite_module

PIPELINE = "double-to-sum,dce"


class DoubleToSum(RewritePattern):
    """x * 2 is x + x, exactly, for every float."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MulfOp, rewriter: PatternRewriter, /) -> None:
        two = op.rhs.owner if isinstance(op.rhs, OpResult) else None
        if isinstance(two, ConstantOp) and isinstance(two.value, FloatAttr) and two.value.value.data == 2.0:
            rewriter.replace(op, AddfOp(op.lhs, op.lhs))


@dataclass(frozen=True)
class DoubleToSumPass(ModulePass):
    """Replace a product with two by a sum, at any level: the payload is the same ops everywhere."""

    name = "double-to-sum"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [DoubleToSum()])
