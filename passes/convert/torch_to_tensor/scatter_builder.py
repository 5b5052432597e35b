"""Writes at computed places, in one of two forms.

Where there are few writes, or few places, every result element looks at all writes: a one-hot reduction, which is fused
with what is around it. Otherwise it is a scatter, whose work is linear in the writes.

What PyTorch leaves open is settled: of several plain writes to one place the last in order counts, whatever the form.
Therefore their numbers are scattered, as a maximum, and the values are read at the number that is left. Values that are
combined are so in any order. A write outside of the tensor is dropped (PyTorch raises there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from ....dialects.payload import element_type, is_float
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import Extent, extents_of, most
from ....dialects.tensor import GatherOp, ReductionKind, ScatterOp, identity
from ....dialects.tensor.builder import Builder, dims, width_of
from .cumulative import scan
from .pairwise_limit import check_pairs

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
        """`init` with the values combined into it."""
        own = element_type(init.type)
        if own == i1:
            kind = (
                ReductionKind.MIN
                if kind in (ReductionKind.MUL, ReductionKind.MIN, ReductionKind.AND)
                else ReductionKind.MAX
            )
        wide = i32 if 0 < width_of(own) < 32 else own
        map = AffineMap(len(self.space), len(self.indices), self.at)
        return b.cast(b.insert(ScatterOp(kind, b.cast(init, wide), b.cast(values, wide), map, self.indices)), own)

    def last(self, b: Builder, shape: Sequence[Extent]) -> SSAValue:
        """For each element of a tensor of `shape` the number of the last write to it, counted along `over`; else -1."""
        count = 1
        for d in self.over:
            count *= most(self.space[d])
        element = i32 if count < 1 << 31 else i64
        number = numbered(b, self.over, self.space)
        return self.scatter(b, ReductionKind.MAX, b.constant(-1, shape, element), b.cast(number, element))

    def combined(self, b: Builder, x: SSAValue, values: SSAValue, mode: str, include_self: bool) -> SSAValue:
        """`x` with the values combined; without `include_self` an element that is written starts from nothing."""
        kind, count, start = _kind(b, x, mode), None, x
        if mode == "mean" or not include_self:
            nothing, one = b.constant(0, extents_of(x.type), i32), b.constant(1, self.space, i32)
            count = self.scatter(b, ReductionKind.ADD, nothing, one)
        if count is not None and not include_self:
            start = b.select(b.cmp("gt", count, 0), b.like(x, identity(kind, element_type(x.type))), x)
        total = self.scatter(b, kind, start, values)
        return mean_of(b, total, count, include_self) if mode == "mean" and count is not None else total


def are_few(writes: Sequence[Extent], places: Sequence[Extent]) -> bool:
    """Whether every place may look at all the writes: there are few of the one or of the other."""
    counts = [1, 1]
    for i, space in enumerate((writes, places)):
        for n in space:
            counts[i] *= most(n)
    return min(counts) <= FEW


def numbered(b: Builder, over: Sequence[int], space: Sequence[Extent]) -> SSAValue:
    """The number of every element of `space`, counted along the dimensions `over`."""
    number: SSAValue = b.constant(0, space, i64)
    for d in over:
        stride = b.algebra.product(space[e] for e in over if e > d)
        place = b.iota(d, space)
        known = stride.number is not None
        term = b.scaled(place, stride.number or 0) if known else b.mul(place, b.measured(stride, space, i64))
        number = b.add(number, term)
    return number


def read_last(b: Builder, x: SSAValue, last: SSAValue, values: SSAValue, at: Sequence[AffineExpr]) -> SSAValue:
    """`x` where nothing is written, else the element of `values` at the coordinates `at`, whose symbol is `last`.

    Where `values` end before `x` nothing is written; no place outside of them is read."""
    shape, ends = extents_of(x.type), dict[int, Extent]()
    for expr, n in zip(at, extents_of(values.type), strict=True):
        if isinstance(expr, AffineDimExpr) and n != shape[expr.position]:
            ends[expr.position] = n
    inside, rank = tuple(ends.get(d, n) for d, n in enumerate(shape)), len(shape)
    place = b.maximum(last, b.like(last, 0))
    written = b.insert(GatherOp(values, AffineMap(rank, 1, tuple(at)), [b.map(place, dims(rank), inside)]))
    if ends:
        index = AffineMap(rank, 0, tuple(AffineExpr.dimension(d) for d in ends))
        domain = DomainAttr.get(index, [(0, n) for n in ends.values()])
        written = b.map(written, dims(rank), shape, domain, 0)
    return b.select(b.cmp("ge", last, 0), written, x)


def _kind(b: Builder, x: SSAValue, mode: str) -> ReductionKind:
    if mode not in KINDS:
        raise b.unsupported("reduce", f"{mode!r} is not one of {', '.join(KINDS)}")
    return ReductionKind.OR if element_type(x.type) == i1 and KINDS[mode] == ReductionKind.ADD else KINDS[mode]


def mean_of(b: Builder, total: SSAValue, count: SSAValue, include_self: bool) -> SSAValue:
    """`total` divided by how many values are in it, `count` beside what was there."""
    count = b.plus(count, 1) if include_self else b.maximum(count, b.like(count, 1))
    divisor = b.cast(count, element_type(total.type))
    return b.div(total, divisor) if is_float(total.type) else b.floordiv(total, divisor)


def combine(
    b: Builder, x: SSAValue, hit: SSAValue, values: SSAValue, over: Sequence[int], mode: str | None, include_self: bool
) -> SSAValue:
    """`x` after the writes of `values` where `hit` holds; both have the dimensions of `x`, then those of the writes.

    `mode` None writes, others combine. Without `include_self` an element that is written starts from nothing.
    """
    check_pairs(extents_of(hit.type), "index")
    if mode is None:
        return _last_write(b, x, hit, values, over)
    kind = _kind(b, x, mode)
    neutral = identity(kind, element_type(x.type))
    found = b.reduce(kind.value, b.select(hit, values, b.like(values, neutral)), over)
    start = x if include_self else b.select(b.reduce("or", hit, over), b.like(x, neutral), x)
    total = _joined(b, kind, start, found)
    if mode != "mean":
        return total
    return mean_of(b, total, b.reduce("add", b.cast(hit, i64), over), include_self)


def _joined(b: Builder, kind: ReductionKind, x: SSAValue, y: SSAValue) -> SSAValue:
    methods = {
        ReductionKind.ADD: b.add,
        ReductionKind.OR: b.add,
        ReductionKind.MUL: b.mul,
        ReductionKind.MAX: b.maximum,
        ReductionKind.MIN: b.minimum,
    }
    return methods[kind](x, y)


def _last_write(b: Builder, x: SSAValue, hit: SSAValue, values: SSAValue, over: Sequence[int]) -> SSAValue:
    space = extents_of(hit.type)
    number = numbered(b, over, space)
    last = b.reduce("max", b.select(hit, number, b.like(number, -1)), over)
    chosen = b.both(hit, b.cmp("eq", number, b.keep(last, over, space)))
    # Exactly one write is left; `max` copies it, infinities and NaN included.
    low = identity(ReductionKind.MAX, element_type(values.type))
    written = b.reduce("max", b.select(chosen, values, b.like(values, low)), over)
    return b.select(b.cmp("ge", last, 0), written, x)


def begun(b: Builder, bounds: SSAValue, extent: Extent) -> SSAValue:
    """How many of the `bounds`, integers in the last dimension, are at most 0, 1, ... and `extent` - 1."""
    *lead, count = extents_of(bounds.type)
    last = len(lead)
    bounds = b.cast(bounds, i64)
    if are_few([count], [extent]):
        space = [*lead, extent, count]
        passed = b.cmp("le", b.place(bounds, [*range(last), last + 1], space), b.iota(last, space))
        return b.reduce("add", b.cast(passed, i64), [last + 1])
    at = (*dims(last), AffineExpr.symbol(0))
    writes = Writes((*lead, count), at, (b.maximum(bounds, b.like(bounds, 0)),), (last,))
    starts = writes.scatter(b, ReductionKind.ADD, b.constant(0, [*lead, extent], i64), b.like(bounds, 1))
    return scan(b, starts, last, ReductionKind.ADD)


def grouped(
    b: Builder, kind: ReductionKind, x: SSAValue, number: SSAValue, axis: int, groups: Extent
) -> tuple[SSAValue, SSAValue]:
    """`x` reduced along `axis` to so many `groups`, and how many elements each of them has. `number` says to which
    group an element belongs, for the dimensions up to `axis`; those of no group have -1."""
    shape, rank, element = extents_of(x.type), len(extents_of(x.type)), element_type(x.type)
    result = [groups if d == axis else n for d, n in enumerate(shape)]
    if are_few([shape[axis]], [groups]):
        space = [*result, shape[axis]]
        hit = b.cmp("eq", b.place(number, [*range(axis), rank], space), b.iota(axis, space, element_type(number.type)))
        values = b.place(x, [*range(axis), rank, *range(axis + 1, rank)], space)
        found = b.reduce(kind.value, b.select(hit, values, b.like(values, identity(kind, element))), [rank])
        return found, b.reduce("add", b.cast(hit, i64), [rank])
    at = dims(rank)
    at[axis] = AffineExpr.symbol(0)
    writes = Writes(shape, tuple(at), (b.place(number, range(axis + 1), shape),), (axis,))
    found = writes.scatter(b, kind, b.constant(identity(kind, element), result, element), x)
    return found, writes.scatter(b, ReductionKind.ADD, b.constant(0, result, i64), b.constant(1, shape, i64))


def counted(b: Builder, number: SSAValue, bins: Extent, values: SSAValue) -> SSAValue:
    """The sum of the `values` of each of `bins` numbers; `number` says to which a value belongs, -1 to none."""
    (count,) = extents_of(number.type)
    zero = b.constant(0, [bins], element_type(values.type))
    if are_few([count], [bins]):
        space = [bins, count]
        hit = b.cmp("eq", b.place(number, [1], space), b.iota(0, space, element_type(number.type)))
        return combine(b, zero, hit, b.place(values, [1], space), [1], "sum", True)
    return Writes((count,), (AffineExpr.symbol(0),), (number,), (0,)).scatter(b, ReductionKind.ADD, zero, values)
