"""The indices, reductions and accesses of a nest, and tile extents while they are decided."""

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


def pow2_at_least(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def pow2_at_most(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


@dataclass(frozen=True)
class Reduction:
    """One `loop.reduce` of a nest.

    indices      its own indices
    around       the free and outer reduction indices that its body depends on
    outermost    whether no other reduction is around it
    contraction  how it is a contraction, if it is one
    """

    op: loop.ReduceOp
    indices: tuple[SSAValue, ...]
    around: Indices
    outermost: bool
    contraction: Contraction | None


@dataclass(frozen=True)
class LoadSite:
    """Position of a load.

    group  number of the reductions whose loop the load is in; -1 for the loop over the results
    along  index along which the tensor is contiguous
    alike  numbers of the sites that read the same tensor by the same map over indices of equal extents: they may read
           the same tiles
    """

    op: loop.LoadOp
    indices: tuple[SSAValue, ...]
    group: int
    along: SSAValue | None
    alike: list[int]


class NestInfo:
    """The indices, reductions and accesses of one nest."""

    def __init__(self, nest: loop.NestOp) -> None:
        self.nest = nest
        self.dependence = Dependence()
        self.free: tuple[SSAValue, ...] = tuple(nest.body.block.args)
        self.sizes: dict[SSAValue, Extent] = dict(zip(self.free, nest.sizes, strict=True))
        """Number of values of every index."""
        self.reductions: list[Reduction] = []
        self.loads: list[loop.LoadOp] = []
        self.groups = reduction_groups(nest)
        """Reductions that run together, chunk by chunk: the stages of a staged one."""
        self.masked = False
        """True if comparisons or domains of loads may exclude chunks of reductions."""
        for op in nest.body.walk():
            if isinstance(op, loop.ReduceOp):
                self._add(op)
            elif isinstance(op, loop.LoadOp):
                self.loads.append(op)
            self.masked |= isinstance(op, payload.CmpOp) or getattr(op, "domain", None) is not None
        self.extents = {i: typical(n) for i, n in self.sizes.items()}
        """The same as numbers; a typical one for a size that is known only at run time."""
        self.scanned = loop.scanned_index(nest)
        """The free index along which scans run, in one block."""
        self.reduced: Indices = frozenset(i for r in self.reductions if r.outermost for i in r.around)
        """Free indices that some reduction depends on."""

    @cached_property
    def mask_density(self) -> MaskDensity:
        return MaskDensity(self.groups, self.dependence, self.extents)

    def _add(self, op: loop.ReduceOp) -> None:
        indices = tuple(op.body.block.args)
        self.sizes.update(zip(indices, op.sizes, strict=True))
        outermost = not any(isinstance(o, loop.ReduceOp) for o in ancestors(op))
        around = self.dependence.of(yielded(op.body.block)[0]) - frozenset(indices)
        found = find_contraction(op, self.dependence)
        self.reductions.append(Reduction(op, indices, around, outermost, found))

    @property
    def reduction_indices(self) -> list[SSAValue]:
        """The reduction indices in the order of a schedule's `chunk`."""
        return [i for r in self.reductions for i in r.indices]

    @cached_property
    def index_sets(self) -> list[Indices]:
        """The indices of the result, and those of the body of each reduction."""
        return [frozenset(self.free), *(r.around.union(r.indices) for r in self.reductions)]

    def tile_of(self, block: Iterable[int], chunk: Iterable[int]) -> dict[SSAValue, int]:
        return dict(zip((*self.free, *self.reduction_indices), (*block, *chunk), strict=True))

    def may_be_longer(self, indices: Iterable[SSAValue]) -> bool:
        """Returns true if an index may take more values at run time than are planned with."""
        return any(most(self.sizes[i]) > self.extents[i] for i in indices)

    @cached_property
    def operations(self) -> list[Counted]:
        """Every distinct operation on floats."""
        return nest_operations(self.nest)

    @cached_property
    def sites(self) -> list[LoadSite]:
        """Every load, in the loop of the outermost reduction around it."""
        groups = {op: n for n, group in enumerate(self.groups) for op in group}
        alike: dict[Hashable, list[int]] = {}
        sites: list[LoadSite] = []
        for n, op in enumerate(self.loads):
            indices = access_indices(op)
            around = [groups[o] for o in ancestors(op) if isinstance(o, loop.ReduceOp)]
            same = alike.setdefault((op.source, op.map, tuple(self.extents[i] for i in indices)), [])
            same.append(n)
            sites.append(LoadSite(op, indices, around[-1] if around else -1, contiguous_index(op), same))
        return sites

    @cached_property
    def contiguous(self) -> dict[SSAValue, int]:
        """Index -> bytes of the tensors that are contiguous along it."""
        sizes: dict[SSAValue, int] = {}
        for op in self.loads:
            if (index := contiguous_index(op)) is not None:
                sizes[index] = sizes.get(index, 0) + tensor_bytes(op.source.type)
        return sizes

    @cached_property
    def chunk_order(self) -> list[tuple[list[Indices], list[tuple[SSAValue, ...]]]]:
        """The reductions that run together, outer ones first: the indices around them, and those of the reductions,
        contiguous ones first."""
        around = {r.op: r.around for r in self.reductions}
        order: list[tuple[list[Indices], list[tuple[SSAValue, ...]]]] = []
        for group in sorted(self.groups, key=lambda g: len([*ancestors(g[0])])):
            axes = [*zip(*(op.body.block.args for op in group), strict=True)]
            axes.sort(key=lambda axis: sum(self.contiguous.get(i, 0) for i in axis))
            order.append(([around[op] for op in group], axes[::-1]))
        return order

    @cached_property
    def vector(self) -> int:
        """Elements of the narrowest tensor that fill 16 bytes."""
        sizes = [element_bytes(v.type) for v in (*(op.source for op in self.loads), *self.nest.res)]
        return max(1, 16 // min(sizes, default=4))


def strides(op: loop.LoadOp) -> dict[SSAValue, int]:
    """Returns the distance in elements between neighbours along every index, at the begin of the others."""
    rank, map = len(op.indices), op.map.data

    def offset(at: Sequence[int]) -> int:
        result = 0
        for extent, coordinate in zip(extents_of(op.source.type), map.eval(at, [0] * map.num_symbols), strict=True):
            result = result * typical(extent) + coordinate
        return result

    first = offset([0] * rank)
    return {i: offset([int(n == k) for k in range(rank)]) - first for n, i in enumerate(op.indices)}


def footprint(info: NestInfo) -> int:
    """Returns the bytes of all that a nest reads and writes."""
    read = {op.source: tensor_bytes(op.source.type) for op in info.loads}
    return sum(read.values()) + sum(tensor_bytes(r.type) for r in info.nest.res)


SAMPLED_TILES, MAX_SAMPLES = 32, 256
"""Tiles that are sampled along an index on which a mask depends, and of several such indices in all."""


@dataclass(frozen=True)
class MaskDensity:
    """Shares of the chunks of reductions that are executed where terms count on one side of a mask alone.

    `groups` are lists of stages that run together, `extents` those of all indices.
    """

    groups: Sequence[Sequence[loop.ReduceOp]]
    dependence: Dependence
    extents: Mapping[SSAValue, int]

    @cached_property
    def _spaces(self) -> list[tuple[Sequence[loop.ReduceOp], Forms, list[Form]]]:
        groups = [(group, Forms()) for group in self.groups]
        spaces = [(group, forms, half_spaces(group, forms, self.dependence)) for group, forms in groups]
        return [space for space in spaces if space[2]]

    def shares(self, tile: Mapping[SSAValue, Ints]) -> dict[SSAValue, tuple[Floats, Floats]]:
        """Returns the shares of its chunks that a block visits on average, and that the block with most work visits, by
        reduction index. Of an index that is missing, blocks visit all. `tile` has columns of extents."""
        found: dict[SSAValue, tuple[Floats, Floats]] = {}
        for group, forms, spaces in self._spaces:
            own = group[0].body.block.args
            used = [*dict.fromkeys((*forms.indices, *own))]
            rows, where = np.unique(np.stack([tile[i] for i in used], axis=1), axis=0, return_inverse=True)
            tiles = [dict(zip(used, map(int, row), strict=True)) for row in rows]
            for position, index in enumerate(own):
                mean, peak = np.array([self._share(index, forms, spaces, t) for t in tiles]).reshape(-1, 2).T
                if (mean < 1).any():
                    pair = mean[where.reshape(-1)], peak[where.reshape(-1)]
                    found.update((stage.body.block.args[position], pair) for stage in group)
        return found

    def _share(
        self, index: SSAValue, forms: Forms, spaces: Sequence[Form], tile: Mapping[SSAValue, int]
    ) -> tuple[float, float]:
        number = forms.of(index)
        if number is None:
            return 1.0, 1.0
        own, chunk = number.terms[0][0], tile[index]
        count = -(-self.extents[index] // chunk)
        limits = [s for s in spaces if dict(s.terms).get(own)]
        others = list(dict.fromkeys(a for s in limits for a, _ in s.terms if a != own and a[0] == DIM))
        known = [s for s in limits if all(a == own or a in others for a, _ in s.terms)]  # of indices alone
        sizes = [tile[forms.indices[number_of(a)]] for a in others]
        visits = list[int]()
        for at in self._samples([forms.indices[number_of(a)] for a in others], tile):
            start, stop = 0, count
            for space in known:
                coefficient = dict(space.terms)[own]
                factors = [dict(space.terms).get(a, 0) for a in others]
                tops = (f * (n * size + (size - 1) * (f > 0)) for f, n, size in zip(factors, at, sizes, strict=True))
                top = space.constant + sum(tops)
                if coefficient > 0:  # chunks in which coefficient * (the last of the chunk) + top >= 0
                    start = max(start, -int((top + coefficient * (chunk - 1)) // (coefficient * chunk)))
                else:
                    stop = min(stop, int(top // (-coefficient * chunk)) + 1)
            visits.append(max(0, min(stop, count) - start))
        return (sum(visits) / (len(visits) * count), max(visits) / count) if visits and count else (1.0, 1.0)

    def _samples(self, indices: Sequence[SSAValue], tile: Mapping[SSAValue, int]) -> Iterator[tuple[int, ...]]:
        counts = [-(-self.extents[index] // tile[index]) for index in indices]
        few = [min(count, SAMPLED_TILES) for count in counts]
        if prod(few) <= MAX_SAMPLES:
            return product(*([(2 * i + 1) * n // (2 * m) for i in range(m)] for n, m in zip(counts, few, strict=True)))
        return zip(*(hypercube(0, n, MAX_SAMPLES, axis) for axis, n in enumerate(counts)), strict=True)


class TileExtents:
    """A tile extent for every index of a nest, 1 until decided, and what follows from all of them."""

    def __init__(self, info: NestInfo) -> None:
        self.info = info
        self.tile: dict[SSAValue, int] = dict.fromkeys(info.extents, 1)
        self.decided: set[SSAValue] = set()

    def copy(self) -> TileExtents:
        extents = TileExtents(self.info)
        extents.tile, extents.decided = {**self.tile}, {*self.decided}
        return extents

    def set(self, index: SSAValue, extent: int) -> int:
        """Decides on `extent`, or on the range where that is less; returns the rest of `extent` for other indices."""
        self.tile[index] = min(pow2_at_most(extent), pow2_at_least(self.info.extents[index]))
        self.decided.add(index)
        return max(1, extent // self.tile[index])

    def set_all(self, indices: Iterable[SSAValue], extent: int) -> None:
        """Decides on one extent for all `indices`, or on the range where that is less."""
        for index in indices:
            self.set(index, extent)

    def pad(self, index: SSAValue, extent: int) -> None:
        """Decides on `extent`, a power of two, even where it exceeds the range: the rest of a tile is padding."""
        self.tile[index] = extent
        self.decided.add(index)

    def fill(self, indices: Iterable[SSAValue], budget: int) -> int:
        """Decides on indices in order, so that a tile over them has at most `budget` elements; returns the rest."""
        for index in indices:
            budget = self.set(index, budget)
        return budget

    def elements(self, indices: Iterable[SSAValue]) -> int:
        return prod(self.tile[i] for i in indices)

    def blocks(self) -> int:
        return prod(-(-self.info.extents[i] // self.tile[i]) for i in self.info.free)

    def chunk_reductions(self, budget: int) -> None:
        """Decides on the open reduction indices: tiles of at most `budget` elements, contiguous indices first.
        Reductions that run together get the same."""
        for around, axes in self.info.chunk_order:
            if not self.decided.issuperset(i for axis in axes for i in axis):
                room = max(1, budget // max(self.elements(indices) for indices in around))
                for axis in axes:
                    room = [self.set(index, room) for index in axis][0]

    def plan(self, warps: int, **decisions: Any) -> Schedule:
        """Returns the schedule with these extents, warps and further decisions."""
        return Schedule(
            block=tuple(self.tile[i] for i in self.info.free),
            chunk=tuple(self.tile[i] for i in self.info.reduction_indices),
            warps=max(1, min(MAX_WARPS, pow2_at_most(warps))),
            **decisions,
        )
