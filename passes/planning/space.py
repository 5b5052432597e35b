"""Enumeration of tiles that all kinds of targets share: tiles of rows, of matmuls and of split-K reductions.

The *main* matmul of a nest is the one whose rows and columns are indices of the result. Matmuls are *nested* if one is
computed inside the reduction of another, as in attention.
"""

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
"""Largest extent of a head dimension that nested matmuls do not divide: a block then has whole rows of the result."""

ELEMENTS = 1024
"""Elements of a tile for each warp (up to 8 warps), in a reduction that is not a matmul, of a nest with matmuls."""

SPLIT_K_BLOCKS_PER_SM, SPLIT_K_BLOCKS_PER_SM_NESTED = (2, 1, 0), (8, 4, 2)
"""Occupancies that split-K aims for, in blocks per SM: one more schedule for each number; 0 adds none.

The second tuple is for one-warp blocks with nested matmuls (attention), which are latency bound. Tuned by hand.
"""


def in_order(info: NestInfo, reduced: bool, written: bool = False) -> list[SSAValue]:
    """Returns free indices, sorted by the number of bytes that are contiguous along them, most bytes first.

    Indices with equal numbers of bytes are in the reverse order of the nest.

    Args:
        info: the nest.
        reduced: true for the indices that some reduction depends on, false for the others.
        written: whether bytes of results count, in addition to those of loads.
    """
    indices, bytes_along = [i for i in info.free if (i in info.reduced) == reduced], dict(info.contiguous)
    if written and (last := last_index(info)) is not None:
        bytes_along[last] = bytes_along.get(last, 0) + sum(tensor_bytes(r.type) for r in info.nest.res)
    return sorted(indices, key=lambda i: (-bytes_along.get(i, 0), -info.free.index(i)))


def last_index(info: NestInfo) -> SSAValue | None:
    """Returns the last free index with several values, along which results are contiguous, or None."""
    return next((i for i in reversed(info.free) if info.extents[i] > 1), None)


def row_tiles(
    info: NestInfo, heights: Sequence[int], widths: Sequence[int], written: bool = False
) -> list[TileExtents]:
    """Returns the distinct tiles of a nest of reductions, for all combinations of heights, widths and chunks.

    Tiles are filled in the order of `in_order`: the first index gets the largest extent.

    Args:
        info: the nest.
        heights: numbers of elements of a tile over the free indices that reductions depend on (rows).
        widths: numbers of elements of a tile over the other free indices, and of a chunk.
        written: as for `in_order`.
    """
    rows, columns = in_order(info, True, written), in_order(info, False, written)
    tiles: dict[tuple[int, ...], TileExtents] = {}
    shapes: dict[tuple[int, ...], TileExtents] = {}
    for height, width in product(heights if rows else (1,), widths if columns else (1,)):
        shape = TileExtents(info)
        shape.fill(rows, height)
        shape.fill(columns, width)
        shapes.setdefault((*shape.tile.values(),), shape)
    for shape, chunk in product(shapes.values(), widths):
        sizes = shape.copy()
        sizes.chunk_reductions(chunk)
        tiles.setdefault((*sizes.tile.values(),), sizes)
    return list(tiles.values())


def scan_plan(sizes: TileExtents, warps: int, **decisions: int) -> Schedule:
    """Returns the schedule of a scan. If the scanned index has several tiles, a block loops over them (`serial`).

    Args:
        sizes: tile extents.
        warps: warps of a block.
        decisions: further decisions of the schedule.
    """
    info, index = sizes.info, sizes.info.scanned
    assert index is not None
    walks = sizes.tile[index] < info.extents[index] or info.may_be_longer([index])
    return sizes.plan(warps, serial=(info.free.index(index),) if walks else (), **decisions)


def pad_scanned(sizes: TileExtents, most: int) -> None:
    """Sets the tile along the scanned index: its range padded to a power of two, at most `most`."""
    info, index = sizes.info, sizes.info.scanned
    assert index is not None
    sizes.pad(index, min(most, pow2_at_least(info.extents[index])))


