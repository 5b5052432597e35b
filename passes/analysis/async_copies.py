"""Which staged tiles an asynchronous copy can bring, and who copies what."""

from __future__ import annotations

from dataclasses import dataclass
from math import copysign

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from ...dialects import tile
from ...dialects.kernel.cp_async import COPY_BYTES
from ...dialects.layouts.attributes import LayoutAttr, SharedAttr
from ...dialects.layouts.linear import Linear, Shared, register_width
from ...dialects.payload import element_type, shape_of
from ...dialects.payload.folding import constant_of
from .layout_preferences import by_sectors, preference
from .memory_access import WIDEST, TileForms, element_bytes, memory_type, plan_access
from .swizzle import Reader, choose_shared, operand_layout
from .tile_layouts import attr_of, layout_in_registers, layout_in_shared


@dataclass(frozen=True)
class Copy:
    """A staged tile that is exactly a load: `layout` says who copies what, `shared` where it is put."""

    stage: tile.StageOp
    load: tile.LoadOp
    layout: LayoutAttr
    shared: SharedAttr

    def make(self, counter: SSAValue, at: SSAValue, predicate: SSAValue | None) -> tile.StageAsyncOp:
        """The copy of the iteration `at` of the loop that `counter` counts."""
        load, result = self.load, self.stage.result.type
        symbols = [at if s is counter else s for s in load.symbols]
        t = tile.tile_type(element_type(load.source.type), shape_of(result), self.shared)
        return tile.StageAsyncOp(load.source, load.map, symbols, load.domain, predicate, self.layout, t)


def staged_load(stage: tile.StageOp) -> tile.LoadOp | str:
    """The load that `stage` puts into shared memory as it is, or why it is none."""
    value = stage.source
    while isinstance(value.owner, tile.ConvertLayoutOp):
        value = value.owner.source
    if isinstance(value.owner, tile.LoadOp):
        return value.owner
    return "the tile is computed from what was loaded, so it has to pass through registers"


def find_copy(stage: tile.StageOp, loop: scf.ForOp, warps: int) -> Copy | str:
    """How `stage`, directly inside `loop`, is a copy that can be started early, or why it is none."""
    load = staged_load(stage)
    if isinstance(load, str):
        return load
    why = _hindrance(load, loop)
    if why is not None:
        return why
    shared = layout_in_shared(stage.result)
    layout = layout_in_registers(load.result, warps)
    width = _width(load, layout, shared)
    if width < _width(load, layout, None):  # it lies the other way round in shared memory than in global memory
        wish = preference(load)
        layout = by_sectors(layout.shape, wish.order, warps, element_bytes(load.result.type))
        shared = _rearranged(stage, layout) or shared
        width = _width(load, layout, shared)
    if width * element_bytes(load.result.type) not in COPY_BYTES:
        return "its elements are not neighbours in global and in shared memory, 4 bytes at least"
    return Copy(stage, load, attr_of(layout), attr_of(shared))


def _hindrance(load: tile.LoadOp, loop: scf.ForOp) -> str | None:
    """Why a load cannot be an asynchronous copy in an earlier iteration."""
    counter = loop.body.block.args[0]
    if counter not in load.symbols:
        return "the same tile is loaded in every iteration"
    if any(s.type != IndexType() for s in load.symbols):
        return "its elements are gathered"
    if any(s is not counter and loop.is_ancestor(s.owner) for s in load.symbols):
        return "where it is loaded from is computed inside of the loop"
    if load.fill is not None and not is_zero(load.fill):
        return "its padding is not zero"
    return None


def is_zero(value: SSAValue) -> bool:
    """Whether `value` is 0, and not -0.0."""
    number = constant_of(value)
    return number == 0 and copysign(1, number) > 0


def _width(load: tile.LoadOp, layout: Linear, shared: Shared | None) -> int:
    """How many elements move at once if threads copy by `layout`; 0 if every element goes its own way."""
    compact = layout.compact()[0]
    access = plan_access(load, TileForms(compact, load.symbols), memory_type(load.source))
    if access.per_register:
        return 0
    if shared is None:
        return access.vec
    threads = shared.images((*compact.lane, *compact.warp))
    limit = WIDEST // element_bytes(load.result.type)
    return min(access.vec, register_width(shared.images(compact.reg), threads, limit))


def _rearranged(stage: tile.StageOp, writer: Linear) -> Shared | None:
    """The best place in shared memory for what `writer` writes, if all who read it are products by multiply-adds."""
    size = element_bytes(stage.result.type)
    readers = [Reader(writer, size)]
    for use in stage.result.uses:
        dot: Operation = use.operation
        if not isinstance(dot, tile.DotOp) or dot.atom is not None or use.index > 1:
            return None
        depth = shape_of(dot.lhs.type)[1]
        acc = layout_in_registers(dot.acc, writer.warps)
        read = operand_layout(acc, use.index, depth)
        readers.append(Reader(read, size, depth, elements=min(read.registers, WIDEST // size)))
    return choose_shared(writer.shape, readers)
