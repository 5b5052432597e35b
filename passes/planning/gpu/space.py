"""Enumeration of the schedules of a nest for GPUs: tiles and warps, then copies, clusters and split-K.

Constants that list values are in the order of preference: of equally fast schedules the planner takes the first one.
They were tuned by hand, if no other source is given.
"""

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
    is_contiguous_along_k,
    is_nested,
    is_tf32,
    is_wide,
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
"""Numbers of rows, and of columns, of a matmul tile: from the best reuse of operands to the most blocks."""

DEPTHS = {"fma": (32, 16), "mma": (64, 128, 256, 32), "wgmma": (64, 128)}
"""Atom -> chunks of the reduction index, for operands of 2 bytes. For wgmma, 64 elements are the widest TMA row."""

KEYS = (128, 64, 32)
"""Chunks of an index that is a column of one matmul and summed over by another, such as the keys of attention."""

MATMUL_WARPS = (4, 8, 16, 2, 1)
"""Numbers of warps of a block with matmuls."""

REGISTER_TILES = ((8, 8), (8, 4), (4, 4), (2, 4), (2, 2), (1, 2), (1, 1))
"""Register tiles on CUDA cores: results of a thread, (rows, columns)."""

MIN_FMA_THREADS = 64
"""Minimum number of threads of a block with register tiles. A single warp would wait for each of its operations."""

ACCUMULATORS = {"mma": (8, 64), "wgmma": (8, 128)}
"""Atom -> (minimum, maximum) number of accumulators of a thread."""

MAX_COPYING_WARPS = 8
"""Maximum number of warps of a block without TMA: all warps meet at a barrier in every chunk."""

MIN_TENSOR_CORE_SPEEDUP = 4.5
"""Minimum ratio of the rates of tensor cores and CUDA cores with which three bf16 matmuls beat one in f32."""

HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of elements of a tile over the free indices that reductions depend on (rows)."""

WIDTHS = (32768, 16384, 8192, 4096, 2048, 1024, 256, 128, 64)
"""Numbers of elements of a tile over the other free indices, and of a chunk of a reduction."""

ELEMENTS_PER_THREAD = (8, 16, 32, 64)
"""Numbers of elements of the largest tile that each thread holds."""

MAX_ROW_ELEMENTS = 1 << 15
"""Maximum number of elements of a tile of a reduction: half of the 65,536 registers of a multiprocessor."""

BEST_WARPS, BEST_ELEMENTS = 4, 16
"""Preferred warps of a block, and elements of a thread: one warp for each of the four partitions of a multiprocessor,
enough outstanding loads, and registers for several tiles."""

MAX_WASTE = 1.125
"""Maximum of executed elements / needed elements that counts as no waste. Padding, and reductions that several blocks
repeat, are wasted."""

SMALL_TENSOR_RATIO = 8
"""Tensors with less than 1/8 of the bytes of the largest tensor may be read in parts of 32-byte sectors."""

ELEMENTWISE_TILES = (1024, 512, 256)
"""Numbers of elements of an elementwise tile. Large ones come first if each multiprocessor gets 2 blocks."""

SCAN_WARPS = (4, 8, 2, 16, 1, 32)
"""Numbers of warps of a block that scans."""

SCAN_TILES = ((8, 8), (16, 16), (4, 4), (8, 16), (8, 32), (32, 32), (32, 64))
"""Tiles of a scan down columns: (rows of the tile, elements of a thread). Each thread scans a column."""


def matmul_plans(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> list[Schedule]:
    """Returns the schedules of a nest with matmuls. Some may not fit in shared memory or registers.

    The schedules use tensor cores if the target has them and the main matmul may use them. Schedules on CUDA cores are
    added for `precision = tf32`, because a user who permits tf32 does not require it.

    Args:
        info: the nest.
        target: the target.
        products: contractions that may be matmuls.
        precision: the option `f32_matmul_precision`.
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
    """Returns the `f32_matmul_precision` of the schedules.

    It differs from the option `precision` in two cases. Nested matmuls with an operand that is computed in f32 use
    `bf16x3`, which is exact, if tensor cores are fast enough. Matmuls of 16-bit operands need no tf32.
    """
    exact = [may_be_narrow(p, "ieee") for p in products]
    if precision == "ieee" and is_nested(products) and target.tensor > MIN_TENSOR_CORE_SPEEDUP * target.fp32:
        worth = all(narrow_type(p, may_narrow=True) is not None and may_be_narrow(p, "bf16x3") for p in products)
        return "bf16x3" if worth and not all(exact) else "ieee"
    return "ieee" if precision == "tf32" and all(exact) else precision


