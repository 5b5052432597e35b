"""What one block of a nest covers under schedules, and the bytes that its blocks move."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.loop import LoadOp
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.tile.schedule import Schedule
from ...target.model import SECTOR, Target
from ..analysis.nest_schedule import part_indices, shared_indices
from .nest_info import LoadSite, NestInfo
from .points import Bools, Floats, Ints, Points, ceil_div, largest, points_of, product, total


class Tiles:
    """Extents of schedules by index: columns with a row for each schedule.

    tile     extent of a tile
    steps    tiles that one block walks through; 1 on the grid
    counts   blocks along a free index
    on_grid  free indices with blocks along them
    parts    blocks that share a reduction; `divided`: where an index is divided among them
    shares   share of the chunks that a mask leaves, on average; `peak`: work of the busiest block over the average
    kept     true if chunks that several loops read stay in shared memory
    ranks    blocks of a cluster that share rows or sums; `shared`: the indices whose tiles they take in turn
    divides  free indices along which the blocks of a cluster divide a tile of shared sums (`cluster_k`)
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
        masked = info.mask_density.shares(self.tile) if info.groups and info.masked else {}
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
        if points.cluster * points.cluster_k > 1:
            self._form_clusters()
        self.divided: dict[SSAValue, Bools] = {}
        if (self.parts > 1).any():
            self._divide()

    @staticmethod
    def of(info: NestInfo, schedule: Schedule) -> Tiles:
        """Returns the extents of one schedule."""
        return Tiles(info, *points_of([schedule]))

    def _form_clusters(self) -> None:
        info, points = self.info, self.points
        if points.cluster_k > 1:
            self._share(points.cluster_k, ())
            indices = [i for i in info.free if all(i in r.around for r in info.reductions if r.outermost)]
            self.divides = part_indices(indices, info.sizes, self.tile, self.ranks)
        elif points.copy != "tma":
            self._share(points.cluster, [i for i in info.free if i not in info.reduced])

    def _share(self, ranks: int, rest: Sequence[SSAValue]) -> None:
        """Lets blocks of a cluster take the tiles of indices in turn, of reductions and of `rest`."""
        info, self.ranks = self.info, ranks
        groups = [r.indices for r in info.reductions if r.outermost]
        self.shared = shared_indices(groups, rest, info.sizes, self.tile, ranks)
        for i, shared in self.shared.items():
            steps = ceil_div(ceil_div(info.extents[i], self.tile[i]), ranks)
            self.steps[i] = np.where(shared, steps, self.steps[i])
            if i in self.counts:
                self.counts[i] = np.where(shared, 1, self.counts[i])

    def _divide(self) -> None:
        for r in self.info.reductions:
            if r.outermost and r.indices:
                for index, here in self.divisible(r.indices).items():
                    self.divided[index] = here & (self.parts > 1)
                    steps = ceil_div(ceil_div(self.info.extents[index], self.parts), self.tile[index])
                    self.steps[index] = np.where(self.divided[index], steps, self.steps[index])

    def divisible(self, indices: Iterable[SSAValue]) -> dict[SSAValue, Bools]:
        """Returns where each of the `indices` of a reduction is the one that parts divide: the one with most chunks, of
        these the longest, of these the first."""
        extents, order = self.info.extents, [*indices]
        longest = max(extents[i] for i in order) + 1
        weights = np.stack([ceil_div(extents[i], self.tile[i]) * longest + extents[i] for i in order])
        first = np.argmax(weights, axis=0)
        return {index: first == n for n, index in enumerate(order)}

    def order(self) -> list[tuple[dict[SSAValue, Bools], Ints]]:
        """Returns the order in which blocks start, fastest first: where blocks follow along an index, and how many. In
        patches of blocks one index occurs twice."""
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
        """Returns where blocks with consecutive numbers are neighbours along an index, and how many of them there are
        before another index changes (1 for one block)."""
        if not (order := self.order()):
            return {}, np.ones(self.rows, dtype=np.int64)
        (down, group), (along, count) = order[:2]
        return {i: np.where(group > 1, down[i], along[i]) for i in along}, np.where(group > 1, group, count)

    @property
    def blocks(self) -> Ints:
        return product(self.counts.values(), self.rows).astype(np.int64) * self.parts * self.ranks

    def span(self, indices: Collection[SSAValue]) -> Floats:
        """Returns the elements over `indices` that one block goes through, padding included."""
        whole = product((self.tile[i] * self.steps[i] for i in indices), self.rows)
        return whole * self.share(indices) * self._part(indices)

    def within(self, indices: Collection[SSAValue]) -> Floats:
        """Returns the elements over `indices` that one block goes through, without padding."""
        whole = product((self._within(i) for i in indices), self.rows)
        return whole * self.share(indices) * self._part(indices)

    def _part(self, indices: Collection[SSAValue]) -> Floats:
        """Returns the part of the elements of one of the blocks that divide a tile after their sums."""
        after = self.any_of(self.divides, indices) & ~self.any_of(self.shared, indices)
        return np.where(after, 1 / self.ranks, 1.0)

    def _within(self, index: SSAValue) -> Ints:
        extent = self.info.extents[index]
        whole = self.tile[index] * self.steps[index]
        if index not in self.shared:
            return np.minimum(whole, extent)
        return np.minimum(whole, np.where(self.shared[index], ceil_div(extent, self.ranks), extent))

    def share(self, indices: Iterable[SSAValue]) -> Floats:
        """Returns the share of the elements over `indices` that are in executed chunks."""
        return product((self.shares[i] for i in indices if i in self.shares), self.rows)

    def visits(self, indices: Collection[SSAValue]) -> Floats:
        """Returns how many elements over `indices` all blocks go through, without padding: every one once, and again in
        every block along an index that it does not depend on."""
        again = product((n for i, n in self.counts.items() if i not in indices), self.rows)
        again *= np.where(self.any_of(self.shared, indices) | self.any_of(self.divides, indices), 1, self.ranks)
        once = product((self.info.extents[i] for i in indices), self.rows) * self.share(indices)
        whole = self.any_of(self.divided, self.tile) & ~self.any_of(self.divided, indices)
        return once * again * np.where(whole, self.parts, 1)

    def any_of(self, masks: dict[SSAValue, Bools], indices: Collection[SSAValue]) -> Bools:
        """Returns where a mask of one of `indices` is true."""
        where = [mask for i, mask in masks.items() if i in indices]
        return np.logical_or.reduce(where) if where else np.zeros(self.rows, dtype=np.bool_)

    def elements(self, indices: Iterable[SSAValue]) -> Floats:
        return product((self.tile[i] for i in indices), self.rows)

    @property
    def exchanged(self) -> Floats:
        """Bytes of the sums of a block that the others of its cluster read."""
        sums = (r for r in self.info.reductions if r.outermost and self.points.cluster_k > 1)
        return total((self.elements(r.around) * element_bytes(r.op.result.type) for r in sums), self.rows)

    def trip_count(self, indices: Iterable[SSAValue]) -> Floats:
        return product((self.steps[i] for i in indices), self.rows)

    def same(self, a: LoadSite, b: LoadSite) -> Bools:
        """Returns where two sites that are alike load the same tiles, maybe at different times."""
        same = np.ones(self.rows, dtype=np.bool_)
        for i, j in zip(a.indices, b.indices, strict=True):
            if i is not j:
                alone = [self.counts[k] == 1 for k in (i, j) if k in self.counts]
                same &= (self.tile[i] == self.tile[j]) & np.logical_and.reduce([same, *alone])
        return same


