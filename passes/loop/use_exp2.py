"""Approximate exponentials as powers of two: `loop-use-exp2`."""

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
from ...dialects.payload import is_float
from ..remarks import emit_remark
from ..rewriting import rewrite_module

NAME = "loop-use-exp2"

ROUNDED = (arith.MulfOp, arith.AddfOp, arith.SubfOp, arith.DivfOp)
"""What gives a number that was rounded, and so is off by a part of its size."""


class _Rewrite(RewritePattern):
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
class UseExp2Pass(ModulePass):
    """Take exponentials as powers of two, where they may be approximate.

    What: in a reduction, exp(x - m) with the flag `afn` and an m that is the same for the whole reduction becomes
    exp2(x * log2(e) - m * log2(e)). Where x is not the result of arithmetic it stays: it is exact, and would not be.
    Why: hardware has powers of two; exp takes seven instructions more. The product and the difference are one, and the
    product with m is one for a whole row. What is lost is a rounding of the size of x, as x has one already; what is
    below 2^-126 may become 0.
    Why here: the bodies of the reductions are final, and `loop-fuse-reductions` has to move sums of what stands there.

    ```mlir
    %l = loop.reduce add (%k) in [64] -> f32 { ... %d = arith.subf %x, %m ... %p = math.exp %d fastmath<afn> ... }
    ```
    becomes
    ```mlir
    %log2e = payload.constant 1.44269502 : f32
    %f = arith.mulf %m, %log2e : f32
    %l = loop.reduce add (%k) in [64] -> f32 {
      ... %y = arith.mulf %x, %log2e ... %d = arith.subf %y, %f ... %p = math.exp2 %d fastmath<afn> ... }
    ```
    """

    name = "loop-use-exp2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [_Rewrite()])