class _MatmulSpace(MatmulTiles):
    """Enumeration of the schedules of a nest with matmuls. `shapes`: rows and columns of tiles."""

    shapes = (*product(EXTENTS, EXTENTS),)

    @property
    def group_m(self) -> int:
        """Maximum of the decision `group_m` (grid swizzle); 1 for nested matmuls, whose blocks share no operands."""
        return 1 if self.nested else GROUPS[0]

    def on_cuda_cores(self) -> Iterator[Schedule]:
        """Yields the schedules on CUDA cores, with register tiles."""
        for (rows, columns), thread in product(self.tiles(1, self.shapes), REGISTER_TILES):
            threads = rows // thread[0] * (columns // thread[1])
            warps = max(1, threads // LANES)
            if (threads >= MIN_FMA_THREADS or thread == (1, 1)) and warps <= MAX_COPYING_WARPS:
                for sizes in self.chunks((rows, columns), warps, DEPTHS["fma"], KEYS[-1:]):
                    yield sizes.plan(warps, thread=thread, group_m=self.group_m)

    def on_tensor_cores(self, atom: str, able: list[Matmul], precision: str) -> Iterator[Schedule]:
        """Yields the schedules on tensor cores.

        If only some of several nested matmuls can use tensor cores, the tiles are those for CUDA cores. If all of them
        can, a warp has whole rows of the result.

        Args:
            atom: `mma` or `wgmma`.
            able: matmuls that may use tensor cores.
            precision: `f32_matmul_precision` of the schedules.
        """
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
        """Returns true if `warps` can hold the accumulators of a tile (rows, columns)."""
        least, most = ACCUMULATORS[atom]
        if self.nested:
            return ATOM.m * warps == tile[0]
        several = sum(1 for p in self.products if (p.row, p.column) == (self.main.row, self.main.column))
        held = several * tile[0] * tile[1] // (LANES * warps)
        return least <= held <= most and (atom == "wgmma" or warps <= MAX_COPYING_WARPS)

    def _fits(self, atom: str, sizes: TileExtents, warps: int, p: Matmul, precision: str) -> bool:
        """Returns true if the tile of a matmul contains at least one atom.

        Of several matmuls that are not nested, only the main one is checked.
        """
        if not self.nested and p is not self.main:
            return True
        if atom == "mma":
            return _holds_atom(sizes.tile, p, precision)
        shape = sizes.tile[p.row], sizes.tile[p.column]
        return not isinstance(warpgroup_accumulator(shape, warps), str) and _depth(sizes.tile, p) >= ATOM.k


def _depth(tile: Mapping[SSAValue, int], p: Matmul) -> int:
    """Returns the largest chunk of the reduction indices of a matmul."""
    return max(tile[i] for i in p.reduction.indices)


def _holds_atom(tile: Mapping[SSAValue, int], p: Matmul, precision: str) -> bool:
    """Returns true if the tile of a matmul contains an `mma` atom, with either operand as the left one."""
    return min(tile[p.row], tile[p.column]) >= ATOM.m and _depth(tile, p) >= atom_depth(p, precision)


def row_plans(info: NestInfo, target: Target) -> list[Schedule]:
    """Returns the schedules of a nest with reductions, in order of preference.

    A block computes one tile of rows. It reduces them chunk by chunk, then loops over the tiles of its results (serial
    indices). Rows that are read in both loops may stay in a row cache. A long row may be shared by the blocks of a
    cluster. Tiles that read whole 32-byte sectors are preferred if they occupy at least half of the multiprocessors.
    """
    tiles = [sizes for sizes in row_tiles(info, HEIGHTS, WIDTHS) if _largest(info, sizes) <= MAX_ROW_ELEMENTS]
    twice = any(info.sites[m].group != site.group for site in info.sites for m in site.similar)
    least, elements = _sectors(info)
    wide = [s for s in tiles if all(s.tile[i] >= n for i, n in least) and _largest(info, s) >= elements]
    ranks: dict[Schedule, tuple[int, ...]] = {}
    for sizes in wide if any(2 * sizes.blocks() >= target.sms for sizes in wide) else tiles:
        for plan, rank in _row_plans(info, target, sizes, twice):
            ranks.setdefault(plan, rank)
    return sorted(ranks, key=lambda plan: ranks[plan])


def _largest(info: NestInfo, sizes: TileExtents) -> int:
    return max(map(sizes.elements, info.index_sets))


def _sectors(info: NestInfo) -> tuple[list[tuple[SSAValue, int]], int]:
    """Returns two minima of tiles with efficient memory accesses.

    Returns:
        (index, minimum tile extent) pairs, so that large tensors are read and written in whole 32-byte sectors; and the
        minimum number of elements of the largest tile, so that each thread of a warp has 16 bytes.
    """
    last = last_index(info)
    along = [(site.along, site.op.source.type) for site in info.sites] + [(last, r.type) for r in info.nest.res]
    large = max(tensor_bytes(t) for _, t in along) // SMALL_TENSOR_RATIO
    sizes = [(i, element_bytes(t)) for i, t in along if tensor_bytes(t) >= large]
    least = [(i, min(info.extents[i], SECTOR // n)) for i, n in sizes if i is not None]
    return least, LANES * WIDEST // max(n for _, n in sizes)


def _waste(info: NestInfo, sizes: TileExtents) -> float:
    """Returns executed elements / needed elements, summed over all reductions and the result."""
    sets, tiles = info.index_sets, {i: -(-n // sizes.tile[i]) for i, n in info.extents.items()}
    blocks = [prod(tiles[i] for i in info.free if i not in indices) for indices in sets]
    done = (n * prod(tiles[i] * sizes.tile[i] for i in indices) for n, indices in zip(blocks, sets, strict=True))
    return sum(done) / max(1, sum(prod(info.extents[i] for i in indices) for indices in sets))


def _row_plans(
    info: NestInfo, target: Target, sizes: TileExtents, twice: bool
) -> Iterator[tuple[Schedule, tuple[int, ...]]]:
    """Yields the schedules with given tiles, each with a sort key: lower keys are preferred.

    The criteria are, in this order: rows are read once, small clusters, no row cache, no waste, a whole vector for each
    thread, and closeness to `BEST_WARPS` and `BEST_ELEMENTS`.

    Args:
        info: the nest.
        target: the target.
        sizes: tile extents.
        twice: whether two loops read the same row.
    """
    others = [i for i in info.free if i not in info.reduced and info.extents[i] > 1]
    walked, varies, tile = tuple(info.free.index(i) for i in others), info.may_be_longer(others), _largest(info, sizes)
    too_long = prod(info.extents[i] for i in others) > MAX_ROW_ELEMENTS
    looped = {sizes.tile[i] for i in info.reduction_indices if sizes.tile[i] < info.extents[i]}
    may_keep = len(others) == 1 and not varies and looped <= {sizes.tile[others[0]]}
    wasted = _waste(info, sizes) > MAX_WASTE
    for ranks, held in product(_clusters(info, target, sizes), ELEMENTS_PER_THREAD):
        warps = max(1, tile // (LANES * held))
        if warps > MAX_WARPS:
            continue
        rereads = twice and any(ranks * sizes.tile[i] < info.extents[i] for i in info.reduction_indices)
        copies = sizes.elements(info.free) < LANES * warps * info.vector
        off = abs(warps.bit_length() - BEST_WARPS.bit_length())
        off += abs((tile // (LANES * warps)).bit_length() - BEST_ELEMENTS.bit_length())
        if all(ranks * sizes.tile[i] >= info.extents[i] for i in others) and not varies:
            yield sizes.plan(warps, cluster=ranks), (rereads, ranks, 0, wasted, copies, off)
            continue
        if not looped and not varies and too_long:
            # Rows of the result are long, so several blocks share a row, and each of them repeats the reduction.
            yield sizes.plan(warps, cluster=ranks), (1, ranks, 0, wasted, copies, off)
        for cached in (True, False) if may_keep else (False,):
            row = "shared" if cached else "registers"
            plan = sizes.plan(warps, serial=walked, cluster=ranks, cache_rows=row)
            yield plan, (not cached, ranks, cached, wasted, copies, off)


def _clusters(info: NestInfo, target: Target, sizes: TileExtents) -> tuple[int, ...]:
    """Returns the cluster sizes to try: several if a row is long and a block has only one row, else 1."""
    long = any(info.extents[i] >= SHARED_LENGTH for i in info.reduction_indices)
    one = all(sizes.tile[i] == 1 for i in info.reduced)
    return CLUSTERS if long and one and target.has("cluster") else (1,)


def elementwise_plans(info: NestInfo, target: Target) -> Iterator[Schedule]:
    """Yields the schedules of an elementwise nest: tiles along the last indices, in vectors of 16 bytes.

    If a large tensor is contiguous along another index than the result (a transpose), tiles are square, so that both
    accesses are contiguous.
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
    """Sets a square tile of 32 x 32.

    Args:
        sizes: tile extents.
        other: index along which a loaded tensor is contiguous.
        order: free indices, the contiguous one of the result first.
        elements: elements of a tile; they are filled with further indices if `order[0]` is shorter.
    """
    sizes.set(other, LANES)
    budget = sizes.set(order[0], LANES)
    further = [i for i in order if i not in (other, order[0])]
    sizes.fill(further, 1 if budget == 1 else elements // sizes.elements(sizes.decided))


def _snug(extent: int, most: int) -> int:
    """Returns the largest tile extent, at most `most`, with which an index of `extent` values has at most 25 % padding.

    Extents up to 32 are not reduced further, even with more padding.
    """
    tile = min(most, pow2_at_least(extent))
    while tile > 32 and -(-extent // tile) * tile > extent + extent // 4:
        tile //= 2
    return tile


def _other_direction(info: NestInfo) -> SSAValue | None:
    """Returns the free index, except the last, along which the largest loaded tensors are contiguous, or None.

    Tensors up to 4 KiB and indices with fewer than 8 values do not count.
    """
    others = [(size, i) for i, index in enumerate(info.free[:-1]) if (size := info.contiguous.get(index, 0)) > 4096]
    if not others or info.extents[info.free[-1]] < 8:
        return None
    best = info.free[max(others)[1]]
    return best if info.extents[best] >= 8 else None


def scan_plans(info: NestInfo, target: Target) -> list[Schedule]:
    """Returns the schedules of a scan, in order of preference.

    If the scanned index is contiguous, a row is distributed over registers, lanes and warps. Otherwise each thread
    scans columns. Schedules with the fewest iterations come first. Few warps are preferred if there are fewer
    blocks than multiprocessors, else four.
    """
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
"""Numbers of stages of a pipeline of copies: chunks of operands that are outstanding or in use at the same time."""

TMA_STAGES = (4, 3, 2)
"""Numbers of stages with TMA. A deeper circular buffer costs no registers, and hides late arrivals."""

CLUSTER_BLOCKS = 2
"""Blocks of a cluster that share operands by multicast: published results show a gain for two."""

CLUSTERED_BLOCKS_PER_SM = 2
"""Maximum occupancy, in blocks per SM, of schedules with `cluster_k`."""

GROUPS = (8, 4, 2)
"""Values of `group_m`: row tiles in a group of blocks that run at the same time."""


def space(
    info: NestInfo, target: Target, products: list[Matmul], precision: str, cluster_sums: bool
) -> Iterator[Points]:
    """Yields the schedules of a nest.

    Args:
        info: the nest.
        target: the target.
        products: contractions that may be matmuls.
        precision: the option `f32_matmul_precision`.
        cluster_sums: whether to yield schedules in which the blocks of a cluster share accumulators (`cluster_k`).
    """
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
    """Yields schedules that decide tiles, warps and atoms, and nothing else."""
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
    """Returns schedules with the largest `group_m` that divides their row tiles, at most their present `group_m`."""
    counts = np.stack([np.ones(len(points)), *Tiles(info, points).counts.values()], axis=1).astype(np.int64)
    before_last = (counts != 1)[:, ::-1].cumsum(axis=1)[:, ::-1] == 2
    second = np.where(before_last & (counts != 1), counts, 0).max(axis=1)
    groups = np.ones(len(points), dtype=np.int64)
    for group in reversed(GROUPS):
        groups = np.where((second > 0) & (second % group == 0) & (group <= points.group_m), group, groups)
    return replace(points, group_m=groups)


def _with_copies(info: NestInfo, points: Points, target: Target, products: list[Matmul]) -> Iterator[Points]:
    """Yields schedules with each kind of copy (`copy`, `stages`, `cluster`) that can bring some operand.

    Args:
        info: the nest.
        points: schedules with the same matmuls.
        target: the target.
        products: these matmuls.
    """
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
    """Returns true if TMA can load an operand of a matmul.

    For tf32 all operands must be contiguous along the reduction, because TMA cannot transpose 4-byte elements.
    """
    loads = [(p, load) for p in products for f in p.factors for load in loads_of(f, narrow=True)]
    if precision == "bf16x3":
        # Threads split f32 operands, so TMA does not load them.
        loads = [(p, load) for p, load in loads if not is_wide(load)]
    turned = any(is_tf32(p, precision) and not is_contiguous_along_k(p, load) for p, load in loads)
    return not turned and any(_is_box(load) for _, load in loads)


def _is_box(load: LoadOp) -> bool:
    """Returns true if a load reads a rectangular tile of its tensor, whose rows start at multiples of `PITCH` bytes."""
    extents = extents_of(load.source.type)
    static_extents = [n for n in extents if isinstance(n, int)]
    results = load.map.data.results
    plain = all(isinstance(e, AffineDimExpr | AffineConstantExpr) for e in results)
    if len(static_extents) < len(extents) or not plain or load.symbols or not isinstance(results[-1], AffineDimExpr):
        return False
    size = element_bytes(load.source.type)
    return all(prod(static_extents[d:]) * size % PITCH == 0 for d in range(1, len(static_extents)))


def _may_cluster(info: NestInfo, points: Points, products: list[Matmul]) -> Bools:
    """Returns a mask of the schedules whose grid is divisible into clusters with blocks that share an operand."""
    tiles, loads = Tiles(info, points), [access_indices(op) for op in operand_loads(products)]
    along, count = tiles.neighbours()
    common = [i for i in along if any(i not in indices for indices in loads)]
    is_static = all(isinstance(info.sizes[i], int) for i in info.free)
    return (
        (count % CLUSTER_BLOCKS == 0)
        & (points.split_k * points.cluster_k == 1)
        & tiles.any_of(along, common)
        & is_static
    )


def _in_clusters(info: NestInfo, points: Points, target: Target, products: list[Matmul]) -> Iterator[Points]:
    """Yields schedules with `cluster_k`, where there are fewer tiles than multiprocessors.

    Args:
        info: the nest.
        points: schedules without clusters.
        target: the target.
        products: contractions that may be matmuls.
    """
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
