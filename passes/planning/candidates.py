"""All schedules of a nest that are worth a prediction, from its tiles to its copies and parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ...dialects.kernel.mbarrier import CLUSTERS
from ...dialects.loop import LoadOp
from ...dialects.loop.dependence import access_indices
from ...dialects.payload import element_bytes
from ...dialects.tile.schedule import Schedule
from ...target.model import Target
from ..analysis.cluster_rows import shared_sums
from ..analysis.nest_schedule import splittable
from .core_space import core_plans
from .matmul import Matmul, by_products, distinct, is_nested, may_be_rows
from .matmul_space import matmul_plans
from .nest_info import NestInfo
from .points import Bools, Floats, Points, join, points_of, total
from .promotion import with_promotion
from .roofline import MIN_PART_BYTES, MOST_PARTS
from .row_space import elementwise_plans, row_plans
from .scan_space import core_scans, gpu_scans
from .staging import loads_by_tma, operand_loads, staged
from .tiles import Tiles

FULL, CROWD = (2, 1), (8, 4, 2)
"""Blocks on a multiprocessor that a divided reduction is to give: usually, and of single warps that each have products
inside other reductions, and so wait for one after the other."""

STAGES = (3, 4, 2)
"""How many chunks of factors may be on their way or in use at once; of equally fast ones the first is taken."""

SLOTS = (4, 3, 2)
"""The same where boxes come through a ring: its depth costs no registers, and hides what arrives late."""

BLOCKS = 2
"""Blocks of a cluster that a plan may have: the published step that is worth it."""

BLOCKS_PER_SM_OF_CLUSTERS = 2
"""Occupancy, in blocks per SM, up to which clusters share the sums of a tile."""

GROUPS = (8, 4, 2)
"""Tiles down a patch of blocks that run at the same time."""


def candidates(
    info: NestInfo, target: Target, products: list[Matmul], precision: str, cluster_sums: bool = False
) -> Iterator[Points]:
    """The schedules to choose from; with `cluster_sums` those too in which the blocks of a cluster share sums."""
    once = distinct(info, products)
    for points in points_of(dict.fromkeys(_plans(info, target, products, precision))):
        if not info.reductions:
            yield points
            continue
        points = with_grid_swizzle(info, points) if products and target.core is None else points
        parts = join([points, *_divided(info, points, target, bool(products) and is_nested(products))])
        for some in (parts, *(_in_clusters(info, points, target, products) if cluster_sums else ())):
            for found, rows in by_products(once, Tiles(info, some)):
                chosen = some.at(rows)
                may_promote = found and target.core is None
                for promoted in with_promotion(info, chosen, found, precision) if may_promote else [chosen]:
                    yield from _with_copies(info, promoted, target, found)


def _plans(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> Iterator[Schedule]:
    """Tiles and warps."""
    if info.scanned is not None:
        yield from gpu_scans(info, target) if target.core is None else core_scans(info)
    elif target.core is not None:
        yield from core_plans(info, products)
    elif products:
        plans = matmul_plans(info, target, products, precision)
        yield from plans if is_nested(products) else (replace(p, group_m=GROUPS[0]) for p in plans)
        if may_be_rows(info, products):
            yield from row_plans(info, target)
    elif info.reductions:
        yield from row_plans(info, target)
    else:
        yield from elementwise_plans(info, target)


def with_grid_swizzle(info: NestInfo, points: Points) -> Points:
    """Schedules with blocks in patches of at most `group_m`, where the grid can be divided so."""
    counts = np.stack([np.ones(len(points)), *Tiles(info, points).counts.values()], axis=1).astype(np.int64)
    before_last = (counts != 1)[:, ::-1].cumsum(axis=1)[:, ::-1] == 2
    second = np.where(before_last & (counts != 1), counts, 0).max(axis=1)
    found = np.ones(len(points), dtype=np.int64)
    for group in reversed(GROUPS):
        found = np.where((second > 0) & (second % group == 0) & (group <= points.group_m), group, found)
    return replace(points, group_m=found)


def _with_copies(info: NestInfo, points: Points, target: Target, products: list[Matmul]) -> Iterator[Points]:
    """Schedules that have the same matmuls with plain copies, and with asynchronous ones where some operand comes chunk
    by chunk and is used as it is."""
    if points.atom == "wgmma" and target.has("tma") and loads_by_tma(products, points.f32_matmul_precision):
        ring = replace(points, copy="tma").repeated("stages", SLOTS)
        ring = ring.at(ring.stages <= np.maximum(staged(Tiles(info, ring), products).chunks, 2))
        yield ring
        if target.has("cluster") and not is_nested(products):
            yield replace(ring, cluster=BLOCKS).at(_may_cluster(info, ring, products))
    if products and target.has("cp_async"):
        found = replace(points, copy="cp_async").repeated("stages", STAGES)
        held = staged(Tiles(info, found), products)
        fits = held.bytes(found) <= target.shared_per_block * 3 // 4
        yield found.at(fits & (held.early > 0) & (found.stages <= held.chunks))
    yield points


def _may_cluster(info: NestInfo, points: Points, products: list[Matmul]) -> Bools:
    """Where clusters make up the grid of schedules, and their blocks have an operand of one of the products in
    common."""
    tiles, loads = Tiles(info, points), [access_indices(op) for op in operand_loads(products)]
    found, count = tiles.neighbours()
    common = [i for i in found if any(i not in indices for indices in loads)]
    known = all(isinstance(info.sizes[i], int) for i in info.free)
    return (count % BLOCKS == 0) & (points.split_k * points.cluster_k == 1) & tiles.any_of(found, common) & known


def _in_clusters(info: NestInfo, points: Points, target: Target, products: list[Matmul]) -> Iterator[Points]:
    """Schedules of products in which the blocks of a cluster share the sums of a tile, where there are fewer tiles than
    multiprocessors."""
    able = target.has("cluster") and products and not is_nested(products) and not points.serial
    if not able or isinstance(shared_sums(info.nest), str):
        return
    alone = Tiles(info, points)
    few, read = alone.blocks < target.sms, _bytes_read(info, alone)
    for ranks in CLUSTERS[1:]:
        clustered = replace(points, cluster_k=ranks, group_m=np.ones_like(points.group_m))
        tiles = Tiles(info, clustered)
        shared = np.logical_and.reduce([tiles.any_of(tiles.shared, r.indices) for r in info.reductions if r.outermost])
        able = few & shared & tiles.any_of(tiles.divides, info.free) & (read >= ranks * MIN_PART_BYTES)
        yield clustered.at(able & (tiles.blocks <= BLOCKS_PER_SM_OF_CLUSTERS * target.sms))


def _divided(info: NestInfo, points: Points, target: Target, nested: bool) -> Iterator[Points]:
    """Schedules with their reduction in parts, where the grid leaves most of the target idle: enough for so many blocks
    on every multiprocessor as `FULL` or `CROWD` says."""
    first = next((r for r in info.reductions if r.outermost), None)
    if (
        first is None
        or points.cache_rows != "registers"
        or points.cluster > 1
        or isinstance(splittable(info.nest), str)
    ):
        return
    known = [i for i in first.indices if isinstance(info.sizes[i], int)]  # a symbol has no divisors
    if not known:
        return
    tiles = Tiles(info, points)
    crowded = nested & (points.warps == 1)
    idle = 2 * tiles.blocks <= target.sms * np.where(crowded, CROWD[0] // FULL[0], 1)
    read = _bytes_read(info, tiles)
    tried = [np.ones(len(points), dtype=np.int64)]
    for full, crowd in zip((*FULL, 0), CROWD, strict=True):
        wanted = np.where(idle & (tiles.blocks > 0), np.where(crowded, crowd, full), 0)
        most = np.minimum(
            -(-wanted * target.sms // np.maximum(1, tiles.blocks)), np.minimum(MOST_PARTS, read // MIN_PART_BYTES)
        )
        parts = np.ones(len(points), dtype=np.int64)
        for index, here in tiles.divisible(known).items():
            divisors = np.array([d for d in range(1, MOST_PARTS + 1) if info.extents[index] % d == 0])
            parts = np.where(here, divisors[np.searchsorted(divisors, np.maximum(1, most), "right") - 1], parts)
        yield replace(points, split_k=parts).at(np.all([parts != t for t in tried], axis=0))
        tried.append(parts)


def _bytes_read(info: NestInfo, tiles: Tiles) -> Floats:
    """Bytes that a block reads with all of each reduction, of reductions that run together for one."""
    read = total((element_bytes(op.source.type) * _read(op, tiles) for op in info.loads), tiles.rows)
    return read // max(1, len(info.groups[0]))


def _read(op: LoadOp, tiles: Tiles) -> Floats:
    """Elements that a block reads by a load."""
    indices = access_indices(op)
    whole = prod(tiles.info.extents[i] for i in indices if i not in tiles.counts)
    return tiles.elements(i for i in indices if i in tiles.counts) * whole
