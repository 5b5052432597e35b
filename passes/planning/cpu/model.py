"""Planning model of a CPU: enumerates schedules for one-thread blocks, and predicts their times.

A block is a task that one core executes. `core_time.py` estimates the time of one core; this file adds the distribution
of tasks over cores, and memory. Constants that list values are in the order of preference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from ....dialects.payload import tensor_bytes
from ....dialects.support.printing import quantity
from ....dialects.tile.schedule import Schedule
from ....target.model import MAX_LANES
from ...analysis.operands import packable_loads
from ..legality import Violation, common_violations, tile_elements
from ..matmul import Matmul, contiguous_alternatives, is_nested, may_be_rows, own_sum_index
from ..model import Model, Prediction, Predictions, Times
from ..nest_info import NestInfo, TileExtents, footprint, pow2_at_least
from ..points import Floats, Points, join, points_of
from ..space import MatmulTiles, in_order, last_index, pad_scanned, row_tiles, scan_plan, with_parts
from ..tiles import Tiles, traffic
from .core_time import CoreTime

LARGEST_TILE = 1 << 17
"""Maximum number of elements of a tile, which is stored on the stack of a thread (512 KiB of f32)."""

UNEVEN_BLOCKS = 0.25
"""Number of blocks that is added to the share of the last core, because blocks do not all take equally long. Tuned by
hand."""

TOLERANCE = 1.02
"""Schedules count as equally fast within this multiple of the shortest time. Not used for reductions without matmuls,
whose blocks may repeat work. Tuned by hand."""

OVERLAPPED_TIME_WEIGHT = 0.3
"""Weight of overlapped time in the ranking: computation and memory accesses of a core overlap only in part. Tuned by
hand."""

HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192)
"""Numbers of elements of a tile over the free indices that reductions depend on.

