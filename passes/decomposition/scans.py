"""Scans along a dimension, as reductions over a triangle: result[i] combines x[0], ..., x[i].

That is exact and needs no operation of its own; the work grows with the square of the dimension's size.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineMap

from ...dialects.domain import DomainAttr
from ...dialects.payload import element_type, is_float, shape_of
from ...dialects.tensor import Kind, identity
from .builder import Builder, Number, dims, normal_dim, work_type
from .registry import decomposes


def prefixes(b: Builder, x: SSAValue, dim: int, fill: Number) -> SSAValue:
    """All prefixes of `x` along `dim`: with a new last dimension j, x[..., j, ...] where j <= i, else `fill`."""
    shape = shape_of(x.type)
    index = dims(len(shape) + 1)
    exprs = index[:-1]
    exprs[dim] = index[-1]
    domain = DomainAttr.get(AffineMap(len(index), 0, (index[dim] + index[-1] * -1,)), [(0, max(shape[dim], 1))])
    return b.map(x, exprs, [*shape, shape[dim]], domain, fill)


def scan(b: Builder, x: SSAValue, dim: int, kind: Kind) -> SSAValue:
    """The prefix reductions of `x` along `dim`."""
    rank = len(shape_of(x.type))
    if not rank:
        return x
    return b.reduce(kind.value, prefixes(b, x, dim, identity(kind, element_type(x.type))), [rank])


def _scanned(b: Builder, x: SSAValue, dim: int, kind: Kind) -> SSAValue:
    return scan(b, b.cast(x, work_type(b.result_element)), normal_dim(dim, len(shape_of(x.type))), kind)


@decomposes("cumsum")
def cumsum(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None) -> SSAValue:
    return _scanned(b, self, dim, Kind.ADD)


@decomposes("cumprod")
def cumprod(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None) -> SSAValue:
    return _scanned(b, self, dim, Kind.MUL)


@decomposes("cummax")
def cummax(b: Builder, self: SSAValue, dim: int) -> list[SSAValue]:
    return _extreme_so_far(b, self, dim, Kind.MAX)


@decomposes("cummin")
def cummin(b: Builder, self: SSAValue, dim: int) -> list[SSAValue]:
    return _extreme_so_far(b, self, dim, Kind.MIN)


def _extreme_so_far(b: Builder, self: SSAValue, dim: int, kind: Kind) -> list[SSAValue]:
    """The extreme value so far and where it was: of equal values the last, and a NaN (the last) beats all."""
    x = b.working(self)
    rank = len(shape_of(x.type))
    if not rank:
        return [x, b.constant(0, [], i64)]
    dim = normal_dim(dim, rank)
    best = scan(b, x, dim, kind)
    # A position is the last one up to i with x[j] equal to the best up to i.
    seen = prefixes(b, x, dim, identity(kind, element_type(x.type)))
    space = shape_of(seen.type)
    limit = b.keep(best, [rank], space)
    hit = b.cmp("eq", seen, limit)
    if is_float(x.type):
        hit = b.either(hit, b.both(b.isnan(seen), b.isnan(limit)))
    place = b.iota(rank, space)
    hit = b.both(hit, b.cmp("le", place, b.iota(dim, space)))
    return [best, b.reduce("max", b.select(hit, place, b.like(place, -1)), [rank])]


@decomposes("logcumsumexp")
def logcumsumexp(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    x = b.floating(self)
    rank = len(shape_of(x.type))
    if not rank:
        return x
    dim = normal_dim(dim, rank)
    low = float("-inf")
    frame = scan(b, x, dim, Kind.MAX)
    frame = b.select(b.cmp("eq", b.abs(frame), float("inf")), b.like(frame, 0), frame)
    seen = prefixes(b, x, dim, low)
    space = shape_of(seen.type)
    total = b.reduce("add", b.exp(b.sub(seen, b.keep(frame, [rank], space))), [rank])
    return b.add(b.log(total), frame)
