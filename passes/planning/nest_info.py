"""What a planner needs to know about a nest, and its tile extents while they are being decided."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from xdsl.ir import SSAValue

from ...dialects import loop
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
from ...dialects.shapes.extents import Extent, extents_of, most, typical
from ...dialects.support.locations import ancestors
from ...dialects.tile.schedule import Schedule
from ..analysis.nest_schedule import reduction_groups
from .mask_density import MaskDensity

MAX_WARPS = 32


def pow2_at_least(n: int) -> int:
    """The least power of two that is at least `n` (1 for 0)."""
    return 1 << max(0, n - 1).bit_length()


def pow2_at_most(n: int) -> int:
    """The greatest power of two that is at most `n` (1 for less)."""
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
    """Where a load stands: in the loop of the reductions `group` (-1: in that over the results), its indices, and the
    numbers of the sites that read the same tensor by the same map, over indices of equal extents: they may give the
    same tiles."""

    op: loop.LoadOp
    indices: tuple[SSAValue, ...]
    group: int
    alike: list[int]


class NestInfo:
    """The indices, reductions and accesses of one nest."""

    def __init__(self, nest: loop.NestOp) -> None:
        self.nest = nest
        self.dependence = Dependence()
        self.free: tuple[SSAValue, ...] = tuple(nest.body.block.args)
        self.sizes: dict[SSAValue, Extent] = dict(zip(self.free, nest.sizes, strict=True))
        """How many values every index takes."""
        self.reductions: list[Reduction] = []
        self.loads: list[loop.LoadOp] = []
        self.groups = reduction_groups(nest)
        """Reductions that run together, chunk by chunk: the stages of a staged one."""
        for op in nest.body.walk():
            if isinstance(op, loop.ReduceOp):
                self._add(op)
            elif isinstance(op, loop.LoadOp):
                self.loads.append(op)
        self.extents = {i: typical(n) for i, n in self.sizes.items()}
        """The same in numbers: for a size known only at run time what is typical of it."""
        self.scanned = loop.scanned_index(nest)
        """The free index along which scans run, in one block."""
        self.reduced: Indices = frozenset(i for r in self.reductions if r.outermost for i in r.around)
        """Free indices that some reduction depends on."""

    @cached_property
    def mask_density(self) -> MaskDensity:
        """The shares of their chunks that reductions visit."""
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

    def tile_of(self, block: Iterable[int], chunk: Iterable[int]) -> dict[SSAValue, int]:
        """The extents of a schedule's tiles by index."""
        return dict(zip((*self.free, *self.reduction_indices), (*block, *chunk), strict=True))

    def may_be_longer(self, indices: Iterable[SSAValue]) -> bool:
        """Whether one of `indices` can take more values than are planned with, being known only at run time."""
        return any(most(self.sizes[i]) > self.extents[i] for i in indices)

    @cached_property
    def operations(self) -> list[Counted]:
        """Every distinct operation on floats."""
        return nest_operations(self.nest)

    @cached_property
    def sites(self) -> list[LoadSite]:
        """Every load with its place: that of the outermost reduction around it, whose stages load the same once."""
        groups = {op: n for n, group in enumerate(self.groups) for op in group}
        alike: dict[Hashable, list[int]] = {}
        found: list[LoadSite] = []
        for n, op in enumerate(self.loads):
            indices = access_indices(op)
            around = [groups[o] for o in ancestors(op) if isinstance(o, loop.ReduceOp)]
            same = alike.setdefault((op.source, op.map, tuple(self.extents[i] for i in indices)), [])
            same.append(n)
            found.append(LoadSite(op, indices, around[-1] if around else -1, same))
        return found

    @cached_property
    def contiguous(self) -> dict[SSAValue, int]:
        """Index -> bytes of the tensors that are read with neighbouring elements at neighbouring values of it."""
        found: dict[SSAValue, int] = {}
        for op in self.loads:
            index = contiguous_index(op)
            if index is not None:
                found[index] = found.get(index, 0) + tensor_bytes(op.source.type)
        return found

    @cached_property
    def chunk_order(self) -> list[tuple[list[Indices], list[tuple[SSAValue, ...]]]]:
        """The reductions that run together, outer ones first: what each depends on around it, and their indices, those
        along which memory is contiguous first."""
        around = {r.op: r.around for r in self.reductions}
        found: list[tuple[list[Indices], list[tuple[SSAValue, ...]]]] = []
        for group in sorted(self.groups, key=lambda g: len([*ancestors(g[0])])):
            axes = [*zip(*(op.body.block.args for op in group), strict=True)]
            axes.sort(key=lambda axis: sum(self.contiguous.get(i, 0) for i in axis))
            found.append(([around[op] for op in group], axes[::-1]))
        return found

    def vector(self) -> int:
        """Elements of the narrowest tensor read or written that fill 16 bytes."""
        sizes = [element_bytes(v.type) for v in (*(op.source for op in self.loads), *self.nest.res)]
        return max(1, 16 // min(sizes, default=4))


def strides(op: loop.LoadOp) -> dict[SSAValue, int]:
    """How many elements lie between those that neighbours along each index read, at the begin of each."""
    rank, map = len(op.indices), op.map.data

    def place(at: Sequence[int]) -> int:
        found = 0
        for extent, coordinate in zip(extents_of(op.source.type), map.eval(at, [0] * map.num_symbols), strict=True):
            found = found * typical(extent) + coordinate
        return found

    first = place([0] * rank)
    return {i: place([int(n == k) for k in range(rank)]) - first for n, i in enumerate(op.indices)}


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
