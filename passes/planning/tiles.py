"""What one block of a nest covers under a schedule: how much of every index, in how many steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from xdsl.ir import SSAValue

from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.cluster_rows import Shared, shared_indices, shares_rows
from .nest_info import NestInfo


class Tiles:
    """The extents of a schedule, by index.

    tile    extent of a tile along an index
    steps   how many tiles one block walks through along it: 1 for what is on the grid
    counts  of the free indices: how many blocks stand along it
    parts   into how many parts blocks divide the reduction
    shares  of the reduction indices of which a mask excludes chunks: which share of them is executed, on average
    on_grid the free indices that blocks stand along
    cluster, group  as the schedule has them
    kept    whether chunks that several loops read stay in shared memory
    shared  the indices that the blocks of a cluster share

    Raises ScheduleError if the blocks of a cluster have nothing to share.
    """

    def __init__(self, info: NestInfo, schedule: ScheduleAttr) -> None:
        self.info = info
        self.parts = schedule.split_k.data
        self.kept = schedule.cache_rows.data == "shared"
        serial = {s.data for s in schedule.serial}
        self.tile: dict[SSAValue, int] = dict(zip(info.free, (b.data for b in schedule.block), strict=True))
        self.tile.update(zip(info.reduction_indices, (c.data for c in schedule.chunk), strict=True))
        self.steps = {i: -(-n // self.tile[i]) for i, n in info.extents.items()}
        self.shares = info.mask_density.shares(self.tile)
        self.cluster, self.group = schedule.cluster.data, schedule.group_m.data
        self.counts: dict[SSAValue, int] = {}
        self.on_grid = [i for position, i in enumerate(info.free) if position not in serial]
        for position, index in enumerate(info.free):
            self.counts[index] = 1 if position in serial else self.steps[index]
            if position not in serial:
                self.steps[index] = 1
        self.shared = Shared()
        if shares_rows(schedule):
            groups = [r.indices for r in info.reductions if r.outermost]
            rest = [i for i in info.free if i not in info.reduced]
            self.shared = shared_indices(groups, rest, info.sizes, self.tile, schedule.cluster.data)
            for i in self.shared.indices:
                self.steps[i] = self.shared.steps(i, -(-info.extents[i] // self.tile[i]))
                self.counts[i] = 1
        self.divided: set[SSAValue] = set()
        if self.parts > 1:
            self._divide()

    def _divide(self) -> None:
        """Give each part its share of the outermost reductions."""
        for r in self.info.reductions:
            if r.outermost:
                index = self.divisible(r.indices)
                self.divided.add(index)
                length = -(-self.info.extents[index] // self.parts)
                self.steps[index] = -(-length // self.tile[index])

    def divisible(self, indices: Iterable[SSAValue]) -> SSAValue:
        """The one of `indices` of a reduction that parts divide: the one with most chunks, of these the longest."""
        extents = self.info.extents
        return max(indices, key=lambda i: (-(-extents[i] // self.tile[i]), extents[i]))

    def order(self) -> list[tuple[SSAValue, int]]:
        """In which order blocks are started: the indices that they stand along, the fastest first, and how many blocks
        follow along it; one twice where they are in patches."""
        found = [(i, self.counts[i]) for i in reversed(self.info.free) if self.counts[i] != 1]
        if self.group > 1 and len(found) > 1 and found[1][1] % self.group == 0:
            across, (down, count), *outer = found
            return [(down, self.group), across, (down, count // self.group), *outer]
        return found

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return prod(self.counts.values()) * self.parts * self.shared.ranks

    def span(self, indices: Collection[SSAValue]) -> float:
        """Elements over `indices` that one block goes through, padding included."""
        return prod(self.tile[i] * self.steps[i] for i in indices) * self.share(indices)

    def within(self, indices: Collection[SSAValue]) -> float:
        """Elements over `indices` that one block goes through, without padding."""
        extents = {i: self.shared.steps(i, self.info.extents[i]) for i in indices}
        return prod(min(self.tile[i] * self.steps[i], n) for i, n in extents.items()) * self.share(indices)

    def share(self, indices: Iterable[SSAValue]) -> float:
        """The share of the elements over `indices` that are in chunks that are executed."""
        return prod(self.shares.get(i, 1.0) for i in indices)

    def visits(self, indices: Collection[SSAValue]) -> float:
        """How often all blocks together go through an element over `indices`, without padding: each once, and again in
        every block along what it does not depend on."""
        again = prod(n for i, n in self.counts.items() if i not in indices)
        again *= 1 if self.shared.indices & {*indices} else self.shared.ranks
        divided = not self.divided or not self.divided.isdisjoint(indices)
        once = prod(self.info.extents[i] for i in indices) * self.share(indices)
        return once * again * (1 if divided else self.parts)

    def elements(self, indices: Iterable[SSAValue]) -> int:
        """Elements of one tile over `indices`."""
        return prod(self.tile[i] for i in indices)

    def trip_count(self, indices: Iterable[SSAValue]) -> int:
        """Tiles over `indices` that one block walks through."""
        return prod(self.steps[i] for i in indices)
