"""Rewrites that fast-math flags permit: one division a row instead of one an element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

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
class UseFastMathPass(ModulePass):
    """Multiplies by the inverse of a divisor, where flags permit it.

    What: x / l with the flag `arcp` becomes x * (1 / l), if x has indices that l has not: one division a row.
    Why: a division in f32 is about ten instructions, an element of a product of attention with its values is a handful.
    The result is the same for special values as long as 1 / l is neither an infinity nor too small to be exact. The
    decomposition that sets the flag vouches for that: a sum of the exponentials of softmax is at least 1, or 0 or NaN
    together with its terms.
    Why here: what is divided stands where it is computed, and the bodies of the reductions are final;
    `loop-fuse-reductions` moves the divisors.

    ```mlir
    %o = arith.divf %z, %l fastmath<arcp> : f32
    ```
    becomes
    ```mlir
    %one = payload.constant 1.0 : f32
    %inverse = arith.divf %one, %l : f32
    %o = arith.mulf %z, %inverse : f32
    ```
    """

    name = "loop-use-fast-math"
    needs: ClassVar[Mapping[str, int]] = {"arith.divf": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [_Invert(Dependence())])
