"""Searching and counting: positions in sorted boundaries, histograms, the most frequent element."""

from __future__ import annotations

from math import prod

from xdsl.dialects import math
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects.payload import element_type, shape_of
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor import GatherOp, ReductionKind, identity
from ....dialects.tensor.builder import Builder, Number, broadcast_shape, normal_dim
from ....errors import ShapeError
from .pairwise_limit import check_pairs
from .registry import decomposes
from .reshape import reshape_to
from .scatter_builder import counted
from .sort import along, pick
from .type_promotion import promote


@decomposes("bucketize.Tensor")
def bucketize(b: Builder, self: SSAValue, boundaries: SSAValue, out_int32: bool, right: bool) -> SSAValue:
    if len(shape_of(boundaries.type)) != 1:
        raise ShapeError("boundaries have one dimension", argument="boundaries")
    return _position(b, boundaries, self, right)


@decomposes("bucketize.Scalar")
def bucketize_scalar(b: Builder, self: Number, boundaries: SSAValue, out_int32: bool, right: bool) -> SSAValue:
    return _position(b, boundaries, b.constant(self, [], element_type(boundaries.type)), right)


@decomposes("searchsorted.Tensor")
def searchsorted(
    b: Builder,
    sorted_sequence: SSAValue,
    self: SSAValue,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: SSAValue | None,
) -> SSAValue:
    if sorter is not None:
        sorted_sequence = pick(b, sorted_sequence, len(extents_of(sorted_sequence.type)) - 1, sorter)
    return _position(b, sorted_sequence, self, right or side == "right")


@decomposes("searchsorted.Scalar")
def searchsorted_scalar(
    b: Builder,
    sorted_sequence: SSAValue,
    self: Number,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: SSAValue | None,
) -> SSAValue:
    value = b.constant(self, [], element_type(sorted_sequence.type))
    return searchsorted(b, sorted_sequence, value, out_int32, right, side, sorter)


def _position(b: Builder, ordered: SSAValue, values: SSAValue, right: bool) -> SSAValue:
    """How many elements of the last dimension of `ordered` come before each value, or are equal to it if `right`."""
    common = promote(element_type(ordered.type), element_type(values.type))
    edges, x = b.working(b.cast(ordered, common)), b.working(b.cast(values, common))
    shape, rank = extents_of(x.type), len(extents_of(x.type))
    space = [*shape, extents_of(edges.type)[-1]]
    check_pairs(space, "self")
    at = [*range(rank - 1), rank] if len(extents_of(edges.type)) > 1 else [rank]
    # Written with `not`, so that a NaN comes after everything.
    beyond = b.cmp("gt" if right else "ge", b.place(edges, at, space), b.place(x, range(rank), space))
    return b.reduce("add", b.cast(b.negated(beyond), i64), [rank])


@decomposes("histc")
def histc(b: Builder, self: SSAValue, bins: int, min: Number, max: Number) -> SSAValue:
    count = prod(shape_of(self.type))
    x = b.working(reshape_to(b, self, [count]))
    low, high = b.constant(min, [], element_type(x.type)), b.constant(max, [], element_type(x.type))
    if min == max and count:
        low, high = b.reduce("min", x, [0]), b.reduce("max", x, [0])
    flat = b.cmp("eq", low, high)
    low, high = b.select(flat, b.plus(low, -1), low), b.select(flat, b.plus(high, 1), high)
    wide, first = b.broadcast(b.sub(high, low), [count]), b.broadcast(low, [count])
    place = b.scaled(b.sub(x, first), bins)
    number = b.cast(b.div(place, wide), i64)
    number = b.minimum(number, b.like(number, bins - 1))
    inside = b.both(b.cmp("ge", x, first), b.cmp("le", x, b.broadcast(high, [count])))
    number = b.select(inside, number, b.like(number, -1))
    return counted(b, number, bins, b.constant(1, [count], i64))