@dataclass(frozen=True)
class Traffic:
    """Bytes of a kernel: `block` one block loads, `near` all blocks load, `read` from memory, `written` to memory."""

    block: Floats
    near: Floats
    read: Floats
    written: int


def traffic(tiles: Tiles, target: Target, at_once: Ints, operands: Collection[LoadOp]) -> Traffic:
    """Returns the bytes that `at_once` concurrent blocks move. The blocks of a cluster can share the loads
    `operands`."""
    per_block: dict[SSAValue, Floats] = {}
    near = block = np.zeros(tiles.rows)
    reach: dict[SSAValue, frozenset[SSAValue]] = {}
    for n, site in enumerate(tiles.info.sites):
        source = site.op.source
        element = element_bytes(source.type) * _waste(site, tiles) * ~_loaded_before(n, site, tiles)
        size = tiles.within(site.indices) * element
        together = _together(site, tiles) if site.op in operands and tiles.points.cluster > 1 else 1
        near = near + tiles.visits(site.indices) * element / together
        block = block + size / together
        per_block[source] = per_block.get(source, 0.0) + size
        reach[source] = reach.get(source, frozenset()) | frozenset(site.indices)
    read = np.zeros(tiles.rows)
    for source, size in per_block.items():
        once = np.minimum(size * tiles.blocks, tensor_bytes(source.type))
        cached = tensor_bytes(source.type) <= target.l2 // 2
        read = read + (once if cached else np.maximum(once, _read_again(size, reach[source], tiles, at_once)))
    return Traffic(block, near, read, sum(tensor_bytes(v.type) for v in tiles.info.nest.res))


def _together(site: LoadSite, tiles: Tiles) -> Ints:
    """Returns how many blocks of a cluster need what one of them loads."""
    along, _ = tiles.neighbours()
    return np.where(tiles.any_of(along, along) & ~tiles.any_of(along, site.indices), tiles.points.cluster, 1)


def _loaded_before(n: int, site: LoadSite, tiles: Tiles) -> Bools:
    """Returns where an earlier site loads the same as site `n` at the same time, or keeps it."""
    once = tiles.kept | (tiles.trip_count(site.indices) == 1)
    earlier = [tiles.info.sites[m] for m in site.alike if m < n]
    same = [tiles.same(other, site) & (once | (other.group == site.group)) for other in earlier]
    return np.logical_or.reduce([np.zeros(tiles.rows, dtype=np.bool_), *same])


def _waste(site: LoadSite, tiles: Tiles) -> Floats | float:
    """Returns moved bytes over needed bytes: memory moves whole sectors."""
    along = site.along
    if along is None or not site.indices:
        return 1.0
    whole = tiles.info.extents[along]
    extent = np.maximum(1, np.minimum(tiles.tile[along], whole))  # of a whole one the next row follows
    return np.where(extent == whole, 1.0, np.maximum(1.0, SECTOR / (extent * element_bytes(site.op.source.type))))


def _read_again(size: Floats, reach: frozenset[SSAValue], tiles: Tiles, at_once: Ints) -> Floats:
    """Returns the bytes that are read from memory once a wave of blocks, which read `size` bytes each."""
    left, different = np.maximum(1.0, at_once), np.ones(tiles.rows)
    for where, count in tiles.order():
        along = np.minimum(count, left)
        left = left / along
        different = np.where(tiles.any_of(where, reach), different * along, different)
    waves = np.maximum(1.0, tiles.blocks / np.maximum(1, at_once))
    return np.minimum(size * tiles.blocks, waves * different * size / np.maximum(1, tiles.parts))


def results_of(tiles: Tiles) -> Floats:
    """Returns the elements of the results that one block computes."""
    return tiles.elements(tiles.info.free) * tiles.trip_count(tiles.info.free) / tiles.points.cluster_k
