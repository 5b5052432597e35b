"""The tile extents of a nest while they are being decided."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from xdsl.ir import SSAValue

from ...dialects.tile.schedule import Schedule
from .nest_info import NestInfo, pow2_at_least, pow2_at_most

MAX_WARPS = 32


class TileExtents:
    """A tile extent for every index of a nest, 1 until decided, and what follows from all of them."""

    def __init__(self, info: NestInfo) -> None:
        self.info = info
        self.tile: dict[SSAValue, int] = dict.fromkeys(info.extents, 1)
        self.decided: set[SSAValue] = set()

    def set(self, index: SSAValue, extent: int) -> int:
        """Decide on `extent`, or on the range where that is less; returns what is left of `extent` for others."""
        self.tile[index] = min(pow2_at_most(extent), pow2_at_least(self.info.extents[index]))
        self.decided.add(index)
        return max(1, extent // self.tile[index])

    def pad(self, index: SSAValue, extent: int) -> None:
        """Decide on `extent`, a power of two, even where it is more than the range: the rest of a tile is padding."""
        self.tile[index] = extent
        self.decided.add(index)

    def fill(self, indices: Iterable[SSAValue], budget: int) -> int:
        """Decide on indices, in this order, so that a tile over them has at most `budget` elements; returns what is
        left."""
        for index in indices:
            budget = self.set(index, budget)
        return budget

    def elements(self, indices: Iterable[SSAValue]) -> int:
        """Elements of a tile over `indices`."""
        return prod(self.tile[i] for i in indices)

    def blocks(self) -> int:
        """How many tiles the free indices have."""
        return prod(-(-self.info.extents[i] // self.tile[i]) for i in self.info.free)

    def chunk_reductions(self, budget: int) -> None:
        """Decide on the reduction indices that are still open: tiles of at most `budget` elements, and the index along
        which memory is contiguous first. Reductions that run together get the same."""
        for around, axes in self.info.chunk_order:
            if not self.decided.issuperset(i for axis in axes for i in axis):
                room = max(1, budget // max(self.elements(indices) for indices in around))
                for axis in axes:
                    left = [self.set(index, room) for index in axis]
                    room = left[0]

    def plan(self, warps: int, **decisions: Any) -> Schedule:
        """The schedule with these extents, warps and further decisions."""
        info = self.info
        return Schedule(
            block=tuple(self.tile[i] for i in info.free),
            chunk=tuple(self.tile[i] for i in info.reduction_indices),
            warps=max(1, min(MAX_WARPS, pow2_at_most(warps))),
            **decisions,
        )
