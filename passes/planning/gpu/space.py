"""The space of schedules for GPUs: tiles and warps, then copies, clusters and parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from ....dialects.kernel.barriers import CLUSTERS
from ....dialects.layouts.linear import LANES
from ....dialects.layouts.mma import ATOM, warpgroup_accumulator
from ....dialects.loop import LoadOp
from ....dialects.loop.dependence import access_indices
from ....dialects.payload import element_bytes, tensor_bytes
from ....dialects.shapes.extents import extents_of
from ....dialects.tile.schedule import Schedule
from ....target.model import SECTOR, Target
from ...analysis.async_copies import PITCH
from ...analysis.memory_access import WIDEST
from ...analysis.nest_schedule import SHARED_LENGTH, shared_sums
from ..matmul import (
    Matmul,
    atom_depth,
    by_products,
    distinct,
    is_nested,
    is_tf32,
    is_wide,
    lies_along_k,
    loads_of,
    may_be_narrow,
    may_be_rows,
    narrow_type,
    operand_loads,
)
from ..model import MIN_PART_BYTES
from ..nest_info import MAX_WARPS, NestInfo, TileExtents, pow2_at_least
from ..points import Bools, Points, join, points_of
from ..space import MatmulTiles, bytes_read, in_order, last_index, pad_scanned, row_tiles, scan_plan, with_parts
from ..tiles import Tiles
from .arithmetic import with_promotion
from .resources import staged

EXTENTS = (256, 128, 64, 32, 16)
"""Rows and columns of a tile of a matmul, from the best use of operands to the most blocks."""

DEPTHS = {"fma": (32, 16), "mma": (64, 128, 256, 32), "wgmma": (64, 128)}
"""Chunks of the summed index by atom, for operands of two bytes: of a wgmma one or two of the widest rows of a TMA
tile."""

KEYS = (128, 64, 32)
"""Chunks of an index that one matmul yields and another one sums over."""

MATMUL_WARPS = (4, 8, 16, 2, 1)
"""Warps of a block with matmuls, of equally fast ones the first."""

REGISTER_TILES = ((8, 8), (8, 4), (4, 4), (2, 4), (2, 2), (1, 2), (1, 1))
"""Results of a thread on CUDA cores, [rows, columns]."""

MIN_FMA_THREADS = 64
"""Threads of a block with register tiles, at least: one warp alone would wait for each of its operations."""

ACCUMULATORS = {"mma": (8, 64), "wgmma": (8, 128)}
"""Accumulators of a thread on tensor cores, at least and at most."""

MAX_COPYING_WARPS = 8
"""Warps of a block that copies its operands itself, at most: more would wait for each other at every chunk."""

MIN_TENSOR_CORE_SPEEDUP = 4.5
"""Speedup of tensor cores over multiply-adds that makes three matmuls worth one, as for weights of attention."""

HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Elements of a tile over the free indices that reductions depend on."""

WIDTHS = (32768, 16384, 8192, 4096, 2048, 1024, 256, 128, 64)
"""Elements of a tile over the other free indices, and of one over a reduction."""

ELEMENTS_PER_THREAD = (8, 16, 32, 64)
"""Elements of the largest tile that a thread holds."""

MAX_ROW_ELEMENTS = 1 << 15
"""Elements of a tile, at most: what the registers of a block hold of one tensor."""

BEST_WARPS, BEST_ELEMENTS = 4, 16
"""Warps of a block and elements of a thread that are preferred among equally fast schedules: a warp for each part of a
multiprocessor, enough loads in flight, and registers for several tiles."""

MAX_WASTE = 1.125
"""Executed elements over needed ones, at most: others are past an end, or reduced by several blocks."""

SMALL_TENSOR_RATIO = 8
"""How many times fewer bytes than the largest a tensor has that may be moved in parts of sectors."""

ELEMENTWISE_TILES = (1024, 512, 256)
"""Elements of a tile of elementwise work: large ones, if they still give every multiprocessor two blocks."""

SCAN_WARPS = (4, 8, 2, 16, 1, 32)
"""Warps of a block that scans."""

