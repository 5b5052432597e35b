"""Operators that read and write at computed positions: embedding, gather, index, scatter, index_put and similar ones.

PyTorch leaves open which of several writes to one element remains; here it is the last one
(`dialects/tensor/writes.py`). Operators that combine values, such as `scatter_add`, combine them in any order. A write
outside the tensor is dropped, where PyTorch raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type, is_float, shape_of
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.tensor import ReductionKind, identity
from ....dialects.tensor.builder import Builder, Number, broadcast_shape, dims, normal_dim
from ....dialects.tensor.views import gathered, pick, reshape_to
from ....dialects.tensor.writes import Writes, read_last
from ....errors import ShapeError
from .registry import decomposes
from .views import as_strided_places, element_count


def wrapped(b: Builder, index: SSAValue, extent: Extent, *, legal: bool = True) -> SSAValue:
    """Returns `index` with negative values counted from the end.

    Args:
        b: Builder of the operator.
        index: Integer tensor.
        extent: Elements of the indexed dimension.
        legal: True if the PyTorch operator accepts negative values. Otherwise they fail the assert, if there is one.
    """
    index = b.index(b.working(index), extent, wraps=legal)
    return b.select(b.cmp("lt", index, 0), b.plus(index, extent), index)


@decomposes("embedding")
def embedding(
    b: Builder, weight: SSAValue, indices: SSAValue, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> SSAValue:
    """Returns rows of `weight`.

    Args:
        b: Builder of the operator.
        weight: Tensor of shape [rows, columns].
        indices: Rows to read.
        padding_idx: Affects the gradient only.
        scale_grad_by_freq: Affects the gradient only.
        sparse: Affects the gradient only.
    """
    rank = len(extents_of(indices.type))
    shape = [*extents_of(indices.type), extents_of(weight.type)[1]]
    index = b.index(b.working(indices), extents_of(weight.type)[0])
    index = b.place(index, range(rank), shape)
    return gathered(b, weight, [AffineExpr.symbol(0), AffineExpr.dimension(rank)], shape, [index])


@decomposes("index_select")
def index_select(b: Builder, self: SSAValue, dim: int, index: SSAValue) -> SSAValue:
    shape = list(extents_of(self.type))
    dim = normal_dim(dim, len(shape))
    if not shape:
        return self
    flat = reshape_to(b, b.working(index), [b.count(extents_of(index.type))])
    extent, shape[dim] = shape[dim], extents_of(flat.type)[0]
    return pick(b, self, dim, b.place(wrapped(b, flat, extent, legal=False), [dim], shape))


@decomposes("gather")
def gather(b: Builder, self: SSAValue, dim: int, index: SSAValue, sparse_grad: bool) -> SSAValue:
    shape = extents_of(index.type)
    # PyTorch accepts an empty index of any rank.
    if 0 in shape:
        return b.constant(0, shape, element_type(self.type))
    dim = normal_dim(dim, len(shape))
    if not extents_of(self.type):
        return b.broadcast(self, shape)
    if not shape:
        index, shape = reshape_to(b, index, [1]), (1,)
    picked = pick(b, self, dim, wrapped(b, index, extents_of(self.type)[dim], legal=False))
    return reshape_to(b, picked, b.result_shape)


@decomposes("index.Tensor")
def index(b: Builder, self: SSAValue, indices: Sequence[SSAValue | None]) -> SSAValue:
    source_shape = extents_of(self.type)
    index_of = {d: i for d, i in enumerate(indices) if i is not None}
    if any(element_type(i.type) == i1 for i in index_of.values()):
        raise b.unsupported("indices", "a boolean mask gives a shape that depends on data, which is not supported")
    if not index_of:
        return self
    together = broadcast_shape([extents_of(i.type) for i in index_of.values()])
    places = list(index_of)
    adjacent = places == list(range(places[0], places[0] + len(places)))
    unindexed = [d for d in range(len(source_shape)) if d not in index_of]
    # In the result, the dimensions of the indices replace the indexed dimensions if these are adjacent. Otherwise they
    # are the first ones.
    front = places[0] if adjacent else 0
    shape = [*(source_shape[d] for d in unindexed[:front]), *together, *(source_shape[d] for d in unindexed[front:])]
    at = [*range(front), *range(front + len(together), len(shape))]
    exprs: list[AffineExpr] = []
    symbols: list[SSAValue] = []
    for d in range(len(source_shape)):
        if d not in index_of:
            exprs.append(AffineExpr.dimension(at[unindexed.index(d)]))
            continue
        exprs.append(AffineExpr.symbol(len(symbols)))
        spread = b.broadcast(wrapped(b, index_of[d], source_shape[d]), together)
        symbols.append(b.place(spread, range(front, front + len(together)), shape))
    return gathered(b, self, exprs, shape, symbols)


KINDS = {
    **dict.fromkeys(("sum", "add", "mean"), ReductionKind.ADD),
    **dict.fromkeys(("prod", "multiply"), ReductionKind.MUL),
    "amax": ReductionKind.MAX,
    "amin": ReductionKind.MIN,
}
"""PyTorch's name of a reduction -> kind. A mean is a sum that is divided afterwards."""


