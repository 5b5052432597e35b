"""Tiles in shared memory, on their way from one thread to another: staging, conversions of layouts, and reductions.

Nothing here emits a barrier: a later pass places them where accesses meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce as fold

from xdsl.dialects.builtin import BFloat16Type, Float16Type, IndexType, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts.conversion import Exchange, find_exchange
from ....dialects.layouts.linear import (
    LANE_BITS,
    Coordinate,
    Linear,
    Shared,
    combine as combine_images,
    is_disjoint,
    log2,
    ordered,
    register_width,
    unit,
)
from ....dialects.layouts.mma import part_of_group
from ....dialects.payload import element_bytes, element_type, shape_of
from ....dialects.support.locations import refused
from ....dialects.tensor import combine
from ....dialects.tile import RingOp
from ...analysis.async_copies import EPILOGUE_BUFFERS
from ...analysis.memory_access import WIDEST, memory_type
from ...analysis.tile_layouts import Reader, choose_shared, layout_in_shared, route, shared_of
from .emitter import Index, Lowering, lowers
from .global_access import holder_predicate


@dataclass(frozen=True)
class SharedPlace:
    """Where a thread's registers are in a shared buffer: `kernel.load`'s coordinate, register steps and width. As
    `matrices`, if there are any, of so many at a time: the place of the rows of a thread, for `kernel.ldmatrix` and
    `kernel.stmatrix`, whose steps are those of `regs`."""

    origin: Index
    regs: tuple[int, ...]
    vec: int
    xor: bool
    matrices: int = 0
    trans: bool = False

    def load(self, out: Lowering, buffer: SSAValue, hint: str | None = None) -> SSAValue:
        where = out.value(self.origin)
        if self.matrices:
            op = kernel.LdMatrixOp(buffer, where, self.regs, count=self.matrices, trans=self.trans, xor=self.xor)
            return out.emit(op, hint)
        return out.emit(kernel.LoadOp(buffer, [where], [[r] for r in self.regs], vec=self.vec, xor=self.xor), hint)

    def store(self, out: Lowering, value: SSAValue, buffer: SSAValue, predicate: SSAValue | None) -> None:
        where = out.value(self.origin)
        if self.matrices:
            steps, count = self.regs, self.matrices
            out.add_op(kernel.StMatrixOp(count, self.trans, value, buffer, where, xor=self.xor, steps=steps))
            return
        regs, vec, xor = [[r] for r in self.regs], self.vec, self.xor
        out.add_op(kernel.StoreOp(value, buffer, [where], regs=regs, vec=vec, predicate=predicate, xor=xor))


def shared_place(
    out: Lowering, shared: Shared, layout: Linear, bytes_each: int, moving: Sequence[int] = (), moved: Index = 0
) -> SharedPlace:
    """The places of `layout`'s elements in `shared`. `moved` is an offset to combine with, made of `moving` images."""
    regs = shared.images(layout.reg)
    threads = shared.images((*layout.lane, *layout.warp))
    origin = out.thread_bits(threads)
    mixed = fold(int.__or__, threads, 0)
    apart = all(not image & mixed for image in moving)
    origin = out.add(origin, moved) if apart else out.xor(origin, moved)
    mixed = fold(int.__or__, moving, mixed)
    xor = not is_disjoint(regs) or any(r & mixed for r in regs)
    vec = register_width(regs, (*threads, *moving), WIDEST // bytes_each) if layout.lanes > 1 else 1
    return SharedPlace(origin, tuple(regs), vec, xor)


def matrix_place(out: Lowering, shared: Shared, layout: Linear, element: Attribute) -> SharedPlace | None:
    """The place of a tile held as `layout`, if it is made of matrices whose rows are contiguous in `shared`: along what
    four neighbouring lanes hold in pairs, or, transposed, along what eight do."""
    if not isinstance(element, BFloat16Type | Float16Type) or not layout.reg or not layout.is_injective:
        return None
    pairs, rows = (layout.reg[0], *layout.lane[:2]), layout.lane[2:]
    chosen, row = layout.reg[1:3], kernel.ROW_BYTES // element_bytes(element)
    nothing = (0,) * len(layout.shape)
    for trans in (False, True):
        along, names = (rows, pairs) if trans else (pairs, rows)
        lane = (*names, *chosen, *([nothing] * (2 - len(chosen))))
        addressed = Linear(layout.shape, (*along, *layout.reg[3:]), lane, layout.warp)
        images = shared.images(addressed.bases)
        if register_width(images[: len(addressed.reg)], images[len(addressed.reg) :], row) == row:
            place = shared_place(out, shared, addressed, element_bytes(element))
            return SharedPlace(place.origin, place.regs[log2(row) :], row, place.xor, 1 << len(chosen), trans)
    return None


def store_shared(
    out: Lowering, value: SSAValue, layout: Linear, buffer: SSAValue, shared: Shared, matrices: bool = False
) -> None:
    """Put a tile in registers into `buffer`; every element is written by one thread. With `matrices`, by matrices of
    whole warps where the layouts are such."""
    compact, left = layout.compact()
    value = out.picked(value, left)
    place = matrix_place(out, shared, compact, element_type(value.type)) if matrices else None
    if place is not None:
        place.store(out, value, buffer, None)
        return
    place = shared_place(out, shared, compact, element_bytes(value.type))
    place.store(out, value, buffer, holder_predicate(out, compact))


def load_shared(out: Lowering, buffer: SSAValue, shared: Shared, layout: Linear, matrices: bool = False) -> SSAValue:
    """A tile from `buffer` into the registers of `layout`. With `matrices`, as matrices where the layouts are such."""
    element = element_type(buffer.type)
    place = matrix_place(out, shared, layout, element) if matrices else None
    return (place or shared_place(out, shared, layout, element_bytes(element))).load(out, buffer)


def stage(out: Lowering, value: SSAValue, layout: Linear, shared: Shared, hint: str | None) -> SSAValue:
    buffer = out.at_head(kernel.SharedOp(element_type(value.type), shared.size), f"{hint or 'tile'}_shared")
    store_shared(out, value, layout, buffer, shared)
    return buffer


class Scratch:
    """Shared buffers of a kernel for tiles that are there for a short time, by element type and size. Whoever takes one
    has what was free for longest. A kernel with rings, which take shared memory for the whole time, `shares` them."""

    def __init__(self, op: tile.KernelOp) -> None:
        self.shares = any(isinstance(o, RingOp) for o in op.walk())
        self._free: dict[tuple[Attribute, int], list[SSAValue]] = {}
        self._made = Counter[tuple[Attribute, int]]()

    def take(self, out: Lowering, element: Attribute, shared: Shared, held: Sequence[Linear], hint: str) -> SSAValue:
        """A buffer of the size of `shared` for a tile that is held as each of `held`; a new one, until there are enough
        for turns. It is private to warpgroups as long as all who take it keep to their warpgroup's part."""
        kind, private = (element, shared.size), kernel.WARPGROUP if groups_apart(shared, *held) else None
        free = self._free.setdefault(kind, [])
        if not free or self._made[kind] < EPILOGUE_BUFFERS:
            self._made[kind] += 1
            return out.at_head(kernel.SharedOp(*kind, warp_group_private=private), f"{hint}_shared")
        op = (buffer := free.pop(0)).owner
        assert isinstance(op, kernel.SharedOp)
        if op.warp_group_private is not None and op.warp_group_private.data != private:
            op.warp_group_private = None
        return buffer

    def give(self, buffer: SSAValue) -> None:
        t = memory_type(buffer)
        self._free[t.element_type, t.get_shape()[0]].append(buffer)


def groups_apart(shared: Shared, *layouts: Linear) -> tuple[Coordinate, ...]:
    """The bases of the number of the warpgroup, if every warpgroup keeps to its own part of `shared` in all layouts,
    and the parts lie one behind the other; else, or for one warpgroup, none."""
    groups = layouts[0].warp[log2(kernel.WARPGROUP) :]
    if any(layout.warp[log2(kernel.WARPGROUP) :] != groups for layout in layouts):
        return ()
    if not groups or part_of_group(shared.shape, groups) is None:
        return ()
    part = shared.size >> len(groups)
    return groups if [shared.place(b) // part for b in groups] == [1 << i for i in range(len(groups))] else ()


@lowers(tile.StageOp)
def lower_stage(out: Lowering, op: tile.StageOp) -> None:
    value, held, at, hint = out.of(op.source), out.layout(op.source), layout_in_shared(op.result), op.source.name_hint
    if all(isinstance(u.operation, tile.TmaStoreOp) for u in op.result.uses):
        buffer = out.state(Scratch).take(out, element_type(value.type), at, [held], hint or "tile")
        store_shared(out, value, held, buffer, at, matrices=True)
        out.values[op.result] = buffer
    else:
        out.values[op.result] = stage(out, value, held, at, hint)


@lowers(tile.ConvertLayoutOp)
def lower_convert(out: Lowering, op: tile.ConvertLayoutOp) -> SSAValue:
    """A tile in other threads, or from shared memory."""
    value, target = out.of(op.source), out.layout(op.result)
    if (at := shared_of(op.source.type)) is not None:
        return load_shared(out, value, at, target)
    way, hint = None if op.via is None else op.via.data, op.result.name_hint
    found = _converted(out, value, out.layout(op.source), target, way, hint)
    if found is None:
        why = "cannot be converted so: a thread needs elements that it cannot reach"
        raise refused(op, why, argument="via")
    return found


def _converted(
    out: Lowering, value: SSAValue, source: Linear, target: Linear, via: str | None, hint: str | None
) -> SSAValue | None:
    """A tile held as `source`, held as `target` instead, by the way `via`, or the cheapest; None if that is no way."""
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
        moved = _converted(out, number, source, target, way, hint)
        assert moved is not None
        return out.emit(payload.CastOp(moved, IndexType()), hint)
    size, scratch = element_bytes(value.type), out.state(Scratch)
    shared = choose_shared(source.shape, [Reader(source, size), Reader(target, size)])
    if not scratch.shares:
        return load_shared(out, stage(out, value, source, shared, hint), shared, target)
    buffer = scratch.take(out, element_type(value.type), shared, [source, target], hint or "tile")
    store_shared(out, value, source, buffer, shared, matrices=True)
    scratch.give(buffer)
    return load_shared(out, buffer, shared, target, matrices=True)


def _exchange(out: Lowering, value: SSAValue, found: Exchange, hint: str | None) -> SSAValue:
    value = _renumbered(out, value, found.before, hint)
    value = out.picked(value, [combine_images(found.registers, r) for r in range(1 << len(found.registers))])
    if found.shuffles:
        spare = [0] * log2(out.warps)
        lane = None if found.stays else out.value(out.thread_bits([*found.lanes, *spare]))
        value = out.emit(kernel.ShuffleOp(value, lane, found.flips), hint)
    return _renumbered(out, value, found.after, hint)


def _renumbered(out: Lowering, value: SSAValue, moves: Sequence[int], hint: str | None) -> SSAValue:
    return out.emit(kernel.PermuteRegistersOp(value, out.id("lane"), moves), hint) if any(moves) else value


@lowers(tile.ReduceOp)
def reduce(out: Lowering, op: tile.ReduceOp) -> SSAValue:
    """A tile folded over some of its dimensions.

    Each thread folds its registers, lanes exchange partial results by shuffles, warps through shared memory.
    """
    dims, kind, hint = op.dims.get_values(), op.kind.data, op.result.name_hint
    compact, left = out.layout(op.source).compact()
    value = out.picked(out.of(op.source), left)
    plan, reduced = compact.reduction(dims), compact.drop(dims)
    if plan is None:
        raise refused(op, "reduces a layout whose bases mix reduced and kept dimensions, or repeat")
    if plan.registers:
        value = out.emit(kernel.ReduceRegistersOp(kind, value, plan.registers), hint)
    for mask in plan.shuffles:
        other = out.emit(kernel.ShuffleXorOp(value, mask))
        value = out.emit(combine(kind, value, other), hint)
    if plan.warps:
        value = gathered_from_warps(out, value, reduced, plan.warps, hint)
        value = out.emit(kernel.ReduceRegistersOp(kind, value, range(len(plan.warps))), hint)
    picks = out.layout(op.result).picks(reduced)
    if picks is None:
        raise refused(op, "leaves the result in other threads than its layout says")
    return out.from_vector(op.result, out.picked(value, picks))


def gathered_from_warps(
    out: Lowering, value: SSAValue, kept: Linear, warps: Sequence[int], hint: str | None
) -> SSAValue:
    """Returns, in every thread, the `value` of each warp that differs in the bits `warps` of its number, through shared
    memory: the lowest bits of a register's number are those bits. `kept` is the layout of `value`."""
    shape = (1 << len(warps), *kept.shape)

    lane = tuple((0, *b) for b in kept.lane)
    reg = tuple((0, *b) for b in kept.reg)
    warp = tuple(unit(len(shape), 0, 1 << warps.index(i)) if i in warps else (0, *b) for i, b in enumerate(kept.warp))
    parts = tuple(unit(len(shape), 0, 1 << i) for i in range(len(warps)))
    written = Linear(shape, reg, lane, warp)
    read = Linear(shape, parts + reg, lane, tuple((0, *b) for b in kept.warp))
    size = element_bytes(value.type)
    shared = choose_shared(shape, [Reader(written, size), Reader(read, size)])
    buffer = stage(out, value, written, shared, hint)
    return load_shared(out, buffer, shared, read)


@lowers(tile.ClusterAllGatherOp)
def cluster_allgather(out: Lowering, op: tile.ClusterAllGatherOp) -> None:
    """What all blocks of a cluster have: each puts its part into its own shared memory, and reads that of all. All
    stores come before all loads, so that one barrier of the cluster is enough."""
    values = [out.vector(v) for v in op.tiles]
    staged: list[tuple[SSAValue, Shared, Linear]] = []
    for source, result, value in zip(op.tiles, op.res, values, strict=True):
        held, read = _as_tile(out.layout(source)), _as_tile(out.layout(result).without([0]))
        size = element_bytes(value.type)
        shared = choose_shared(held.shape, [Reader(held, size), Reader(read, size)])
        staged.append((stage(out, value, held, shared, source.name_hint), shared, read))
    for (buffer, shared, read), result in zip(staged, op.res, strict=True):
        layout = out.layout(result)
        if any(basis[0] for basis in layout.reg):
            raise refused(op, "a thread would hold what several blocks have; it reads from one")
        rank = out.thread_bits([basis[0] for basis in (*layout.lane, *layout.warp)])
        peer = out.emit(kernel.MapaOp(buffer, out.value(rank)), "peer")
        out.define(result, load_shared(out, peer, shared, read))


@lowers(tile.ClusterReduceScatterOp)
def cluster_reduce_scatter(out: Lowering, op: tile.ClusterReduceScatterOp) -> SSAValue:
    """Stages the tile of each block, and combines the part of this block of all of them, in the order of the ranks. All
    loads come before all combinations, so that they are outstanding together."""
    held, part, dim, whole = out.layout(op.source), out.layout(op.result), op.dim.data, shape_of(op.source.type)
    size, hint = element_bytes(op.source.type), op.source.name_hint
    read = Linear(whole, part.reg, part.lane, part.warp)
    plain = ordered(whole, tuple(reversed(range(len(whole)))))
    # Remote loads are as wide as they can be: the network between multiprocessors moves segments of 32 bytes.
    wide = register_width(plain.images(read.reg), plain.images((*read.lane, *read.warp)), WIDEST // size)
    shared = choose_shared(whole, [Reader(held, size), Reader(read, size, op.ranks, wide)])
    buffer = stage(out, out.of(op.source), held, shared, hint)
    starts = shared.images([unit(len(whole), dim, op.part << bit) for bit in range(log2(op.ranks))])
    place = shared_place(out, shared, read, size, starts, out.bits_of(out.id("rank"), starts))
    peers = [out.emit(kernel.MapaOp(buffer, out.value(rank)), "peer") for rank in range(op.ranks)]
    total, *others = [place.load(out, peer) for peer in peers]
    for other in others:
        total = out.emit(combine(op.kind.data, total, other), hint)
    return total


def _as_tile(layout: Linear) -> Linear:
    if layout.shape:
        return layout
    return Linear((1,), ((0,),) * len(layout.reg), ((0,),) * LANE_BITS, ((0,),) * len(layout.warp))


@lowers(tile.RowBufferOp)
def row_buffer(out: Lowering, op: tile.RowBufferOp) -> None:
    row, shared = op.result.type, _row_layout(out, op.result)
    assert isinstance(row, tile.RowBufferType)
    made = kernel.SharedOp(element_type(row.tile), row.places.data * shared.size)
    out.values[op.result] = out.at_head(made, op.result.name_hint or "row")


def _row_layout(out: Lowering, row: SSAValue) -> Shared:
    """How each tile of a row lies in its slot: for whoever puts it there and reads it."""
    assert isinstance(row.type, tile.RowBufferType)
    users = [use.operation for use in row.uses]
    tiles = [u.value if isinstance(u, tile.RowBufferStoreOp) else u.results[0] for u in users]
    size = element_bytes(row.type.tile)
    return choose_shared(row.type.shape, [Reader(held, size) for held in dict.fromkeys(map(out.layout, tiles))])


def _row_slot(out: Lowering, op: tile.RowBufferStoreOp | tile.RowBufferLoadOp) -> tuple[SSAValue, Shared]:
    shared = _row_layout(out, op.row)
    offset = out.value(out.mul(out.values[op.place], shared.size))
    return out.emit(kernel.SubviewOp(out.of(op.row), offset, shared.size), op.row.name_hint), shared


@lowers(tile.RowBufferStoreOp)
def row_buffer_store(out: Lowering, op: tile.RowBufferStoreOp) -> None:
    store_shared(out, out.of(op.value), out.layout(op.value), *_row_slot(out, op))


@lowers(tile.RowBufferLoadOp)
def row_buffer_load(out: Lowering, op: tile.RowBufferLoadOp) -> SSAValue:
    return load_shared(out, *_row_slot(out, op), out.layout(op.result))
