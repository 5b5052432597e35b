"""Sorting by counting: the rank of an element is how many come before it.

Exact and stable, NaN the greatest. The work grows with the square of the sorted dimension's size, so long dimensions
are sorted by a network instead.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import tensor
from ....dialects.payload import is_float
from ....dialects.shapes.extents import Extent, extents_of, fixed, least, most, static, typical
from ....dialects.tensor.builder import Builder, dims, normal_dim
from ....errors import ShapeError
from .bitonic_sort import comes_before, order_by_network
from .registry import decomposes
from .reshape import reshape_to
from .views import sliced

COUNTED = 1 << 10
"""Up to so many elements counting is one launch that is over before a network's have begun."""

MOST_COMPARISONS = 1 << 26
"""Comparisons that counting may take for longer dimensions."""


def is_long(x: SSAValue, dim: int) -> bool:
    """Whether `x` is sorted along `dim` by a network rather than by counting."""
    shape = extents_of(x.type)
    n = most(shape[dim])
    return n > COUNTED and prod(map(typical, shape)) * n > MOST_COMPARISONS


def along(b: Builder, x: SSAValue, dim: int, *, by: int, size: Extent | None = None) -> SSAValue:
    """`x` with dimension `dim` run through by dimension `by` of a space with one more dimension (the last).

    The other dimensions keep their places; `dim` or the last dimension, whichever is not `by`, is a repetition.
    """
    shape = list(extents_of(x.type))
    index = dims(len(shape) + 1)
    exprs = index[:-1]
    exprs[dim] = index[by]
    space = [*shape, shape[dim] if size is None else size]
    if by == len(shape):
        space = [*shape, shape[dim]]
        if size is not None:
            space[dim] = size
    return b.map(x, exprs, space)


