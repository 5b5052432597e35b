"""Properties of one nest that planning needs (`NestInfo`), and a builder of its tile extents (`TileExtents`).

A *free* index is a dimension of the result, a *reduction* index belongs to a `loop.reduce`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from ...dialects import loop, payload
from ...dialects.loop.dependence import (
    Contraction,
    Dependence,
    Indices,
    access_indices,
    contiguous_index,
    find_contraction,
    yielded,
)
from ...dialects.loop.work import Counted, nest_operations
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.shapes.affine import DIM, Form, number_of
from ...dialects.shapes.extents import Extent, extents_of, most, typical
from ...dialects.support.locations import ancestors
from ...dialects.tile.schedule import Schedule
from ..analysis.integer_forms import Forms
from ..analysis.masks import half_spaces, hypercube
from ..analysis.nest_schedule import reduction_groups
from .points import Floats, Ints

MAX_WARPS = 32
"""Maximum number of warps of a block: 1,024 threads (CUDA)."""


def pow2_at_least(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def pow2_at_most(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


@dataclass(frozen=True)
class Reduction:
    """Properties of a `loop.reduce` of a nest.

    op             the operation
    indices        its reduction indices
    outer_indices  free indices, and indices of enclosing reductions, that its body depends on
    outermost      true if it is not inside another reduction
    contraction    its operands, if it is a contraction; else None
    """

    op: loop.ReduceOp
    indices: tuple[SSAValue, ...]
    outer_indices: Indices
    outermost: bool
    contraction: Contraction | None


@dataclass(frozen=True)
class LoadSite:
    """A load with its position in the nest.

    op       the load
    indices  indices that its address depends on
    group    number of the outermost group of reductions (`NestInfo.groups`) that it is in; -1 outside of reductions
    along    index along which the tensor is contiguous, or None
    similar  numbers of the loads, itself included, that may read the same tiles. They have the same tensor and map, and
             indices of the same extents.
    """

    op: loop.LoadOp
    indices: tuple[SSAValue, ...]
    group: int
    along: SSAValue | None
    similar: list[int]


class NestInfo:
    """Indices, reductions and loads of one nest.

    Attributes:
        nest: the nest.
        dependence: dependence of values on indices.
        free: free indices.
        sizes: index -> extent, which may be a symbol.
        extents: index -> extent as a number; a typical one for a size that is known only at run time.
        reductions: all reductions, in the order of the IR.
        loads: all loads.
        groups: reductions by the loop that computes them; the stages of a staged reduction are one group.
        masked: true if comparisons or domains of loads may exclude chunks of reductions.
        scanned: free index along which scans run, or None.
        reduced: free indices that some outermost reduction depends on.
    """

    def __init__(self, nest: loop.NestOp) -> None:
        self.nest = nest
        self.dependence = Dependence()
        self.free: tuple[SSAValue, ...] = tuple(nest.body.block.args)
        self.sizes: dict[SSAValue, Extent] = dict(zip(self.free, nest.sizes, strict=True))
        self.reductions: list[Reduction] = []
        self.loads: list[loop.LoadOp] = []
        self.groups = reduction_groups(nest)
        self.masked = False
        for op in nest.body.walk():
            if isinstance(op, loop.ReduceOp):
                self._add(op)
            elif isinstance(op, loop.LoadOp):
                self.loads.append(op)
            self.masked |= isinstance(op, payload.CmpOp) or getattr(op, "domain", None) is not None
        self.extents = {i: typical(n) for i, n in self.sizes.items()}
        self.scanned = loop.scanned_index(nest)
        self.reduced: Indices = frozenset(i for r in self.reductions if r.outermost for i in r.outer_indices)

    @cached_property
    def mask_density(self) -> MaskDensity:
        """Shares of the chunks that masks leave to execute."""
        return MaskDensity(self.groups, self.dependence, self.extents)

    def _add(self, op: loop.ReduceOp) -> None:
        indices = tuple(op.body.block.args)
        self.sizes.update(zip(indices, op.sizes, strict=True))
        outermost = not any(isinstance(o, loop.ReduceOp) for o in ancestors(op))
        outer_indices = self.dependence.of(yielded(op.body.block)[0]) - frozenset(indices)
        contraction = find_contraction(op, self.dependence)
        self.reductions.append(Reduction(op, indices, outer_indices, outermost, contraction))

    @property
    def reduction_indices(self) -> list[SSAValue]:
        """Reduction indices in the order of a schedule's `chunk`."""
        return [i for r in self.reductions for i in r.indices]

    @cached_property
    def index_sets(self) -> list[Indices]:
        """Sets of indices that a tile may have: all free indices, and for each reduction the indices of its body."""
        return [frozenset(self.free), *(r.outer_indices.union(r.indices) for r in self.reductions)]

    def tile_of(self, block: Iterable[int], chunk: Iterable[int]) -> dict[SSAValue, int]:
        """Returns index -> tile extent, from the decisions `block` and `chunk` of a schedule."""
        return dict(zip((*self.free, *self.reduction_indices), (*block, *chunk), strict=True))

    def may_be_longer(self, indices: Iterable[SSAValue]) -> bool:
        """Returns true if the extent of an index may be larger at run time than in `extents`."""
        return any(most(self.sizes[i]) > self.extents[i] for i in indices)

    @cached_property
    def operations(self) -> list[Counted]:
        """Distinct floating-point operations of the nest, each with its indices."""
        return nest_operations(self.nest)

    @cached_property
    def sites(self) -> list[LoadSite]:
        """Loads of the nest with their positions (`LoadSite`)."""
        groups = {op: n for n, group in enumerate(self.groups) for op in group}
        similar: dict[Hashable, list[int]] = {}
        sites: list[LoadSite] = []
        for n, op in enumerate(self.loads):
            indices = access_indices(op)
            enclosing = [groups[o] for o in ancestors(op) if isinstance(o, loop.ReduceOp)]
            same = similar.setdefault((op.source, op.map, tuple(self.extents[i] for i in indices)), [])
            same.append(n)
            sites.append(LoadSite(op, indices, enclosing[-1] if enclosing else -1, contiguous_index(op), same))
        return sites

    @cached_property
    def contiguous(self) -> dict[SSAValue, int]:
        """Index -> bytes of the loaded tensors that are contiguous along it."""
        sizes: dict[SSAValue, int] = {}
        for op in self.loads:
            if (index := contiguous_index(op)) is not None:
                sizes[index] = sizes.get(index, 0) + tensor_bytes(op.source.type)
        return sizes

    @cached_property
    def chunk_order(self) -> list[tuple[list[Indices], list[tuple[SSAValue, ...]]]]:
        """Groups of reductions in the order in which chunks are decided: outer ones first.

        An entry is (outer indices of each reduction of the group, axes). An *axis* has the reduction indices that run
        in one loop, one of each reduction. For the two stages of softmax over `%k` and `%l`, the axes are
        [(`%k`, `%l`)]. Axes along which most bytes are contiguous come first.
        """
        outer_indices = {r.op: r.outer_indices for r in self.reductions}
        order: list[tuple[list[Indices], list[tuple[SSAValue, ...]]]] = []
        for group in sorted(self.groups, key=lambda g: len([*ancestors(g[0])])):
            axes = [*zip(*(op.body.block.args for op in group), strict=True)]
            axes.sort(key=lambda axis: sum(self.contiguous.get(i, 0) for i in axis))
            order.append(([outer_indices[op] for op in group], axes[::-1]))
        return order

    @cached_property
    def vector(self) -> int:
        """Number of elements of the narrowest tensor that fill a vector of 16 bytes."""
        sizes = [element_bytes(v.type) for v in (*(op.source for op in self.loads), *self.nest.res)]
        return max(1, 16 // min(sizes, default=4))


def strides(op: loop.LoadOp) -> dict[SSAValue, int]:
    """Returns index -> distance in memory between neighbours along it, in elements, if all other indices are 0."""
    rank, map = len(op.indices), op.map.data

    def offset(at: Sequence[int]) -> int:
        result = 0
        for extent, coordinate in zip(extents_of(op.source.type), map.eval(at, [0] * map.num_symbols), strict=True):
            result = result * typical(extent) + coordinate
        return result

    first = offset([0] * rank)
    return {i: offset([int(n == k) for k in range(rank)]) - first for n, i in enumerate(op.indices)}


def footprint(info: NestInfo) -> int:
    """Returns the bytes of all tensors that a nest reads or writes."""
    read = {op.source: tensor_bytes(op.source.type) for op in info.loads}
    return sum(read.values()) + sum(tensor_bytes(r.type) for r in info.nest.res)


SAMPLED_TILES, MAX_SAMPLES = 32, 256
"""Number of tiles that are sampled along one index of a mask, and maximum number of samples over all indices."""


@dataclass(frozen=True)
class MaskDensity:
    """Shares of the chunks of masked reductions that must be executed, such as half of the chunks of a causal mask.

    groups      reductions by the loop that computes them
    dependence  dependence of values on indices
    extents     extents of all indices
    """

    groups: Sequence[Sequence[loop.ReduceOp]]
    dependence: Dependence
    extents: Mapping[SSAValue, int]

    @cached_property
    def _spaces(self) -> list[tuple[Sequence[loop.ReduceOp], Forms, list[Form]]]:
        """Masked groups, each with the half-spaces of its masks (`half_spaces`)."""
        groups = [(group, Forms()) for group in self.groups]
        spaces = [(group, forms, half_spaces(group, forms, self.dependence)) for group, forms in groups]
        return [space for space in spaces if space[2]]

    def shares(self, tile: Mapping[SSAValue, Ints]) -> dict[SSAValue, tuple[Floats, Floats]]:
        """Returns the share of the chunks of each masked reduction index that a block executes.

        Args:
            tile: index -> tile extents, one entry for each schedule.

        Returns:
            Reduction index -> (average over blocks, share of the busiest block). Indices without masks are missing.
        """
        shares: dict[SSAValue, tuple[Floats, Floats]] = {}
        for group, forms, spaces in self._spaces:
            reduced = group[0].body.block.args
            used = [*dict.fromkeys((*forms.indices, *reduced))]
            rows, where = np.unique(np.stack([tile[i] for i in used], axis=1), axis=0, return_inverse=True)
            tiles = [dict(zip(used, map(int, row), strict=True)) for row in rows]
            for position, index in enumerate(reduced):
                mean, peak = np.array([self._share(index, forms, spaces, t) for t in tiles]).reshape(-1, 2).T
                if (mean < 1).any():
                    pair = mean[where.reshape(-1)], peak[where.reshape(-1)]
                    shares.update((stage.body.block.args[position], pair) for stage in group)
        return shares

    def _share(
        self, index: SSAValue, forms: Forms, spaces: Sequence[Form], tile: Mapping[SSAValue, int]
    ) -> tuple[float, float]:
        """Returns the average and the largest share of the chunks along `index`, over sampled blocks."""
        number = forms.of(index)
        if number is None:
            return 1.0, 1.0
        atom_of_index, chunk = number.terms[0][0], tile[index]
        count = -(-self.extents[index] // chunk)
        limits = [s for s in spaces if dict(s.terms).get(atom_of_index)]
        others = list(dict.fromkeys(a for s in limits for a, _ in s.terms if a != atom_of_index and a[0] == DIM))
        # Half-spaces with other terms than indices are ignored.
        affine = [s for s in limits if all(a == atom_of_index or a in others for a, _ in s.terms)]
        sizes = [tile[forms.indices[number_of(a)]] for a in others]
        visits = list[int]()
        for at in self._samples([forms.indices[number_of(a)] for a in others], tile):
            start, stop = 0, count
            for space in affine:
                coefficient = dict(space.terms)[atom_of_index]
                factors = [dict(space.terms).get(a, 0) for a in others]
                tops = (f * (n * size + (size - 1) * (f > 0)) for f, n, size in zip(factors, at, sizes, strict=True))
                top = space.constant + sum(tops)
                if coefficient > 0:
                    # First chunk whose last index value satisfies coefficient * value + top >= 0.
                    start = max(start, -int((top + coefficient * (chunk - 1)) // (coefficient * chunk)))
                else:
                    stop = min(stop, int(top // (-coefficient * chunk)) + 1)
            visits.append(max(0, min(stop, count) - start))
        return (sum(visits) / (len(visits) * count), max(visits) / count) if visits and count else (1.0, 1.0)

    def _samples(self, indices: Sequence[SSAValue], tile: Mapping[SSAValue, int]) -> Iterator[tuple[int, ...]]:
        """Yields sampled tile numbers along `indices`."""
        counts = [-(-self.extents[index] // tile[index]) for index in indices]
        few = [min(count, SAMPLED_TILES) for count in counts]
        if prod(few) <= MAX_SAMPLES:
            return product(*([(2 * i + 1) * n // (2 * m) for i in range(m)] for n, m in zip(counts, few, strict=True)))
        return zip(*(hypercube(0, n, MAX_SAMPLES, axis) for axis, n in enumerate(counts)), strict=True)


class TileExtents:
    """Builder of a schedule's tiles: a tile extent for every index of a nest.

    Attributes:
        info: the nest.
        tile: index -> tile extent, a power of two; 1 until it is decided.
        decided: indices whose extents are decided.
    """

    def __init__(self, info: NestInfo) -> None:
        self.info = info
        self.tile: dict[SSAValue, int] = dict.fromkeys(info.extents, 1)
        self.decided: set[SSAValue] = set()

    def copy(self) -> TileExtents:
        extents = TileExtents(self.info)
        extents.tile, extents.decided = {**self.tile}, {*self.decided}
        return extents

    def set(self, index: SSAValue, extent: int) -> int:
        """Sets the tile extent of an index, at most its range rounded up to a power of two.

        Returns:
            `extent` divided by the tile extent: the budget that is left for other indices.
        """
        self.tile[index] = min(pow2_at_most(extent), pow2_at_least(self.info.extents[index]))
        self.decided.add(index)
        return max(1, extent // self.tile[index])

    def set_all(self, indices: Iterable[SSAValue], extent: int) -> None:
        """Sets the tile extents of all `indices` (see `set`)."""
        for index in indices:
            self.set(index, extent)

    def pad(self, index: SSAValue, extent: int) -> None:
        """Sets the tile extent of an index to a power of two that may exceed its range. The tile is then padded."""
        self.tile[index] = extent
        self.decided.add(index)

    def fill(self, indices: Iterable[SSAValue], budget: int) -> int:
        """Sets the tile extents of `indices` in order, each as large as the remaining budget of elements permits.

        Returns:
            The budget that is left.
        """
        for index in indices:
            budget = self.set(index, budget)
        return budget

    def elements(self, indices: Iterable[SSAValue]) -> int:
        """Returns the number of elements of a tile over `indices`."""
        return prod(self.tile[i] for i in indices)

    def blocks(self) -> int:
        """Returns the number of tiles of the result."""
        return prod(-(-self.info.extents[i] // self.tile[i]) for i in self.info.free)

    def chunk_reductions(self, budget: int) -> None:
        """Sets the chunks of all reduction indices that are not decided, contiguous indices first.

        A tile of a reduction body gets at most `budget` elements. The stages of a staged reduction get equal chunks.
        """
        for outer_indices, axes in self.info.chunk_order:
            if not self.decided.issuperset(i for axis in axes for i in axis):
                room = max(1, budget // max(self.elements(indices) for indices in outer_indices))
                for axis in axes:
                    room = [self.set(index, room) for index in axis][0]

    def plan(self, warps: int, **decisions: Any) -> Schedule:
        """Returns the schedule with these tile extents.

        Args:
            warps: warps of a block; rounded down to a power of two, at most `MAX_WARPS`.
            decisions: further fields of the schedule.
        """
        return Schedule(
            block=tuple(self.tile[i] for i in self.info.free),
            chunk=tuple(self.tile[i] for i in self.info.reduction_indices),
            warps=max(1, min(MAX_WARPS, pow2_at_most(warps))),
            **decisions,
        )
