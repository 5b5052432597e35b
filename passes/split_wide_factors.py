"""Splitting f32 factors of matrix products before the products: `split-wide-factors`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import Float32Type, IndexType, ModuleOp, f32
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from ..dialects import loop, payload
from ..dialects.extents import extents_of
from ..dialects.locations import copy_location, location_text
from ..dialects.payload import element_type
from ..dialects.schedule import ScheduleAttr
from ..errors import ScheduleError
from .narrow_factors import split_in_parts
from .tiling.contraction import find_contraction
from .tiling.dependence import Dependence

STORED = "stored_parts"
"""What `narrow` says in a schedule where factors are split before."""


@dataclass(frozen=True)
class SplitWideFactorsPass(ModulePass):
    """Split f32 factors into three bf16 numbers once, in kernels of their own.

    What: of a nest with `narrow = stored_parts` every factor of a contraction that is loaded as f32 is stored before as
    three tensors of bf16, whose sum it is, and the nest loads those; it then has `narrow = parts`.
    Why: with `narrow = parts` each block splits what it loads, so every element is split in as many blocks as read it,
    and nothing can be copied ahead: boxes and `cp.async` bring what is in memory. Six bytes are read for four instead.
    Why here: `plan-schedules` decides; it runs again afterwards, for the nests that split.

    ```mlir
    %y = loop.nest (%i, %j) in [4096, 4096] -> ... attributes {schedule = #tile.schedule<..., narrow = stored_parts>} {
      %s = loop.reduce add (%k) in [4096] -> f32 {
        %a = loop.load %x[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4096x4096xf32>
    ```
    becomes
    ```mlir
    %x_0, %x_1, %x_2 = loop.nest (%d0, %d1) in [4096, 4096] -> tensor<4096x4096xbf16>, ... {
      %a = loop.load %x[...](%d0, %d1) ...
    %y = loop.nest (%i, %j) in [4096, 4096] -> ... attributes {schedule = #tile.schedule<..., narrow = parts>} {
      %s = loop.reduce add (%k) in [4096] -> f32 {
        %a_0 = loop.load %x_0[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4096x4096xbf16>
        ...
        %a = payload.join %p, %q, %r : f32
    ```
    """

    name = "split-wide-factors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        stored: dict[SSAValue, loop.NestOp] = {}
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp)]:
            schedule = nest.attributes.get("schedule")
            if not isinstance(schedule, ScheduleAttr) or schedule.narrow.data != STORED:
                continue
            if not (loads := wide_factors(nest)):
                raise ScheduleError(
                    "no factor of a product is loaded as f32, so none can be split before",
                    operator=nest.name,
                    argument="narrow",
                    location=location_text(nest),
                )
            for load in loads:
                source = load.source
                if source not in stored:
                    stored[source] = new = parts_nest(source)
                    copy_location(nest, [new])
                    Rewriter.insert_op(new, _behind(source))
                load_parts(load, stored[source].res)
            nest.attributes["schedule"] = schedule.changed(narrow="parts")


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
    joined = payload.JoinOp(*(w.result for w in wide))
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


def _behind(source: SSAValue) -> InsertPoint:
    """The place right behind where a tensor comes from."""
    if isinstance(source, BlockArgument):
        return InsertPoint.at_start(source.owner)
    owner = source.owner
    assert isinstance(owner, Operation)
    return InsertPoint.after(owner)
