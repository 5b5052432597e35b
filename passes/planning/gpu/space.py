"""The space of schedules for GPUs, from tiles to copies, clusters and parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from ....dialects.kernel.mbarrier import CLUSTERS
from ....dialects.loop import LoadOp
from ....dialects.loop.dependence import access_indices
from ....dialects.payload import element_bytes
from ....dialects.shapes.extents import extents_of
from ....dialects.tile.schedule import Schedule
from ....target.model import Target
from ...analysis.async_copies import PITCH
from ...analysis.nest_schedule import shared_sums
from ..matmul import (
    Matmul,
    by_products,
    distinct,
    is_nested,
    is_tf32,
    is_wide,
    lies_along_k,
    loads_of,
    may_be_rows,
    operand_loads,
)
from ..model import MIN_PART_BYTES
from ..nest_info import NestInfo
from ..points import Bools, Points, join, points_of
from ..space import bytes_read, with_parts
from ..tiles import Tiles
from .arithmetic import with_promotion
from .resources import staged
from .tile_space import elementwise_plans, matmul_plans, row_plans, scan_plans

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
        plans = matmul_plans(info, target, products, precision) if products else []
        yield from plans if is_nested(products) else (replace(p, group_m=GROUPS[0]) for p in plans)
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
