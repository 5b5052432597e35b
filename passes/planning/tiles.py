"""What one block of a nest covers under each of some schedules: how much of every index, in how many steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.payload import element_bytes
from ...dialects.tile.schedule import Schedule
from ..analysis.cluster_rows import part_indices, shared_indices
from .nest_info import LoadSite, NestInfo
from .points import Bools, Floats, Ints, Points, ceil_div, largest, points_of, product, total


class Tiles:
    """The extents of schedules, by index, each a column with a row for each schedule.

    tile    extent of a tile along an index
    steps   how many tiles one block walks through along it: 1 for what is on the grid
    counts  of the free indices: how many blocks stand along it
    parts   into how many parts blocks divide the reduction
    shares  of the reduction indices of which a mask excludes chunks: which share of them is executed, on average
    peak    how many times as much as the average the block with most work executes of these
    on_grid the free indices that blocks stand along
    kept    whether chunks that several loops read stay in shared memory
    ranks   how many blocks share rows or sums; `shared`: the indices whose tiles they take in turn
    divides the free indices along which blocks divide a tile of which they share the sums (`cluster_k`)
    divided where an index is divided by `parts`
    """

    def __init__(self, info: NestInfo, points: Points) -> None:
        self.info = info
        self.points = points
        self.rows = len(points)
        self.parts = points.split_k
        self.kept = points.cache_rows == "shared"
        self.tile: dict[SSAValue, Ints] = {index: points.block[:, n] for n, index in enumerate(info.free)}
        self.tile.update((index, points.chunk[:, n]) for n, index in enumerate(info.reduction_indices))
        self.steps: dict[SSAValue, Ints] = {i: ceil_div(n, self.tile[i]) for i, n in info.extents.items()}
        masked = info.mask_density.shares(self.tile) if info.groups else {}
        self.shares = {index: mean for index, (mean, _) in masked.items()}
        self.peak = largest((most / np.maximum(mean, 1e-9) for mean, most in masked.values()), self.rows)
        self.peak = np.maximum(self.peak, 1.0)
        self.counts: dict[SSAValue, Ints] = {}
        one = np.ones(self.rows, dtype=np.int64)
        self.on_grid = [i for position, i in enumerate(info.free) if position not in points.serial]
        for index in info.free:
            on_grid = index in self.on_grid
            self.counts[index] = self.steps[index] if on_grid else one
            if on_grid:
                self.steps[index] = one
        self.ranks, self.shared, self.divides = 1, dict[SSAValue, Bools](), dict[SSAValue, Bools]()
        if points.cluster_k > 1:
            self._share(points.cluster_k, ())
            indices = [i for i in info.free if all(i in r.around for r in info.reductions if r.outermost)]
            self.divides = part_indices(indices, info.sizes, self.tile, self.ranks)
        elif points.cluster > 1 and points.copy != "tma":
            self._share(points.cluster, [i for i in info.free if i not in info.reduced])
        self.divided: dict[SSAValue, Bools] = {}
        if (self.parts > 1).any():
            self._divide()

    @staticmethod
    def of(info: NestInfo, plan: Schedule) -> Tiles:
        """The extents of one schedule."""
        (points,) = points_of([plan])
        return Tiles(info, points)

    def _share(self, ranks: int, rest: Sequence[SSAValue]) -> None:
        """Let blocks of a cluster take the tiles of some indices in turn, of reductions and of `rest`."""
        info, self.ranks = self.info, ranks
        groups = [r.indices for r in info.reductions if r.outermost]
        self.shared = shared_indices(groups, rest, info.sizes, self.tile, ranks)
        for i, shared in self.shared.items():
            steps = ceil_div(ceil_div(info.extents[i], self.tile[i]), ranks)
            self.steps[i] = np.where(shared, steps, self.steps[i])
            if i in self.counts:
                self.counts[i] = np.where(shared, 1, self.counts[i])

    def _divide(self) -> None:
        """Give each part its share of the outermost reductions."""
        for r in self.info.reductions:
            if r.outermost and r.indices:
                for index, here in self.divisible(r.indices).items():
                    self.divided[index] = here & (self.parts > 1)
                    steps = ceil_div(ceil_div(self.info.extents[index], self.parts), self.tile[index])
                    self.steps[index] = np.where(self.divided[index], steps, self.steps[index])

    def divisible(self, indices: Iterable[SSAValue]) -> dict[SSAValue, Bools]:
        """Where each of `indices` of a reduction is the one that parts divide: the one with most chunks, of these the
        longest, of these the first."""
        extents, order = self.info.extents, [*indices]
        longest = max(extents[i] for i in order) + 1
        weights = np.stack([ceil_div(extents[i], self.tile[i]) * longest + extents[i] for i in order])
        first = np.argmax(weights, axis=0)
        return {index: first == n for n, index in enumerate(order)}

    def order(self) -> list[tuple[dict[SSAValue, Bools], Ints]]:
        """In which order blocks are started, the fastest first: where an index is the one that they stand along, and
        how many blocks follow along it; one index twice where they are in patches."""
        fast = [*reversed(self.info.free)]
        if not fast:
            return []
        counts = np.stack([self.counts[i] for i in fast])
        several = counts != 1
        first = np.argmax(several, axis=0)
        behind = several & (np.arange(len(fast))[:, None] != first)
        second, every = np.argmax(behind, axis=0), np.arange(self.rows)
        down, group = counts[second, every], self.points.group_m
        patched = behind.any(axis=0) & (group > 1) & (down % group == 0)
        is_first = {i: (first == n) & several[n] for n, i in enumerate(fast)}
        is_second = {i: (second == n) & behind[n] for n, i in enumerate(fast)}
        return [
            (is_second, np.where(patched, group, 1)),
            (is_first, counts[first, every]),
            (is_second, np.where(patched, down // group, down)),
            *(
                ({i: np.ones(self.rows, dtype=np.bool_)}, np.where(is_first[i] | is_second[i], 1, counts[n]))
                for n, i in enumerate(fast)
            ),
        ]

    def neighbours(self) -> tuple[dict[SSAValue, Bools], Ints]:
        """Where each index is the one along which blocks with consecutive numbers stand next to each other, and how
        many do before another index changes (1 where all is on one block)."""
        if not (order := self.order()):
            return {}, np.ones(self.rows, dtype=np.int64)
        (down, group), (along, count) = order[:2]
        return {i: np.where(group > 1, down[i], along[i]) for i in along}, np.where(group > 1, group, count)

    @property
    def blocks(self) -> Ints:
        """Blocks of the grid."""
        return product(self.counts.values(), self.rows).astype(np.int64) * self.parts * self.ranks

    def span(self, indices: Collection[SSAValue]) -> Floats:
        """Elements over `indices` that one block goes through, padding included."""
        whole = product((self.tile[i] * self.steps[i] for i in indices), self.rows)
        return whole * self.share(indices) * self._part(indices)

    def within(self, indices: Collection[SSAValue]) -> Floats:
        """Elements over `indices` that one block goes through, without padding."""
        whole = product((self._within(i) for i in indices), self.rows)
        return whole * self.share(indices) * self._part(indices)

    def _part(self, indices: Collection[SSAValue]) -> Floats:
        """The part of the elements over `indices` that one of the blocks has which divide a tile behind their sums."""
        after = self.any_of(self.divides, indices) & ~self.any_of(self.shared, indices)
        return np.where(after, 1 / self.ranks, 1.0)

    def _within(self, index: SSAValue) -> Ints:
        extent = self.info.extents[index]
        whole = self.tile[index] * self.steps[index]
        if index not in self.shared:
            return np.minimum(whole, extent)
        return np.minimum(whole, np.where(self.shared[index], ceil_div(extent, self.ranks), extent))

    def share(self, indices: Iterable[SSAValue]) -> Floats:
        """The share of the elements over `indices` that are in chunks that are executed."""
        return product((self.shares[i] for i in indices if i in self.shares), self.rows)

    def visits(self, indices: Collection[SSAValue]) -> Floats:
        """How often all blocks together go through an element over `indices`, without padding: each once, and again in
        every block along what it does not depend on."""
        again = product((n for i, n in self.counts.items() if i not in indices), self.rows)
        again *= np.where(self.any_of(self.shared, indices) | self.any_of(self.divides, indices), 1, self.ranks)
        once = product((self.info.extents[i] for i in indices), self.rows) * self.share(indices)
        whole = self.any_of(self.divided, self.tile) & ~self.any_of(self.divided, indices)
        return once * again * np.where(whole, self.parts, 1)

    def any_of(self, found: dict[SSAValue, Bools], indices: Collection[SSAValue]) -> Bools:
        """Where `found` holds for one of `indices`."""
        none = np.zeros(self.rows, dtype=np.bool_)
        return np.logical_or.reduce([none, *(here for i, here in found.items() if i in indices)])

    def elements(self, indices: Iterable[SSAValue]) -> Floats:
        """Elements of one tile over `indices`."""
        return product((self.tile[i] for i in indices), self.rows)

    @property
    def exchanged(self) -> Floats:
        """Bytes of the sums that a block has for the others of its cluster."""
        sums = (r for r in self.info.reductions if r.outermost and self.points.cluster_k > 1)
        return total((self.elements(r.around) * element_bytes(r.op.result.type) for r in sums), self.rows)

    def trip_count(self, indices: Iterable[SSAValue]) -> Floats:
        """Tiles over `indices` that one block walks through."""
        return product((self.steps[i] for i in indices), self.rows)

    def same(self, a: LoadSite, b: LoadSite) -> Bools:
        """Where two loads that are alike give the same tiles, maybe at different times."""
        found = np.ones(self.rows, dtype=np.bool_)
        for i, j in zip(a.indices, b.indices, strict=True):
            if i is not j:
                alone = [self.counts[k] == 1 for k in (i, j) if k in self.counts]
                found &= (self.tile[i] == self.tile[j]) & np.logical_and.reduce([found, *alone])
        return found
