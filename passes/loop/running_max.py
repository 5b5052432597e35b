"""Maxima that terms of another reduction are compared with, or taken relative to."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.tensor import ReductionKind
from ..analysis.rescaling import Same


def runs_over(highest: SSAValue, x: SSAValue, around: loop.ReduceOp) -> bool:
    """Whether `highest` is the maximum of what `x`, in the body of `around`, is for all indices of that reduction."""
    op = highest.owner
    if not isinstance(op, loop.ReduceOp) or op.kind.data != ReductionKind.MAX or op.sizes != around.sizes:
        return False
    body = op.body.block
    assert body.last_op is not None
    return Same(dict(zip(around.body.block.args, body.args, strict=True))).values(x, body.last_op.operands[0])