def _combined(
    b: Builder, writes: Writes, x: SSAValue, values: SSAValue | Number, mode: str, include_self: bool
) -> SSAValue:
    """Returns `x` with values combined into it by a reduction of PyTorch.

    Args:
        b: Builder of the operator.
        writes: Positions of the values.
        x: Tensor before the writes.
        values: Values of the writes, or one number for all.
        mode: PyTorch's name of the reduction, from `KINDS`.
        include_self: False if the old value of a written element does not count.
    """
    if mode not in KINDS:
        raise b.unsupported("reduce", f"expected one of {', '.join(KINDS)}, but got {mode!r}")
    kind, count, start = KINDS[mode], None, x
    if not isinstance(values, SSAValue):
        values = b.constant(values, writes.space, element_type(x.type))
    if mode == "mean" or not include_self:
        nothing, one = b.constant(0, extents_of(x.type), i32), b.constant(1, writes.space, i32)
        count = writes.scatter(b, ReductionKind.ADD, nothing, one)
    if count is not None and not include_self:
        start = b.select(b.cmp("gt", count, 0), b.like(x, identity(kind, element_type(x.type))), x)
    total = writes.scatter(b, kind, start, values)
    if count is None or mode != "mean":
        return total
    count = b.plus(count, 1) if include_self else b.maximum(count, b.like(count, 1))
    divisor = b.cast(count, element_type(total.type))
    return b.div(total, divisor) if is_float(total.type) else b.floordiv(total, divisor)


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
    result_shape = extents_of(self.type)
    x, index = (v if extents_of(v.type) else reshape_to(b, v, [1]) for v in (self, index))
    shape, space, x = extents_of(x.type), extents_of(index.type), b.working(x)
    dim = normal_dim(dim, len(shape))
    index, at = b.index(index, shape[dim]), dims(len(shape))
    at[dim] = AffineExpr.symbol(0)
    writes = Writes(space, at, (index,), (dim,))
    if src is not None:
        src = b.cast(src if extents_of(src.type) else reshape_to(b, src, [1]), element_type(x.type))
    if 0 in space:
        result = x
    elif reduce is not None:
        result = _combined(
            b, writes, x, value if src is None else b.map(src, dims(len(space)), space), reduce, include_self
        )
    else:
        last = writes.last(b, shape)
        if src is not None:
            ends = [extents_of(src.type)[d] if d == dim else n for d, n in enumerate(space)]
            result = read_last(b, x, last, b.map(src, dims(len(ends)), ends), at)
        else:
            result = b.select(b.cmp("ge", last, 0), b.like(x, value), x)
    return result if result_shape else reshape_to(b, result, result_shape)


@decomposes("scatter_add")
def scatter_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    return scatter(b, self, dim, index, src, reduce="sum")


