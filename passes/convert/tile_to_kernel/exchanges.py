"""Lowers operations that move elements between threads, by shuffles or through shared memory.

These are conversions of layouts, reductions, exchanges between the blocks of a cluster, and row buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, i64
from xdsl.ir import SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts import shared_of
from ....dialects.layouts.conversion import Exchange, find_exchange
from ....dialects.layouts.linear import (
    LANE_BITS,
    Linear,
    Reader,
    Shared,
    choose_shared,
    combine as combine_images,
    log2,
    ordered,
    register_width,
    unit,
)
from ....dialects.payload import element_bytes, element_type, shape_of
from ....dialects.support.locations import refused
from ....dialects.tensor import combine
from ...analysis.memory_access import WIDEST
from ...analysis.tile_layouts import route
from .emitter import Lowering, lowers
from .memory import SharedBufferPool, load_shared, shared_place, stage, store_shared


@lowers(tile.ConvertLayoutOp)
def lower_convert(out: Lowering, op: tile.ConvertLayoutOp) -> SSAValue:
    """Lowers `tile.convert_layout`: a load from shared memory, or moves between registers as `via` specifies."""
    value, target = out.of(op.source), out.layout(op.result)
    if (at := shared_of(op.source.type)) is not None:
        return load_shared(out, value, at, target)
    path, hint = None if op.via is None else op.via.data, op.result.name_hint
    converted = _converted(out, value, out.layout(op.source), target, path, hint)
    if converted is None:
        why = "cannot be converted so: a thread needs elements that it cannot reach"
        raise refused(op, why, argument="via")
    return converted


def _converted(
    out: Lowering, value: SSAValue, source: Linear, target: Linear, via: str | None, hint: str | None
) -> SSAValue | None:
    """Returns a tile in another register layout, or None if `via` cannot convert it.

    Args:
        out: the lowering.
        value: registers in the layout `source`.
        source: current layout.
        target: layout of the result.
        via: "registers", "shuffles" or "shared"; None for the cheapest.
        hint: name of the result.
    """
    if source == target:
        return value
    path = via or route(source, target, element_bytes(value.type))
    if path == "registers":
        picks = target.picks(source)
        return None if picks is None else out.emit(kernel.ShuffleRegistersOp(value, picks), hint)
    if path == "shuffles":
        exchange = find_exchange(source, target)
        return None if exchange is None else _exchange(out, value, exchange, hint)
    # An `index` has no size in memory, so it is moved as i64.
    if isinstance(element_type(value.type), IndexType):
        number = out.emit(payload.CastOp(value, i64))
        moved = _converted(out, number, source, target, path, hint)
        assert moved is not None
        return out.emit(payload.CastOp(moved, IndexType()), hint)
    size, pool = element_bytes(value.type), out.state(SharedBufferPool)
    shared = choose_shared(source.shape, [Reader(source, size), Reader(target, size)])
    if not pool.shares:
        return load_shared(out, stage(out, value, source, shared, hint), shared, target)
    buffer = pool.take(out, element_type(value.type), shared, [source, target], hint or "tile")
    store_shared(out, value, source, buffer, shared, matrices=True)
    pool.give(buffer)
    return load_shared(out, buffer, shared, target, matrices=True)


def _exchange(out: Lowering, value: SSAValue, exchange: Exchange, hint: str | None) -> SSAValue:
    """Emits a conversion by shuffles: a permutation of registers, the shuffles, and a permutation of registers."""
    value = _renumbered(out, value, exchange.before, hint)
    value = out.picked(value, [combine_images(exchange.registers, r) for r in range(1 << len(exchange.registers))])
    if exchange.shuffles:
        spare = [0] * log2(out.warps)
        lane = None if exchange.stays else out.value(out.thread_bits([*exchange.lanes, *spare]))
        value = out.emit(kernel.ShuffleOp(value, lane, exchange.flips), hint)
    return _renumbered(out, value, exchange.after, hint)


def _renumbered(out: Lowering, value: SSAValue, moves: Sequence[int], hint: str | None) -> SSAValue:
    """Returns `value` with register r moved to r XOR the `moves[i]` of the set bits i of the lane's number."""
    return out.emit(kernel.PermuteRegistersOp(value, out.id("lane"), moves), hint) if any(moves) else value


@lowers(tile.ReduceOp)
def reduce(out: Lowering, op: tile.ReduceOp) -> SSAValue:
    """Lowers `tile.reduce`: folds the registers of a thread, then lanes by shuffles, then warps via shared memory."""
    dims, kind, hint = op.dims.get_values(), op.kind.data, op.result.name_hint
    compact, distinct = out.layout(op.source).compact()
    value = out.picked(out.of(op.source), distinct)
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
        raise refused(op, "expected the result in the threads of its layout")
    return out.from_vector(op.result, out.picked(value, picks))


