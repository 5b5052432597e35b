"""Sums that are compared with themselves, and so have to be computed once.

Two kernels that compute a sum of floats, or one kernel in two ways, may add in different orders, and the last bits
differ. Then no element equals the largest of all, as the gradient of a maximum asks, and the ranks of a sort are no
permutation. Everything but sums and products of many elements has the same bits wherever it is computed.
"""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue

from ....dialects import payload, tensor
from ....dialects.payload import element_type, is_float
from ....dialects.support.calls import Call
from ....dialects.tensor.reduction_kinds import ReductionKind
from .graph import either

ROUNDED = (ReductionKind.ADD, ReductionKind.MUL)


def compared_sums(function: func.FuncOp) -> set[SSAValue]:
    """The sums and products of floats from which both sides of a comparison are computed, not by way of other ones."""
    sums: list[SSAValue] = []
    nearest: dict[SSAValue, int] = {}
    found = 0
    for op in function.body.block.ops:
        if isinstance(op, Call):
            continue  # what it gives is in memory
        sides = [nearest.get(v, 0) for v in op.operands]
        if isinstance(op, payload.CmpOp) and op.lhs is not op.rhs:
            found |= sides[0] & sides[1]
        if _is_rounded(op):
            nearest[op.results[0]] = 1 << len(sums)
            sums.append(op.results[0])
        else:
            nearest.update(dict.fromkeys(op.results, either(sides)))
    return {value for i, value in enumerate(sums) if found >> i & 1}


def _is_rounded(op: Operation) -> bool:
    return isinstance(op, tensor.ReduceOp) and op.kind.data in ROUNDED and is_float(element_type(op.result.type))
