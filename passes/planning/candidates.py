"""All schedules of a nest that are worth a prediction, from its tiles to its copies and parts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...dialects.payload import element_bytes
from ...dialects.target import Target
from ...dialects.tile.schedule import ScheduleAttr
from ...errors import ScheduleError
from ..analysis.dependence import access_indices
from ..analysis.split_reduction import splittable
from .clusters import BLOCKS, may_cluster, operand_loads
from .matmul import Matmul, distinct, is_nested, matmul_plans, may_be_rows, tiled
from .mma import mma_plans
from .nest_info import NestInfo
from .resources import resources
from .rows import elementwise_plans, row_plans
from .staging import staged
from .tiles import Tiles
from .wgmma import loads_by_tma, with_grid_swizzle

SMALLEST = 1 << 14
"""Bytes that a part of a divided reduction reads at least."""

MOST_PARTS = 256
"""Parts at most; more would make combining them the long reduction."""

FULL, CROWD = (2, 1), (8, 4, 2)
"""Blocks on a multiprocessor that a divided reduction is to give: usually, and of single warps that each have products
inside other reductions, and so wait for one after the other."""

STAGES = (3, 4, 2)
"""How many chunks of factors may be on their way or in use at once; of equally fast ones the first is taken."""

SLOTS = (4, 3, 2)
"""The same where boxes come through a ring: its depth costs no registers, and hides what arrives late."""


def candidates(info: NestInfo, target: Target, products: list[Matmul], precision: str) -> list[ScheduleAttr]:
    """The schedules to choose from, each once, in a fixed order; of equally good ones the first is to be taken."""
    if products:
        plans = [*mma_plans(info, target, products, precision)]
        if not plans or any(p.f32_matmul_precision.data == "tf32" for p in plans):  # a permission, no wish
            scalar = matmul_plans(info, target, products)
            plans += scalar if is_nested(products) else [with_grid_swizzle(info, p) for p in scalar]
        if may_be_rows(info, products):
            plans += row_plans(info, target)
    elif info.reductions:
        plans = [*row_plans(info, target)]
    else:
        plans = [*elementwise_plans(info, target)]
    divisible, once = not isinstance(splittable(info.nest), str), distinct(info, products)
    found: dict[ScheduleAttr, None] = {}
    for plan in plans:
        crowd = CROWD if plan.warps.data == 1 and products and is_nested(products) else FULL
        parts = _parts(info, plan, target, crowd) if divisible else []
        for divided in (plan, *(plan.changed(split_k=n) for n in parts)):
            found.update(dict.fromkeys(_with_copies(info, divided, target, once)))
    return list(found)


def _with_copies(
    info: NestInfo, schedule: ScheduleAttr, target: Target, products: list[Matmul]
) -> Iterator[ScheduleAttr]:
    """`schedule` with plain copies, and with asynchronous ones where some factor comes chunk by chunk and is used as it
    is."""
    products = tiled(products, Tiles(info, schedule).tile)
    if (
        schedule.atom.data == "wgmma"
        and target.has("tma")
        and loads_by_tma(products, schedule.f32_matmul_precision.data)
    ):
        yield from _with_boxes(info, schedule, target, products)
    if products and target.has("cp_async"):
        found = staged(info, schedule, products)
        for stages in STAGES if found.early else ():
            if stages <= found.chunks and stages * found.early + found.late <= target.shared_per_block * 3 // 4:
                yield schedule.changed(copy="cp_async", stages=stages)
    yield schedule


def _with_boxes(
    info: NestInfo, schedule: ScheduleAttr, target: Target, products: list[Matmul]
) -> Iterator[ScheduleAttr]:
    """`schedule` with factors that come as boxes, with persistent blocks where there are more tiles than run at once,
    and with clusters where neighbours have a factor in common."""
    chunks = staged(info, schedule, products).chunks
    for stages in SLOTS:
        if stages > max(chunks, 2):
            continue
        ahead = schedule.changed(copy="tma", stages=stages)
        tiles = Tiles(info, ahead)
        try:
            resident = resources(info, tiles, ahead, target, products).resident * target.sms
        except ScheduleError:
            continue
        ahead = ahead.changed(num_ctas=resident) if tiles.blocks > resident else ahead
        yield ahead
        if target.has("cluster") and not is_nested(products) and may_cluster(info, ahead, operand_loads(products)):
            yield ahead.changed(cluster=BLOCKS)


def _parts(info: NestInfo, schedule: ScheduleAttr, target: Target, crowd: tuple[int, ...]) -> list[int]:
    """Into how many parts to divide the reduction, where the grid leaves most of the target idle: enough for so many
    blocks on every multiprocessor as one of `crowd` says."""
    if schedule.cache_rows.data != "registers" or schedule.cluster.data > 1:
        return []
    tiles = Tiles(info, schedule)
    first = next(r for r in info.reductions if r.outermost)
    known = [i for i in first.indices if isinstance(info.sizes[i], int)]  # a symbol has no divisors
    divisible = info.extents[tiles.divisible(known)] if known else 1
    if divisible == 1:
        return []
    if not 0 < 2 * tiles.blocks <= crowd[0] // FULL[0] * target.sms:
        return []
    read = sum(
        element_bytes(op.source.type)
        * prod(tiles.tile[i] if i in tiles.counts else info.extents[i] for i in access_indices(op))
        for op in info.loads
    ) // max(1, len(info.groups[0]))
    found: list[int] = []
    for wanted in crowd:
        most = min(MOST_PARTS, -(-wanted * target.sms // tiles.blocks), read // SMALLEST)
        found.append(max((p for p in range(1, most + 1) if divisible % p == 0), default=1))
    return [p for p in dict.fromkeys(found) if p > 1]
