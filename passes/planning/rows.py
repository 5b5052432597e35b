"""Plans for nests without matrix products: elementwise work, and reductions of rows and columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from xdsl.ir import SSAValue

from ...dialects.kernel.cluster import CLUSTERS
from ...dialects.target import Target
from ..analysis.cluster_rows import SHARED_LENGTH
from ..analysis.running_mean import counted
from .memory_parallelism import in_flight
from .nest_info import NestInfo, pow2_at_least, pow2_at_most
from .points import Plan
from .tile_extents import MAX_WARPS, TileExtents
from .tiles import Tiles

PER_THREAD = 16
"""Elements of one tile that a thread should hold: enough loads in flight, few enough registers for several tiles."""

ROW_LIMIT = 2 * PER_THREAD * MAX_WARPS * 32
"""The longest row that one block keeps in registers, of a few tensors: half of what a thread of 32 warps has."""

FEW = 4
"""Tensors that are read along a row; of more, a row half as long fills the registers, as does one that leaves a part of
its tile empty: which elements these are is in registers, too."""

WALKING = MAX_WARPS // 2
"""Warps at most of a block that walks through its rows: compilers load several chunks ahead, and need the registers."""

CHUNK = PER_THREAD * WALKING * 32
"""Chunks of a row that does not fit, in its reductions and in the loop over what is not reduced."""

CHUNKS = (8192, 4096, 2048)
"""Of rows that are kept in shared memory."""


TILES = (1024, 512, 256)
"""Elements of a tile of elementwise work: large ones, if they still give every multiprocessor two blocks."""

SHORT = 256
"""A reduction of so few elements costs next to nothing."""

OWN = 32
"""A thread can keep so many elements of four columns, and then no threads have to combine theirs."""

WIDTHS = (256, 64, 32, 16, 8)
"""How many values of an index one block may take when some of its reductions are the same for all of them: many, so
that few blocks compute those, or few, so that there are enough blocks."""


def elementwise_plans(info: NestInfo, target: Target) -> Iterator[Plan]:
    """Nothing is shared between elements: tiles along the last indices, in vectors of 16 bytes.

    Where a tensor is read along another index than the one it is written along, a square tile, so that both are
    contiguous.
    """
    total = _product(info, info.free)
    enough = [n for n in TILES if total // n >= 2 * target.sms]
    for elements in (*enough, *(n for n in reversed(TILES) if n not in enough)):
        yield _elementwise(info, elements)


def _elementwise(info: NestInfo, elements: int) -> Plan:
    """The schedule with tiles of `elements`, where they are not square."""
    sizes = TileExtents(info)
    order = [*reversed(info.free)]
    if order and info.extents[order[0]]:
        other = _other_direction(info)
        if other is not None:
            sizes.set(other, 32)
            left = sizes.set(order[0], 32)
            order = [i for i in order if i not in (other, order[0])]
            sizes.fill(order, 1 if left == 1 else elements // sizes.elements(sizes.decided))
        else:
            left = sizes.set(order[0], _snug(info.extents[order[0]], elements))
            sizes.fill(order[1:], elements // sizes.tile[order[0]])
    sizes.chunk_reductions(4096)
    per_thread = max(4, min(8, info.vector()))
    return sizes.plan(max(1, sizes.elements(info.free) // (32 * per_thread)))


def _snug(extent: int, most: int) -> int:
    """A tile along a range: large, but not mostly past its end."""
    tile = min(most, pow2_at_least(extent))
    while tile > 32 and -(-extent // tile) * tile > extent + extent // 4:
        tile //= 2
    return tile


def _other_direction(info: NestInfo) -> SSAValue | None:
    """A free index other than the last along which large tensors are contiguous in memory."""
    found = info.contiguous
    last = info.free[-1]
    others = [(size, i) for i, index in enumerate(info.free[:-1]) if (size := found.get(index, 0)) > 4096]
    if not others or info.extents[last] < 8:
        return None
    best = info.free[max(others)[1]]
    return best if info.extents[best] >= 8 else None


def row_plans(info: NestInfo, target: Target) -> Iterator[Plan]:
    """The plan for rows, and the same with half as many warps and with twice as many; with rows that are looped
    over kept in shared memory, and with long ones shared by the blocks of a cluster."""
    for width in WIDTHS if _shared(info) else WIDTHS[:1]:
        plan = plan_rows(info, target, width)
        steps = Tiles.of(info, plan).steps
        walks = any(steps[i] > 1 for i in info.reduction_indices)
        ranks = CLUSTERS[1:] if target.has("cluster") else ()
        shared = [s for n in ranks for s in _clustered(info, plan, n)]
        yield from (*_kept(info, plan), *shared, plan) if walks else (plan, *shared)
        most = WALKING if walks else MAX_WARPS
        for warps in (plan.warps // 2, plan.warps * 2):
            if 1 <= warps <= most:
                yield replace(plan, warps=warps)
        yield from in_flight(info, plan)


def _kept(info: NestInfo, plan: Plan) -> Iterator[Plan]:
    """`plan` for rows that are looped over, with all chunks kept in shared memory, and equal ones in all loops:
    the longer they are, the fewer results of reductions wait for each other; the shorter, the less lies past the
    end."""
    looped = {*plan.serial}
    rest = [i for n, i in enumerate(info.free) if n in looped]
    if len(looped) != 1 or any(info.may_be_longer([i]) for i in rest):
        return
    tiles = Tiles.of(info, plan)
    for length in CHUNKS:
        if info.extents[rest[0]] <= length:
            continue
        block = [length if n in looped else b for n, b in enumerate(plan.block)]
        chunk = [length if tiles.steps[i] > 1 else int(tiles.tile[i][0]) for i in info.reduction_indices]
        yield replace(
            plan, block=tuple(block), chunk=tuple(chunk), cache_rows="shared", warps=max(1, length // (32 * PER_THREAD))
        )


def _limit(info: NestInfo, row: int) -> int:
    """The longest row like one of `row` elements that one block keeps in registers."""
    half = len({op.source for op in info.loads}) > FEW or pow2_at_least(row) > row
    return ROW_LIMIT // 2 if half else ROW_LIMIT


def _clustered(info: NestInfo, plan: Plan, ranks: int) -> Iterator[Plan]:
    """`plan` with rows that `ranks` blocks share: each its part as one tile in registers, or as chunks in shared
    memory."""
    rest = [i for i in info.free if i not in info.reduced]
    long = [max(r.indices, key=lambda i: info.extents[i]) for r in info.reductions if r.outermost]
    length = max((info.extents[i] for i in long), default=0)
    alone = all(len(r.indices) == 1 for r in info.reductions) and len(info.reductions) == len(long)
    if length < SHARED_LENGTH or not alone or len(rest) > 1 or any(info.may_be_longer([i]) for i in (*rest, *long)):
        return
    whole = pow2_at_least(-(-length // ranks))
    fits = whole <= _limit(info, whole if length == ranks * whole else whole - 1) and -(-length // whole) >= ranks
    tiles = [whole] if fits else [n for n in CHUNKS if n < whole]
    for tile in tiles:
        block = [tile if i in rest else b for i, b in zip(info.free, plan.block, strict=True)]
        chunk = [min(tile, pow2_at_least(info.extents[i])) for i in info.reduction_indices]
        row = "registers" if tile == whole or not rest else "shared"
        serial = [] if tile == whole else [n for n, i in enumerate(info.free) if i in rest]
        warps = max(1, min(MAX_WARPS, tile // (32 * PER_THREAD)))
        yield replace(
            plan,
            block=tuple(block),
            chunk=tuple(chunk),
            serial=tuple(serial),
            warps=warps,
            cache_rows=row,
            cluster=ranks,
        )


def _shared(info: NestInfo) -> list[SSAValue]:
    """The free indices of some reductions that others do not depend on."""
    reduced = (i for i in info.free if i in info.reduced)
    return [i for i in reduced if any(i not in r.around for r in info.reductions if counted(r.op) is None)]


def plan_rows(info: NestInfo, target: Target, widest: int = WIDTHS[0]) -> Plan:
    """Reductions whose results the rest of a row, or nobody, uses: a block takes one or more whole rows.

    Rows that do not fit into registers are looped over: the reductions in chunks, then the rest tile by tile.
    Where memory is contiguous along a free index instead (sums of columns), a tile holds a part of many columns.
    """
    contiguous = info.contiguous
    reduced = [i for i in info.free if i in info.reduced]
    along = max((contiguous.get(i, 0) for r in info.reductions for i in r.indices), default=0)
    columns = [i for i in reduced if contiguous.get(i, 0) > along]
    if columns:
        return _plan_columns(info, target, columns[-1])
    sizes = TileExtents(info)
    rest = [i for i in info.free if i not in info.reduced]
    shared = _shared(info)
    if shared:
        # Some reductions do not depend on these: one block takes `widest` values, or it would compute those again.
        sizes.fill(reversed(shared), widest)
        return _chunked(info, sizes, [i for i in reduced if i not in shared], 4096, 1)
    longest = max((_product(info, r.indices) for r in info.reductions if r.outermost), default=1)
    row = max(longest, _product(info, rest))
    if longest <= SHORT and _product(info, rest) >= 4 * longest and _product(info, reduced) < target.sms:
        # So little to reduce that every tile of the rest can do it again.
        sizes.fill(reversed(rest), 2048)
        return _chunked(info, sizes, reduced, 2048, 1)
    limit = _limit(info, row)
    width = pow2_at_least(row) if rest and row <= limit else min(pow2_at_least(row), CHUNK)
    if rest:
        whole = _product(info, rest) <= limit and not info.may_be_longer(rest)
        sizes.fill(reversed(rest), width if whole else CHUNK)
        if not whole:
            sizes.serial = [i for i, index in enumerate(info.free) if index in rest]
    rows = _product(info, reduced)
    block_rows = pow2_at_most(min(4096 // min(width, 4096), max(1, rows // (4 * target.sms))))
    wide = 32 * info.vector() // width  # rows so short that a warp reads several at once in vectors of 16 bytes
    block_rows = max(block_rows, pow2_at_most(min(wide, rows)))
    return _chunked(info, sizes, reduced, max(width, 1024) if block_rows == 1 else block_rows * width, block_rows)


def _chunked(info: NestInfo, sizes: TileExtents, rows: list[SSAValue], budget: int, block_rows: int) -> Plan:
    """The schedule with `block_rows` rows a block and reductions in chunks that fill tiles of `budget` elements."""
    sizes.fill(reversed(rows), block_rows)
    sizes.chunk_reductions(budget)
    tile = max(sizes.elements({*r.around, *r.indices}) for r in info.reductions)
    tile = max(tile, sizes.elements(info.free))
    many = len({op.source for op in info.loads}) > 4
    return sizes.plan(max(1, tile // (32 * (PER_THREAD // 2 if many else PER_THREAD))))


def _plan_columns(info: NestInfo, target: Target, column: SSAValue) -> Plan:
    """Memory is contiguous along the free index `column`: 32 to 128 columns a block, and as many rows as fit."""
    sizes = TileExtents(info)
    width = 128
    while width > 32 and _product(info, info.free) // width < target.sms:
        width //= 2
    sizes.set(column, width)
    rest = [i for i in info.free if i not in info.reduced]
    whole = _product(info, rest) <= 64
    sizes.fill(reversed(rest), 64)
    if not whole:
        sizes.serial = [i for i, index in enumerate(info.free) if index in rest]
    sizes.chunk_reductions(4096)
    if max(_product(info, r.indices) for r in info.reductions) <= OWN:
        return sizes.plan(sizes.elements(info.free) // (32 * 4))  # every thread has all of its columns
    return sizes.plan(max(4, sizes.elements(info.free) // (32 * PER_THREAD)))


def _product(info: NestInfo, indices: Iterable[SSAValue]) -> int:
    return prod(info.extents[i] for i in indices)
