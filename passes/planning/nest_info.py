"""What a planner needs to know about a nest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineDimExpr, AffineExpr

from ...dialects import loop
from ...dialects.loop.dependence import Contraction, Dependence, Indices, find_contraction, yielded
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.shapes.extents import Extent, extents_of, most, typical
from ..analysis.nest_schedule import reduction_groups
from .mask_density import MaskDensity


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
        self.mask_density = MaskDensity(self.groups, self.dependence, self.extents)
        """Which share of its chunks a reduction visits."""
        self.reduced: Indices = frozenset(i for r in self.reductions if r.outermost for i in r.around)
        """Free indices that some reduction depends on."""

    def _add(self, op: loop.ReduceOp) -> None:
        indices = tuple(op.body.block.args)
        self.sizes.update(zip(indices, op.sizes, strict=True))
        outer = op.parent_op()
        while outer is not None and not isinstance(outer, loop.NestOp | loop.ReduceOp):
            outer = outer.parent_op()
        around = self.dependence.of(yielded(op.body.block)[0]) - frozenset(indices)
        found = find_contraction(op, self.dependence)
        self.reductions.append(Reduction(op, indices, around, isinstance(outer, loop.NestOp), found))

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
    def contiguous(self) -> dict[SSAValue, int]:
        """Index -> bytes of the tensors that are read with neighbouring elements at neighbouring values of it."""
        found: dict[SSAValue, int] = {}
        for op in self.loads:
            index = contiguous_index(op)
            if index is not None:
                size = self.read_size(op)
                found[index] = found.get(index, 0) + size
        return found

    @cached_property
    def chunk_order(self) -> list[tuple[list[Indices], list[tuple[SSAValue, ...]]]]:
        """The reductions that run together, outer ones first: what each depends on around it, and their indices, those
        along which memory is contiguous first."""
        around = {r.op: r.around for r in self.reductions}
        found: list[tuple[list[Indices], list[tuple[SSAValue, ...]]]] = []
        for group in sorted(self.groups, key=lambda g: _nesting(g[0])):
            axes = [*zip(*(op.body.block.args for op in group), strict=True)]
            axes.sort(key=lambda axis: sum(self.contiguous.get(i, 0) for i in axis))
            found.append(([around[op] for op in group], axes[::-1]))
        return found

    def read_size(self, op: loop.LoadOp) -> int:
        """Bytes of the tensor that `op` reads."""
        return tensor_bytes(op.source.type)

    def vector(self) -> int:
        """Elements of the narrowest tensor read or written that fill 16 bytes."""
        sizes = [element_bytes(v.type) for v in (*(op.source for op in self.loads), *self.nest.res)]
        return max(1, 16 // min(sizes, default=4))


def _nesting(op: Operation) -> int:
    """How many operations lie around `op`."""
    parent = op.parent_op()
    return 0 if parent is None else 1 + _nesting(parent)


def contiguous_index(op: loop.LoadOp) -> SSAValue | None:
    """The index whose next value reads the next element in memory, if there is one."""
    shape = extents_of(op.source.type)
    last = len(shape) - 1
    while last >= 0 and shape[last] == 1:
        last -= 1
    if last < 0:
        return None
    for term in _terms(op.map.data.results[last]):
        if isinstance(term, AffineDimExpr):
            return op.indices[term.position]
    return None


def _terms(expr: AffineExpr) -> list[AffineExpr]:
    """The summands of an expression."""
    if isinstance(expr, AffineBinaryOpExpr) and expr.kind == AffineBinaryOpKind.Add:
        return _terms(expr.lhs) + _terms(expr.rhs)
    return [expr]
