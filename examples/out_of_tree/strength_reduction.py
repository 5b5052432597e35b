"""A pass of a package outside of the library: one pattern and one pass. `pip install .` adds it to `dl-opt`."""

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
    """Replaces `x * 2` by `x + x`, `x * 4` by two such additions, up to `2 ** doublings`. Exact for every float."""

    def __init__(self, doublings: int) -> None:
        self.counts = {2.0**n: n for n in range(1, doublings + 1)}

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MulfOp, rewriter: PatternRewriter, /) -> None:
        factor = op.rhs.owner if isinstance(op.rhs, OpResult) else None
        if not isinstance(factor, ConstantOp) or not isinstance(factor.value, FloatAttr):
            return
        additions: list[AddfOp] = []
        for _ in range(self.counts.get(factor.value.value.data, 0)):
            x = additions[-1].result if additions else op.lhs
            additions.append(AddfOp(x, x))
        if additions:
            rewriter.replace(op, additions)


@dataclass(frozen=True)
class DoubleToSumPass(ModulePass):
    """Replaces multiplications by small powers of two with additions. Works at any level, since all use `arith` ops.

    `doublings` is the exponent of the largest power that is replaced. `deplodock tune` tries its other values if the
    pass runs after `plan-schedules`.
    """

    name = "double-to-sum"

    doublings: int = searched(1, 0, 2, 3)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [DoubleToSum(self.doublings)])
