"""Reads at places that tensors say: embedding, gather, advanced indexing."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.tensor.builder import Builder, broadcast_shape, normal_dim
from .registry import decomposes
from .reshape import gathered, pick, reshape_to


def wrapped(b: Builder, index: SSAValue, extent: Extent, *, legal: bool = True) -> SSAValue:
    """`index` with negative values counted from the end, which PyTorch's operator calls `legal` or not."""
    index = b.index(b.working(index), extent, wraps=legal)
    return b.select(b.cmp("lt", index, 0), b.plus(index, extent), index)


@decomposes("embedding")
def embedding(
    b: Builder,
    weight: SSAValue,
    indices: SSAValue,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
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
