"""Writes at computed places, as one-hot reductions: every result element looks for the writes that hit it.

What PyTorch leaves open is settled: of several plain writes to one place the last in order counts. A write outside of
the tensor is dropped (PyTorch raises there).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects.domain import DomainAttr
from ...dialects.extents import Extent, extents_of
from ...dialects.payload import element_type, is_float, shape_of
from ...dialects.tensor import GatherOp, Kind, identity
from ...errors import ShapeError, UnsupportedError
from .builder import Builder, Number, broadcast_shape, dims, normal_dim, numel
from .indexing import wrapped
from .limits import check_pairs
from .registry import decomposes
from .reshaping import reshape_to
from .scans import scan

_KINDS = {
    "sum": Kind.ADD,
    "add": Kind.ADD,
    "mean": Kind.ADD,
    "prod": Kind.MUL,
    "multiply": Kind.MUL,
    "amax": Kind.MAX,
    "amin": Kind.MIN,
}


def combine(
    b: Builder, x: SSAValue, hit: SSAValue, values: SSAValue, over: Sequence[int], mode: str | None, include_self: bool
) -> SSAValue:
    """`x` after the writes of `values` where `hit` holds; both have the dimensions of `x`, then those of the writes.

    `mode` None writes, others combine. Without `include_self` an element that is written starts from nothing.
    """
    check_pairs(extents_of(hit.type), "index")
    if mode is None:
        return _last_write(b, x, hit, values, over)
    if mode not in _KINDS:
        raise b.unsupported("reduce", f"{mode!r} is not one of {', '.join(_KINDS)}")
    kind = _KINDS[mode]
    if element_type(x.type) == i1 and kind == Kind.ADD:
        kind = Kind.OR
    neutral = identity(kind, element_type(x.type))
    found = b.reduce(kind.value, b.select(hit, values, b.like(values, neutral)), over)
    touched = b.reduce("or", hit, over)
    start = x if include_self else b.select(touched, b.like(x, neutral), x)
    total = _joined(b, kind, start, found)
    if mode == "mean":
        count = b.reduce("add", b.cast(hit, i64), over)
        count = b.plus(count, 1) if include_self else b.maximum(count, b.like(count, 1))
        divisor = b.cast(count, element_type(x.type))
        return b.div(total, divisor) if is_float(x.type) else b.floordiv(total, divisor)
    return total


def _joined(b: Builder, kind: Kind, x: SSAValue, y: SSAValue) -> SSAValue:
    methods = {Kind.ADD: b.add, Kind.OR: b.add, Kind.MUL: b.mul, Kind.MAX: b.maximum, Kind.MIN: b.minimum}
    return methods[kind](x, y)


def _last_write(b: Builder, x: SSAValue, hit: SSAValue, values: SSAValue, over: Sequence[int]) -> SSAValue:
    space = extents_of(hit.type)
    number: SSAValue = b.constant(0, space, i64)
    for d in over:
        stride = b.algebra.product(space[e] for e in over if e > d)
        place = b.iota(d, space)
        known = stride.number is not None
        term = b.scaled(place, stride.number or 0) if known else b.mul(place, b.measured(stride, space, i64))
        number = b.add(number, term)
    last = b.reduce("max", b.select(hit, number, b.like(number, -1)), over)
    chosen = b.both(hit, b.cmp("eq", number, b.keep(last, over, space)))
    # Exactly one write is left; `max` copies it, infinities and NaN included.
    low = identity(Kind.MAX, element_type(values.type))
    written = b.reduce("max", b.select(chosen, values, b.like(values, low)), over)
    return b.select(b.cmp("ge", last, 0), written, x)


def _scatter(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue | Number, mode: str | None, include_self: bool
) -> SSAValue:
    shape = extents_of(self.type)
    if not shape:
        both = index, src
        args = [reshape_to(b, v, [1]) if isinstance(v, SSAValue) and not extents_of(v.type) else v for v in both]
        flat = _scatter(b, reshape_to(b, self, [1]), 0, args[0], args[1], mode, include_self)  # pyright: ignore
        return reshape_to(b, flat, [])
    dim = normal_dim(dim, len(shape))
    if not extents_of(index.type):
        index = reshape_to(b, index, [1])
    writes = extents_of(index.type)
    if isinstance(src, SSAValue) and not extents_of(src.type):
        src = reshape_to(b, src, [1])
    x = b.working(self)
    index = b.index(index, shape[dim])
    space = [*shape, writes[dim]]
    places = _at_writes(b, index, dim, writes, space, -1)
    hit = b.cmp("eq", places, b.iota(dim, space, element_type(places.type)))
    if isinstance(src, SSAValue):
        values = _at_writes(b, b.cast(src, element_type(x.type)), dim, writes, space, 0)
    else:
        values = b.constant(src, space, element_type(x.type))
    return combine(b, x, hit, values, [len(shape)], mode, include_self)


def _at_writes(
    b: Builder, x: SSAValue, dim: int, writes: Sequence[Extent], space: Sequence[Extent], fill: Number
) -> SSAValue:
    """`x` at the write number d[-1] along `dim`, where there is such a write, else `fill`."""
    index = dims(len(space))
    exprs = index[:-1]
    exprs[dim] = index[-1]
    short = [d for d in range(len(writes)) if d != dim and writes[d] != space[d]]
    if not short:
        return b.map(x, exprs, space)
    domain = DomainAttr.get(AffineMap(len(space), 0, tuple(index[d] for d in short)), [(0, writes[d]) for d in short])
    return b.map(x, exprs, space, domain, fill)


@decomposes("scatter.src")
def scatter_src(b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    return _scatter(b, self, dim, index, src, None, True)


@decomposes("scatter.value")
def scatter_value(b: Builder, self: SSAValue, dim: int, index: SSAValue, value: Number) -> SSAValue:
    return _scatter(b, self, dim, index, value, None, True)


@decomposes("scatter.reduce")
def scatter_src_reduce(b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue, reduce: str) -> SSAValue:
    return _scatter(b, self, dim, index, src, reduce, True)


@decomposes("scatter.value_reduce")
def scatter_value_reduce(b: Builder, self: SSAValue, dim: int, index: SSAValue, value: Number, reduce: str) -> SSAValue:
    return _scatter(b, self, dim, index, value, reduce, True)


@decomposes("scatter_add")
def scatter_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    return _scatter(b, self, dim, index, src, "sum", True)


@decomposes("scatter_reduce.two")
def scatter_reduce(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue, reduce: str, include_self: bool
) -> SSAValue:
    return _scatter(b, self, dim, index, src, reduce, include_self)


def slices_written(
    b: Builder,
    self: SSAValue,
    dim: int,
    index: SSAValue,
    source: SSAValue | Number,
    mode: str | None,
    include: bool,
    *,
    wraps: bool = False,
) -> SSAValue:
    """Writes of whole slices: `index` has one place along `dim` for every slice of `source`. With `wraps` PyTorch takes
    negative places as well."""
    shape = extents_of(self.type)
    if not shape:
        x = reshape_to(b, self, [1])
        source = reshape_to(b, source, [1]) if isinstance(source, SSAValue) else source
        return reshape_to(b, slices_written(b, x, 0, index, source, mode, include, wraps=wraps), [])
    dim = normal_dim(dim, len(shape))
    count = numel(b, index)
    index = reshape_to(b, index, [count])
    x = b.working(self)
    space = [*shape, count]
    places = b.place(wrapped(b, index, shape[dim], legal=wraps), [len(shape)], space)
    hit = b.cmp("eq", places, b.iota(dim, space, element_type(index.type)))
    if isinstance(source, SSAValue):
        if not extents_of(source.type):
            source = b.broadcast(source, [count if d == dim else n for d, n in enumerate(shape)])
        slices = [count if d == dim else n for d, n in enumerate(shape)]
        if list(extents_of(source.type)) != slices:
            raise ShapeError(f"{list(extents_of(source.type))} where {slices} is needed", argument="source")
        exprs = dims(len(space))[:-1]
        exprs[dim] = AffineExpr.dimension(len(shape))
        values = b.map(b.cast(source, element_type(x.type)), exprs, space)
    else:
        values = b.constant(source, space, element_type(x.type))
    return combine(b, x, hit, values, [len(shape)], mode, include)


@decomposes("index_add")
def index_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, alpha: Number) -> SSAValue:
    scaled = b.scaled(b.working(source), alpha)
    return slices_written(b, self, dim, index, scaled, "sum", True)


@decomposes("index_copy")
def index_copy(b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue) -> SSAValue:
    return slices_written(b, self, dim, index, source, None, True)


@decomposes("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b: Builder, self: SSAValue, dim: int, index: SSAValue, value: SSAValue | Number) -> SSAValue:
    return slices_written(b, self, dim, index, value, None, True, wraps=True)


@decomposes("index_reduce")
def index_reduce(
    b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, reduce: str, include_self: bool
) -> SSAValue:
    return slices_written(b, self, dim, index, source, reduce, include_self)


@decomposes("index_put", "_unsafe_index_put")
def index_put(
    b: Builder, self: SSAValue, indices: Sequence[SSAValue | None], values: SSAValue, accumulate: bool
) -> SSAValue:
    shape = shape_of(self.type)
    x = b.working(self)
    values = b.cast(values, element_type(x.type))
    given = [i for i in indices if i is not None]
    if any(element_type(i.type) == i1 for i in given):
        return _masked_put(b, x, indices, values, accumulate)
    common = broadcast_shape([shape_of(i.type) for i in given])
    at = [d for d, i in enumerate(indices) if i is not None]
    kept = [d for d in range(len(shape)) if d not in at]
    # Values have the shape of x[indices]: the writes stand where the first index stands if all are neighbours.
    first = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    before = [d for d in kept if d < first]
    value_dims = [*before, *range(len(shape), len(shape) + len(common)), *kept[len(before) :]]
    space = [*shape, *common]
    over = list(range(len(shape), len(space)))
    values = b.broadcast(values, [space[d] for d in value_dims])
    hit = b.constant(True, space, i1)
    for d, index in zip(at, given, strict=True):
        places = b.place(b.broadcast(wrapped(b, index, shape[d]), common), over, space)
        hit = b.both(hit, b.cmp("eq", places, b.iota(d, space, element_type(index.type))))
    return combine(b, x, hit, b.place(values, value_dims, space), over, "sum" if accumulate else None, True)


def _masked_put(
    b: Builder, x: SSAValue, indices: Sequence[SSAValue | None], values: SSAValue, accumulate: bool
) -> SSAValue:
    """A mask over leading dimensions, and one value for all that it selects, or one for each of them in order.

    That there are as many values as the mask selects, which PyTorch checks, is left to the caller.
    """
    if len(indices) != 1 or indices[0] is None or element_type(indices[0].type) != i1:
        raise UnsupportedError("how many elements a mask selects depends on data", argument="indices")
    shape, masked = shape_of(x.type), list(shape_of(indices[0].type))
    rank, count = len(masked), prod(shape_of(indices[0].type))
    rest, given = list(shape[rank:]), list(shape_of(values.type))
    mask = b.place(indices[0], range(rank), shape)
    if len(given) <= len(rest) or given[-1 - len(rest)] == 1:
        slices = given[-len(rest) :] if rest else []
        value = b.broadcast(reshape_to(b, values, slices), shape)
    else:
        number = b.plus(scan(b, b.cast(reshape_to(b, indices[0], [count]), i64), 0, Kind.ADD), -1)
        own = b.broadcast(values, [given[-1 - len(rest)], *rest])
        place = b.place(reshape_to(b, number, masked), range(rank), shape)
        exprs = [AffineExpr.symbol(0), *(AffineExpr.dimension(rank + d) for d in range(len(rest)))]
        value = b.insert(GatherOp(own, AffineMap(len(shape), 1, tuple(exprs)), [place]))
    return b.select(mask, b.add(x, value) if accumulate else value, x)


@decomposes("put")
def put(b: Builder, self: SSAValue, index: SSAValue, source: SSAValue, accumulate: bool) -> SSAValue:
    shape, count = shape_of(self.type), prod(shape_of(index.type))
    flat = reshape_to(b, self, [prod(shape)])
    places, values = reshape_to(b, index, [count]), reshape_to(b, source, [count])
    written = slices_written(b, flat, 0, places, values, "sum" if accumulate else None, True, wraps=True)
    return reshape_to(b, written, shape)


@decomposes("masked_scatter")
def masked_scatter(b: Builder, self: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    if element_type(mask.type) != i1:
        raise b.unsupported("mask", f"a mask is of truth values, not of {element_type(mask.type)}")
    shape = broadcast_shape([shape_of(self.type), shape_of(mask.type)])
    count = prod(shape)
    mask, x = reshape_to(b, b.broadcast(mask, shape), [count]), b.broadcast(self, shape)
    number = b.plus(scan(b, b.cast(mask, i64), 0, Kind.ADD), -1)
    flat = reshape_to(b, source, [prod(shape_of(source.type))])
    taken = b.insert(GatherOp(flat, AffineMap(1, 1, (AffineExpr.symbol(0),)), [number]))
    return b.select(reshape_to(b, mask, shape), reshape_to(b, taken, shape), x)