def gathered_from_warps(
    out: Lowering, value: SSAValue, layout: Linear, warps: Sequence[int], hint: str | None
) -> SSAValue:
    """Returns, in every thread, the values of several warps, exchanged through shared memory.

    Args:
        out: the lowering.
        value: registers of the own warp.
        layout: layout of `value`.
        warps: bits of the warp's number; the values of all warps that differ only in these bits are gathered.
        hint: name of the shared buffer.

    Returns:
        A vector of `2 ** len(warps)` times as many registers. The lowest bits of the register number are the bits
        `warps` of the warp's number.
    """
    shape = (1 << len(warps), *layout.shape)

    lane = tuple((0, *b) for b in layout.lane)
    reg = tuple((0, *b) for b in layout.reg)
    warp = tuple(unit(len(shape), 0, 1 << warps.index(i)) if i in warps else (0, *b) for i, b in enumerate(layout.warp))
    parts = tuple(unit(len(shape), 0, 1 << i) for i in range(len(warps)))
    written = Linear(shape, reg, lane, warp)
    read = Linear(shape, parts + reg, lane, tuple((0, *b) for b in layout.warp))
    size = element_bytes(value.type)
    shared = choose_shared(shape, [Reader(written, size), Reader(read, size)])
    buffer = stage(out, value, written, shared, hint)
    return load_shared(out, buffer, shared, read)


@lowers(tile.ClusterAllGatherOp)
def cluster_allgather(out: Lowering, op: tile.ClusterAllGatherOp) -> None:
    """Lowers `tile.cluster_allgather` through the shared memory of all blocks.

    Each block stores its tiles to its own shared memory, and loads the tiles of every block from theirs. All stores
    precede all loads, so that one barrier of the cluster is enough.
    """
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
    """Lowers `tile.cluster_reduce_scatter`: each block combines its part of the tiles of all blocks.

    Each block stores its tile to its shared memory. It then loads its part from every block, and combines the parts in
    the order of ranks. All loads precede all combinations, so that their latencies overlap.
    """
    held, part, dim, whole = out.layout(op.source), out.layout(op.result), op.dim.data, shape_of(op.source.type)
    size, hint = element_bytes(op.source.type), op.source.name_hint
    read = Linear(whole, part.reg, part.lane, part.warp)
    plain = ordered(whole, tuple(reversed(range(len(whole)))))
    # The layout must allow the widest remote loads: the network between multiprocessors moves segments of 32 bytes.
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
    """Adds a dimension of extent 1 to the layout of a scalar. Other layouts are unchanged."""
    if layout.shape:
        return layout
    return Linear((1,), ((0,),) * len(layout.reg), ((0,),) * LANE_BITS, ((0,),) * len(layout.warp))


@lowers(tile.RowBufferOp)
def row_buffer(out: Lowering, op: tile.RowBufferOp) -> None:
    row, shared = op.result.type, _row_layout(out, op.result)
    assert isinstance(row, tile.RowBufferType)
    shared_op = kernel.SharedOp(element_type(row.tile), row.places.data * shared.size)
    out.values[op.result] = out.at_head(shared_op, op.result.name_hint or "row")


def _row_layout(out: Lowering, row: SSAValue) -> Shared:
    """Returns the shared layout of the tiles in a row buffer, which suits all operations that store and load them."""
    assert isinstance(row.type, tile.RowBufferType)
    users = [use.operation for use in row.uses]
    tiles = [u.value if isinstance(u, tile.RowBufferStoreOp) else u.results[0] for u in users]
    size = element_bytes(row.type.tile)
    return choose_shared(row.type.shape, [Reader(held, size) for held in dict.fromkeys(map(out.layout, tiles))])


def _row_slot(out: Lowering, op: tile.RowBufferStoreOp | tile.RowBufferLoadOp) -> tuple[SSAValue, Shared]:
    """Returns the part of the row buffer that `op` accesses, and its layout."""
    shared = _row_layout(out, op.row)
    offset = out.value(out.mul(out.values[op.place], shared.size))
    return out.emit(kernel.SubviewOp(out.of(op.row), offset, shared.size), op.row.name_hint), shared


@lowers(tile.RowBufferStoreOp)
def row_buffer_store(out: Lowering, op: tile.RowBufferStoreOp) -> None:
    store_shared(out, out.of(op.value), out.layout(op.value), *_row_slot(out, op))


@lowers(tile.RowBufferLoadOp)
def row_buffer_load(out: Lowering, op: tile.RowBufferLoadOp) -> SSAValue:
    return load_shared(out, *_row_slot(out, op), out.layout(op.result))
