"""Tiles that the spaces of all kinds of targets have in common: rows, matmuls, and reductions in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.loop.dependence import access_indices
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.tile.schedule import Schedule
from ...target.model import Target
from ..analysis.nest_schedule import splittable
from .matmul import Matmul, is_nested, longest_sum_index, main_matmul
from .model import MIN_PART_BYTES, MOST_PARTS
from .nest_info import NestInfo, TileExtents, pow2_at_least
from .points import Floats, Points, total
from .tiles import Tiles

WIDEST_HEAD = 256
"""The longest index that is kept whole where one matmul is an operand of another: a row of what is carried around stays
in one block."""

ELEMENTS = 1024
"""Elements of a chunk, for each warp, of what is reduced beside matmuls."""

SPLIT_K_BLOCKS_PER_SM, SPLIT_K_BLOCKS_PER_SM_NESTED = (2, 1, 0), (8, 4, 2)
"""Occupancy that divided reductions aim for, in blocks per SM. The second is for blocks of one warp with matmuls inside
other reductions (attention), which are latency bound. Tuned by hand."""


def in_order(info: NestInfo, reduced: bool, written: bool = False) -> list[SSAValue]:
    """Returns the free indices that some reduction depends on, or those that none does: those along which most bytes
    are contiguous first, then the last. Bytes of results count where `written`."""
    indices, bytes_along = [i for i in info.free if (i in info.reduced) == reduced], dict(info.contiguous)
    if written and (last := last_index(info)) is not None:
        bytes_along[last] = bytes_along.get(last, 0) + sum(tensor_bytes(r.type) for r in info.nest.res)
    return sorted(indices, key=lambda i: (-bytes_along.get(i, 0), -info.free.index(i)))


def last_index(info: NestInfo) -> SSAValue | None:
    """Returns the last free index with several values: results are contiguous along it."""
    return next((i for i in reversed(info.free) if info.extents[i] > 1), None)


def row_tiles(
    info: NestInfo, heights: Sequence[int], widths: Sequence[int], written: bool = False
) -> list[TileExtents]:
    """Returns the different tiles and chunks of rows, with indices in the order of `in_order`.

    Args:
        info: the nest.
        heights: elements of a tile over the free indices that reductions depend on.
        widths: elements of a tile over the other free indices, and of a chunk.
        written: as for `in_order`.
    """
    rows, rest = in_order(info, True, written), in_order(info, False, written)
    tiles: dict[tuple[int, ...], TileExtents] = {}
    shapes: dict[tuple[int, ...], TileExtents] = {}
    for height, width in product(heights if rows else (1,), widths if rest else (1,)):
        shape = TileExtents(info)
        shape.fill(rows, height)
        shape.fill(rest, width)
        shapes.setdefault((*shape.tile.values(),), shape)
    for shape, chunk in product(shapes.values(), widths):
        sizes = shape.copy()
        sizes.chunk_reductions(chunk)
        tiles.setdefault((*sizes.tile.values(),), sizes)
    return list(tiles.values())


def scan_plan(sizes: TileExtents, warps: int, **decisions: int) -> Schedule:
    """Returns the schedule with the tiles `sizes`. Its blocks walk along the scanned index if that has several
    tiles."""
    info, index = sizes.info, sizes.info.scanned
    assert index is not None
    walks = sizes.tile[index] < info.extents[index] or info.may_be_longer([index])
    return sizes.plan(warps, serial=(info.free.index(index),) if walks else (), **decisions)


def pad_scanned(sizes: TileExtents, most: int) -> None:
    """Decides on the tile along the scanned index: all of it, padded to a power of two, or `most`."""
    info, index = sizes.info, sizes.info.scanned
    assert index is not None
    sizes.pad(index, min(most, pow2_at_least(info.extents[index])))


class MatmulTiles:
    """The tiles of a nest with matmuls: rows and columns of the result, and chunks of the sums."""

    def __init__(
        self, info: NestInfo, products: list[Matmul], along: Callable[[NestInfo, Matmul], SSAValue] = longest_sum_index
    ) -> None:
        self.info = info
        self.products = products
        self.longest = [along(info, p) for p in products]
        """The index of each matmul's sum that is tiled."""
        self.main = main_matmul(info, products)
        self.nested = is_nested(products)
        self.together = {
            i: axis for g in info.groups for axis in zip(*(op.body.block.args for op in g), strict=True) for i in axis
        }
        """Reduction index -> the same one of all reductions that run together."""
        self.chunks = cache(self._chunks)

    def tiles(self, least: int, shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the rows and columns of the main matmul's tiles: at most the range, and at least `least`, which
        pads."""
        whole = self.nested and self.main.column in self.info.free
        rows, columns = (pow2_at_least(self.info.extents[i]) for i in (self.main.row, self.main.column))
        shapes = [(r, min(WIDEST_HEAD, columns) if whole else c) for r, c in shapes]
        narrow = 1 if whole else least
        return [*dict.fromkeys((max(least, min(r, rows)), max(narrow, min(c, columns))) for r, c in shapes)]

    def _chunks(
        self, tile: tuple[int, int], warps: int, depths: tuple[int, ...], keys: tuple[int, ...]
    ) -> list[TileExtents]:
        """Returns a tile with chunks of the reduction indices: those of the matmuls, then of other reductions.

        Args:
            tile: rows and columns of the main matmul.
            warps: warps of a block.
            depths: chunks of an index that a matmul sums over.
            keys: chunks of an index that one matmul yields and another one sums over.
        """
        tiles = list[TileExtents]()
        for depth, chunk in product(depths, keys if self.nested else keys[-1:]):
            sizes = TileExtents(self.info)
            sizes.pad(self.main.row, tile[0])
            sizes.pad(self.main.column, tile[1])
            self._chunk_matmuls(sizes, depth, chunk)
            sizes.chunk_reductions(ELEMENTS * min(8, warps))
            tiles.append(sizes)
        return tiles

    def _chunk_matmuls(self, sizes: TileExtents, depth: int, keys: int) -> None:
        """Decides on the reduction indices of the matmuls."""
        info = self.info
        for p in self.products:
            for index in (p.row, p.column):
                if index not in sizes.decided and index not in info.free:
                    sizes.set_all(self.together[index], keys)
        for p, longest in zip(self.products, self.longest, strict=True):
            for index in p.reduction.indices:
                if index not in sizes.decided:
                    inner = self.nested and not p.reduction.outermost
                    whole = inner and pow2_at_least(info.extents[index]) <= WIDEST_HEAD
                    extent = (WIDEST_HEAD if whole else depth) if index is longest else 1
                    sizes.set_all(self.together[index], extent)


def with_parts(info: NestInfo, points: Points, target: Target, nested: bool) -> Iterator[Points]:
    """Yields schedules, and the same with their reduction in parts where the grid leaves most of the target idle.

    `nested` is true if a matmul is inside another reduction."""
    yield points
    first = next((r for r in info.reductions if r.outermost), None)
    undivided = points.cache_rows != "registers" or points.cluster > 1 or isinstance(splittable(info.nest), str)
    known = [] if first is None or undivided else [i for i in first.indices if isinstance(info.sizes[i], int)]
    if not known:  # a symbol has no divisors
        return
    tiles = Tiles(info, points)
    latency_bound = nested & (points.warps == 1)
    idle = 2 * tiles.blocks <= target.sms * np.where(
        latency_bound, SPLIT_K_BLOCKS_PER_SM_NESTED[0] // SPLIT_K_BLOCKS_PER_SM[0], 1
    )
    read = bytes_read(info, tiles)
    tried = [np.ones(len(points), dtype=np.int64)]
    for full, crowd in zip(SPLIT_K_BLOCKS_PER_SM, SPLIT_K_BLOCKS_PER_SM_NESTED, strict=True):
        wanted = np.where(idle & (tiles.blocks > 0), np.where(latency_bound, crowd, full), 0)
        most = np.minimum(
            -(-wanted * target.sms // np.maximum(1, tiles.blocks)), np.minimum(MOST_PARTS, read // MIN_PART_BYTES)
        )
        parts = np.ones(len(points), dtype=np.int64)
        for index, here in tiles.divisible(known).items():
            divisors = np.array([d for d in range(1, MOST_PARTS + 1) if info.extents[index] % d == 0])
            parts = np.where(here, divisors[np.searchsorted(divisors, np.maximum(1, most), "right") - 1], parts)
        yield replace(points, split_k=parts).at(np.all([parts != t for t in tried], axis=0))
        tried.append(parts)


def bytes_read(info: NestInfo, tiles: Tiles) -> Floats:
    """Returns the bytes that a block reads with all of each reduction, on average of reductions that run together."""

    def elements(indices: Sequence[SSAValue]) -> Floats:
        whole = prod(info.extents[i] for i in indices if i not in tiles.counts)
        return tiles.elements(i for i in indices if i in tiles.counts) * whole

    read = (element_bytes(op.source.type) * elements(access_indices(op)) for op in info.loads)
    return total(read, tiles.rows) // max(1, len(info.groups[0]))
