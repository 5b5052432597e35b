"""Reshapes: the same elements in the same order, in another shape; and reads at places that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import add

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import tensor
from ....dialects.shapes.binding import Algebra, Polynomial
from ....dialects.shapes.extents import Extent, SymbolAttr, extents_of, extents_text, fixed, static
from ....dialects.tensor.builder import Builder, dims
from ....errors import ShapeError


def regroup(source: Sequence[Extent], target: Sequence[Extent], algebra: Algebra) -> list[AffineExpr | list[int]]:
    """Where each coordinate of a tensor of shape `source` lies in its reshape to `target`.

    Dimensions are matched in the smallest groups of equal size, so that unrelated ones stay out of each other's
    division and remainder. A coordinate that would need a size known at run time as a stride is given as the
    dimensions of `target` in its group.
    """
    result: list[AffineExpr | list[int]] = [AffineExpr.constant(0)] * len(source)
    if 0 in source:
        return result
    i = j = 0
    while i < len(source) or j < len(target):
        i_end, j_end = min(i + 1, len(source)), min(j + 1, len(target))
        while (left := algebra.product(source[i:i_end])) != (right := algebra.product(target[j:j_end])):
            smaller = algebra.sample(left) < algebra.sample(right)
            i_end, j_end = (i_end + 1, j_end) if smaller else (i_end, j_end + 1)
            if i_end > len(source) or j_end > len(target):
                raise ShapeError(f"cannot reshape {extents_text(source)} to {extents_text(target)}")
        _split_group(result, source, range(i, i_end), target, range(j, j_end))
        i, j = i_end, j_end
    return result


def _split_group(
    result: list[AffineExpr | list[int]],
    source: Sequence[Extent],
    group: Sequence[int],
    target: Sequence[Extent],
    into: Sequence[int],
) -> None:
    wide, outer = [d for d in group if source[d] != 1], [d for d in into if target[d] != 1]
    # Strides are made of all extents but the outermost.
    if any(isinstance(e, SymbolAttr) for e in [*(source[d] for d in wide[1:]), *(target[d] for d in outer[1:])]):
        for d in wide:
            result[d] = list(into)
        return
    terms = [AffineExpr.dimension(d) * n if n != 1 else AffineExpr.dimension(d) for d, n in _strides(target, outer)]
    linear = reduce(add, terms) if terms else AffineExpr.constant(0)
    for d, stride in _strides(source, wide):
        quotient = linear if stride == 1 else linear // stride
        result[d] = quotient if d == wide[0] else quotient % fixed(source[d])


def _strides(shape: Sequence[Extent], group: Sequence[int]) -> list[tuple[int, int]]:
    """The dimensions in `group`, and how many elements of it lie between two neighbours along each."""
    return [(d, prod(static(shape[e] for e in group[i + 1 :]))) for i, d in enumerate(group)]


def reshape_to(b: Builder, x: SSAValue, shape: Sequence[Extent]) -> SSAValue:
    """`x` with the same elements in the same order in another shape (without -1)."""
    own = extents_of(x.type)
    found = regroup(own, shape, b.algebra)
    exprs = [e for e in found if isinstance(e, AffineExpr)]
    if len(exprs) == len(found):
        return b.map(x, exprs, shape)
    return _reshape_by_position(b, x, found, shape)


def _reshape_by_position(
    b: Builder, x: SSAValue, found: Sequence[AffineExpr | list[int]], shape: Sequence[Extent]
) -> SSAValue:
    """A reshape with strides that are known at run time: coordinates are computed as tensors.

    Slower than an index map, of which it takes the place only where there is none."""
    own = extents_of(x.type)
    exprs: list[AffineExpr] = []
    indices: list[SSAValue] = []
    for d, where in enumerate(found):
        if isinstance(where, AffineExpr):
            exprs.append(where)
            continue
        position = b.constant(0, shape, i64)
        for i, t in enumerate(where):
            stride = b.measured(b.algebra.product(shape[e] for e in where[i + 1 :]), shape, i64)
            position = b.add(position, b.mul(b.iota(t, shape), stride))
        inner = [own[e] for e in range(d + 1, len(own)) if found[e] == where]
        quotient = b.floordiv(position, b.measured(b.algebra.product(inner), shape, i64))
        first = not any(found[e] == where for e in range(d))
        exprs.append(AffineExpr.symbol(len(indices)))
        indices.append(quotient if first else b.rem(quotient, b.constant(own[d], shape, i64)))
    return gathered(b, x, exprs, shape, indices)


def gathered(
    b: Builder, source: SSAValue, exprs: Sequence[AffineExpr], shape: Sequence[Extent], indices: Sequence[SSAValue]
) -> SSAValue:
    """`source` read at `exprs`, whose symbols are `indices` (tensors of `shape`)."""
    map = AffineMap(len(shape), len(indices), tuple(exprs))
    return b.insert(tensor.GatherOp(source, map, indices))


def pick(b: Builder, x: SSAValue, dim: int, place: SSAValue) -> SSAValue:
    """x[..., place, ...] along `dim`, other coordinates unchanged."""
    exprs = dims(len(extents_of(x.type)))
    exprs[dim] = AffineExpr.symbol(0)
    return gathered(b, x, exprs, extents_of(place.type), [place])


def moved(b: Builder, x: SSAValue, dim: int, offset: Polynomial, shape: Sequence[Extent]) -> SSAValue:
    """`x` from `offset` on along `dim`, in the shape `shape`; 0 where that is outside of `x`. The offset may be known
    only at run time."""
    if offset.number == 0 and extents_of(x.type) == tuple(shape):
        return x
    return pick(b, x, dim, b.add(b.iota(dim, shape), b.measured(offset, shape, i64)))


def numbered(b: Builder, over: Sequence[int], space: Sequence[Extent], first: int = 0) -> SSAValue:
    """The number of every element of `space`, counted along the dimensions `over` from `first` on, as i64."""
    number: SSAValue = b.constant(first, space, i64)
    for d in over:
        stride = b.algebra.product(space[e] for e in over if e > d)
        place = b.iota(d, space)
        known = stride.number is not None
        term = b.scaled(place, stride.number or 0) if known else b.mul(place, b.measured(stride, space, i64))
        number = b.add(number, term)
    return number
