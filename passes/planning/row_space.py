"""The space of schedules of a nest without matmuls: rows and elements of a tile, chunks of the sums, and warps; without
sums, tiles of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from xdsl.ir import SSAValue

from ...dialects.kernel.mbarrier import CLUSTERS
from ...dialects.loop.dependence import contiguous_index
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.tile.schedule import Schedule
from ...target.model import SECTOR, Target
from ..analysis.cluster_rows import SHARED_LENGTH
from ..analysis.memory_access import WIDEST
from .nest_info import MAX_WARPS, NestInfo, TileExtents, pow2_at_least

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Elements of a tile over the free indices that reductions depend on."""

WIDTHS = (32768, 16384, 8192, 4096, 2048, 1024, 256, 128, 64)
"""Elements of a tile over the other free indices, and of one over a reduction."""

PER_THREAD = (8, 16, 32, 64)
"""Elements of the largest tile that a thread holds."""

LARGEST = 1 << 15
"""Elements of a tile at most: what the registers of a block hold of one tensor."""

WARPS, HELD = 4, 16
"""Of about equally fast schedules the one is taken whose blocks have a warp for each part of a multiprocessor, and so
many elements in each thread: enough loads under way, and registers for several tiles."""

WASTED = 1.125
"""So many times what is asked for may be executed: elements past an end, and reductions that several blocks compute."""

SMALL = 8
"""A tensor with so many times fewer bytes than another one may be moved in parts of sectors: a number for each row."""

TILES = (1024, 512, 256)
"""Elements of a tile of elementwise work: large ones, if they still give every multiprocessor two blocks."""


def row_plans(info: NestInfo, target: Target) -> list[Schedule]:
    """Every point of the space: a block takes tiles over the free indices, along which memory is contiguous first,
    walks through those that do not cover their rows, and reduces chunk by chunk. Rows may be in shared memory while
    they are walked through, and long ones may be shared by the blocks of a cluster. Tiles have whole sectors, if
    these are enough to give every other multiprocessor one."""
    tiles = [sizes for sizes in row_tiles(info, ROWS, WIDTHS) if _largest(info, sizes) <= LARGEST]
    twice = any(info.sites[m].group != site.group for site in info.sites for m in site.alike)
    wide = [sizes for sizes in tiles if _has_sectors(info, sizes)]
    found: dict[Schedule, tuple[int, ...]] = {}
    for sizes in wide if any(2 * sizes.blocks() >= target.sms for sizes in wide) else tiles:
        for plan, rank in _plans(info, target, sizes, twice):
            found.setdefault(plan, rank)
    return sorted(found, key=lambda plan: found[plan])


def row_tiles(
    info: NestInfo, heights: Sequence[int], widths: Sequence[int], written: bool = False
) -> list[TileExtents]:
    """Different tiles and chunks: of so many elements over the free indices that reductions depend on, and of so many
    over others and over a reduction. Indices are in the order of `in_order`."""
    rows, rest = in_order(info, True, written), in_order(info, False, written)
    found: dict[tuple[int, ...], TileExtents] = {}
    for height, width, chunk in product(heights if rows else (1,), widths if rest else (1,), widths):
        sizes = TileExtents(info)
        sizes.fill(rows, height)
        sizes.fill(rest, width)
        sizes.chunk_reductions(chunk)
        found.setdefault((*sizes.tile.values(),), sizes)
    return list(found.values())


def _largest(info: NestInfo, sizes: TileExtents) -> int:
    """Elements of the largest tile."""
    return max(sizes.elements(i) for i in (info.free, *((*r.around, *r.indices) for r in info.reductions)))


