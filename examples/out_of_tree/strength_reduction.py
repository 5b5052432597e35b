"""A pass of somebody else's: one pattern, one pass. `pip install .` makes `dl-opt` know it."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import AddfOp, MulfOp
from xdsl.dialects.builtin import FloatAttr, ModuleOp
from xdsl.ir import OpResult
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.dialects.payload import ConstantOp
from deplodock.passes.pipelines import searched
from deplodock.passes.rewriting import rewrite_module

PIPELINE = "double-to-sum,dce"


class DoubleToSum(RewritePattern):
    """x * 2 is x + x, exactly, for every float; x * 4 is that twice, up to so many `doublings`."""

    def __init__(self, doublings: int) -> None:
        self.counts = {2.0**n: n for n in range(1, doublings + 1)}

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MulfOp, rewriter: PatternRewriter, /) -> None:
        factor = op.rhs.owner if isinstance(op.rhs, OpResult) else None
        if not isinstance(factor, ConstantOp) or not isinstance(factor.value, FloatAttr):
            return
        sums: list[AddfOp] = []
        for _ in range(self.counts.get(factor.value.value.data, 0)):
            x = sums[-1].result if sums else op.lhs
            sums.append(AddfOp(x, x))
        if sums:
            rewriter.replace(op, sums)


@dataclass(frozen=True)
class DoubleToSumPass(ModulePass):
    """Replace a product with a small power of two by sums, at any level: the payload is the same ops everywhere.
    `deplodock tune` searches how large a power is worth it, where this pass stands below `plan-schedules`."""

    name = "double-to-sum"

    doublings: int = searched(1, 0, 2, 3)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [DoubleToSum(self.doublings)])
