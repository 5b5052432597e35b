"""One division a row instead of one an element: `loop-use-reciprocals`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import OpResult
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from ...dialects import payload
from ...dialects.loop.dependence import Dependence
from ..rewriting import rewrite_module


@dataclass
class _Invert(RewritePattern):
    dependence: Dependence

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: arith.DivfOp, rewriter: PatternRewriter, /) -> None:
        if FastMathFlag.ALLOW_RECIP not in op.fastmath.data or not isinstance(op.rhs, OpResult):
            return
        if isinstance(op.lhs.owner, payload.ConstantOp) or not self.dependence.of(op.lhs) - self.dependence.of(op.rhs):
            return  # there is one division for each divisor already
        one = payload.ConstantOp(1.0, op.rhs.type)
        inverse = arith.DivfOp(one.result, op.rhs)
        inverse.result.name_hint = "inverse"
        rewriter.insert([one, inverse], InsertPoint.after(op.rhs.op))
        rewriter.replace(op, [arith.MulfOp(op.lhs, inverse.result)])


@dataclass(frozen=True)
class UseReciprocalsPass(ModulePass):
    """Multiply by the inverse of a divisor instead of dividing by it, where that is permitted.

    What: x / l with the flag `arcp` becomes x * (1 / l), if x has indices that l has not: there is one division a row
    then.
    Why: a division in f32 is about ten instructions, an element of a product of attention with its values is a handful.
    All that is lost is one more rounding; whoever sets the flag knows that the inverse is neither an infinity nor too
    small to be exact, as the decomposition of softmax does of its sums.
    Why here: what is divided stands where it is computed; `loop-fuse-reductions` moves the divisors.

    ```mlir
    %o = arith.divf %x, %l fastmath<arcp> : f32
    ```
    becomes
    ```mlir
    %one = payload.constant 1.0 : f32
    %inverse = arith.divf %one, %l : f32
    %o = arith.mulf %x, %inverse : f32
    ```
    """

    name = "loop-use-reciprocals"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [_Invert(Dependence())])
