"""Writes at computed places.

What PyTorch leaves open is settled: of several plain writes to one place the last in order counts. Therefore their
numbers are scattered, as a maximum, and the values are read at the number that is left. Values that are combined are so
in any order. A write outside of the tensor is dropped (PyTorch raises there).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from ....dialects.payload import element_type, is_float
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import Extent, extents_of, most
from ....dialects.tensor import GatherOp, ReductionKind, ScatterOp, identity
from ....dialects.tensor.builder import Builder, Number, dims, width_of
from ....dialects.tensor.reduction_kinds import combine
from .reshape import numbered

FEW = 16
"""So many writes that every element may look at, or elements that may look at every write."""

KINDS = {
    "sum": ReductionKind.ADD,
    "add": ReductionKind.ADD,
    "mean": ReductionKind.ADD,
    "prod": ReductionKind.MUL,
    "multiply": ReductionKind.MUL,
    "amax": ReductionKind.MAX,
    "amin": ReductionKind.MIN,
}


@dataclass(frozen=True)
class Writes:
    """Elements of a space that are written into a tensor.

    `at` are their coordinates there: the dimensions of the space, and as symbols the elements of `indices`, which have
    the space's shape and are not negative where they are meant. Several elements go to one place only if they differ in
    the dimensions `over`.
    """

    space: tuple[Extent, ...]
    at: tuple[AffineExpr, ...]
    indices: tuple[SSAValue, ...]
    over: tuple[int, ...]

    def scatter(self, b: Builder, kind: ReductionKind, init: SSAValue, values: SSAValue) -> SSAValue:
        """`init` with the values combined into it, by a scatter, whose work is linear in the writes. Where there are
        few writes to an element, or few places, every element looks at all the writes instead: a reduction, which is
        fused with what is around it."""
        own, shape = element_type(init.type), extents_of(init.type)
        if own == i1:
            least = kind in (ReductionKind.MUL, ReductionKind.MIN, ReductionKind.AND)
            kind = ReductionKind.MIN if least else ReductionKind.MAX
        places = [n for n, expr in zip(shape, self.at, strict=True) if not isinstance(expr, AffineDimExpr)]
        if min(_count(self.space[d] for d in self.over), _count(places)) <= FEW:
            hit, seen = self._seen(b, shape, values)
            neutral = b.like(seen, identity(kind, own))
            over = range(len(shape), len(extents_of(hit.type)))
            found = b.reduce(kind.value, b.select(hit, seen, neutral), over)
            return b.insert(combine(kind, init, found))
        wide = i32 if 0 < width_of(own) < 32 else own
        map = AffineMap(len(self.space), len(self.indices), self.at)
        return b.cast(b.insert(ScatterOp(kind, b.cast(init, wide), b.cast(values, wide), map, self.indices)), own)

    def _seen(self, b: Builder, shape: Sequence[Extent], values: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Which writes hit each element of a tensor of `shape`, and their values: in its dimensions, then `over`."""
        space = [*shape, *(self.space[d] for d in self.over)]
        index = dims(len(space))
        own = {d: index[len(shape) + i] for i, d in enumerate(self.over)}
        ends: list[tuple[AffineExpr, Extent]] = []
        for expr, n, place in zip(self.at, shape, index, strict=False):
            if isinstance(expr, AffineDimExpr):
                own[expr.position] = place
                ends += [(place, self.space[expr.position])] if self.space[expr.position] != n else []
        domain = None
        if ends:
            domain = DomainAttr.get(AffineMap(len(space), 0, tuple(e for e, _ in ends)), [(0, n) for _, n in ends])

        def spread(x: SSAValue, fill: Number) -> SSAValue:
            return b.map(x, [own[d] for d in range(len(self.space))], space, domain, fill)

        places = [d for d, expr in enumerate(self.at) if not isinstance(expr, AffineDimExpr)]
        hits = [
            b.cmp("eq", spread(v, -1), b.iota(d, space, element_type(v.type)))
            for d, v in zip(places, self.indices, strict=True)
        ]
        hit = hits[0]
        for other in hits[1:]:
            hit = b.both(hit, other)
        return hit, spread(values, 0)

    def last(self, b: Builder, shape: Sequence[Extent]) -> SSAValue:
        """For each element of a tensor of `shape` the number of the last write to it, counted along `over`; else -1."""
        element = i32 if _count(self.space[d] for d in self.over) < 1 << 31 else i64
        number = numbered(b, self.over, self.space)
        return self.scatter(b, ReductionKind.MAX, b.constant(-1, shape, element), b.cast(number, element))

    def combined(self, b: Builder, x: SSAValue, values: SSAValue, mode: str, include_self: bool) -> SSAValue:
        """`x` with the values combined; without `include_self` an element that is written starts from nothing."""
        if mode not in KINDS:
            raise b.unsupported("reduce", f"{mode!r} is not one of {', '.join(KINDS)}")
        kind, count, start = KINDS[mode], None, x
        if mode == "mean" or not include_self:
            nothing, one = b.constant(0, extents_of(x.type), i32), b.constant(1, self.space, i32)
            count = self.scatter(b, ReductionKind.ADD, nothing, one)
        if count is not None and not include_self:
            start = b.select(b.cmp("gt", count, 0), b.like(x, identity(kind, element_type(x.type))), x)
        total = self.scatter(b, kind, start, values)
        if count is None or mode != "mean":
            return total
        count = b.plus(count, 1) if include_self else b.maximum(count, b.like(count, 1))
        divisor = b.cast(count, element_type(total.type))
        return b.div(total, divisor) if is_float(total.type) else b.floordiv(total, divisor)


def _count(extents: Iterable[Extent]) -> int:
    return prod(map(most, extents))


def read_last(b: Builder, x: SSAValue, last: SSAValue, values: SSAValue, at: Sequence[AffineExpr]) -> SSAValue:
    """`x` where nothing is written, else the element of `values` at the coordinates `at`, whose symbol is `last`.

    Where `values` end before `x` nothing is written; no place outside of them is read."""
    shape, ends = extents_of(x.type), dict[int, Extent]()
    for expr, n in zip(at, extents_of(values.type), strict=True):
        if isinstance(expr, AffineDimExpr) and n != shape[expr.position]:
            ends[expr.position] = n
    inside, rank = tuple(ends.get(d, n) for d, n in enumerate(shape)), len(shape)
    if all(isinstance(e, AffineDimExpr) or n == 1 for e, n in zip(at, extents_of(values.type), strict=True)):
        exprs = [e if isinstance(e, AffineDimExpr) else AffineExpr.constant(0) for e in at]
        written = b.map(values, exprs, inside)
    else:
        place = b.map(b.maximum(last, b.like(last, 0)), dims(rank), inside)
        written = b.insert(GatherOp(values, AffineMap(rank, 1, tuple(at)), [place]))
    if ends:
        index = AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in ends))
        domain = DomainAttr.get(index, [(0, n) for n in ends.values()])
        written = b.map(written, dims(rank), shape, domain, 0)
    return b.select(b.cmp("ge", last, 0), written, x)
