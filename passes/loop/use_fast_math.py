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

from ...dialects import payload
from ...dialects.loop.dependence import Dependence
from ..rewriting import insert_after, replace


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
        dependence = Dependence()
        divisions = [o for o in op.walk() if isinstance(o, arith.DivfOp)]
        for division in (o for o in divisions if FastMathFlag.ALLOW_RECIP in o.fastmath.data):
            _invert(division, dependence)


def _invert(op: arith.DivfOp, dependence: Dependence) -> None:
    if not isinstance(op.rhs, OpResult):
        return
    if isinstance(op.lhs.owner, payload.ConstantOp) or not dependence.of(op.lhs) - dependence.of(op.rhs):
        return  # there is one division for each divisor already
    one = payload.ConstantOp(1.0, op.rhs.type)
    inverse = arith.DivfOp(one.result, op.rhs)
    inverse.result.name_hint = "inverse"
    insert_after(op.rhs.op, one, inverse, source=op)
    replace(op, arith.MulfOp(op.lhs, inverse.result))
