"""`loop-use-fast-math`: replaces a division per element by a reciprocal per row, where flags permit it."""

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
    """Multiplies by the reciprocal of a divisor, where the flag `arcp` permits it.

    ```mlir
    %o = arith.divf %z, %l fastmath<arcp> : f32
    ```
    becomes
    ```mlir
    %one = payload.constant 1.0 : f32
    %inverse = arith.divf %one, %l : f32
    %o = arith.mulf %z, %inverse : f32
    ```

    A division is rewritten if its dividend depends on indices on which the divisor does not. Then one reciprocal serves
    a whole row.

    **Rationale**: a division in f32 takes about ten instructions, all other work on an element of attention's output a
    few. Special values stay the same if the reciprocal is neither infinite nor subnormal. The decomposition that sets
    the flag guarantees that: the sum of exponentials in softmax is at least 1, or it is 0 or NaN together with its
    terms.

    **Pipeline position**: after `loop-hoist-reduction-factors`, when the bodies of reductions are final. Before
    `loop-fuse-reductions`, which moves the divisors.
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
        return  # Each divisor is already used for one element only.
    one = payload.ConstantOp(1.0, op.rhs.type)
    inverse = arith.DivfOp(one.result, op.rhs)
    inverse.result.name_hint = "inverse"
    insert_after(op.rhs.op, one, inverse, source=op)
    replace(op, arith.MulfOp(op.lhs, inverse.result))
