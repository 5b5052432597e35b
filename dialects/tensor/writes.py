"""Writes at computed positions: scatters that combine values, and the last of several writes to one element.

The writes are numbered in their order. A scatter with the reduction `max` stores the number of the last write to each
element, and the value of that write is read afterwards. A write outside the tensor is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from ..payload import element_type
from ..shapes.extents import Extent, extents_of, most
from . import ReductionKind, ScatterOp, combine, identity
from .builder import Builder, dims, width_of
from .views import gathered, numbered

MAX_DENSE_WRITES = 16
"""Maximum size of a scatter that is replaced by comparing each element with all writes that may have its position. The
size is the number of these writes, or the number of positions, whichever is smaller. Tuned by hand."""


@dataclass(frozen=True)
class Writes:
    """Positions of writes into a tensor. The writes are the elements of an index space."""

    space: Sequence[Extent]
    """Shape of the index space."""
    at: Sequence[AffineExpr]
    """Coordinate of a write along each dimension of the tensor: a dimension of the space, or symbol n, which is the
    element of `indices[n]`."""
    indices: Sequence[SSAValue]
    """Integer tensors with the shape of the space. Writes with negative indices are dropped."""
    over: Sequence[int]
    """Dimensions of the space along which several writes may have the same position: the writes that differ only there
    are the possible writes of an element."""

    def scatter(self, b: Builder, kind: ReductionKind, init: SSAValue, values: SSAValue) -> SSAValue:
        """Returns `init` with values combined into it.

        In general that is a `tensor.scatter`, whose work is linear in the number of writes. A small one (see
        `MAX_DENSE_WRITES`) is a reduction that compares each element with its possible writes. The reduction can be
        fused with its users.

        Args:
            b: Builder of the operator.
            kind: Reduction that combines the values.
            init: Tensor before the writes.
            values: Values of the writes, with the shape of the space.
        """
        element, shape = element_type(init.type), extents_of(init.type)
        if element == i1:
            least = kind in (ReductionKind.MUL, ReductionKind.MIN, ReductionKind.AND)
            kind = ReductionKind.MIN if least else ReductionKind.MAX
        places = [n for n, expr in zip(shape, self.at, strict=True) if not isinstance(expr, AffineDimExpr)]
        if min(_most(self.space[d] for d in self.over), _most(places)) <= MAX_DENSE_WRITES:
            hit, written = self._possible_writes(b, shape, values)
            neutral = b.like(written, identity(kind, element))
            over = range(len(shape), len(extents_of(hit.type)))
            combined_values = b.reduce(kind.value, b.select(hit, written, neutral), over)
            return b.insert(combine(kind, init, combined_values))
        wide = i32 if 0 < width_of(element) < 32 else element
        map = AffineMap(len(self.space), len(self.indices), tuple(self.at))
        return b.cast(
            b.insert(
                ScatterOp(kind, init=b.cast(init, wide), values=b.cast(values, wide), map=map, indices=self.indices)
            ),
            element,
        )

    def _possible_writes(self, b: Builder, shape: Sequence[Extent], values: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Returns the possible writes of each element of a tensor of `shape`: a mask of those that hit it, and values.

        Both results have the dimensions of the tensor, followed by the dimensions in `over`."""
        space = [*shape, *(self.space[d] for d in self.over)]
        index = dims(len(space))
        coordinate_of = {d: index[len(shape) + i] for i, d in enumerate(self.over)}
        coordinate_of |= {expr.position: index[d] for d, expr in enumerate(self.at) if isinstance(expr, AffineDimExpr)}
        bounds = [
            (index[d], 0, self.space[expr.position])
            for d, expr in enumerate(self.at)
            if isinstance(expr, AffineDimExpr) and self.space[expr.position] != shape[d]
        ]
        exprs = [coordinate_of[d] for d in range(len(self.space))]
        places = [d for d, expr in enumerate(self.at) if not isinstance(expr, AffineDimExpr)]
        hits = [
            b.cmp("eq", b.map(v, exprs, space, bounds, -1), b.iota(d, space, element_type(v.type)))
            for d, v in zip(places, self.indices, strict=True)
        ]
        return reduce(b.both, hits), b.map(values, exprs, space, bounds)

    def last(self, b: Builder, shape: Sequence[Extent]) -> SSAValue:
        """Returns the number of the last write to each element of a tensor of `shape`, counted along `over`; -1 without
        a write."""
        element = i32 if _most(self.space[d] for d in self.over) < 1 << 31 else i64
        number = numbered(b, self.over, self.space)
        return self.scatter(b, ReductionKind.MAX, b.constant(-1, shape, element), b.cast(number, element))


def read_last(b: Builder, x: SSAValue, last: SSAValue, values: SSAValue, at: Sequence[AffineExpr]) -> SSAValue:
    """Returns `x` with the values of the last writes.

    Args:
        b: Builder of the operator.
        x: Tensor before the writes.
        last: Number of the last write to each element, or -1.
        values: Values of the writes. If they have fewer elements than `x` along a dimension, the others are not
            written.
        at: Coordinates at which `values` are read, where symbol 0 is `last`.
    """
    shape, source = extents_of(x.type), list(zip(at, extents_of(values.type), strict=True))
    inside, rank = list(shape), len(shape)
    for expr, n in source:
        if isinstance(expr, AffineDimExpr):
            inside[expr.position] = n
    ends = [(AffineExpr.dimension(d), 0, n) for d, n in enumerate(inside) if n != shape[d]]
    if all(isinstance(e, AffineDimExpr) or n == 1 for e, n in source):
        exprs = [e if isinstance(e, AffineDimExpr) else AffineExpr.constant(0) for e in at]
        written = b.map(values, exprs, inside)
    else:
        place = b.map(b.maximum(last, b.like(last, 0)), dims(rank), inside)
        written = gathered(b, values, at, inside, [place])
    return b.select(b.cmp("ge", last, 0), b.map(written, dims(rank), shape, ends), x)


def _most(extents: Iterable[Extent]) -> int:
    return prod(map(most, extents))
