"""Bytes that move under a schedule: between a block and the level-2 cache, and to and from device memory."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from ...backend.targets import Target
from ...dialects import loop
from ...dialects.payload import element_bytes, tensor_bytes
from ..tiling.dependence import access_indices
from .facts import Facts, contiguous_index
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
    op: loop.LoadOp
    indices: tuple[SSAValue, ...]
    size: int
    along: SSAValue | None
    place: int
    """Number of the group of reductions that it stands in."""


class Loads:
    """The loads of a nest, looked at once for all schedules of it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        places = {op: n for n, group in enumerate(facts.groups) for op in group}
        self.loads = [
            _Load(op, access_indices(op), element_bytes(op.source.type), contiguous_index(op), self._place(op, places))
            for op in facts.loads
        ]
        self.written = sum(tensor_bytes(v.type) for v in facts.nest.res)

    @staticmethod
    def _place(op: loop.LoadOp, places: dict[loop.ReduceOp, int]) -> int:
        """The group of the outermost reduction around a load: its stages load the same once."""
        found, parent = -1, op.parent_op()
        while parent is not None:
            if isinstance(parent, loop.ReduceOp):
                found = places.get(parent, -1)
            parent = parent.parent_op()
        return found

    def traffic(self, tiles: Tiles, target: Target, at_once: int) -> Traffic:
        """The bytes that move where `at_once` blocks run at the same time."""
        per_block: dict[SSAValue, float] = {}
        near = 0.0
        reach: dict[SSAValue, frozenset[SSAValue]] = {}
        seen: set[Hashable] = set()
        for load in self.loads:
            key = self._key(load, tiles)
            if key in seen:
                continue
            seen.add(key)
            source = load.op.source
            element = load.size * self._waste(load, tiles)
            size = tiles.within(load.indices) * element
            near += tiles.visits(load.indices) * element
            per_block[source] = per_block.get(source, 0.0) + size
            reach[source] = reach.get(source, frozenset()) | frozenset(load.indices)
        read = sum(
            self._from_memory(source, size, reach[source], tiles, target, at_once) for source, size in per_block.items()
        )
        block = sum(per_block.values())
        return Traffic(block, near, read, self.written)

    def _key(self, load: _Load, tiles: Tiles) -> Hashable:
        """Equal for loads that give the same tile at the same time: then only one is made."""
        free = [tiles.counts.get(i) for i in load.indices]
        along = tuple((self.facts.extents[i], tiles.tile[i]) for i in load.indices)
        place = -2 if tiles.walked(load.indices) == 1 else load.place
        grid = tuple(i if n not in (None, 1) else None for i, n in zip(load.indices, free, strict=True))
        return load.op.source, load.op.map, along, grid, place

    @staticmethod
    def _waste(load: _Load, tiles: Tiles) -> float:
        """How many times more is moved because whole sectors are: where a tile has few neighbouring elements."""
        if load.along is None or not load.indices:
            return 1.0
        extent = min(tiles.tile[load.along], tiles.facts.extents[load.along])
        if extent == tiles.facts.extents[load.along]:
            return 1.0  # then the next row follows
        return max(1.0, SECTOR / (extent * load.size))

    @staticmethod
    def _from_memory(
        source: SSAValue, size: float, reach: frozenset[SSAValue], tiles: Tiles, target: Target, at_once: int
    ) -> float:
        """Bytes of `source` that come from memory: once if the cache holds it, else once for every wave of blocks."""
        whole = min(size * tiles.blocks, tensor_bytes(source.type))
        if tensor_bytes(source.type) <= target.l2 // 2:
            return whole
        left, different = at_once, 1
        for index in reversed(tiles.facts.free):
            along = min(tiles.counts[index], left)
            left = -(-left // max(1, along))
            if index in reach:
                different *= along
        waves = -(-tiles.blocks // max(1, at_once))
        return max(whole, min(size * tiles.blocks, waves * different * size / max(1, tiles.parts)))


def results_of(tiles: Tiles) -> int:
    """Elements of the results that one block gives."""
    return prod(tiles.tile[i] * tiles.steps[i] for i in tiles.facts.free)