@decomposes("mode")
def mode(b: Builder, self: SSAValue, dim: int, keepdim: bool) -> list[SSAValue]:
    """The most frequent value along `dim` (of equally frequent ones the smallest) and the last place it has."""
    shape = list(extents_of(self.type))
    if not shape:
        return [self, b.constant(0, [], i64)]
    dim, rank = normal_dim(dim, len(shape)), len(shape)
    if not shape[dim]:
        raise ShapeError("no mode over an empty dimension", argument="dim")
    x = b.working(self)
    check_pairs([*shape, shape[dim]], "self")
    same = b.cmp("eq", along(b, x, dim, by=dim), along(b, x, dim, by=rank))
    count = b.reduce("add", b.cast(same, i64), [rank])
    often = b.cmp("eq", count, b.keep(b.reduce("max", count, [dim]), [dim], shape))
    value = b.reduce("min", b.select(often, x, b.like(x, identity(ReductionKind.MIN, element_type(x.type)))), [dim])
    hit = b.cmp("eq", x, b.keep(value, [dim], shape))
    index = b.iota(dim, shape)
    place = b.reduce("max", b.select(hit, index, b.like(index, 0)), [dim])
    kept = [1 if d == dim else n for d, n in enumerate(shape)]
    return [reshape_to(b, v, kept) for v in (value, place)] if keepdim else [value, place]


def pair_distance(b: Builder, x: SSAValue, y: SSAValue, p: float) -> SSAValue:
    """The p-norm of `x - y` over the last dimension; `x` and `y` have one shape."""
    last = [len(extents_of(x.type)) - 1]
    size = b.abs(b.sub(x, y))
    if p == 0:
        return b.reduce("add", b.cast(b.cmp("ne", size, 0), element_type(size.type)), last)
    if p == float("inf"):
        return b.reduce("max", b.maximum(size, b.like(size, 0)), last) if extents_of(x.type)[-1] else _none(b, size)
    if p == 1:
        return b.reduce("add", size, last)
    if p == 2:
        return b.sqrt(b.reduce("add", b.mul(size, size), last))
    power = b.reduce("add", b.math(math.PowFOp, size, b.like(size, p)), last)
    return b.math(math.PowFOp, power, b.like(power, 1.0 / p))


def _none(b: Builder, x: SSAValue) -> SSAValue:
    return b.constant(0, extents_of(x.type)[:-1], element_type(x.type))


@decomposes("_cdist_forward")
def cdist(b: Builder, x1: SSAValue, x2: SSAValue, p: float, compute_mode: int | None) -> SSAValue:
    left, right = extents_of(x1.type), extents_of(x2.type)
    batch = broadcast_shape([left[:-2], right[:-2]])
    n = len(batch)
    space = [*batch, left[-2], right[-2], left[-1]]
    x = b.place(b.broadcast(b.working(x1), [*batch, *left[-2:]]), [*range(n + 1), n + 2], space)
    y = b.place(b.broadcast(b.working(x2), [*batch, *right[-2:]]), [*range(n), n + 1, n + 2], space)
    return pair_distance(b, x, y, p)


@decomposes("_pdist_forward")
def pdist(b: Builder, self: SSAValue, p: float) -> SSAValue:
    """The distances of all pairs of rows, (0, 1), (0, 2), ..., (1, 2), ..."""
    n, size = shape_of(self.type)
    pairs = n * (n - 1) // 2
    if not pairs:
        return b.constant(0, [0], b.result_element)
    # Row r starts at pair r * (2n - r - 1) / 2; a pair's row is how many rows start no later, less one.
    number, r = b.iota(0, [pairs, n]), b.iota(1, [pairs, n])
    start = b.floordiv(b.mul(r, b.sub(b.like(r, 2 * n - 1), r)), b.like(r, 2))
    begun = b.cast(b.both(b.cmp("le", start, number), b.cmp("lt", r, n - 1)), i64)
    row = b.plus(b.reduce("add", begun, [1]), -1)
    first = b.floordiv(b.mul(row, b.sub(b.like(row, 2 * n - 1), row)), b.like(row, 2))
    column = b.plus(b.add(b.sub(b.iota(0, [pairs]), first), row), 1)
    x = b.working(self)
    return pair_distance(b, _rows(b, x, row, size), _rows(b, x, column, size), p)


def _rows(b: Builder, x: SSAValue, index: SSAValue, size: int) -> SSAValue:
    space = [shape_of(index.type)[0], size]
    map = AffineMap(2, 1, (AffineExpr.symbol(0), AffineExpr.dimension(1)))
    return b.insert(GatherOp(x, map, [b.place(index, [0], space)]))
