"""The space of schedules of scans: a block walks along the scanned index and carries the last element of each tile."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from ...dialects.layouts.linear import LANES
from ...dialects.tile.schedule import Schedule
from ...target.model import MAX_LANES, Target
from .nest_info import NestInfo, TileExtents, pow2_at_least
from .row_space import in_order

ROWS = (4096, 1024, 16384, 256)
"""Elements of a tile along an index that is contiguous in memory, on a core: the scan goes along the lanes."""

COLUMNS = ((64, 64), (128, 32), (256, 16), (32, 64), (16, 64), (1024, 4), (64, 16))
"""Columns and rows of a tile on a core where the scan goes down columns, each of which has a lane. A tile of several
rows sums them apart from the rows before it, and rounds less."""


WARPS = (4, 8, 2, 16, 1, 32)
"""Warps of a block on a GPU."""

HELD = ((8, 8), (16, 16), (4, 4), (8, 16), (8, 32), (32, 32), (32, 64))
"""Rows of a tile on a GPU where each thread scans its columns, and elements that the thread holds."""


def core_scans(info: NestInfo) -> Iterator[Schedule]:
    """Tiles of one thread: rows of the scanned index, or columns where other indices fill the lanes."""
    index = info.scanned
    assert index is not None
    order = in_order(info, False)
    fast, slow = order[: order.index(index)], order[order.index(index) + 1 :]
    inner = prod(info.extents[i] for i in fast)
    for columns, rows in COLUMNS if inner >= MAX_LANES else ((1, n) for n in ROWS):
        sizes = TileExtents(info)
        if inner >= MAX_LANES:
            sizes.fill(fast, columns)
        else:
            for i in fast:
                sizes.pad(i, pow2_at_least(info.extents[i]))
        _set_along(sizes, max(1, columns * rows // sizes.elements(fast)))
        sizes.fill(slow, max(1, columns * rows // sizes.elements([*fast, index])))
        yield plan(sizes, 1, lanes=1)


def gpu_scans(info: NestInfo, target: Target) -> list[Schedule]:
    """Tiles of a block of several warps: rows of the scanned index in registers, lanes and then warps; or some rows of
    columns, each of which one thread scans. Those with the fewest steps come first, then those of few warps where
    blocks are fewer than multiprocessors."""
    index, vector = info.scanned, min(max(4, info.vector()), 8)
    assert index is not None
    order = in_order(info, False)
    by_rows = order[0] is index
    ranked: dict[Schedule, tuple[int, int]] = {}
    for warps, (along, held) in product(WARPS, ((1, vector), (1, 2 * vector)) if by_rows else HELD):
        threads, sizes = LANES * warps, TileExtents(info)
        _set_along(sizes, held * threads if by_rows else along)
        sizes.fill([i for i in order if i is not index], max(1, threads * held // sizes.tile[index]))
        if sizes.elements(info.free) >= threads or warps == 1:
            steps = max(1, -(-info.extents[index] // sizes.tile[index]))
            few = sizes.blocks() // steps < target.sms
            ranked.setdefault(plan(sizes, warps), (steps, warps if few else abs(warps.bit_length() - 3)))
    return sorted(ranked, key=lambda schedule: ranked[schedule])


def _set_along(sizes: TileExtents, most: int) -> None:
    """Decides on the tile along the scanned index: the whole of it, padded to a power of two, if that is at most
    `most`."""
    info, index = sizes.info, sizes.info.scanned
    assert index is not None
    sizes.pad(index, min(most, pow2_at_least(info.extents[index])))


def plan(sizes: TileExtents, warps: int, **decisions: int) -> Schedule:
    """Returns the schedule with these tiles, whose blocks walk along the scanned index where it has several tiles."""
    info, index = sizes.info, sizes.info.scanned
    assert index is not None
    walks = sizes.tile[index] < info.extents[index] or info.may_be_longer([index])
    return sizes.plan(warps, serial=(info.free.index(index),) if walks else (), **decisions)