def ranks(b: Builder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """For each element its position in the stably sorted order along `dim`, as i64."""
    rank = len(extents_of(x.type))
    own, other = along(b, x, dim, by=dim), along(b, x, dim, by=rank)
    space = extents_of(own.type)
    before, same = comes_before(b, other, own, descending)
    earlier = b.cmp("lt", b.iota(rank, space), b.iota(dim, space))
    before = b.either(before, b.both(same, earlier))
    return b.reduce("add", b.cast(before, i64), [rank])


def order(b: Builder, x: SSAValue, dim: int, descending: bool, count: int | None = None, first: int = 0) -> SSAValue:
    """Where the elements numbered `first`, `first + 1`, ... (`count` of them) of the sorted order lie along `dim`."""
    rank = len(extents_of(x.type))
    extent = extents_of(x.type)[dim]
    wanted = extent if count is None else count
    if is_long(x, dim):
        return sliced(b, order_by_network(b, x, dim, descending), dim, first, wanted)
    position = along(b, ranks(b, x, dim, descending), dim, by=rank, size=wanted)
    space = extents_of(position.type)
    number = b.iota(dim, space)
    hit = b.cmp("eq", position, b.plus(number, first) if first else number)
    place = b.iota(rank, space)
    return b.reduce("max", b.select(hit, place, b.like(place, 0)), [rank])


def pick(b: Builder, x: SSAValue, dim: int, index: SSAValue) -> SSAValue:
    """x[..., index, ...] along `dim`, other coordinates unchanged."""
    rank = len(extents_of(x.type))
    exprs = dims(rank)
    exprs[dim] = AffineExpr.symbol(0)
    return b.insert(tensor.GatherOp(x, AffineMap(rank, 1, tuple(exprs)), [index]))


def _comparable(b: Builder, x: SSAValue) -> SSAValue:
    return b.working(x)


def sorted_along(
    b: Builder, x: SSAValue, dim: int, descending: bool, count: int | None = None, first: int = 0
) -> list[SSAValue]:
    """(values, places) of the sorted elements; all of them unless `count` says how many, from number `first` on."""
    shape = extents_of(x.type)
    if not shape:
        flat = reshape_to(b, x, [1])
        return [reshape_to(b, v, []) for v in sorted_along(b, flat, 0, descending, count, first)]
    index = order(b, _comparable(b, x), dim, descending, count, first)
    if 0 in shape:
        return [b.map(x, dims(len(shape)), extents_of(index.type)), index]
    return [pick(b, x, dim, index), index]


@decomposes("sort", "sort.stable")
def sort(b: Builder, self: SSAValue, dim: int, descending: bool, stable: bool | None = None) -> list[SSAValue]:
    return sorted_along(b, self, normal_dim(dim, len(extents_of(self.type))), descending)


@decomposes("topk")
def topk(b: Builder, self: SSAValue, k: int, dim: int, largest: bool, sorted: bool) -> list[SSAValue]:
    dim = normal_dim(dim, len(extents_of(self.type)))
    if not 0 <= k <= (least(extents_of(self.type)[dim]) if extents_of(self.type) else 1):
        raise ShapeError(f"{k} of {extents_of(self.type)[dim]} elements", argument="k")
    if not extents_of(self.type) and k == 0:
        raise b.unsupported("k", "none of a single element")
    return sorted_along(b, self, dim, largest, k)


@decomposes("kthvalue")
def kthvalue(b: Builder, self: SSAValue, k: int, dim: int, keepdim: bool) -> list[SSAValue]:
    return _single(b, self, dim, k - 1, keepdim)


def _single(b: Builder, x: SSAValue, dim: int, number: int, keepdim: bool) -> list[SSAValue]:
    """Element `number` of the sorted order along `dim`, and its place."""
    shape = list(extents_of(x.type))
    dim = normal_dim(dim, len(shape))
    found = sorted_along(b, x, dim, False, 1, number)
    if shape and not keepdim:
        del shape[dim]
        return [reshape_to(b, v, shape) for v in found]
    return found


@decomposes("median.dim")
def median_dim(b: Builder, self: SSAValue, dim: int, keepdim: bool) -> list[SSAValue]:
    """The lower median; the first NaN if there is one."""
    shape = extents_of(self.type)
    extent = fixed(shape[normal_dim(dim, len(shape))]) if shape else 1
    if not extent:
        raise ShapeError("no median over an empty dimension", argument="dim")
    value, place = _single(b, self, dim, (extent - 1) // 2, keepdim)
    if not is_float(self.type):
        return [value, place]
    # The greatest element, by place the last of equal ones; a NaN there means that there is one, and which is first.
    x = b.working(self)
    return _nan_first(b, x, dim, keepdim, value, place)


def _nan_first(b: Builder, x: SSAValue, dim: int, keepdim: bool, value: SSAValue, place: SSAValue) -> list[SSAValue]:
    shape = extents_of(x.type)
    if not shape:
        return [value, place]
    dim = normal_dim(dim, len(shape))
    index = b.iota(dim, shape)
    first = b.reduce("min", b.select(b.isnan(x), index, b.like(index, shape[dim])), [dim])
    if keepdim:
        first = reshape_to(b, first, extents_of(value.type))
    some = b.cmp("lt", first, shape[dim])
    value = b.working(value)
    return [b.select(some, b.like(value, float("nan")), value), b.select(some, first, place)]


@decomposes("median")
def median(b: Builder, self: SSAValue) -> SSAValue:
    return _flat(b, self, median_dim)


def _flat(b: Builder, self: SSAValue, along_dim: Callable[..., list[SSAValue]]) -> SSAValue:
    count = prod(static(extents_of(self.type)))
    if not count and not is_float(self.type):
        raise ShapeError("no median of no integers", argument="self")
    if not count:
        return b.constant(float("nan"), [], b.result_element)
    flat = reshape_to(b, self, [count])
    return along_dim(b, flat, 0, False)[0]


@decomposes("nanmedian")
def nanmedian(b: Builder, self: SSAValue) -> SSAValue:
    return _flat(b, self, nanmedian_dim)


@decomposes("nanmedian.dim")
def nanmedian_dim(b: Builder, self: SSAValue, dim: int, keepdim: bool) -> list[SSAValue]:
    """The lower median of the elements that are not NaN; NaN if there are none."""
    shape = list(extents_of(self.type))
    if not is_float(self.type) or not shape:
        return median_dim(b, self, dim, keepdim)
    dim = normal_dim(dim, len(shape))
    if not shape[dim]:
        raise ShapeError("no median over an empty dimension", argument="dim")
    x = b.working(self)
    usable = b.reduce("add", b.cast(b.negated(b.isnan(x)), i64), [dim])
    middle = b.floordiv(b.maximum(b.plus(usable, -1), b.like(usable, 0)), b.like(usable, 2))
    kept = [*shape]
    kept[dim] = 1
    # The element whose rank is `middle`; NaNs rank last.
    if is_long(x, dim):
        place = pick(b, order_by_network(b, x, dim, False), dim, reshape_to(b, middle, kept))
    else:
        hit = b.cmp("eq", ranks(b, x, dim, False), b.keep(middle, [dim], shape))
        index = b.iota(dim, shape)
        place = reshape_to(b, b.reduce("max", b.select(hit, index, b.like(index, 0)), [dim]), kept)
    found = [pick(b, self, dim, place), place]
    return found if keepdim else [reshape_to(b, v, kept[:dim] + kept[dim + 1 :]) for v in found]
