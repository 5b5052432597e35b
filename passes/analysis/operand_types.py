"""Which f32 values hold nothing but bf16, or f16, numbers: those that tensor cores multiply exactly; and the three bf16
numbers that any f32 is the sum of."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import Float32Type, IndexType, bf16, f32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.rewriter import Rewriter

from ...dialects import loop, payload
from ...dialects.loop.dependence import Dependence, find_contraction
from ...dialects.payload import CastOp, CmpOp, CombineBf16x3Op, ConstantOp, Predicate, SelectOp, element_type
from ...dialects.shapes.extents import extents_of
from ...dialects.support.locations import copy_location
from ...dialects.tile.dot import NARROW

PARTS = 3
"""bf16 numbers of 8 bits that hold the 24 bits of an f32."""


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


def parts_of(value: SSAValue) -> list[SSAValue] | None:
    """The narrow parts that an f32 value was joined from, the largest first; None if it was not."""
    op = value.owner
    if not isinstance(op, CombineBf16x3Op) or any(widened_from(part) != bf16 for part in op.operands):
        return None
    casts = [part.owner for part in op.operands]
    return [cast.operand for cast in casts if isinstance(cast, CastOp)]


def split_in_parts(value: SSAValue, made: list[Operation]) -> list[SSAValue]:
    """Three bf16 numbers whose sum is `value`: what it rounds to, what the rest rounds to, and what is left then; new
    operations go to `made`.

    Nothing is left of what rounds to an infinity or to NaN.
    """
    found: list[SSAValue] = []
    rest = value
    for number in range(PARTS):
        part = CastOp(rest, bf16)
        part.result.name_hint = f"{value.name_hint or 'part'}_{number}"
        made.append(part)
        found.append(part.result)
        if number == PARTS - 1:
            break
        wide = CastOp(part.result, element_type(value.type))
        left = arith.SubfOp(rest, wide.result)
        size = math.AbsFOp(wide.result)
        limit, zero = ConstantOp(float("inf"), value.type), ConstantOp(0.0, value.type)
        finite = CmpOp(Predicate.LT, size.results[0], limit.result)
        kept = SelectOp(finite.result, left.result, zero.result)
        made += [wide, left, size, limit, zero, finite, kept]
        rest = kept.result
    return found


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


STORED = "bf16x3_presplit"
"""What `f32_matmul_precision` says in a schedule where factors are split before."""


def wide_factors(nest: loop.NestOp) -> list[loop.LoadOp]:
    """The loads of `nest` that are factors of contractions, in f32, each once."""
    dependence, found = Dependence(), dict[loop.LoadOp, None]()
    for op in nest.body.block.walk():
        contraction = find_contraction(op, dependence) if isinstance(op, loop.ReduceOp) else None
        for factor in (contraction.lhs, contraction.rhs) if contraction is not None else ():
            load = factor.owner
            if isinstance(load, loop.LoadOp) and _may_be_split(load):
                found[load] = None
    return list(found)


def _may_be_split(load: loop.LoadOp) -> bool:
    """Whether a load is of f32, and what it gives outside of its domain has parts that are plain to see."""
    filled = load.fill is None or (isinstance(c := load.fill.owner, payload.ConstantOp) and c.scalar == 0)
    return filled and isinstance(element_type(load.result.type), Float32Type)


def parts_nest(source: SSAValue) -> loop.NestOp:
    """The nest that splits the tensor `source`."""
    extents = extents_of(source.type)
    block = Block(arg_types=[IndexType()] * len(extents))
    load = loop.LoadOp(source, AffineMap.identity(len(extents)), block.args)
    load.result.name_hint = source.name_hint
    made: list[Operation] = []
    parts = split_in_parts(load.result, made)
    block.add_ops([load, *made, loop.YieldOp(*parts)])
    nest = loop.NestOp(extents, [p.type for p in parts], Region(block))
    for result, part in zip(nest.res, parts, strict=True):
        result.name_hint = part.name_hint
    return nest


def load_parts(load: loop.LoadOp, parts: Sequence[SSAValue]) -> None:
    """Load `parts` in the place of what they are parts of."""
    made: list[Operation] = []
    wide: list[payload.CastOp] = []
    for number, part in enumerate(parts):
        fill = None if load.fill is None else payload.ConstantOp(0.0, element_type(part.type))
        new = loop.LoadOp(part, load.map.data, load.indices, load.symbols, load.domain, fill and fill.result)
        new.result.name_hint = f"{load.result.name_hint or 'part'}_{number}"
        made += [new] if fill is None else [fill, new]
        wide.append(payload.CastOp(new.result, f32))
    ops = [*made, *wide, payload.CombineBf16x3Op(*(w.result for w in wide))]
    copy_location(load, ops)
    Rewriter.replace_op(load, ops, ops[-1].results)
