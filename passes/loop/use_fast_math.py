"""What fast-math flags permit: one division a row instead of one an element, and exponentials as powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2

from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from ...dialects import loop, payload
from ...dialects.loop.dependence import Dependence
from ...dialects.payload import is_float
from ..remarks import emit_remark
from ..rewriting import rewrite_module

NAME = "loop-use-fast-math"

ROUNDED = (arith.MulfOp, arith.AddfOp, arith.SubfOp, arith.DivfOp)
"""What gives a number that was rounded, and so is off by a part of its size."""


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


class _ToExp2(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: math.ExpOp, rewriter: PatternRewriter, /) -> None:
        below, around = op.operand.owner, op.parent_op()
        if FastMathFlag.APPROX_FUNC not in op.fastmath.data or not isinstance(around, loop.ReduceOp):
            return
        if op.result.type != f32 or not isinstance(below, arith.SubfOp):
            return
        x, frame = below.lhs, below.rhs
        if below.parent is not around.body.block or not isinstance(frame, OpResult) or frame.op.parent is below.parent:
            return
        if not _is_rounded(x):
            emit_remark(op, NAME, "what it is taken of is exact, and would not be after it is multiplied")
            return
        factor = payload.ConstantOp(log2(e), f32)
        row = arith.MulfOp(frame, factor.result)
        rewriter.insert([factor, row], InsertPoint.after(frame.op))
        scaled = arith.MulfOp(x, factor.result)
        difference = arith.SubfOp(scaled.result, row.result)
        power = math.Exp2Op(difference.result, op.fastmath)
        rewriter.replace(op, [scaled, difference, power])
        if not below.result.uses:
            rewriter.erase(below)


def _is_rounded(x: SSAValue) -> bool:
    """Whether `x` is the result of arithmetic, wherever it is no constant."""
    op = x.owner
    if isinstance(op, payload.SelectOp):
        sides = [s for s in (op.lhs, op.rhs) if not isinstance(s.owner, payload.ConstantOp)]
        return bool(sides) and all(_is_rounded(s) for s in sides)
    return isinstance(op, ROUNDED) and is_float(x.type)


@dataclass(frozen=True)
class UseFastMathPass(ModulePass):
    """Multiply by the inverse of a divisor, and take exponentials as powers of two, where flags permit it.

    What: x / l with the flag `arcp` becomes x * (1 / l), if x has indices that l has not: there is one division a row
    then. In a reduction, exp(x - m) with the flag `afn` and an m that is the same for the whole reduction becomes
    exp2(x * log2(e) - m * log2(e)). Where x is not the result of arithmetic it stays: it is exact, and would not be.
    Why: a division in f32 is about ten instructions, an element of a product of attention with its values is a handful.
    All that is lost is one more rounding; whoever sets the flag knows that the inverse is neither an infinity nor too
    small to be exact, as the decomposition of softmax does of its sums. Hardware has powers of two; exp takes seven
    instructions more. The product and the difference are one, and the product with m is one for a whole row. What is
    lost is a rounding of the size of x, as x has one already; what is below 2^-126 may become 0.
    Why here: what is divided stands where it is computed, and the bodies of the reductions are final;
    `loop-fuse-reductions` moves the divisors, and sums of what stands in the bodies.

    ```mlir
    %l = loop.reduce add (%k) in [64] -> f32 { ... %d = arith.subf %x, %m ... %p = math.exp %d fastmath<afn> ... }
    %o = arith.divf %z, %l fastmath<arcp> : f32
    ```
    becomes
    ```mlir
    %log2e = payload.constant 1.44269502 : f32
    %f = arith.mulf %m, %log2e : f32
    %l = loop.reduce add (%k) in [64] -> f32 {
      ... %y = arith.mulf %x, %log2e ... %d = arith.subf %y, %f ... %p = math.exp2 %d fastmath<afn> ... }
    %one = payload.constant 1.0 : f32
    %inverse = arith.divf %one, %l : f32
    %o = arith.mulf %z, %inverse : f32
    ```
    """

    name = "loop-use-fast-math"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [_Invert(Dependence()), _ToExp2()])
