"""The payload operation behind each kind of reduction."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from ..dialects.payload import element_type, is_float
from ..dialects.tensor import Kind

_FLOAT = {Kind.ADD: arith.AddfOp, Kind.MUL: arith.MulfOp, Kind.MAX: arith.MaximumfOp, Kind.MIN: arith.MinimumfOp}
_INTEGER = {
    Kind.ADD: arith.AddiOp,
    Kind.MUL: arith.MuliOp,
    Kind.MAX: arith.MaxSIOp,
    Kind.MIN: arith.MinSIOp,
    Kind.AND: arith.AndIOp,
    Kind.OR: arith.OrIOp,
}


def combine(kind: Kind, lhs: SSAValue, rhs: SSAValue) -> Operation:
    """The op that combines two partial results of a reduction, in whatever container they are."""
    if is_float(lhs.type):
        return _FLOAT[kind](lhs, rhs)
    if element_type(lhs.type) == i1 and kind in (Kind.MAX, Kind.MIN):
        kind = Kind.OR if kind == Kind.MAX else Kind.AND
    return _INTEGER[kind](lhs, rhs)
