"""Schedules by a rule in place of a cost model: `plan-schedules{strategy=simple}`.

The rule depends on the nest only, not on numbers of the target. Its tiles fit in the registers and the shared memory of
every target, so the schedule is always legal, but it is slow. A first reading of the compiler can begin here.

| nest | tile of a block | threads |
|---|---|---|
| scan | up to 1,024 elements along the scanned index, in a loop | 1 warp |
| matmuls only, of equal rows and columns | 64 rows by 64 columns, 16 terms in a chunk | 4 x 4 results for each thread |
| other reductions | 1 row, up to 1,024 terms in a chunk, the other indices of the result in a loop | 4 warps |
| elementwise | up to 1,024 elements, the last index first | 4 warps |

On a CPU a block is one thread, that is one warp of one lane; the tiles are the same.
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import SSAValue

from ...dialects.layouts.linear import LANES
from ...dialects.loop import NestOp
from ...dialects.tile.schedule import Schedule, ScheduleAttr
from .matmul import Matmul, find_matmuls
from .nest_info import NestInfo, TileExtents, pow2_at_least

ELEMENTS = 1024
"""Elements of a tile of a nest without matmuls: 8 for each thread of 4 warps."""

SIDE, DEPTH = 64, 16
"""Rows (and columns) of a matmul tile, and terms of a chunk. Both operands then take 8 KiB in f32."""

REGISTER_TILES = (4, 4), (2, 2), (1, 1)
"""Results of a thread, (rows, columns). The rule takes the first that leaves work for a whole warp."""


def simple_schedule(nest: NestOp, lanes: int) -> ScheduleAttr:
    """Returns the schedule of a nest by the table of this module.

    Args:
        nest: nest with final indices, accesses and reductions.
        lanes: threads of a warp of the target; 1 on a CPU, where a block is a single thread.
    """
    info = NestInfo(nest)
    products = find_matmuls(info)
    if info.scanned is not None:
        plan = _scan(info, info.scanned)
    elif products and len(products) == len(info.reductions) and _share_tile(info, products):
        plan = _products(info, products)
    elif info.reductions:
        plan = _reductions(info)
    else:
        plan = _elementwise(info)
    return ScheduleAttr(replace(plan, warps=1, lanes=1, thread=()) if lanes == 1 else plan)


def _scan(info: NestInfo, index: SSAValue) -> Schedule:
    """Returns the schedule of a scan: a block processes one row, in a loop over tiles of the scanned index."""
    sizes = TileExtents(info)
    sizes.pad(index, min(ELEMENTS, pow2_at_least(info.extents[index])))
    return sizes.plan(1, serial=_serial(sizes, [index]))


def _share_tile(info: NestInfo, products: list[Matmul]) -> bool:
    """Returns true if all matmuls have the same rows and columns, which are indices of the result."""
    tiles = {(p.row, p.column) for p in products}
    return len(tiles) == 1 and all(i in info.free for i in (products[0].row, products[0].column))


def _products(info: NestInfo, products: list[Matmul]) -> Schedule:
    """Returns the schedule of a nest of matmuls: a tile of 64 x 64, of which each thread has a small square."""
    sizes, first = TileExtents(info), products[0]
    for index in (first.row, first.column):
        sizes.set(index, SIDE)
    sizes.chunk_reductions(DEPTH * sizes.elements(info.free))
    rows, columns = sizes.tile[first.row], sizes.tile[first.column]
    for height, width in REGISTER_TILES:
        threads = rows // height * (columns // width) if height <= rows and width <= columns else 0
        if threads >= LANES:
            return sizes.plan(threads // LANES, thread=(height, width))
    return sizes.plan(1, thread=(1, 1))


def _reductions(info: NestInfo) -> Schedule:
    """Returns the schedule of other reductions: a block reduces one row chunk by chunk, and computes its results."""
    sizes = TileExtents(info)
    not_reduced = [i for i in reversed(info.free) if i not in info.reduced]
    sizes.fill([i for i in info.free if i in info.reduced], 1)
    sizes.fill(not_reduced, ELEMENTS)
    sizes.chunk_reductions(ELEMENTS)
    return sizes.plan(4, serial=_serial(sizes, not_reduced))


def _elementwise(info: NestInfo) -> Schedule:
    """Returns the schedule of a nest without reductions: a block computes 1,024 neighbouring elements."""
    sizes = TileExtents(info)
    sizes.fill(reversed(info.free), ELEMENTS)
    return sizes.plan(4)


def _serial(sizes: TileExtents, indices: list[SSAValue]) -> tuple[int, ...]:
    """Returns the positions of the indices that have several tiles, or may have several for a size at run time."""
    info = sizes.info
    several = [i for i in indices if sizes.tile[i] < info.extents[i] or info.may_be_longer([i])]
    return tuple(sorted(info.free.index(i) for i in several))