def write_slices(
    b: Builder,
    self: SSAValue,
    dim: int,
    index: SSAValue,
    source: SSAValue | Number,
    mode: str | None,
    include: bool = True,
    *,
    wraps: bool = False,
) -> SSAValue:
    """Returns `self` with slices along `dim` replaced, or combined with new ones.

    Args:
        b: Builder of the operator.
        self: Tensor before the writes.
        dim: Dimension of the slices.
        index: Position of each slice of `source` along `dim`.
        source: New slices, or one number for all.
        mode: PyTorch's name of the reduction, or None to replace slices.
        include: False if the old value of a written element does not count.
        wraps: True if PyTorch accepts negative positions.
    """
    result_shape = extents_of(self.type)
    x = b.working(self if result_shape else reshape_to(b, self, [1]))
    shape = extents_of(x.type)
    dim, count = normal_dim(dim, len(shape)), b.count(extents_of(index.type))
    slices = (*shape[:dim], count, *shape[dim + 1 :])
    if isinstance(source, SSAValue) and extents_of(source.type) not in ((), slices):
        raise ShapeError(f"expected shape {list(slices)}, but got {list(extents_of(source.type))}", argument="source")
    result = _put(b, x, [*[None] * dim, reshape_to(b, index, [count])], source, mode, include, wraps)
    return result if result_shape else reshape_to(b, result, result_shape)


def _put(
    b: Builder,
    x: SSAValue,
    indices: Sequence[SSAValue | None],
    values: SSAValue | Number,
    mode: str | None,
    include_self: bool = True,
    wraps: bool = True,
) -> SSAValue:
    """Returns `x` after `x[indices] = values`, or after values were combined by the reduction `mode`."""
    shape, element = extents_of(x.type), element_type(x.type)
    index_of = {d: i for d, i in enumerate(indices) if i is not None}
    at, unindexed = list(index_of), [d for d in range(len(shape)) if d not in index_of]
    common = broadcast_shape([extents_of(i.type) for i in index_of.values()])
    rank, slice_shape = len(common), [shape[d] for d in unindexed]
    if isinstance(values, SSAValue):
        # In `values`, the dimensions of the indices are at the first index if the indices are adjacent, else in front.
        leading = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
        values = b.broadcast(b.cast(values, element), [*slice_shape[:leading], *common, *slice_shape[leading:]])
        order = [*range(rank, rank + leading), *range(rank), *range(rank + leading, rank + len(unindexed))]
        values = b.map(values, [AffineExpr.dimension(d) for d in order], [*common, *slice_shape])
    places = [b.broadcast(wrapped(b, i, shape[d], legal=wraps), common) for d, i in index_of.items()]
    if 0 in common:
        return x
    symbols, over = [AffineExpr.symbol(i) for i in range(len(at))], range(rank)
    if mode is not None:
        space = (*common, *slice_shape)
        expr_of = {d: AffineExpr.dimension(rank + i) for i, d in enumerate(unindexed)} | dict(
            zip(at, symbols, strict=True)
        )
        coordinates = [expr_of[d] for d in range(len(shape))]
        writes = Writes(space, coordinates, [b.place(i, over, space) for i in places], over)
        return _combined(b, writes, x, values, mode, include_self)
    last = b.place(Writes(common, symbols, places, over).last(b, [shape[d] for d in at]), at, shape)
    if not isinstance(values, SSAValue):
        return b.select(b.cmp("ge", last, 0), b.like(x, values), x)
    rows = reshape_to(b, values, [b.count(common), *slice_shape])
    return read_last(b, x, last, rows, [AffineExpr.symbol(0), *(AffineExpr.dimension(d) for d in unindexed)])


@decomposes("index_add")
def index_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, alpha: Number) -> SSAValue:
    return write_slices(b, self, dim, index, b.scaled(b.working(source), alpha), "sum")