SCAN_TILES = ((8, 8), (16, 16), (4, 4), (8, 16), (8, 32), (32, 32), (32, 64))
"""Rows of a tile whose columns threads scan, and elements that a thread holds."""


def matmul_plans(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> list[Schedule]:
    """Returns the schedules of a nest with matmuls. Some may not fit in shared memory or registers.

    They are on tensor cores, with the permission `f32_matmul_precision = precision`, where the target has them and the
    main matmul is for them; on CUDA cores otherwise, or where the permission is one that a program need not use.
    """
    space = _MatmulSpace(info, products)
    precision = _precision(target, products, precision)
    able = [p for p in products if may_be_narrow(p, precision)] if target.has("mma") else []
    plans: list[Schedule] = []
    if able and (space.nested or space.main in able):
        plans = [
            p for atom in ("wgmma", "mma") if target.has(atom) for p in space.on_tensor_cores(atom, able, precision)
        ]
    return plans if plans and precision != "tf32" else [*plans, *space.on_cuda_cores()]


def _precision(target: Target, products: list[Matmul], precision: str) -> str:
    """Returns the permission that schedules ask for: splitting where that is exact and worth it, none where none is
    needed."""
    exact = [may_be_narrow(p, "ieee") for p in products]
    if precision == "ieee" and is_nested(products) and target.tensor > MIN_TENSOR_CORE_SPEEDUP * target.fp32:
        worth = all(narrow_type(p, may_narrow=True) is not None and may_be_narrow(p, "bf16x3") for p in products)
        return "bf16x3" if worth and not all(exact) else "ieee"
    return "ieee" if precision == "tf32" and all(exact) else precision


class _MatmulSpace(MatmulTiles):
    """The schedules of a nest with matmuls."""

    shapes = (*product(EXTENTS, EXTENTS),)

    @property
    def group_m(self) -> int:
        """Tiles down a patch of blocks, at most: with nested matmuls blocks share no operands."""
        return 1 if self.nested else GROUPS[0]

    def on_cuda_cores(self) -> Iterator[Schedule]:
        """Yields tiles in the register tiles of their threads."""
        for (rows, columns), thread in product(self.tiles(1, self.shapes), REGISTER_TILES):
            threads = rows // thread[0] * (columns // thread[1])
            warps = max(1, threads // LANES)
            if (threads >= MIN_FMA_THREADS or thread == (1, 1)) and warps <= MAX_COPYING_WARPS:
                for sizes in self.chunks((rows, columns), warps, DEPTHS["fma"], KEYS[-1:]):
                    yield sizes.plan(warps, thread=thread, group_m=self.group_m)

    def on_tensor_cores(self, atom: str, able: list[Matmul], precision: str) -> Iterator[Schedule]:
        """Yields tiles in the accumulators of their warps.

        Where one matmul is an operand of another, and both are on tensor cores, a warp has whole rows; where one is on
        CUDA cores, the block is as it would be there."""
        decisions = {"atom": atom, "f32_matmul_precision": precision}
        if self.nested and len(able) < len(self.products):
            for plan in self.on_cuda_cores() if atom == "mma" else ():
                if any(_holds_atom(self.info.tile_of(plan.block, plan.chunk), p, precision) for p in able):
                    yield replace(plan, **decisions)
            return
        bytes_each = 4 if is_tf32(self.main, precision) and atom == "wgmma" else 2
        depths = tuple(2 * depth // bytes_each for depth in DEPTHS[atom])
        least = ATOM.m if not self.nested or all(p.row is self.main.row for p in self.products) else 1
        for tile, warps in product(self.tiles(least, self.shapes), MATMUL_WARPS):
            if self._may_have(atom, tile, warps):
                for sizes in self.chunks(tile, warps, depths, KEYS):
                    if all(self._fits(atom, sizes, warps, p, precision) for p in self.products):
                        yield sizes.plan(warps, group_m=self.group_m, **decisions)

    def _may_have(self, atom: str, tile: tuple[int, int], warps: int) -> bool:
        """Returns true if warps of an atom can have a tile of the result."""
        least, most = ACCUMULATORS[atom]
        if self.nested:
            return ATOM.m * warps == tile[0]
        several = sum(1 for p in self.products if (p.row, p.column) == (self.main.row, self.main.column))
        held = several * tile[0] * tile[1] // (LANES * warps)
        return least <= held <= most and (atom == "wgmma" or warps <= MAX_COPYING_WARPS)

    def _fits(self, atom: str, sizes: TileExtents, warps: int, p: Matmul, precision: str) -> bool:
        """Returns true if the tiles of a matmul hold an atom. Of adjacent matmuls the tiles of the main one do."""
        if not self.nested and p is not self.main:
            return True
        if atom == "mma":
            return _holds_atom(sizes.tile, p, precision)
        shape = sizes.tile[p.row], sizes.tile[p.column]
        return not isinstance(warpgroup_accumulator(shape, warps), str) and _depth(sizes.tile, p) >= ATOM.k


def _depth(tile: Mapping[SSAValue, int], p: Matmul) -> int:
    return max(tile[i] for i in p.reduction.indices)


def _holds_atom(tile: Mapping[SSAValue, int], p: Matmul, precision: str) -> bool:
    """Returns true if the tiles of a matmul hold an atom, whichever operand is on the left."""
    return min(tile[p.row], tile[p.column]) >= ATOM.m and _depth(tile, p) >= atom_depth(p, precision)


def row_plans(info: NestInfo, target: Target) -> list[Schedule]:
    """Returns the schedules of a nest with reductions.

    A block takes tiles over the free indices, along which memory is contiguous first, walks through those that do not
    cover their rows, and reduces chunk by chunk. Rows may be in shared memory while they are walked through, and the
    blocks of a cluster may share long ones. Tiles have whole sectors, if there are enough of them for every other
    multiprocessor.
    """
    tiles = [sizes for sizes in row_tiles(info, HEIGHTS, WIDTHS) if _largest(info, sizes) <= MAX_ROW_ELEMENTS]
    twice = any(info.sites[m].group != site.group for site in info.sites for m in site.alike)
    least, elements = _sectors(info)
    wide = [s for s in tiles if all(s.tile[i] >= n for i, n in least) and _largest(info, s) >= elements]
    ranks: dict[Schedule, tuple[int, ...]] = {}
    for sizes in wide if any(2 * sizes.blocks() >= target.sms for sizes in wide) else tiles:
        for plan, rank in _row_plans(info, target, sizes, twice):
            ranks.setdefault(plan, rank)
    return sorted(ranks, key=lambda plan: ranks[plan])


def _largest(info: NestInfo, sizes: TileExtents) -> int:
    """Returns the elements of the largest tile."""
    return max(map(sizes.elements, info.index_sets))


def _sectors(info: NestInfo) -> tuple[list[tuple[SSAValue, int]], int]:
    """Returns the least extents of tiles whose loads and stores of large tensors take whole sectors where they can, and
    the elements of the largest tile with which a warp has 16 bytes of the widest elements for each thread."""
    last = last_index(info)
    along = [(site.along, site.op.source.type) for site in info.sites] + [(last, r.type) for r in info.nest.res]
    large = max(tensor_bytes(t) for _, t in along) // SMALL_TENSOR_RATIO
    sizes = [(i, element_bytes(t)) for i, t in along if tensor_bytes(t) >= large]
    least = [(i, min(info.extents[i], SECTOR // n)) for i, n in sizes if i is not None]
    return least, LANES * WIDEST // max(n for _, n in sizes)


def _waste(info: NestInfo, sizes: TileExtents) -> float:
    """Returns the elements of all reductions and of the result that the tiles execute, over those that there are."""
    sets, tiles = info.index_sets, {i: -(-n // sizes.tile[i]) for i, n in info.extents.items()}
    blocks = [prod(tiles[i] for i in info.free if i not in indices) for indices in sets]
    done = (n * prod(tiles[i] * sizes.tile[i] for i in indices) for n, indices in zip(blocks, sets, strict=True))
    return sum(done) / max(1, sum(prod(info.extents[i] for i in indices) for indices in sets))


def _row_plans(
    info: NestInfo, target: Target, sizes: TileExtents, twice: bool
) -> Iterator[tuple[Schedule, tuple[int, ...]]]:
    """Yields the schedules with some tiles, and the key that orders equally fast ones.

    Preferred are: one read of a row that two loops need (`twice`), few blocks, little waste, results that are in one
    thread, and `BEST_WARPS` with `BEST_ELEMENTS`.
    """
    rest = [i for i in info.free if i not in info.reduced and info.extents[i] > 1]
    walked, varies, tile = tuple(info.free.index(i) for i in rest), info.may_be_longer(rest), _largest(info, sizes)
    too_long = prod(info.extents[i] for i in rest) > MAX_ROW_ELEMENTS
    looped = {sizes.tile[i] for i in info.reduction_indices if sizes.tile[i] < info.extents[i]}
    may_keep = len(rest) == 1 and not varies and looped <= {sizes.tile[rest[0]]}
    wasted = _waste(info, sizes) > MAX_WASTE
    for ranks, held in product(_clusters(info, target, sizes), ELEMENTS_PER_THREAD):
        warps = max(1, tile // (LANES * held))
        if warps > MAX_WARPS:
            continue
        again = twice and any(ranks * sizes.tile[i] < info.extents[i] for i in info.reduction_indices)
        copies = sizes.elements(info.free) < LANES * warps * info.vector
        off = abs(warps.bit_length() - BEST_WARPS.bit_length())
        off += abs((tile // (LANES * warps)).bit_length() - BEST_ELEMENTS.bit_length())
        if all(ranks * sizes.tile[i] >= info.extents[i] for i in rest) and not varies:
            yield sizes.plan(warps, cluster=ranks), (again, ranks, 0, wasted, copies, off)
            continue
        if not looped and not varies and too_long:  # every block reduces again
            yield sizes.plan(warps, cluster=ranks), (1, ranks, 0, wasted, copies, off)
        for kept in (True, False) if may_keep else (False,):
            row = "shared" if kept else "registers"
            plan = sizes.plan(warps, serial=walked, cluster=ranks, cache_rows=row)
            yield plan, (not kept, ranks, kept, wasted, copies, off)


def _clusters(info: NestInfo, target: Target, sizes: TileExtents) -> tuple[int, ...]:
    """Returns how many blocks may share a row: several where it is long, and a block has no other."""
    long = any(info.extents[i] >= SHARED_LENGTH for i in info.reduction_indices)
    one = all(sizes.tile[i] == 1 for i in info.reduced)
    return CLUSTERS if long and one and target.has("cluster") else (1,)


def elementwise_plans(info: NestInfo, target: Target) -> Iterator[Schedule]:
    """Yields tiles along the last indices, in vectors of 16 bytes.

    Where a tensor is read along another index than the one it is written along, the tile is square, so that both are
    contiguous.
    """
    total = prod(info.extents[i] for i in info.free)
    enough = [n for n in ELEMENTWISE_TILES if total // n >= 2 * target.sms]
    other = _other_direction(info)
    for elements in (*enough, *(n for n in reversed(ELEMENTWISE_TILES) if n not in enough)):
        sizes, order = TileExtents(info), [*reversed(info.free)]
        if other is not None:
            _set_square(sizes, other, order, elements)
        elif order and info.extents[order[0]]:
            sizes.set(order[0], _snug(info.extents[order[0]], elements))
            sizes.fill(order[1:], elements // sizes.tile[order[0]])
        per_thread = max(4, min(8, info.vector))
        yield sizes.plan(max(1, sizes.elements(info.free) // (LANES * per_thread)))


def _set_square(sizes: TileExtents, other: SSAValue, order: list[SSAValue], elements: int) -> None:
    """Decides on a square tile along the first index of `order` and another one."""
    sizes.set(other, LANES)
    left = sizes.set(order[0], LANES)
    rest = [i for i in order if i not in (other, order[0])]
    sizes.fill(rest, 1 if left == 1 else elements // sizes.elements(sizes.decided))


def _snug(extent: int, most: int) -> int:
    """Returns the largest tile along a range that is not mostly past its end."""
    tile = min(most, pow2_at_least(extent))
    while tile > 32 and -(-extent // tile) * tile > extent + extent // 4:
        tile //= 2
    return tile


def _other_direction(info: NestInfo) -> SSAValue | None:
    """Returns the free index other than the last along which the largest tensors are contiguous, or None."""
    others = [(size, i) for i, index in enumerate(info.free[:-1]) if (size := info.contiguous.get(index, 0)) > 4096]
    if not others or info.extents[info.free[-1]] < 8:
        return None
    best = info.free[max(others)[1]]
    return best if info.extents[best] >= 8 else None


def scan_plans(info: NestInfo, target: Target) -> list[Schedule]:
    """Returns tiles of a block of several warps: rows of the scanned index in registers, lanes and then warps; or some
    rows of columns, each of which one thread scans. Those with the fewest steps come first, then those of few warps
    where there are fewer blocks than multiprocessors."""
    index, vector = info.scanned, min(max(4, info.vector), 8)
    assert index is not None
    order = in_order(info, False)
    by_rows = order[0] is index
    ranks: dict[Schedule, tuple[int, int]] = {}
    for warps, (along, held) in product(SCAN_WARPS, ((1, vector), (1, 2 * vector)) if by_rows else SCAN_TILES):
        threads, sizes = LANES * warps, TileExtents(info)
        pad_scanned(sizes, held * threads if by_rows else along)
        sizes.fill([i for i in order if i is not index], max(1, threads * held // sizes.tile[index]))
        if sizes.elements(info.free) >= threads or warps == 1:
            steps = max(1, -(-info.extents[index] // sizes.tile[index]))
            few = sizes.blocks() // steps < target.sms
            ranks.setdefault(scan_plan(sizes, warps), (steps, warps if few else abs(warps.bit_length() - 3)))
    return sorted(ranks, key=lambda schedule: ranks[schedule])


STAGES = (3, 4, 2)
"""Chunks of operands that are outstanding or in use at once; of equally fast ones the first is taken."""

TMA_STAGES = (4, 3, 2)
"""The same where TMA tiles go through a circular buffer: its depth costs no registers, and hides late arrivals."""

CLUSTER_BLOCKS = 2
"""Blocks of a cluster that share operands: the published step that is worth it."""

CLUSTERED_BLOCKS_PER_SM = 2
"""Occupancy, in blocks per SM, up to which clusters share the sums of a tile."""

GROUPS = (8, 4, 2)
"""Tiles down a patch of blocks that run at the same time."""


def space(
    info: NestInfo, target: Target, products: list[Matmul], precision: str, cluster_sums: bool
) -> Iterator[Points]:
    """Yields the schedules of a nest with the matmuls `products`; with `cluster_sums` those too in which the blocks of
    a cluster share sums."""
    for points in points_of(dict.fromkeys(_plans(info, target, products, precision))):
        if not info.reductions:
            yield points
            continue
        points = with_grid_swizzle(info, points) if products else points
        parts = join([*with_parts(info, points, target, bool(products) and is_nested(products))])
        if not products:
            yield parts
            continue
        for some in (parts, *(_in_clusters(info, points, target, products) if cluster_sums else ())):
            for matmuls, rows in by_products(distinct(info, products), Tiles(info, some)):
                chosen = some.at(rows)
                for promoted in with_promotion(info, chosen, matmuls, precision) if matmuls else [chosen]:
                    yield from _with_copies(info, promoted, target, matmuls)


def _plans(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> Iterator[Schedule]:
    """Yields tiles and warps."""
    if info.scanned is not None:
        yield from scan_plans(info, target)
    elif not info.reductions:
        yield from elementwise_plans(info, target)
    else:
        if products:
            yield from matmul_plans(info, target, products, precision)
        if not products or may_be_rows(info, products):
            yield from row_plans(info, target)


def with_grid_swizzle(info: NestInfo, points: Points) -> Points:
    """Returns schedules with blocks in patches of at most `group_m`, where the grid can be divided so."""
    counts = np.stack([np.ones(len(points)), *Tiles(info, points).counts.values()], axis=1).astype(np.int64)
    before_last = (counts != 1)[:, ::-1].cumsum(axis=1)[:, ::-1] == 2
    second = np.where(before_last & (counts != 1), counts, 0).max(axis=1)
    groups = np.ones(len(points), dtype=np.int64)
    for group in reversed(GROUPS):
        groups = np.where((second > 0) & (second % group == 0) & (group <= points.group_m), group, groups)
    return replace(points, group_m=groups)


def _with_copies(info: NestInfo, points: Points, target: Target, products: list[Matmul]) -> Iterator[Points]:
    """Yields schedules that have the same matmuls with plain copies, and with asynchronous ones where some operand
    comes chunk by chunk and is used as it is."""
    if points.atom == "wgmma" and target.has("tma") and _loads_by_tma(products, points.f32_matmul_precision):
        ring = replace(points, copy="tma").repeated("stages", TMA_STAGES)
        ring = ring.at(ring.stages <= np.maximum(staged(Tiles(info, ring), products).chunks, 2))
        yield ring
        if target.has("cluster") and not is_nested(products):
            yield replace(ring, cluster=CLUSTER_BLOCKS).at(_may_cluster(info, ring, products))
    if products and target.has("cp_async"):
        copied = replace(points, copy="cp_async").repeated("stages", STAGES)
        held = staged(Tiles(info, copied), products)
        fits = held.bytes(copied) <= target.shared_per_block * 3 // 4
        yield copied.at(fits & (held.early > 0) & (copied.stages <= held.chunks))
    yield points


def _loads_by_tma(products: list[Matmul], precision: str) -> bool:
    """Returns true if an operand can be read by TMA: as it lies in memory, with aligned rows; of f32, if all are
    contiguous along the sum."""
    loads = [(p, load) for p in products for f in p.factors for load in loads_of(f, narrow=True)]
    if precision == "bf16x3":  # an operand that is split on its way is no TMA tile
        loads = [(p, load) for p, load in loads if not is_wide(load)]
    turned = any(is_tf32(p, precision) and not lies_along_k(p, load) for p, load in loads)
    return not turned and any(_is_box(load) for _, load in loads)


def _is_box(load: LoadOp) -> bool:
    """Returns true if a load reads a box of its tensor whose rows start at multiples of `PITCH` bytes."""
    extents = extents_of(load.source.type)
    known = [n for n in extents if isinstance(n, int)]
    results = load.map.data.results
    plain = all(isinstance(e, AffineDimExpr | AffineConstantExpr) for e in results)
    if len(known) < len(extents) or not plain or load.symbols or not isinstance(results[-1], AffineDimExpr):
        return False
    size = element_bytes(load.source.type)
    return all(prod(known[d:]) * size % PITCH == 0 for d in range(1, len(known)))


def _may_cluster(info: NestInfo, points: Points, products: list[Matmul]) -> Bools:
    """Returns where clusters make up the grid of schedules, and their blocks share an operand of a matmul."""
    tiles, loads = Tiles(info, points), [access_indices(op) for op in operand_loads(products)]
    along, count = tiles.neighbours()
    common = [i for i in along if any(i not in indices for indices in loads)]
    known = all(isinstance(info.sizes[i], int) for i in info.free)
    return (
        (count % CLUSTER_BLOCKS == 0) & (points.split_k * points.cluster_k == 1) & tiles.any_of(along, common) & known
    )


def _in_clusters(info: NestInfo, points: Points, target: Target, products: list[Matmul]) -> Iterator[Points]:
    """Yields schedules in which the blocks of a cluster share the sums of a tile, where there are fewer tiles than
    multiprocessors."""
    able = target.has("cluster") and not is_nested(products) and not points.serial
    if not able or isinstance(shared_sums(info.nest), str):
        return
    alone = Tiles(info, points)
    few, read = alone.blocks < target.sms, bytes_read(info, alone)
    for ranks in CLUSTERS[1:]:
        clustered = replace(points, cluster_k=ranks, group_m=np.ones_like(points.group_m))
        tiles = Tiles(info, clustered)
        shared = np.logical_and.reduce([tiles.any_of(tiles.shared, r.indices) for r in info.reductions if r.outermost])
        able = few & shared & tiles.any_of(tiles.divides, info.free) & (read >= ranks * MIN_PART_BYTES)
        yield clustered.at(able & (tiles.blocks <= CLUSTERED_BLOCKS_PER_SM * target.sms))
