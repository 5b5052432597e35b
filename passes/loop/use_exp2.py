"""Exponentials below a maximum as powers of two: `loop-use-exp2`."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2

from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.arith import FastMathFlagsAttr
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
from .running_max import runs_over

NAME = "loop-use-exp2"

ROUNDED = (arith.MulfOp, arith.AddfOp, arith.SubfOp, arith.DivfOp)
"""What gives a number that was rounded, and so is off by a part of its size."""


class _Rewrite(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: math.ExpOp, rewriter: PatternRewriter, /) -> None:
        below = op.operand.owner
        if op.result.type != f32 or not isinstance(below, arith.SubfOp):
            return
        x, highest, around = below.lhs, below.rhs, op.parent_op()
        if not isinstance(around, loop.ReduceOp) or not isinstance(highest, OpResult):
            return
        if not runs_over(highest, x, around):
            return
        if not _is_rounded(x):
            emit_remark(op, NAME, "what it is taken of is exact, and would not be after it is multiplied")
            return
        factor = payload.ConstantOp(log2(e), f32)
        frame = arith.MulfOp(highest, factor.result)
        rewriter.insert([factor, frame], InsertPoint.after(highest.op))
        scaled = arith.MulfOp(x, factor.result)
        difference = arith.SubfOp(scaled.result, frame.result)
        power = math.Exp2Op(difference.result, FastMathFlagsAttr((FastMathFlag.APPROX_FUNC,)))
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
    """Take exponentials below a maximum as powers of two.

    What: in a reduction, exp(x - m), where m is the maximum of x over the same range, becomes
    exp2(x * log2(e) - m * log2(e)), and the power may be approximate. Where x is not the result of arithmetic it stays.
    Why: hardware has powers of two; exp takes seven instructions more. The product and the difference are one, and the
    product with the maximum is one for a whole row. What is lost is a rounding of the size of x, as x has one already;
    what is below 2^-126 of the largest term may become 0.
    Why here: the bodies of the reductions are final, and loop-fuse-reductions has to move sums of what stands there.

    ```mlir
    %m = loop.reduce max (%k) in [64] -> f32 { ... %x = arith.mulf %s, %scale ... loop.yield %x : f32 }
    %l = loop.reduce add (%k) in [64] -> f32 { ... %d = arith.subf %x, %m ... %p = math.exp %d ... }
    ```
    becomes
    ```mlir
    %m = loop.reduce max (%k) in [64] -> f32 { ... }
    %log2e = payload.constant 1.44269502 : f32
    %f = arith.mulf %m, %log2e : f32
    %l = loop.reduce add (%k) in [64] -> f32 {
      ... %y = arith.mulf %x, %log2e ... %d = arith.subf %y, %f ... %p = math.exp2 %d fastmath<afn> ... }
    ```
    """

    name = "loop-use-exp2"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [_Rewrite()])
