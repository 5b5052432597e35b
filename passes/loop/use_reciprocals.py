"""One division a row instead of one an element: `loop-use-reciprocals`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from ...dialects import loop, payload
from ...dialects.tensor import ReductionKind
from ..analysis.dependence import Dependence, yielded
from ..rewriting import rewrite_module
from .running_max import runs_over


@dataclass
class _Invert(RewritePattern):
    dependence: Dependence

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: arith.DivfOp, rewriter: PatternRewriter, /) -> None:
        if (
            not isinstance(op.rhs, OpResult)
            or not _is_at_least_one(op.rhs)
            or isinstance(op.lhs.owner, payload.ConstantOp)
        ):
            return
        if not self.dependence.of(op.lhs) - self.dependence.of(op.rhs):
            return  # there is one division for each sum already
        one = payload.ConstantOp(1.0, op.rhs.type)
        inverse = arith.DivfOp(one.result, op.rhs)
        inverse.result.name_hint = "inverse"
        rewriter.insert([one, inverse], InsertPoint.after(op.rhs.op))
        rewriter.replace(op, [arith.MulfOp(op.lhs, inverse.result)])


def _is_at_least_one(value: SSAValue) -> bool:
    """Whether `value` is a sum of exponentials of which one is 1, because they are taken below their maximum (or where
    nothing was seen 0, or NaN)."""
    op = value.owner
    if not isinstance(op, loop.ReduceOp) or op.kind.data != ReductionKind.ADD:
        return False
    power = yielded(op.body.block)[0].owner
    if not isinstance(power, math.ExpOp) or not isinstance(below := power.operand.owner, arith.SubfOp):
        return False
    return runs_over(below.rhs, below.lhs, op)


@dataclass(frozen=True)
class UseReciprocalsPass(ModulePass):
    """Multiply by the inverse of a sum of exponentials instead of dividing by it.

    What: x / l, where l is a sum of exp(s - m) and m the maximum of s over the same range, becomes x * (1 / l), if x
    has indices that l has not: there is one division a row then.
    Why: a division in f32 is about ten instructions, an element of a product of attention with its values is a handful.
    Such a sum is at least 1, so its inverse is neither an infinity nor too small to be exact; all that is lost is one
    more rounding in f32. Where all terms are masked both give NaN.
    Why here: while the terms of the sum stand there: loop-use-exp2 rewrites them, loop-fuse-reductions moves them.

    ```mlir
    %l = loop.reduce add (%k) in [64] -> f32 { ... %p = math.exp %d ... loop.yield %p : f32 }
    %o = arith.divf %x, %l : f32
    ```
    becomes
    ```mlir
    %l = loop.reduce add ...
    %one = payload.constant 1.0 : f32
    %inverse = arith.divf %one, %l : f32
    %o = arith.mulf %x, %inverse : f32
    ```
    """

    name = "loop-use-reciprocals"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [_Invert(Dependence())])
