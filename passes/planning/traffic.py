"""Bytes that move under a schedule: between a block and the level-2 cache, and to and from device memory."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from ...dialects.loop import LoadOp
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.target import Target
from .clusters import neighbours
from .nest_info import NestInfo, contiguous_index
from .smem_reuse import LoadSite, load_sites, same_tiles
from .tiles import Tiles

SECTOR = 32
"""Bytes that memory moves at least."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of a kernel: `block` that one block loads, `near` that all load, `read` from memory and `written` to it."""

    block: float
    near: float
    read: float
    written: float


@dataclass(frozen=True)
class _Load:
    place: LoadSite
    size: int
    along: SSAValue | None

    @property
    def indices(self) -> tuple[SSAValue, ...]:
        return self.place.indices


class Loads:
    """The loads of a nest, looked at once for all schedules of it."""

    def __init__(self, info: NestInfo, factors: Collection[LoadOp] = ()) -> None:
        """`factors` are the loads that blocks of a cluster can make together."""
        self.info = info
        self.factors = set(factors)
        self.loads = [
            _Load(place, element_bytes(place.op.source.type), contiguous_index(place.op)) for place in load_sites(info)
        ]
        self.written = sum(tensor_bytes(v.type) for v in info.nest.res)

    def traffic(self, tiles: Tiles, target: Target, at_once: int) -> Traffic:
        """The bytes that move where `at_once` blocks run at the same time."""
        per_block: dict[SSAValue, float] = {}
        near = block = 0.0
        reach: dict[SSAValue, frozenset[SSAValue]] = {}
        seen: set[Hashable] = set()
        for load in self.loads:
            key = self._key(load, tiles)
            if key in seen:
                continue
            seen.add(key)
            source = load.place.op.source
            element = load.size * self._waste(load, tiles)
            size = tiles.within(load.indices) * element
            together = self._together(load, tiles)
            near += tiles.visits(load.indices) * element / together
            block += size / together
            per_block[source] = per_block.get(source, 0.0) + size
            reach[source] = reach.get(source, frozenset()) | frozenset(load.indices)
        read = sum(
            self._from_memory(source, size, reach[source], tiles, target, at_once) for source, size in per_block.items()
        )
        return Traffic(block, near, read, self.written)

    def _together(self, load: _Load, tiles: Tiles) -> int:
        """How many blocks have what one of them loads: those of a cluster that have it in common."""
        if tiles.cluster == 1 or load.place.op not in self.factors:
            return 1
        found = neighbours(tiles)
        return tiles.cluster if found is not None and found[0] not in load.indices else 1

    @staticmethod
    def _key(load: _Load, tiles: Tiles) -> Hashable:
        """Equal for loads that give the same tiles at the same time, or that keep them: then only one is made."""
        once = tiles.kept or tiles.trip_count(load.indices) == 1
        return same_tiles(load.place, tiles), -2 if once else load.place.group

    @staticmethod
    def _waste(load: _Load, tiles: Tiles) -> float:
        """How many times more is moved because whole sectors are: where a tile has few neighbouring elements."""
        if load.along is None or not load.indices:
            return 1.0
        extent = min(tiles.tile[load.along], tiles.info.extents[load.along])
        if extent == tiles.info.extents[load.along]:
            return 1.0  # then the next row follows
        return max(1.0, SECTOR / (extent * load.size))

    @staticmethod
    def _from_memory(
        source: SSAValue, size: float, reach: frozenset[SSAValue], tiles: Tiles, target: Target, at_once: int
    ) -> float:
        """Bytes of `source` that come from memory: once if the cache holds it, else once for every wave of blocks, of
        which the next begins with what the last has ended with."""
        whole = min(size * tiles.blocks, tensor_bytes(source.type))
        if tensor_bytes(source.type) <= target.l2 // 2:
            return whole
        left, different = float(max(1, at_once)), 1.0
        for index, count in tiles.order():
            along = min(float(count), left)
            left /= along
            if index in reach:
                different *= along
        waves = max(1.0, tiles.blocks / max(1, at_once))
        return max(whole, min(size * tiles.blocks, waves * different * size / max(1, tiles.parts)))


def results_of(tiles: Tiles) -> int:
    """Elements of the results that one block gives."""
    return prod(tiles.tile[i] * tiles.steps[i] for i in tiles.info.free)
