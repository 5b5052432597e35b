"""The f32 operands of contractions that can be split into bf16 parts before, and a nest that reads the parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import Float32Type, IndexType, f32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.rewriter import Rewriter

from ...dialects import loop, payload
from ...dialects.payload import element_type
from ...dialects.shapes.extents import extents_of
from ...dialects.support.locations import copy_location
from .dependence import Dependence, find_contraction
from .operand_types import split_in_parts

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
    new = list(_loads(load, parts))
    wide = [payload.CastOp(op.result, f32) for op in new if isinstance(op, loop.LoadOp)]
    joined = payload.CombineBf16x3Op(*(w.result for w in wide))
    joined.result.name_hint = load.result.name_hint
    ops = [*new, *wide, joined]
    copy_location(load, ops)
    Rewriter.replace_op(load, ops, [joined.result])


def _loads(load: loop.LoadOp, parts: Sequence[SSAValue]) -> Iterator[Operation]:
    for number, part in enumerate(parts):
        fill = None
        if load.fill is not None:
            zero = payload.ConstantOp(0.0, element_type(part.type))
            yield zero
            fill = zero.result
        new = loop.LoadOp(part, load.map.data, load.indices, load.symbols, load.domain, fill)
        new.result.name_hint = f"{load.result.name_hint or 'part'}_{number}"
        yield new
