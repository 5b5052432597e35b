"""Extents of tiles, trip counts and grids of many schedules of a nest, and the bytes that its blocks move.

All numbers are arrays with one entry for each schedule. A *mask* is such an array of booleans.
"""

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
    """Tile extents and trip counts of schedules. Dictionaries are keyed by index of the nest.

    info     the nest
    points   the schedules
    rows     number of schedules
    tile     tile extent along an index
    steps    tiles that one block loops over; 1 for an index on the grid
    counts   blocks along a free index
    on_grid  free indices that are not serial
    parts    parts of a split-K reduction
    divided  mask: the index is divided by split-K
    shares   share of the chunks that masks leave to execute, on average over blocks
    peak     work of the busiest block / average work, because of masks
    kept     true if rows stay in a row cache (`cache_rows = shared`)
    ranks    blocks of a cluster that share a reduction (`cluster`, `cluster_k`); 1 without
    shared   mask: the blocks of a cluster take the tiles of the index in turn
    divides  mask: the blocks of a cluster divide the result tile along the free index (`cluster_k`)
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
        """Returns the tiles of a single schedule."""
        return Tiles(info, *points_of([schedule]))

    def _form_clusters(self) -> None:
        """Sets `ranks`, `shared` and `divides`."""
        info, points = self.info, self.points
        if points.cluster_k > 1:
            self._share(points.cluster_k, ())
            indices = [i for i in info.free if all(i in r.outer_indices for r in info.reductions if r.outermost)]
            self.divides = part_indices(indices, info.sizes, self.tile, self.ranks)
        elif points.copy != "tma":
            self._share(points.cluster, [i for i in info.free if i not in info.reduced])

    def _share(self, ranks: int, others: Sequence[SSAValue]) -> None:
        """Divides trip counts of reduction indices, and of the indices `others`, among `ranks` blocks of a cluster."""
        info, self.ranks = self.info, ranks
        groups = [r.indices for r in info.reductions if r.outermost]
        self.shared = shared_indices(groups, others, info.sizes, self.tile, ranks)
        for i, shared in self.shared.items():
            steps = ceil_div(ceil_div(info.extents[i], self.tile[i]), ranks)
            self.steps[i] = np.where(shared, steps, self.steps[i])
            if i in self.counts:
                self.counts[i] = np.where(shared, 1, self.counts[i])

    def _divide(self) -> None:
        """Divides the trip counts of outermost reductions by split-K."""
        for r in self.info.reductions:
            if r.outermost and r.indices:
                for index, here in self.divisible(r.indices).items():
                    self.divided[index] = here & (self.parts > 1)
                    steps = ceil_div(ceil_div(self.info.extents[index], self.parts), self.tile[index])
                    self.steps[index] = np.where(self.divided[index], steps, self.steps[index])

    def divisible(self, indices: Iterable[SSAValue]) -> dict[SSAValue, Bools]:
        """Returns for each index of a reduction a mask of the schedules in which split-K divides it.

        Split-K divides the index with most chunks; of several, the longest; of several, the first.
        """
        extents, order = self.info.extents, [*indices]
        longest = max(extents[i] for i in order) + 1
        weights = np.stack([ceil_div(extents[i], self.tile[i]) * longest + extents[i] for i in order])
        first = np.argmax(weights, axis=0)
        return {index: first == n for n, index in enumerate(order)}

    def order(self) -> list[tuple[dict[SSAValue, Bools], Ints]]:
        """Returns the order in which blocks start, as a loop nest over the grid, innermost loop first.

        Each entry is a loop: (index -> mask of the schedules in which the loop runs over this index, iterations). With
        a grid swizzle (`group_m`), two loops run over the index of the rows: one inside a group of blocks, and one
        over the groups.
        """
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
        """Returns the index along which blocks with consecutive numbers are neighbours, and the length of such a run.

        Returns:
            Index -> mask of the schedules, and the number of blocks before another index changes (1 for one block).
        """
        if not (order := self.order()):
            return {}, np.ones(self.rows, dtype=np.int64)
        (down, group), (along, count) = order[:2]
        return {i: np.where(group > 1, down[i], along[i]) for i in along}, np.where(group > 1, group, count)

    @property
    def blocks(self) -> Ints:
        """Blocks of the grid."""
        return product(self.counts.values(), self.rows).astype(np.int64) * self.parts * self.ranks

    def span(self, indices: Collection[SSAValue]) -> Floats:
        """Returns the elements over `indices` that one block computes, padding included."""
        whole = product((self.tile[i] * self.steps[i] for i in indices), self.rows)
        return whole * self.share(indices) * self._part(indices)

    def within(self, indices: Collection[SSAValue]) -> Floats:
        """Returns the elements over `indices` that one block computes, without padding."""
        whole = product((self._within(i) for i in indices), self.rows)
        return whole * self.share(indices) * self._part(indices)

    def _part(self, indices: Collection[SSAValue]) -> Floats:
        """Returns the share of a result tile that one block of a cluster computes after the reduction (`cluster_k`)."""
        after = self.any_of(self.divides, indices) & ~self.any_of(self.shared, indices)
        return np.where(after, 1 / self.ranks, 1.0)

    def _within(self, index: SSAValue) -> Ints:
        """Returns the values of an index that one block visits, without padding."""
        extent = self.info.extents[index]
        whole = self.tile[index] * self.steps[index]
        if index not in self.shared:
            return np.minimum(whole, extent)
        return np.minimum(whole, np.where(self.shared[index], ceil_div(extent, self.ranks), extent))

    def share(self, indices: Iterable[SSAValue]) -> Floats:
        """Returns the share of the elements over `indices` whose chunks are executed (masks exclude the others)."""
        return product((self.shares[i] for i in indices if i in self.shares), self.rows)

    def visits(self, indices: Collection[SSAValue]) -> Floats:
        """Returns the elements over `indices` that all blocks compute together, without padding.

        An element is computed again by every block along a grid index that is not in `indices`.
        """
        repeats = product((n for i, n in self.counts.items() if i not in indices), self.rows)
        repeats *= np.where(self.any_of(self.shared, indices) | self.any_of(self.divides, indices), 1, self.ranks)
        once = product((self.info.extents[i] for i in indices), self.rows) * self.share(indices)
        whole = self.any_of(self.divided, self.tile) & ~self.any_of(self.divided, indices)
        return once * repeats * np.where(whole, self.parts, 1)

    def any_of(self, masks: dict[SSAValue, Bools], indices: Collection[SSAValue]) -> Bools:
        """Returns the union of the masks of `indices`. An index that is not in `masks` has an empty mask."""
        some = [mask for i, mask in masks.items() if i in indices]
        return np.logical_or.reduce(some) if some else np.zeros(self.rows, dtype=np.bool_)

    def elements(self, indices: Iterable[SSAValue]) -> Floats:
        """Returns the number of elements of one tile over `indices`, padding included."""
        return product((self.tile[i] for i in indices), self.rows)

    @property
    def exchanged(self) -> Floats:
        """Bytes of accumulators that a block exchanges with the other blocks of its cluster (`cluster_k`)."""
        sums = (r for r in self.info.reductions if r.outermost and self.points.cluster_k > 1)
        return total((self.elements(r.outer_indices) * element_bytes(r.op.result.type) for r in sums), self.rows)

    def trip_count(self, indices: Iterable[SSAValue]) -> Floats:
        """Returns the iterations of the loops over `indices` in one block."""
        return product((self.steps[i] for i in indices), self.rows)

    def same(self, a: LoadSite, b: LoadSite) -> Bools:
        """Returns a mask of the schedules in which two loads (`LoadSite.similar`) load the same tiles.

        They may load them in different loops.
        """
        same = np.ones(self.rows, dtype=np.bool_)
        for i, j in zip(a.indices, b.indices, strict=True):
            if i is not j:
                alone = [self.counts[k] == 1 for k in (i, j) if k in self.counts]
                same &= (self.tile[i] == self.tile[j]) & np.logical_and.reduce([same, *alone])
        return same


@dataclass(frozen=True)
class Traffic:
    """Bytes that a kernel moves.

    block    bytes that one block loads
    near     bytes that all blocks load, from L2 or memory
    read     bytes from device memory
    written  bytes to device memory
    """

    block: Floats
    near: Floats
    read: Floats
    written: int


def traffic(tiles: Tiles, target: Target, at_once: Ints, operands: Collection[LoadOp]) -> Traffic:
    """Returns the bytes that a kernel moves.

    A tensor that fits in half of L2 is read from memory once. A larger one is read again in every wave of blocks.

    Args:
        tiles: the schedules.
        target: the target.
        at_once: blocks that run at the same time.
        operands: loads that the blocks of a cluster can share by multicast.
    """
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
    """Returns the number of blocks of a cluster that need the same tile of a load."""
    along, _ = tiles.neighbours()
    return np.where(tiles.any_of(along, along) & ~tiles.any_of(along, site.indices), tiles.points.cluster, 1)


def _loaded_before(n: int, site: LoadSite, tiles: Tiles) -> Bools:
    """Returns a mask of the schedules in which load number `n` needs no bytes, because an earlier load has the tile.

    The earlier load is in the same loop, or its tile stays in registers or in the row cache.
    """
    once = tiles.kept | (tiles.trip_count(site.indices) == 1)
    earlier = [tiles.info.sites[m] for m in site.similar if m < n]
    same = [tiles.same(other, site) & (once | (other.group == site.group)) for other in earlier]
    return np.logical_or.reduce([np.zeros(tiles.rows, dtype=np.bool_), *same])


def _waste(site: LoadSite, tiles: Tiles) -> Floats | float:
    """Returns moved bytes / needed bytes of a load. Memory moves whole sectors of 32 bytes."""
    along = site.along
    if along is None or not site.indices:
        return 1.0
    whole = tiles.info.extents[along]
    # A tile that has whole rows wastes nothing, because the next row follows in memory.
    extent = np.maximum(1, np.minimum(tiles.tile[along], whole))
    return np.where(extent == whole, 1.0, np.maximum(1.0, SECTOR / (extent * element_bytes(site.op.source.type))))


def _read_again(size: Floats, reach: frozenset[SSAValue], tiles: Tiles, at_once: Ints) -> Floats:
    """Returns the bytes of a tensor that are read from memory, if each wave of blocks reads its distinct tiles again.

    Args:
        size: bytes of the tensor that one block reads.
        reach: indices that the loads of the tensor depend on.
        tiles: the schedules.
        at_once: blocks of a wave.
    """
    remaining, different = np.maximum(1.0, at_once), np.ones(tiles.rows)
    for masks, count in tiles.order():
        along = np.minimum(count, remaining)
        remaining = remaining / along
        different = np.where(tiles.any_of(masks, reach), different * along, different)
    waves = np.maximum(1.0, tiles.blocks / np.maximum(1, at_once))
    return np.minimum(size * tiles.blocks, waves * different * size / np.maximum(1, tiles.parts))


def results_of(tiles: Tiles) -> Floats:
    """Returns the elements of the results that one block computes."""
    return tiles.elements(tiles.info.free) * tiles.trip_count(tiles.info.free) / tiles.points.cluster_k