Small numbers are for reductions along rows. Large ones are for reductions down columns, with accumulators in L1: 8,192
in f32 take 32 KiB.
"""

WIDTHS = (1 << 17, 32768, 16384, 4096, 1024, 256, 64)
"""Numbers of elements of a tile over the other free indices, and of a chunk of a reduction."""

ELEMENTWISE_TILES = (4096, 8192, 2048, 1024, 16384)
"""Numbers of elements of a tile of an elementwise nest."""

TRANSPOSED_SIDES, MAX_TRANSPOSED = (64, 128, 256, 32, 512, 16), 1 << 16
"""Numbers of rows, and of columns, of a tile that is transposed; maximum number of its elements."""

MATMUL_SHAPES = [(rows, columns) for columns in (64, 128, 32, 256, 16, 512) for rows in (256, 128, 64, 32, 16)]
"""Rows and columns of a matmul tile. Those whose accumulators fit in L1 come first."""

DEPTHS, KEYS = (256, 512, 128, 1024, 64), (256, 128, 64, 32)
"""Chunks of a reduction index of a matmul; chunks of an index that is a column of one matmul and summed over by
another, such as the keys of attention."""

SCAN_ROWS = (4096, 1024, 16384, 256)
"""Numbers of elements of a tile of a scan along a contiguous index, which runs along the lanes of vectors."""

SCAN_COLUMNS = ((64, 64), (128, 32), (256, 16), (32, 64), (16, 64), (1024, 4), (64, 16))
"""Tiles of a scan down columns: (columns, rows). Each column has a lane. The rows of a tile are summed before the
result of earlier tiles is added, which reduces rounding errors."""


class CpuModel(Model):
    """Model of the schedules of one nest on a CPU.

    All cores share the blocks, or one core executes them all if waking the others takes longer. A core does not compute
    while it waits for its caches.
    """

    unfolds = True

    def _alternatives(self, products: list[Matmul]) -> list[Matmul]:
        return [*products, *contiguous_alternatives(self.info, products)] if products else products

    def space(self, precision: str, cluster_sums: bool = False) -> Iterator[Points]:
        nested = is_nested(self.matmuls)
        plans = _scans(self.info) if self.info.scanned is not None else _plans(self.info, self.matmuls)
        for points in points_of(dict.fromkeys(plans)):
            yield join([*with_parts(self.info, points, self.target, nested)]) if self.info.reductions else points

    def violations(self, tiles: Tiles, products: list[Matmul]) -> list[Violation]:
        points, elements = tiles.points, tile_elements(self.info, tiles)
        one = "a block of {} warps; on {} it is a single thread: lanes = 1, warps = 1"
        large = f"a tile of {{:.0f}} elements; a core has room for {LARGEST_TILE} beside others"
        return [
            Violation(
                (points.warps > 1) | (points.lanes > 1), "warps", one, (points.warps, [self.target.name] * tiles.rows)
            ),
            Violation(elements > LARGEST_TILE, "block", large, (elements,)),
            *common_violations(self.info, tiles, self.target, []),
        ]

    def weighed(self, p: Predictions) -> Floats:
        return p.all.seconds + OVERLAPPED_TIME_WEIGHT * p.all.times.hidden

    @property
    def tolerance(self) -> float:
        return 0.0 if self.info.reductions and not self.matmuls else TOLERANCE

    def resources_text(self, p: Prediction) -> str:
        return f"{quantity(p.blocks, 'task')} on {quantity(self.target.sms, 'core')}"

    def _predict(self, products: list[Matmul], tiles: Tiles) -> Predictions:
        target, rates = self.target, self.target.rates
        none, blocks = np.zeros(tiles.rows, dtype=np.int64), np.maximum(1, tiles.blocks)
        waves = -(-blocks // target.sms)
        moved = traffic(tiles, target, none + target.sms, ())
        time = CoreTime(self.operations(products), tiles, target)
        work = time.seconds()
        shared = rates.launch + work * (waves + UNEVEN_BLOCKS) / blocks
        one = work <= shared
        fits = footprint(self.info) <= target.l2 // 2
        read, store = (rates.cache, rates.cache) if fits else (rates.memory, rates.store)
        # `moved.read` counts every block as a full one. `moved.near` leaves out elements past the end of an index.
        loaded = np.minimum(moved.read, moved.near) / read * np.where(one, target.sms, 1)
        start = np.where(one, 0.0, rates.launch)
        times = Times(
            start=start,
            memory=loaded + moved.written / store * np.where(one, target.sms, 1),
            cache=np.zeros(tiles.rows),
            compute=np.minimum(work, shared) - start + time.exposed() * loaded,
        )
        other = self._other_kernels(tiles)
        prediction = Prediction(times, other, blocks, none + 1, waves, none, none, moved.read, moved.written)
        return Predictions(tiles.points, prediction, none > 0, self.violations(tiles, products))


def _plans(info: NestInfo, products: list[Matmul]) -> Iterator[Schedule]:
    """Yields the schedules of a nest without scans."""
    others = dict[tuple[SSAValue, SSAValue], list[Matmul]]()
    for p in contiguous_alternatives(info, products):
        others.setdefault((p.row, p.column), []).append(p)
    alternatives = [products, *others.values()] if products else []
    able = _packable(info, [p for matmuls in alternatives for p in matmuls])
    for sizes in (s for matmuls in alternatives for s in _matmul_tiles(info, matmuls)):
        plan = sizes.plan(1, lanes=1)
        yield plan
        for n, extent in able.items():
            # Tiles that divide the index keep the panels of the packed copy whole.
            whole = extent & -extent if extent % MAX_LANES == 0 else plan.block[n]
            block = (*plan.block[:n], min(plan.block[n], whole), *plan.block[n + 1 :])
            yield replace(plan, block=block, pack=(n,))
    if products and (is_nested(products) or not may_be_rows(info, products)):
        return
    if not info.reductions:
        for sizes in _elementwise(info):
            short = [i for i in _sides(info) if sizes.tile[i] < info.extents[i] < MAX_LANES]
            yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in short))
        return
    others = [i for i in info.free if i not in info.reduced]
    for sizes in row_tiles(info, HEIGHTS, WIDTHS, written=True):
        serial = [i for i in others if sizes.tile[i] < info.extents[i] or info.may_be_longer([i])]
        yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in serial))


def _matmul_tiles(info: NestInfo, matmuls: list[Matmul]) -> Iterator[TileExtents]:
    tiles = MatmulTiles(info, matmuls, own_sum_index)
    for tile in tiles.tiles(1, MATMUL_SHAPES):
        yield from tiles.chunks(tile, 1, DEPTHS, KEYS)


def _packable(info: NestInfo, products: list[Matmul]) -> dict[int, int]:
    """Returns the positions and extents of the free indices along which operands may be packed by their own kernels.

    Matmuls of bf16 are left out, because every tile packs its operands in pairs.
    """
    outer = [p for p in products if p.reduction.outermost and not p.of_bf16] if not is_nested(products) else []
    sides = dict.fromkeys(
        i for p in outer for i in (p.column, p.row) if i in info.free and info.extents[i] >= MAX_LANES
    )
    able = [i for i in sides if not isinstance(packable_loads(info.nest, i), str)]
    return {info.free.index(i): info.extents[i] for i in able}


def _elementwise(info: NestInfo) -> Iterator[TileExtents]:
    """Yields the tile extents of an elementwise nest.

    - If operands and results are contiguous along different indices: tiles with several values of both.
    - Tiles along contiguous indices, of each size; once more without short indices, which would be padded.
    - Whole rows whose length is not a power of two.
    """
    order, sides = in_order(info, False), _sides(info)
    for shape in product(TRANSPOSED_SIDES, repeat=len(sides)) if len(sides) > 1 else ():
        if prod(shape) > MAX_TRANSPOSED:
            continue
        sizes = TileExtents(info)
        for i, side in zip(sides, shape, strict=True):
            sizes.set(i, 1 if _is_short(info.extents[i]) else side)
        undecided = [i for i in order if i not in sizes.decided and not _is_short(info.extents[i])]
        sizes.fill(undecided, max(1, ELEMENTWISE_TILES[0] // sizes.elements(sides)))
        yield sizes
    padded = [i for i in order if i in sides or not _is_short(info.extents[i])]
    for indices, elements in (*((order, n) for n in ELEMENTWISE_TILES), (padded, ELEMENTWISE_TILES[0])):
        sizes = TileExtents(info)
        sizes.fill(indices, elements)
        yield sizes
    if len(sides) == 1 and (row := pow2_at_least(info.extents[sides[0]])) <= max(ELEMENTWISE_TILES):
        sizes = TileExtents(info)
        sizes.pad(sides[0], row)
        yield sizes


def _is_short(extent: int) -> bool:
    """Returns true for an extent below `MAX_LANES` that is not a power of two: its tile would have much padding."""
    return extent < MAX_LANES and extent != pow2_at_least(extent)


def _sides(info: NestInfo) -> list[SSAValue]:
    """Returns the free indices along which results, or tensors of at least a quarter of their size, are contiguous."""
    large = max(tensor_bytes(r.type) for r in info.nest.res) // 4
    last = last_index(info)
    return [i for i in info.free if i is last or info.contiguous.get(i, 0) > large]


def _scans(info: NestInfo) -> Iterator[Schedule]:
    """Yields the schedules of a scan: along lanes, or down columns if other indices fill the lanes."""
    index = info.scanned
    assert index is not None
    order = in_order(info, False)
    fast, slow = order[: order.index(index)], order[order.index(index) + 1 :]
    inner = prod(info.extents[i] for i in fast)
    for columns, rows in SCAN_COLUMNS if inner >= MAX_LANES else ((1, n) for n in SCAN_ROWS):
        sizes = TileExtents(info)
        if inner >= MAX_LANES:
            sizes.fill(fast, columns)
        else:
            for i in fast:
                sizes.pad(i, pow2_at_least(info.extents[i]))
        pad_scanned(sizes, max(1, columns * rows // sizes.elements(fast)))
        sizes.fill(slow, max(1, columns * rows // sizes.elements([*fast, index])))
        yield scan_plan(sizes, 1, lanes=1)