def _has_sectors(info: NestInfo, sizes: TileExtents) -> bool:
    """Whether no load or store of a large tensor takes a part of a sector, where it could have the whole, and a warp
    has 16 bytes of the widest elements for each thread."""
    last = next((i for i in reversed(info.free) if info.extents[i] > 1), None)
    along = [(contiguous_index(op), op.source.type) for op in info.loads] + [(last, r.type) for r in info.nest.res]
    large = max(tensor_bytes(t) for _, t in along) // SMALL
    large = [(i, element_bytes(t)) for i, t in along if tensor_bytes(t) >= large]
    whole = all(i is None or sizes.tile[i] >= min(info.extents[i], SECTOR // n) for i, n in large)
    return whole and _largest(info, sizes) >= 32 * WIDEST // max(n for _, n in large)


def _executed(info: NestInfo, sizes: TileExtents) -> float:
    """How many times the elements of all reductions, and of the result, the tiles execute."""
    sets = [frozenset(info.free), *(r.around | {*r.indices} for r in info.reductions)]
    tiles = {i: -(-n // sizes.tile[i]) for i, n in info.extents.items()}
    blocks = [prod(tiles[i] for i in info.free if i not in own) for own in sets]
    done = (n * prod(tiles[i] * sizes.tile[i] for i in own) for n, own in zip(blocks, sets, strict=True))
    return sum(done) / max(1, sum(prod(info.extents[i] for i in own) for own in sets))


def _plans(
    info: NestInfo, target: Target, sizes: TileExtents, twice: bool
) -> Iterator[tuple[Schedule, tuple[int, ...]]]:
    """The schedules with some tiles, and what decides among those that are about equally fast: to read a row once,
    where two loops need it (`twice`), in few blocks, to compute little that nobody asked for, with results that each
    are in one thread, and then as `WARPS` and `HELD` say."""
    rest = [i for i in info.free if i not in info.reduced and info.extents[i] > 1]
    walked, varies, tile = tuple(info.free.index(i) for i in rest), info.may_be_longer(rest), _largest(info, sizes)
    too_long = prod(info.extents[i] for i in rest) > LARGEST
    looped = {sizes.tile[i] for i in info.reduction_indices if sizes.tile[i] < info.extents[i]}
    may_keep = len(rest) == 1 and not varies and looped <= {sizes.tile[rest[0]]}
    wasted = _executed(info, sizes) > WASTED
    for ranks, held in product(_clusters(info, target, sizes), PER_THREAD):
        warps = max(1, tile // (32 * held))
        if warps > MAX_WARPS:
            continue
        again = twice and any(ranks * sizes.tile[i] < info.extents[i] for i in info.reduction_indices)
        copies = sizes.elements(info.free) < 32 * warps * info.vector()
        off = abs(warps.bit_length() - WARPS.bit_length())
        off += abs((tile // (32 * warps)).bit_length() - HELD.bit_length())
        if all(ranks * sizes.tile[i] >= info.extents[i] for i in rest) and not varies:
            yield sizes.plan(warps, cluster=ranks), (again, ranks, 0, wasted, copies, off)
            continue
        if not looped and not varies and too_long:  # every block reduces again
            yield sizes.plan(warps, cluster=ranks), (1, ranks, 0, wasted, copies, off)
        for kept in (True, False) if may_keep else (False,):
            row = "shared" if kept else "registers"
            plan = sizes.plan(warps, serial=walked, cluster=ranks, cache_rows=row)
            yield plan, (not kept, ranks, kept, wasted, copies, off)


def in_order(info: NestInfo, reduced: bool, written: bool = False) -> list[SSAValue]:
    """The free indices that some reduction depends on, or those that none does: those along which most bytes are
    contiguous first, then the last. Bytes of results count where `written`."""
    found, bytes_along = [i for i in info.free if (i in info.reduced) == reduced], dict(info.contiguous)
    if written and (last := next((i for i in reversed(info.free) if info.extents[i] > 1), None)) is not None:
        bytes_along[last] = bytes_along.get(last, 0) + sum(tensor_bytes(r.type) for r in info.nest.res)
    return sorted(found, key=lambda i: (-bytes_along.get(i, 0), -info.free.index(i)))


def _clusters(info: NestInfo, target: Target, sizes: TileExtents) -> tuple[int, ...]:
    """How many blocks may share a row: several where it is long, and a block has no other."""
    long = any(info.extents[i] >= SHARED_LENGTH for i in info.reduction_indices)
    one = all(sizes.tile[i] == 1 for i in info.reduced)
    return CLUSTERS if long and one and target.has("cluster") else (1,)


def elementwise_plans(info: NestInfo, target: Target) -> Iterator[Schedule]:
    """Nothing is shared between elements: tiles along the last indices, in vectors of 16 bytes.

    Where a tensor is read along another index than the one it is written along, a square tile, so that both are
    contiguous.
    """
    total = prod(info.extents[i] for i in info.free)
    enough = [n for n in TILES if total // n >= 2 * target.sms]
    for elements in (*enough, *(n for n in reversed(TILES) if n not in enough)):
        yield _elementwise(info, elements)


def _elementwise(info: NestInfo, elements: int) -> Schedule:
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