class MatmulTiles:
    """Enumeration of the tiles of a nest with matmuls: rows and columns of the main matmul, and chunks.

    Attributes:
        info: the nest.
        products: its matmuls.
        longest: for each matmul the reduction index that gets a chunk; its other reduction indices get chunks of 1.
        main: the main matmul.
        nested: whether one matmul is inside the reduction of another.
        together: reduction index -> the corresponding indices of all reductions that run in the same loop.
        chunks: `_chunks`, with a cache.
    """

    def __init__(
        self, info: NestInfo, products: list[Matmul], along: Callable[[NestInfo, Matmul], SSAValue] = longest_sum_index
    ) -> None:
        self.info = info
        self.products = products
        self.longest = [along(info, p) for p in products]
        self.main = main_matmul(info, products)
        self.nested = is_nested(products)
        self.together = {
            i: axis for g in info.groups for axis in zip(*(op.body.block.args for op in g), strict=True) for i in axis
        }
        self.chunks = cache(self._chunks)

    def tiles(self, least: int, shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the distinct (rows, columns) of tiles of the main matmul.

        Args:
            least: minimum of rows and columns; a shorter range is padded.
            shapes: rows and columns to choose from; larger ones are clipped to the range, rounded up to a power of two.
        """
        whole = self.nested and self.main.column in self.info.free
        rows, columns = (pow2_at_least(self.info.extents[i]) for i in (self.main.row, self.main.column))
        shapes = [(r, min(WIDEST_HEAD, columns) if whole else c) for r, c in shapes]
        narrow = 1 if whole else least
        return [*dict.fromkeys((max(least, min(r, rows)), max(narrow, min(c, columns))) for r, c in shapes)]

    def _chunks(
        self, tile: tuple[int, int], warps: int, depths: tuple[int, ...], keys: tuple[int, ...]
    ) -> list[TileExtents]:
        """Returns the tile extents with each combination of chunks.

        Args:
            tile: rows and columns of the main matmul.
            warps: warps of a block.
            depths: chunks of an index that a matmul sums over.
            keys: chunks of an index that is a column of one matmul and summed over by another, such as the keys of
                attention.
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
        """Sets the chunks of the reduction indices of all matmuls: `keys` or `depth` (see `_chunks`)."""
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
    """Yields schedules, and the same schedules with split-K where the grid leaves at least half of the target idle.

    One-warp blocks with nested matmuls are latency bound: they are divided up to a grid of two blocks per SM.

    Args:
        info: the nest.
        points: schedules without split-K.
        target: the target.
        nested: whether a matmul is inside another reduction.
    """
    yield points
    first = next((r for r in info.reductions if r.outermost), None)
    undivided = points.cache_rows != "registers" or points.cluster > 1 or isinstance(splittable(info.nest), str)
    # A size that is known only at run time has no known divisors.
    static = [] if first is None or undivided else [i for i in first.indices if isinstance(info.sizes[i], int)]
    if not static:
        return
    tiles = Tiles(info, points)
    latency_bound = nested & (points.warps == 1)
    idle = 2 * tiles.blocks <= target.sms * np.where(
        latency_bound, SPLIT_K_BLOCKS_PER_SM_NESTED[0] // SPLIT_K_BLOCKS_PER_SM[0], 1
    )
    read = bytes_read(info, tiles)
    tried = [np.ones(len(points), dtype=np.int64)]
    for full, crowd in zip(SPLIT_K_BLOCKS_PER_SM, SPLIT_K_BLOCKS_PER_SM_NESTED, strict=True):
        blocks_per_sm = np.where(idle & (tiles.blocks > 0), np.where(latency_bound, crowd, full), 0)
        most = np.minimum(
            -(-blocks_per_sm * target.sms // np.maximum(1, tiles.blocks)),
            np.minimum(MOST_PARTS, read // MIN_PART_BYTES),
        )
        parts = np.ones(len(points), dtype=np.int64)
        for index, here in tiles.divisible(static).items():
            divisors = np.array([d for d in range(1, MOST_PARTS + 1) if info.extents[index] % d == 0])
            parts = np.where(here, divisors[np.searchsorted(divisors, np.maximum(1, most), "right") - 1], parts)
        yield replace(points, split_k=parts).at(np.all([parts != t for t in tried], axis=0))
        tried.append(parts)


def bytes_read(info: NestInfo, tiles: Tiles) -> Floats:
    """Returns the bytes that one block reads if it computes whole reductions.

    Reductions that run in the same loop read the same tiles: the sum over all loads is divided by their number.
    """

    def elements(indices: Sequence[SSAValue]) -> Floats:
        whole = prod(info.extents[i] for i in indices if i not in tiles.counts)
        return tiles.elements(i for i in indices if i in tiles.counts) * whole

    read = (element_bytes(op.source.type) * elements(access_indices(op)) for op in info.loads)
    return total(read, tiles.rows) // max(1, len(info.groups[0]))
