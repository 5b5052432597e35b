"""The planning model of the cores of a CPU: a block is one task of a core."""

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
"""Elements of a tile on the stack of a thread, beside others."""

UNEVEN_BLOCKS = 0.25
"""Blocks that the core which ends last works on alone: they do not all take equally long. Tuned by hand."""

TOLERANCE = 1.02
"""Schedules that take at most this many times the shortest time are as fast as the fastest, except for sums without
matmuls, which compute more or less again in each block."""

OVERLAPPED_TIME_WEIGHT = 0.3
"""Weight of hidden time in the ranking: a core does little else while it waits for bytes. Tuned by hand."""

HEIGHTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192)
"""Elements of a tile over the free indices that reductions depend on: a few rows, or as many sums of columns as stay in
the nearest cache."""

WIDTHS = (1 << 17, 32768, 16384, 4096, 1024, 256, 64)
"""Elements of a tile over the other free indices, and of one over a reduction."""

ELEMENTWISE_TILES = (4096, 8192, 2048, 1024, 16384)
"""Elements of a tile that is computed element by element."""

TRANSPOSED_SIDES, MAX_TRANSPOSED = (64, 128, 256, 32, 512, 16), 1 << 16
"""Rows and columns of a tile that is transposed, and its elements at most."""

MATMUL_SHAPES = [(rows, columns) for columns in (64, 128, 32, 256, 16, 512) for rows in (256, 128, 64, 32, 16)]
"""Rows and columns of a tile of a matmul, those first whose sums stay in the nearest cache."""

DEPTHS, KEYS = (256, 512, 128, 1024, 64), (256, 128, 64, 32)
"""Chunks of the index that a matmul sums over, and of one that a matmul yields and another one sums over."""

SCAN_ROWS = (4096, 1024, 16384, 256)
"""Elements of a tile along a contiguous index: the scan goes along the lanes."""

SCAN_COLUMNS = ((64, 64), (128, 32), (256, 16), (32, 64), (16, 64), (1024, 4), (64, 16))
"""Columns and rows of a tile where the scan goes down columns, each of which has a lane. A tile of several rows sums
them apart from the rows before it, and rounds less."""


class CpuModel(Model):
    """Model of the schedules of one nest on the cores of a CPU.

    Cores work next to each other, if that is worth waking them, and a core does not compute while it waits for its
    caches.
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
        loaded = np.minimum(moved.read, moved.near) / read * np.where(one, target.sms, 1)  # not what is past an end
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
    """Yields the schedules of nests without scans."""
    others = dict[tuple[SSAValue, SSAValue], list[Matmul]]()
    for p in contiguous_alternatives(info, products):
        others.setdefault((p.row, p.column), []).append(p)
    alternatives = [products, *others.values()] if products else []
    able = _packable(info, [p for matmuls in alternatives for p in matmuls])
    for sizes in (s for matmuls in alternatives for s in _matmul_tiles(info, matmuls)):
        plan = sizes.plan(1, lanes=1)
        yield plan
        for n, extent in able.items():
            whole = extent & -extent if extent % MAX_LANES == 0 else plan.block[n]  # tiles that divide the index
            block = (*plan.block[:n], min(plan.block[n], whole), *plan.block[n + 1 :])
            yield replace(plan, block=block, pack=(n,))
    if products and (is_nested(products) or not may_be_rows(info, products)):
        return
    if not info.reductions:
        for sizes in _elementwise(info):
            short = [i for i in _sides(info) if sizes.tile[i] < info.extents[i] < MAX_LANES]
            yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in short))
        return
    rest = [i for i in info.free if i not in info.reduced]
    for sizes in row_tiles(info, HEIGHTS, WIDTHS, written=True):
        walked = [i for i in rest if sizes.tile[i] < info.extents[i] or info.may_be_longer([i])]
        yield sizes.plan(1, lanes=1, serial=tuple(info.free.index(i) for i in walked))


def _matmul_tiles(info: NestInfo, matmuls: list[Matmul]) -> Iterator[TileExtents]:
    """Yields the tiles of a nest with matmuls: rows and columns of the result, and chunks."""
    tiles = MatmulTiles(info, matmuls, own_sum_index)
    for tile in tiles.tiles(1, MATMUL_SHAPES):
        yield from tiles.chunks(tile, 1, DEPTHS, KEYS)


def _packable(info: NestInfo, products: list[Matmul]) -> dict[int, int]:
    """Returns the positions of the free indices along which operands may be packed before, with their extents.

    Operands of bf16 are packed for each tile in any case.
    """
    outer = [p for p in products if p.reduction.outermost and not p.of_bf16] if not is_nested(products) else []
    sides = dict.fromkeys(
        i for p in outer for i in (p.column, p.row) if i in info.free and info.extents[i] >= MAX_LANES
    )
    able = [i for i in sides if not isinstance(packable_loads(info.nest, i), str)]
    return {info.free.index(i): info.extents[i] for i in able}


def _elementwise(info: NestInfo) -> Iterator[TileExtents]:
    """Yields tiles along the index along which most is contiguous, with and without short indices that would be padded,
    whole rows that are no power of two, and where results and operands lie along different indices, tiles of both."""
    order, sides = in_order(info, False), _sides(info)
    for shape in product(TRANSPOSED_SIDES, repeat=len(sides)) if len(sides) > 1 else ():
        if prod(shape) > MAX_TRANSPOSED:
            continue
        sizes = TileExtents(info)
        for i, side in zip(sides, shape, strict=True):
            sizes.set(i, 1 if _is_short(info.extents[i]) else side)
        left = [i for i in order if i not in sizes.decided and not _is_short(info.extents[i])]
        sizes.fill(left, max(1, ELEMENTWISE_TILES[0] // sizes.elements(sides)))
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
    """Returns true for an index without vectors whose tiles would be mostly padding: they take one value each."""
    return extent < MAX_LANES and extent != pow2_at_least(extent)


def _sides(info: NestInfo) -> list[SSAValue]:
    """Returns the free indices along which a result, or a tensor that is about as large, is contiguous."""
    large = max(tensor_bytes(r.type) for r in info.nest.res) // 4
    last = last_index(info)
    return [i for i in info.free if i is last or info.contiguous.get(i, 0) > large]


def _scans(info: NestInfo) -> Iterator[Schedule]:
    """Yields tiles of scans: rows of the scanned index, or columns where other indices fill the lanes."""
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
