"""Operators that read and write at computed places: embedding, gather, index, scatter, index_put and their relatives.

PyTorch leaves open which of several plain writes to one place counts; here it is the last in order. So the numbers of
the writes are scattered, as a maximum, and the values are read at the number that is left. Values that are combined are
so in any order. A write outside of the tensor is dropped (PyTorch raises there).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from ....dialects.payload import element_type, is_float, shape_of
from ....dialects.shapes.extents import Extent, extents_of, most
from ....dialects.tensor import ReductionKind, ScatterOp, combine, identity
from ....dialects.tensor.builder import Builder, Number, broadcast_shape, dims, normal_dim, width_of
from ....errors import ShapeError
from .registry import decomposes
from .views import as_strided_places, element_count, gathered, numbered, pick, reshape_to


def wrapped(b: Builder, index: SSAValue, extent: Extent, *, legal: bool = True) -> SSAValue:
    """`index` with negative values counted from the end, which PyTorch's operator calls `legal` or not."""
    index = b.index(b.working(index), extent, wraps=legal)
    return b.select(b.cmp("lt", index, 0), b.plus(index, extent), index)


@decomposes("embedding")
def embedding(
    b: Builder, weight: SSAValue, indices: SSAValue, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> SSAValue:
    """`padding_idx`, `scale_grad_by_freq` and `sparse` are about the gradient only."""
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
    if 0 in shape:  # the index may then have any rank
        return b.constant(0, shape, element_type(self.type))
    dim = normal_dim(dim, len(shape))
    if not extents_of(self.type):
        return b.broadcast(self, shape)
    if not shape:
        index, shape = reshape_to(b, index, [1]), (1,)
    found = pick(b, self, dim, wrapped(b, index, extents_of(self.type)[dim], legal=False))
    return reshape_to(b, found, b.result_shape)


@decomposes("index.Tensor")
def index(b: Builder, self: SSAValue, indices: Sequence[SSAValue | None]) -> SSAValue:
    own = extents_of(self.type)
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if any(element_type(i.type) == i1 for i in given.values()):
        raise b.unsupported("indices", "a boolean mask gives a shape that depends on data, which is not supported")
    if not given:
        return self
    together = broadcast_shape([extents_of(i.type) for i in given.values()])
    places = list(given)
    adjacent = places == list(range(places[0], places[0] + len(places)))
    rest = [d for d in range(len(own)) if d not in given]
    front = places[0] if adjacent else 0  # where the indexed dimensions appear in the result
    shape = [*(own[d] for d in rest[:front]), *together, *(own[d] for d in rest[front:])]
    at = [*range(front), *range(front + len(together), len(shape))]
    exprs: list[AffineExpr] = []
    symbols: list[SSAValue] = []
    for d in range(len(own)):
        if d not in given:
            exprs.append(AffineExpr.dimension(at[rest.index(d)]))
            continue
        exprs.append(AffineExpr.symbol(len(symbols)))
        spread = b.broadcast(wrapped(b, given[d], own[d]), together)
        symbols.append(b.place(spread, range(front, front + len(together)), shape))
    return gathered(b, self, exprs, shape, symbols)


FEW = 16
"""So many writes that every element may look at, or elements that may look at every write."""

KINDS = {
    **dict.fromkeys(("sum", "add", "mean"), ReductionKind.ADD),
    **dict.fromkeys(("prod", "multiply"), ReductionKind.MUL),
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

    space: Sequence[Extent]
    at: Sequence[AffineExpr]
    indices: Sequence[SSAValue]
    over: Sequence[int]

    def scatter(self, b: Builder, kind: ReductionKind, init: SSAValue, values: SSAValue) -> SSAValue:
        """`init` with the values combined into it, by a scatter, whose work is linear in the writes. Where there are
        few writes to an element, or few places, every element looks at all the writes instead: a reduction, which is
        fused with what is around it."""
        own, shape = element_type(init.type), extents_of(init.type)
        if own == i1:
            least = kind in (ReductionKind.MUL, ReductionKind.MIN, ReductionKind.AND)
            kind = ReductionKind.MIN if least else ReductionKind.MAX
        places = [n for n, expr in zip(shape, self.at, strict=True) if not isinstance(expr, AffineDimExpr)]
        if min(_most(self.space[d] for d in self.over), _most(places)) <= FEW:
            hit, seen = self._seen(b, shape, values)
            neutral = b.like(seen, identity(kind, own))
            over = range(len(shape), len(extents_of(hit.type)))
            found = b.reduce(kind.value, b.select(hit, seen, neutral), over)
            return b.insert(combine(kind, init, found))
        wide = i32 if 0 < width_of(own) < 32 else own
        map = AffineMap(len(self.space), len(self.indices), tuple(self.at))
        return b.cast(
            b.insert(
                ScatterOp(kind, init=b.cast(init, wide), values=b.cast(values, wide), map=map, indices=self.indices)
            ),
            own,
        )

    def _seen(self, b: Builder, shape: Sequence[Extent], values: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Which writes hit each element of a tensor of `shape`, and their values: in its dimensions, then `over`."""
        space = [*shape, *(self.space[d] for d in self.over)]
        index = dims(len(space))
        own = {d: index[len(shape) + i] for i, d in enumerate(self.over)}
        own |= {expr.position: index[d] for d, expr in enumerate(self.at) if isinstance(expr, AffineDimExpr)}
        ends = [
            (index[d], 0, self.space[expr.position])
            for d, expr in enumerate(self.at)
            if isinstance(expr, AffineDimExpr) and self.space[expr.position] != shape[d]
        ]
        exprs = [own[d] for d in range(len(self.space))]
        places = [d for d, expr in enumerate(self.at) if not isinstance(expr, AffineDimExpr)]
        hits = [
            b.cmp("eq", b.map(v, exprs, space, ends, -1), b.iota(d, space, element_type(v.type)))
            for d, v in zip(places, self.indices, strict=True)
        ]
        return reduce(b.both, hits), b.map(values, exprs, space, ends)

    def last(self, b: Builder, shape: Sequence[Extent]) -> SSAValue:
        """For each element of a tensor of `shape` the number of the last write to it, counted along `over`; else -1."""
        element = i32 if _most(self.space[d] for d in self.over) < 1 << 31 else i64
        number = numbered(b, self.over, self.space)
        return self.scatter(b, ReductionKind.MAX, b.constant(-1, shape, element), b.cast(number, element))

    def combined(self, b: Builder, x: SSAValue, values: SSAValue | Number, mode: str, include_self: bool) -> SSAValue:
        """`x` with the values combined; without `include_self` an element that is written starts from nothing."""
        if mode not in KINDS:
            raise b.unsupported("reduce", f"{mode!r} is not one of {', '.join(KINDS)}")
        kind, count, start = KINDS[mode], None, x
        if not isinstance(values, SSAValue):
            values = b.constant(values, self.space, element_type(x.type))
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


def _most(extents: Iterable[Extent]) -> int:
    return prod(map(most, extents))


def _read_last(b: Builder, x: SSAValue, last: SSAValue, values: SSAValue, at: Sequence[AffineExpr]) -> SSAValue:
    """`x` where nothing is written, else the element of `values` at the coordinates `at`, whose symbol is `last`.

    Where `values` end before `x` nothing is written; no place outside of them is read."""
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
    own = extents_of(self.type)
    x, index = (v if extents_of(v.type) else reshape_to(b, v, [1]) for v in (self, index))
    shape, space, x = extents_of(x.type), extents_of(index.type), b.working(x)
    dim = normal_dim(dim, len(shape))
    index, at = b.index(index, shape[dim]), dims(len(shape))
    at[dim] = AffineExpr.symbol(0)
    writes = Writes(space, at, (index,), (dim,))
    if src is not None:
        src = b.cast(src if extents_of(src.type) else reshape_to(b, src, [1]), element_type(x.type))
    if 0 in space:
        found = x
    elif reduce is not None:
        found = writes.combined(
            b, x, value if src is None else b.map(src, dims(len(space)), space), reduce, include_self
        )
    else:
        last = writes.last(b, shape)
        if src is not None:
            ends = [extents_of(src.type)[d] if d == dim else n for d, n in enumerate(space)]
            found = _read_last(b, x, last, b.map(src, dims(len(ends)), ends), at)
        else:
            found = b.select(b.cmp("ge", last, 0), b.like(x, value), x)
    return found if own else reshape_to(b, found, own)


@decomposes("scatter_add")
def scatter_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, src: SSAValue) -> SSAValue:
    return scatter(b, self, dim, index, src, reduce="sum")


def slices_written(
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
    """Writes of whole slices: `index` has one place along `dim` for every slice of `source`. With `wraps` PyTorch takes
    negative places as well."""
    own = extents_of(self.type)
    x = b.working(self if own else reshape_to(b, self, [1]))
    shape = extents_of(x.type)
    dim, count = normal_dim(dim, len(shape)), b.count(extents_of(index.type))
    slices = (*shape[:dim], count, *shape[dim + 1 :])
    if isinstance(source, SSAValue) and extents_of(source.type) not in ((), slices):
        raise ShapeError(f"{list(extents_of(source.type))} where {list(slices)} is needed", argument="source")
    found = _put(b, x, [*[None] * dim, reshape_to(b, index, [count])], source, mode, include, wraps)
    return found if own else reshape_to(b, found, own)


def _put(
    b: Builder,
    x: SSAValue,
    indices: Sequence[SSAValue | None],
    values: SSAValue | Number,
    mode: str | None,
    include_self: bool = True,
    wraps: bool = True,
) -> SSAValue:
    """Writes of slices of `x` at `indices`, as in `x[indices] = values`."""
    shape, element = extents_of(x.type), element_type(x.type)
    given = {d: i for d, i in enumerate(indices) if i is not None}
    at, kept = list(given), [d for d in range(len(shape)) if d not in given]
    common = broadcast_shape([extents_of(i.type) for i in given.values()])
    rank, slice_shape = len(common), [shape[d] for d in kept]
    if isinstance(values, SSAValue):
        # The writes stand where the first index stands if all are neighbours.
        ahead = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
        values = b.broadcast(b.cast(values, element), [*slice_shape[:ahead], *common, *slice_shape[ahead:]])
        order = [*range(rank, rank + ahead), *range(rank), *range(rank + ahead, rank + len(kept))]
        values = b.map(values, [AffineExpr.dimension(d) for d in order], [*common, *slice_shape])
    places = [b.broadcast(wrapped(b, i, shape[d], legal=wraps), common) for d, i in given.items()]
    if 0 in common:
        return x
    symbols, over = [AffineExpr.symbol(i) for i in range(len(at))], range(rank)
    if mode is not None:
        space = (*common, *slice_shape)
        behind = {d: AffineExpr.dimension(rank + i) for i, d in enumerate(kept)} | dict(zip(at, symbols, strict=True))
        coordinates = [behind[d] for d in range(len(shape))]
        writes = Writes(space, coordinates, [b.place(i, over, space) for i in places], over)
        return writes.combined(b, x, values, mode, include_self)
    last = b.place(Writes(common, symbols, places, over).last(b, [shape[d] for d in at]), at, shape)
    if not isinstance(values, SSAValue):
        return b.select(b.cmp("ge", last, 0), b.like(x, values), x)
    rows = reshape_to(b, values, [b.count(common), *slice_shape])
    return _read_last(b, x, last, rows, [AffineExpr.symbol(0), *(AffineExpr.dimension(d) for d in kept)])


@decomposes("index_add")
def index_add(b: Builder, self: SSAValue, dim: int, index: SSAValue, source: SSAValue, alpha: Number) -> SSAValue:
    return slices_written(b, self, dim, index, b.scaled(b.working(source), alpha), "sum")


@decomposes("index_put")
def index_put(
    b: Builder, self: SSAValue, indices: Sequence[SSAValue | None], values: SSAValue, accumulate: bool
) -> SSAValue:
    """A mask may stand over leading dimensions, with one value for all that it selects, or one for each of them in
    order. That there are as many values as the mask selects, which PyTorch checks, is left to the caller."""
    x = b.working(self)
    masks = [i for i in indices if i is not None and element_type(i.type) == i1]
    if not masks:
        return _put(b, x, indices, values, "sum" if accumulate else None)
    if len(indices) != 1:
        raise b.unsupported("indices", "how many elements a mask selects depends on data")
    values = b.cast(values, element_type(x.type))
    shape, rank, given = shape_of(x.type), len(shape_of(masks[0].type)), list(shape_of(values.type))
    rest = list(shape[rank:])
    mask = b.place(masks[0], range(rank), shape)
    if len(given) <= len(rest) or given[-1 - len(rest)] == 1:
        value = b.broadcast(reshape_to(b, values, given[-len(rest) :] if rest else []), shape)
    else:
        value = _taken(b, masks[0], b.broadcast(values, [given[-1 - len(rest)], *rest]), shape)
    return b.select(mask, b.add(x, value) if accumulate else value, x)


def _taken(b: Builder, mask: SSAValue, source: SSAValue, shape: Sequence[Extent]) -> SSAValue:
    """The slices of `source`, one after the other where `mask` holds in its order, in `shape`, whose leading dimensions
    are those of the mask."""
    masked = shape_of(mask.type)
    number = b.plus(b.scan(ReductionKind.ADD, b.cast(reshape_to(b, mask, [prod(masked)]), i64), 0), -1)
    place = b.place(reshape_to(b, number, masked), range(len(masked)), shape)
    return gathered(b, source, [AffineExpr.symbol(0), *dims(len(shape))[len(masked) :]], shape, [place])


@decomposes("masked_scatter")
def masked_scatter(b: Builder, self: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    if element_type(mask.type) != i1:
        raise b.unsupported("mask", f"a mask is of truth values, not of {element_type(mask.type)}")
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
    return slices_written(b, self, dim, index, source, reduce, include_self)


@decomposes("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b: Builder, self: SSAValue, dim: int, index: SSAValue, value: SSAValue | Number) -> SSAValue:
    return slices_written(b, self, dim, index, value, None, wraps=True)


@decomposes("as_strided_scatter")
def as_strided_scatter(
    b: Builder, self: SSAValue, src: SSAValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> SSAValue:
    """Of several writes to one place the last in order counts, as in PyTorch's copy into the view."""
    if 0 in size:
        return self
    as_strided_places(size, stride, storage_offset or 0, element_count(self))
    place: SSAValue = b.constant(storage_offset or 0, size, i64)
    for d, s in enumerate(stride):
        place = b.add(place, b.scaled(b.iota(d, size), s))
    flat, count = reshape_to(b, self, [element_count(self)]), prod(size)
    places, values = reshape_to(b, place, [count]), reshape_to(b, b.broadcast(src, size), [count])
    return reshape_to(b, slices_written(b, flat, 0, places, values, None), shape_of(self.type))