@decomposes("index_put")
def index_put(
    b: Builder, self: SSAValue, indices: Sequence[SSAValue | None], values: SSAValue, accumulate: bool
) -> SSAValue:
    """Returns `self` after `self[indices] = values`.

    A boolean mask may select elements of the leading dimensions. Then `values` has one value for all of them, or one
    for each in order. PyTorch refuses a wrong number of values; here it is not checked.

    Args:
        b: Builder of the operator.
        self: Tensor before the writes.
        indices: Index tensors, None for dimensions that are not indexed, or one mask.
        values: Values to write.
        accumulate: True to add the values.
    """
    x = b.working(self)
    masks = [i for i in indices if i is not None and element_type(i.type) == i1]
    if not masks:
        return _put(b, x, indices, values, "sum" if accumulate else None)
    if len(indices) != 1:
        raise b.unsupported(
            "indices", "expected one mask as the only index, because the number of selected elements depends on data"
        )
    values = b.cast(values, element_type(x.type))
    shape, rank, value_shape = extents_of(x.type), len(extents_of(masks[0].type)), list(extents_of(values.type))
    trailing = list(shape[rank:])
    mask = b.place(masks[0], range(rank), shape)
    if len(value_shape) <= len(trailing) or value_shape[-1 - len(trailing)] == 1:
        value = b.broadcast(reshape_to(b, values, value_shape[-len(trailing) :] if trailing else []), shape)
    else:
        value = _taken(b, masks[0], b.broadcast(values, [value_shape[-1 - len(trailing)], *trailing]), shape)
    return b.select(mask, b.add(x, value) if accumulate else value, x)


def _taken(b: Builder, mask: SSAValue, source: SSAValue, shape: Sequence[Extent]) -> SSAValue:
    """Returns a tensor of `shape` with the n-th slice of `source` at the n-th true element of `mask`.

    The leading dimensions of `shape` are the dimensions of the mask. Elements where the mask is false are arbitrary."""
    masked = shape_of(mask.type)
    number = b.plus(b.scan(ReductionKind.ADD, b.cast(reshape_to(b, mask, [prod(masked)]), i64), 0), -1)
    place = b.place(reshape_to(b, number, masked), range(len(masked)), shape)
    return gathered(b, source, [AffineExpr.symbol(0), *dims(len(shape))[len(masked) :]], shape, [place])


@decomposes("masked_scatter")
def masked_scatter(b: Builder, self: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    if element_type(mask.type) != i1:
        raise b.unsupported("mask", f"expected a mask of booleans, but got {element_type(mask.type)}")
    shape = broadcast_shape([shape_of(self.type), shape_of(mask.type)])
    mask, x = b.broadcast(mask, shape), b.broadcast(self, shape)
    return b.select(mask, _taken(b, mask, reshape_to(b, source, [prod(shape_of(source.type))]), shape), x)


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
    return write_slices(b, self, dim, index, source, reduce, include_self)


@decomposes("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b: Builder, self: SSAValue, dim: int, index: SSAValue, value: SSAValue | Number) -> SSAValue:
    return write_slices(b, self, dim, index, value, None, wraps=True)


@decomposes("as_strided_scatter")
def as_strided_scatter(
    b: Builder, self: SSAValue, src: SSAValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> SSAValue:
    """Returns `self` with `src` written into an `as_strided` view. Of several writes to one element the last one
    remains.

    Args:
        b: Builder of the operator.
        self: Tensor before the writes.
        src: Values of the view.
        size: Shape of the view.
        stride: Stride of each dimension, in elements.
        storage_offset: Linear index of the first element of the view, or None for 0.
    """
    if 0 in size:
        return self
    as_strided_places(size, stride, storage_offset or 0, element_count(self))
    place: SSAValue = b.constant(storage_offset or 0, size, i64)
    for d, s in enumerate(stride):
        place = b.add(place, b.scaled(b.iota(d, size), s))
    flat, count = reshape_to(b, self, [element_count(self)]), prod(size)
    places, values = reshape_to(b, place, [count]), reshape_to(b, b.broadcast(src, size), [count])
    return reshape_to(b, write_slices(b, flat, 0, places, values, None), shape_of(self.type))
