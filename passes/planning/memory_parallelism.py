"""Plans for sums of rows and columns with more on its way from memory: longer chunks, and several rows a block."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import SSAValue

from ..analysis.dependence import access_indices
from .nest_info import NestInfo
from .points import Plan
from .tile_extents import TileExtents

TILES = (8192, 16384, 32768)
"""Elements of a tile. A multiprocessor needs some 20 KB under way to memory to draw its share of the bandwidth."""

HELD = (32, 64)
"""Elements of a tile that a thread holds at most."""

MOST_WARPS = 16
"""Warps of a block with so much in its registers: with twice as many a thread has 64 of them."""

TOGETHER = (4, 8)
"""Rows a block, where something that is read serves all of them."""


def in_flight(info: NestInfo, plan: Plan) -> Iterator[Plan]:
    """`plan` with larger tiles, where nobody but the reductions uses a row: with longer chunks, so that a thread has
    more loads under way, and with several rows a block, so that a vector that is multiplied with all rows of a matrix
    is read once for some of them."""
    if plan.serial or any(i not in info.reduced and info.extents[i] > 1 for i in info.free):
        return
    block = dict(zip(info.free, plan.block, strict=True))
    common = _common(info)
    blocks = [block]
    if common is not None and block[common] == 1:
        blocks += [{**block, common: rows} for rows in TOGETHER]
    for tile in blocks:
        for elements in TILES:
            sizes = TileExtents(info)
            for index, extent in tile.items():
                sizes.set(index, extent)
            sizes.chunk_reductions(elements)
            if elements == TILES[-1] and any(info.extents[i] % extent for i, extent in sizes.tile.items()):
                continue  # what is filled in past an end takes registers, too
            largest = max(sizes.elements({*r.around, *r.indices}) for r in info.reductions)
            for held in HELD:
                if largest <= 32 * held * MOST_WARPS:
                    yield sizes.plan(largest // (32 * held))


def _common(info: NestInfo) -> SSAValue | None:
    """The longest free index that a reduction depends on, but not all that it reads."""
    found: list[tuple[int, int]] = []
    for n, index in enumerate(info.free):
        bodies = [r.op for r in info.reductions if index in r.around]
        reads = [op for op in info.loads if any(r.is_ancestor(op) for r in bodies)]
        if any(index not in access_indices(op) for op in reads):
            found.append((info.extents[index], n))
    return info.free[max(found)[1]] if found else None
