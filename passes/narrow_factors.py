"""Which f32 values hold nothing but bf16, or f16, numbers: those that tensor cores multiply exactly."""

from __future__ import annotations

import struct

from xdsl.dialects.builtin import bf16
from xdsl.ir import Attribute, SSAValue

from ..dialects.payload import CastOp, ConstantOp, SelectOp, element_type
from ..dialects.tile import NARROW


def widened_from(value: SSAValue) -> Attribute | None:
    """The narrow type that an f32 value was widened from, directly or on both sides of a selection; None if it was
    computed. The value is a scalar of the loop level or a tile."""
    op = value.owner
    if isinstance(op, CastOp):
        source = element_type(op.operand.type)
        return source if source in NARROW else None
    if not isinstance(op, SelectOp):
        return None
    for side, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        narrow = widened_from(side)
        if narrow is None:
            continue
        constant = isinstance(other.owner, ConstantOp) and is_exact(other.owner, narrow)
        return narrow if constant or widened_from(other) == narrow else None
    return None


def is_exact(op: ConstantOp, narrow: Attribute) -> bool:
    """Whether a constant is a number of the type `narrow`."""
    value = float(op.scalar)
    bits = struct.pack("<f", value)
    if narrow == bf16:
        return bits[:2] == b"\0\0"
    try:
        return struct.unpack("<e", struct.pack("<e", value)) == struct.unpack("<f", bits)
    except OverflowError:
        return False
