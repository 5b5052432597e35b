"""Operators that write at computed places: scatter, index_add, index_put and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects.payload import element_type, shape_of
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor import GatherOp, ReductionKind
from ....dialects.tensor.builder import Builder, Number, broadcast_shape, dims, normal_dim, numel
from ....errors import ShapeError, UnsupportedError
from .cumulative import scan
from .gather import wrapped
from .registry import decomposes
from .reshape import reshape_to
from .scatter_builder import Writes, read_last


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
    space = extents_of(index.type)
    if isinstance(src, SSAValue) and not extents_of(src.type):
        src = reshape_to(b, src, [1])
    x = b.working(self)
    index = b.index(index, shape[dim])
    if 0 in space:
        return x
    at = dims(len(shape))
    at[dim] = AffineExpr.symbol(0)
    writes = Writes(space, tuple(at), (index,), (dim,))
    if isinstance(src, SSAValue):
        src = b.cast(src, element_type(x.type))
    if mode is not None:
        of_all = isinstance(src, SSAValue)
        values = b.map(src, dims(len(space)), space) if of_all else b.constant(src, space, element_type(x.type))
        return writes.combined(b, x, values, mode, include_self)
    last = writes.last(b, shape)
    if isinstance(src, SSAValue):
        ends = [extents_of(src.type)[d] if d == dim else n for d, n in enumerate(space)]
        return read_last(b, x, last, b.map(src, dims(len(ends)), ends), at)
    return b.select(b.cmp("ge", last, 0), b.like(x, src), x)


@decomposes("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_reduce.two")
def scatter(
    b: Builder,
    self: SSAValue,
    dim: int,
    index: SSAValue,
    src: SSAValue | None = None,
    value: Number = 0,
    reduce: str | None = None,
    include_self: bool = True,
) -> SSAValue:
    return _scatter(b, self, dim, index, value if src is None else src, reduce, include_self)


@decomposes("scatter_add")
def scatter_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    return _scatter(b, self, dim, index, src, "sum", True)


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
    slices = [count if d == dim else n for d, n in enumerate(shape)]
    if isinstance(source, SSAValue):
        source = source if extents_of(source.type) else b.broadcast(source, slices)
        if list(extents_of(source.type)) != slices:
            raise ShapeError(f"{list(extents_of(source.type))} where {slices} is needed", argument="source")
        to_front = [*range(1, dim + 1), 0, *range(dim + 1, len(shape))]
        order = [AffineExpr.dimension(d) for d in to_front]
        source = b.map(b.cast(source, element_type(x.type)), order, [count, *shape[:dim], *shape[dim + 1 :]])
    return _put(b, x, [dim], [wrapped(b, index, shape[dim], legal=wraps)], source, mode, include)


def _put(
    b: Builder,
    x: SSAValue,
    at: Sequence[int],
    indices: Sequence[SSAValue],
    values: SSAValue | Number,
    mode: str | None,
    include_self: bool,
) -> SSAValue:
    """Writes of slices of `x`: the `indices`, of one shape and not negative where they are legal, say where along the
    dimensions `at`. `values` have that shape and then the dimensions of a slice."""
    shape, common = extents_of(x.type), extents_of(indices[0].type)
    if 0 in common:
        return x
    element, kept = element_type(x.type), [d for d in range(len(shape)) if d not in at]
    over = list(range(len(common)))
    symbols = {d: AffineExpr.symbol(i) for i, d in enumerate(at)}
    if mode is not None:
        space = (*common, *(shape[d] for d in kept))
        coordinates = tuple(
            symbols[d] if d in symbols else AffineExpr.dimension(len(common) + kept.index(d)) for d in range(len(shape))
        )
        spread = values if isinstance(values, SSAValue) else b.constant(values, space, element)
        writes = Writes(space, coordinates, tuple(b.place(i, over, space) for i in indices), tuple(over))
        return writes.combined(b, x, spread, mode, include_self)
    writes = Writes(common, tuple(symbols[d] for d in at), tuple(indices), tuple(over))
    last = b.place(writes.last(b, [shape[d] for d in at]), at, shape)
    if not isinstance(values, SSAValue):
        return b.select(b.cmp("ge", last, 0), b.like(x, values), x)
    count = b.algebra.extent(b.algebra.product(common))
    rows = reshape_to(b, values, [count, *(shape[d] for d in kept)])
    return read_last(b, x, last, rows, [AffineExpr.symbol(0), *(AffineExpr.dimension(d) for d in kept)])


@decomposes("index_add")
def index_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, alpha: Number) -> SSAValue:
    scaled = b.scaled(b.working(source), alpha)
    return slices_written(b, self, dim, index, scaled, "sum", True)


@decomposes("index_put")
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
    before, after = [d for d in kept if d < first], [d for d in kept if d >= first]
    values = b.broadcast(values, [*(shape[d] for d in before), *common, *(shape[d] for d in after)])
    rank, ahead = len(common), len(before)
    order = [*range(rank, rank + ahead), *range(rank), *range(rank + ahead, rank + len(kept))]
    values = b.map(values, [AffineExpr.dimension(d) for d in order], [*common, *(shape[d] for d in kept)])
    spread = [b.broadcast(wrapped(b, i, shape[d]), common) for d, i in zip(at, given, strict=True)]
    return _put(b, x, at, spread, values, "sum" if accumulate else None, True)


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
        number = b.plus(scan(b, b.cast(reshape_to(b, indices[0], [count]), i64), 0, ReductionKind.ADD), -1)
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
    number = b.plus(scan(b, b.cast(mask, i64), 0, ReductionKind.ADD), -1)
    flat = reshape_to(b, source, [prod(shape_of(source.type))])
    taken = b.insert(GatherOp(flat, AffineMap(1, 1, (AffineExpr.symbol(0),)), [number]))
    return b.select(reshape_to(b, mask, shape), reshape_to(b, taken, shape), x)


@decomposes("index_copy", "index_reduce")
def index_copy(
    b: Builder,
    self: SSAValue,
    dim: int,
    index: SSAValue,
    source: SSAValue,
    reduce: str | None = None,
    include_self: bool = True,
) -> SSAValue:
    return slices_written(b, self, dim, index, source, reduce, include_self)


@decomposes("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b: Builder, self: SSAValue, dim: int, index: SSAValue, value: SSAValue | Number) -> SSAValue:
    return slices_written(b, self, dim, index, value, None, True, wraps=True)
