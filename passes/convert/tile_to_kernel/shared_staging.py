"""Tiles among the threads of a block: staging in shared memory, conversions of layouts, and reductions.

Nothing here emits a barrier: a later pass places them where accesses meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import BFloat16Type, Float16Type, IndexType, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.kernel.mma import ROW_BYTES
from ....dialects.kernel.warp_specialize import WARPGROUP
from ....dialects.layouts.conversion import Exchange, find_exchange
from ....dialects.layouts.linear import Linear, Shared, combine as combine_images, is_disjoint, log2, register_width
from ....dialects.payload import element_type, shape_of
from ....dialects.support.locations import refused
from ....dialects.tensor.reduction_kinds import combine
from ...analysis.memory_access import WIDEST, element_bytes
from ...analysis.swizzle import Reader, choose_shared
from ...analysis.tile_layouts import route
from .emitter import Emitter, Index
from .global_access import holder_predicate
from .scratch import Scratch, groups_apart


@dataclass(frozen=True)
class SharedPlace:
    """Where a thread's registers are in a shared buffer: `kernel.load`'s coordinate, register steps and width."""

    origin: Index
    regs: tuple[int, ...]
    vec: int
    xor: bool

    def load(self, out: Emitter, buffer: SSAValue, hint: str | None = None) -> SSAValue:
        """Emit the load of the registers."""
        at, regs = [out.value(self.origin)], [[r] for r in self.regs]
        return out.emit(kernel.LoadOp(buffer, at, regs, vec=self.vec, xor=self.xor), hint)


def shared_place(
    out: Emitter, shared: Shared, layout: Linear, bytes_each: int, moving: Sequence[int] = (), moved: Index = 0
) -> SharedPlace:
    """The places of `layout`'s elements in `shared`. `moved` is an offset to combine with, made of `moving` images."""
    regs = shared.images(layout.reg)
    threads = shared.images((*layout.lane, *layout.warp))
    origin, _ = out.thread_bits(threads)
    mixed = 0
    for image in threads:
        mixed |= image
    apart = all(not image & mixed for image in moving)
    origin = out.add(origin, moved) if apart else out.xor(origin, moved)
    for image in moving:
        mixed |= image
    xor = not is_disjoint(regs) or any(r & mixed for r in regs)
    vec = register_width(regs, (*threads, *moving), WIDEST // bytes_each)
    return SharedPlace(origin, tuple(regs), vec, xor)


def store_shared(
    out: Emitter, value: SSAValue, layout: Linear, buffer: SSAValue, shared: Shared, matrices: bool = False
) -> None:
    """Put a tile in registers into `buffer`; every element is written by one thread. With `matrices`, by matrices of
    whole warps where the layouts are such."""
    compact, left = layout.compact()
    if len(left) != layout.registers:
        value = out.emit(kernel.ShuffleRegistersOp(value, left))
    found = matrix_place(out, compact, shared, element_type(value.type)) if matrices else None
    if found is not None:
        where = out.value(found.origin)
        out.add_op(kernel.StMatrixOp(found.count, found.trans, value, buffer, where, xor=found.xor, steps=found.steps))
        return
    place = shared_place(out, shared, compact, element_bytes(value.type))
    predicate = holder_predicate(out, compact)
    out.add_op(
        kernel.StoreOp(
            value,
            buffer,
            [out.value(place.origin)],
            regs=[[r] for r in place.regs],
            vec=place.vec,
            predicate=predicate,
            xor=place.xor,
        )
    )


@dataclass(frozen=True)
class MatrixPlace:
    """Where the rows of a thread's matrices are in a shared buffer, for `kernel.stmatrix` and `kernel.ldmatrix`."""

    origin: Index
    steps: tuple[int, ...]
    count: int
    trans: bool
    xor: bool


def matrix_place(out: Emitter, layout: Linear, shared: Shared, element: Attribute) -> MatrixPlace | None:
    """The place of a tile held as `layout`, if it is made of matrices whose rows are contiguous in `shared`: along what
    four neighbouring lanes hold in pairs, or, transposed, along what eight do."""
    if not isinstance(element, BFloat16Type | Float16Type) or not layout.reg or not layout.is_injective:
        return None
    pairs, rows = (layout.reg[0], *layout.lane[:2]), layout.lane[2:]
    chosen, row = layout.reg[1:3], ROW_BYTES // element_bytes(element)
    nothing = (0,) * len(layout.shape)
    for trans in (False, True):
        along, names = (rows, pairs) if trans else (pairs, rows)
        lane = (*names, *chosen, *([nothing] * (2 - len(chosen))))
        addressed = Linear(layout.shape, (*along, *layout.reg[3:]), lane, layout.warp)
        images = shared.images(addressed.bases)
        if register_width(images[: len(addressed.reg)], images[len(addressed.reg) :], row) == row:
            place = shared_place(out, shared, addressed, element_bytes(element))
            return MatrixPlace(place.origin, place.regs[log2(row) :], 1 << len(chosen), trans, place.xor)
    return None


def load_shared(out: Emitter, buffer: SSAValue, shared: Shared, layout: Linear, *, matrices: bool = False) -> SSAValue:
    """A tile from `buffer` into the registers of `layout`. With `matrices`, as matrices where the layouts are such."""
    element = element_type(buffer.type)
    found = matrix_place(out, layout, shared, element) if matrices else None
    if found is not None:
        where = out.value(found.origin)
        op = kernel.LdMatrixOp(buffer, where, found.steps, count=found.count, trans=found.trans, xor=found.xor)
        return out.emit(op)
    return shared_place(out, shared, layout, element_bytes(element)).load(out, buffer)


def stage(out: Emitter, value: SSAValue, layout: Linear, shared: Shared, hint: str | None) -> SSAValue:
    """A new shared buffer that holds the tile; the buffer."""
    buffer = out.allocate(kernel.SharedOp(element_type(value.type), shared.size), f"{hint or 'tile'}_shared")
    store_shared(out, value, layout, buffer, shared)
    return buffer


def convert(
    out: Emitter,
    value: SSAValue,
    source: Linear,
    target: Linear,
    via: str | None,
    hint: str | None,
    scratch: Scratch | None = None,
) -> SSAValue | None:
    """A tile held as `source`, held as `target` instead, by the way `via`, or the cheapest; None if that is no way. If
    through shared memory, through `scratch`, if there is."""
    if source == target:
        return value
    way = via or route(source, target, element_bytes(value.type))
    if way == "registers":
        picks = target.picks(source)
        return None if picks is None else out.emit(kernel.ShuffleRegistersOp(value, picks), hint)
    if way == "shuffles":
        found = find_exchange(source, target)
        return None if found is None else _exchange(out, value, found, hint)
    if isinstance(element_type(value.type), IndexType):  # an index has no size in memory
        number = out.emit(payload.CastOp(value, i64))
        moved = convert(out, number, source, target, way, hint, scratch)
        assert moved is not None
        return out.emit(payload.CastOp(moved, IndexType()), hint)
    size = element_bytes(value.type)
    shared = choose_shared(source.shape, [Reader(source, size), Reader(target, size)])
    if scratch is None:
        return load_shared(out, stage(out, value, source, shared, hint), shared, target)
    warp_group_private = WARPGROUP if groups_apart(shared, source, target) else None
    buffer = scratch.take(element_type(value.type), shared, warp_group_private, f"{hint or 'tile'}_shared")
    store_shared(out, value, source, buffer, shared, matrices=True)
    found = load_shared(out, buffer, shared, target, matrices=True)
    scratch.give(buffer)
    return found


def _exchange(out: Emitter, value: SSAValue, found: Exchange, hint: str | None) -> SSAValue:
    """The registers of a tile, exchanged within warps."""
    value = _renumbered(out, value, found.before, hint)
    sent = [combine_images(found.registers, r) for r in range(1 << len(found.registers))]
    if sent != list(range(shape_of(value.type)[0])):
        value = out.emit(kernel.ShuffleRegistersOp(value, sent))
    if found.shuffles:
        spare = [0] * out.warp_bits
        lane = None if found.stays else out.value(out.thread_bits([*found.lanes, *spare])[0])
        value = out.emit(kernel.ShuffleOp(value, lane, found.flips), hint)
    return _renumbered(out, value, found.after, hint)


def _renumbered(out: Emitter, value: SSAValue, moves: Sequence[int], hint: str | None) -> SSAValue:
    return out.emit(kernel.PermuteRegistersOp(value, out.id("lane"), moves), hint) if any(moves) else value


def reduce(out: Emitter, op: tile.ReduceOp, value: SSAValue, layout: Linear) -> SSAValue:
    """Reduce a tile over `op`'s dimensions; the result has the layout that remains without them.

    Each thread folds its registers, lanes exchange partial results by shuffles, warps through shared memory.
    """
    dims, kind, hint = op.dims.get_values(), op.kind.data, op.result.name_hint
    compact, left = layout.compact()
    if len(left) != layout.registers:
        value = out.emit(kernel.ShuffleRegistersOp(value, left))
    plan = compact.reduction(dims)
    if plan is None:
        raise refused(op, "reduces a layout whose bases mix reduced and kept dimensions, or repeat")
    if plan.registers:
        value = out.emit(kernel.ReduceRegistersOp(kind, value, plan.registers), hint)
    for mask in plan.shuffles:
        other = out.emit(kernel.ShuffleXorOp(value, mask))
        value = out.emit(combine(kind, value, other), hint)
    return _across_warps(out, op, value, compact.drop(dims), plan.warps) if plan.warps else value


def _across_warps(out: Emitter, op: tile.ReduceOp, value: SSAValue, kept: Linear, warps: Sequence[int]) -> SSAValue:
    """Combine partial results of the warps that differ in the bits `warps` of their number, in shared memory."""
    shape = (1 << len(warps), *kept.shape)

    def along(value: int) -> tuple[int, ...]:
        return (value, *(0 for _ in kept.shape))

    lane = tuple((0, *b) for b in kept.lane)
    reg = tuple((0, *b) for b in kept.reg)
    warp = tuple(along(1 << warps.index(i)) if i in warps else (0, *b) for i, b in enumerate(kept.warp))
    parts = tuple(along(1 << i) for i in range(len(warps)))
    written = Linear(shape, reg, lane, warp)
    read = Linear(shape, parts + reg, lane, tuple((0, *b) for b in kept.warp))
    size = element_bytes(value.type)
    shared = choose_shared(shape, [Reader(written, size), Reader(read, size)])
    buffer = stage(out, value, written, shared, op.result.name_hint)
    gathered = load_shared(out, buffer, shared, read)
    return out.emit(kernel.ReduceRegistersOp(op.kind.data, gathered, range(len(warps))), op.result.name_hint)
