"""Clusters of blocks in a plan: along which index their blocks are neighbours, and what they would load together."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import SSAValue

from ...dialects.loop import LoadOp
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.dependence import access_indices
from .matmul import Matmul
from .nest_info import NestInfo
from .staging import loads_of
from .tiles import Tiles

BLOCKS = 2
"""Blocks of a cluster that a plan may have: the published step that is worth it."""


def neighbours(tiles: Tiles) -> tuple[SSAValue, int] | None:
    """The index along which blocks with consecutive numbers stand next to each other, and how many do before another
    index changes; None where all is on one block."""
    grid = tiles.on_grid
    if tiles.group > 1 and len(grid) > 1:
        return grid[-2], tiles.group
    last = next((i for i in reversed(grid) if tiles.counts[i] != 1), None)
    return None if last is None else (last, tiles.counts[last])


def last_of_grid(tiles: Tiles, schedule: ScheduleAttr) -> int:
    """How many blocks differ in the last index of the grid alone."""
    if 0 < schedule.num_ctas.data < tiles.blocks:
        return schedule.num_ctas.data
    found = neighbours(tiles)
    return 1 if found is None else found[1]


def operand_loads(products: Iterable[Matmul]) -> list[LoadOp]:
    """The loads that factors of products are, on tensor cores."""
    return list(dict.fromkeys(op for p in products for f in p.factors for op in loads_of(f, narrow=True)))


def may_cluster(info: NestInfo, schedule: ScheduleAttr, factors: Iterable[LoadOp]) -> bool:
    """Whether clusters make up the grid of a schedule, and their blocks have one of the `factors` in common."""
    tiles = Tiles(info, schedule)
    found = neighbours(tiles)
    known = all(isinstance(info.sizes[i], int) for i in info.free)
    if found is None or not known or schedule.split_k.data > 1:
        return False
    index, count = found
    persistent = schedule.num_ctas.data
    whole = count % BLOCKS == 0 and persistent % BLOCKS == 0
    return whole and any(index not in access_indices(op) for op in factors)
