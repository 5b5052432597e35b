"""Bytes that move under a schedule: between a block and the level-2 cache, and to and from device memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.loop import LoadOp
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.target import Target
from .clusters import neighbours
from .nest_info import NestInfo, contiguous_index
from .points import Floats, Ints
from .smem_reuse import LoadSite, alike, same_tiles
from .tiles import Tiles

SECTOR = 32
"""Bytes that memory moves at least."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of a kernel: `block` that one block loads, `near` that all load, `read` from memory and `written` to it."""

    block: Floats
    near: Floats
    read: Floats
    written: int


class Loads:
    """The loads of a nest, looked at once for all schedules of it."""

    def __init__(self, info: NestInfo, sites: list[LoadSite], factors: Collection[LoadOp] = ()) -> None:
        """`factors` are the loads that blocks of a cluster can make together."""
        self.factors = set(factors)
        self.loads = [(place, element_bytes(place.op.source.type), contiguous_index(place.op)) for place in sites]
        self.alike = alike(info, sites)
        self.written = sum(tensor_bytes(v.type) for v in info.nest.res)

    def traffic(self, tiles: Tiles, target: Target, at_once: Ints) -> Traffic:
        """The bytes that move where `at_once` blocks run at the same time."""
        per_block: dict[SSAValue, Floats] = {}
        near = block = np.zeros(tiles.rows)
        reach: dict[SSAValue, frozenset[SSAValue]] = {}
        for n, (place, bytes_each, along) in enumerate(self.loads):
            source = place.op.source
            made = ~self._made_before(n, tiles)
            element = bytes_each * self._waste(place, bytes_each, along, tiles) * made
            size = tiles.within(place.indices) * element
            together = self._together(place, tiles)
            near = near + tiles.visits(place.indices) * element / together
            block = block + size / together
            per_block[source] = per_block.get(source, 0.0) + size
            reach[source] = reach.get(source, frozenset()) | frozenset(place.indices)
        read = np.zeros(tiles.rows)
        for source, size in per_block.items():
            read = read + self._from_memory(source, size, reach[source], tiles, target, at_once)
        return Traffic(block, near, read, self.written)

    def _together(self, place: LoadSite, tiles: Tiles) -> Ints:
        """How many blocks have what one of them loads: those of a cluster that have it in common."""
        alone = np.ones(tiles.rows, dtype=np.int64)
        if tiles.points.cluster == 1 or place.op not in self.factors:
            return alone
        found, _ = neighbours(tiles)
        common = alone == 1
        for index, here in found.items():
            common = common & ~here if index in place.indices else common
        some = np.logical_or.reduce([alone == 0, *found.values()])
        return np.where(common & some, tiles.points.cluster, 1)

    def _made_before(self, n: int, tiles: Tiles) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Where a load gives what an earlier one gives at the same time, or what a block keeps."""
        place, found = self.loads[n][0], np.zeros(tiles.rows, dtype=np.bool_)
        once = tiles.kept | (tiles.trip_count(place.indices) == 1)
        for m in self.alike[n]:
            if m < n:
                other = self.loads[m][0]
                found |= same_tiles(other, place, tiles) & (once | (other.group == place.group))
        return found

    @staticmethod
    def _waste(place: LoadSite, bytes_each: int, along: SSAValue | None, tiles: Tiles) -> Floats | float:
        """How many times more is moved because whole sectors are: where a tile has few neighbouring elements."""
        if along is None or not place.indices:
            return 1.0
        whole = tiles.info.extents[along]
        extent = np.maximum(1, np.minimum(tiles.tile[along], whole))  # of a whole one the next row follows
        return np.where(extent == whole, 1.0, np.maximum(1.0, SECTOR / (extent * bytes_each)))

    @staticmethod
    def _from_memory(
        source: SSAValue, size: Floats, reach: frozenset[SSAValue], tiles: Tiles, target: Target, at_once: Ints
    ) -> Floats:
        """Bytes of `source` that come from memory: once if the cache holds it, else once for every wave of blocks, of
        which the next begins with what the last has ended with."""
        whole = np.minimum(size * tiles.blocks, tensor_bytes(source.type))
        if tensor_bytes(source.type) <= target.l2 // 2:
            return whole
        left, different = np.maximum(1.0, at_once), np.ones(tiles.rows)
        for where, count in tiles.order():
            along = np.minimum(count, left)
            left = left / along
            different = np.where(tiles.any_of(where, reach), different * along, different)
        waves = np.maximum(1.0, tiles.blocks / np.maximum(1, at_once))
        again = np.minimum(size * tiles.blocks, waves * different * size / np.maximum(1, tiles.parts))
        return np.maximum(whole, again)


def results_of(tiles: Tiles) -> Floats:
    """Elements of the results that one block gives."""
    return tiles.elements(tiles.info.free) * tiles.trip_count(tiles.info.free)
