"""Views of tensors: reshapes, permutations and slices as index maps, and reads at computed coordinates as gathers.

A function that only renames indices returns one `tensor.index_map`. Where a coordinate is known only at run time, the
result is a `tensor.gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import add

from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...errors import ShapeError
from .. import tensor
from ..shapes.binding import Algebra, Polynomial, constant, plus
from ..shapes.extents import Extent, SymbolAttr, extents_of, extents_text, fixed, static
from .builder import Bound, Builder, dims


def regroup(source: Sequence[Extent], target: Sequence[Extent], algebra: Algebra) -> list[AffineExpr | list[int]]:
    """Returns the coordinates at which a reshape from `source` to `target` reads, one for each dimension of `source`.

    Dimensions are matched in the smallest groups of equal size, so that there are few divisions: a reshape from [4, 6,
    5] to [4, 2, 3, 5] only involves the dimension of size 6.

    Args:
        source: Shape of the tensor.
        target: Shape of the result.
        algebra: Arithmetic on symbolic sizes.

    Returns:
        Expressions of the indices of `target`. If a stride is a symbolic size, there is no expression, and the entry is
        the list of the dimensions of `target` in the group.

    Raises:
        ShapeError: If the shapes have different numbers of elements.
    """
    result: list[AffineExpr | list[int]] = [AffineExpr.constant(0)] * len(source)
    if 0 in source:
        return result
    i = j = 0
    while i < len(source) or j < len(target):
        i_end, j_end = min(i + 1, len(source)), min(j + 1, len(target))
        while (source_size := algebra.product(source[i:i_end])) != (target_size := algebra.product(target[j:j_end])):
            smaller = algebra.sample(source_size) < algebra.sample(target_size)
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
    """Sets the coordinates of the source dimensions `group`, which have as many elements as the target dimensions
    `into`."""
    wide, outer = [d for d in group if source[d] != 1], [d for d in into if target[d] != 1]
    # Strides are products of all extents except the outermost.
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
    """Returns (dimension, stride) for each dimension in `group`; strides count the elements of the group."""
    return [(d, prod(static(shape[e] for e in group[i + 1 :]))) for i, d in enumerate(group)]


def reshape_to(b: Builder, x: SSAValue, shape: Sequence[Extent]) -> SSAValue:
    """Returns `x` in another shape, with the same elements in the same order.

    Args:
        b: Builder of the operator.
        x: Tensor.
        shape: Shape of the result, without -1.
    """
    source_shape = extents_of(x.type)
    coordinates = regroup(source_shape, shape, b.algebra)
    exprs = [e for e in coordinates if isinstance(e, AffineExpr)]
    if len(exprs) == len(coordinates):
        return b.map(x, exprs, shape)
    return _reshape_by_position(b, x, coordinates, shape)


def _reshape_by_position(
    b: Builder, x: SSAValue, coordinates: Sequence[AffineExpr | list[int]], shape: Sequence[Extent]
) -> SSAValue:
    """Returns a reshape whose strides are known only at run time, as a gather with computed coordinates.

    It is slower than an index map, and used only where an index map is impossible."""
    source_shape = extents_of(x.type)
    exprs: list[AffineExpr] = []
    indices: list[SSAValue] = []
    for d, where in enumerate(coordinates):
        if isinstance(where, AffineExpr):
            exprs.append(where)
            continue
        position = b.constant(0, shape, i64)
        for i, t in enumerate(where):
            stride = b.measured(b.algebra.product(shape[e] for e in where[i + 1 :]), shape, i64)
            position = b.add(position, b.mul(b.iota(t, shape), stride))
        inner = [source_shape[e] for e in range(d + 1, len(source_shape)) if coordinates[e] == where]
        quotient = b.floordiv(position, b.measured(b.algebra.product(inner), shape, i64))
        first = not any(coordinates[e] == where for e in range(d))
        exprs.append(AffineExpr.symbol(len(indices)))
        indices.append(quotient if first else b.rem(quotient, b.constant(source_shape[d], shape, i64)))
    return gathered(b, x, exprs, shape, indices)


def gathered(
    b: Builder, source: SSAValue, exprs: Sequence[AffineExpr], shape: Sequence[Extent], indices: Sequence[SSAValue]
) -> SSAValue:
    """Returns a gather from `source`, or a view if no coordinate is computed.

    Args:
        b: Builder of the operator.
        source: Tensor to read.
        exprs: Coordinates, one for each dimension of `source`. Symbol n is the element of `indices[n]`.
        shape: Shape of the result.
        indices: Integer tensors of shape `shape`.
    """
    if not indices:
        return b.map(source, exprs, shape)
    map = AffineMap(len(shape), len(indices), tuple(exprs))
    return b.insert(tensor.GatherOp(source, map, indices))


def pick(b: Builder, x: SSAValue, dim: int, place: SSAValue) -> SSAValue:
    """Returns `x` with the coordinate along `dim` replaced by the elements of `place`, as `torch.gather` does.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        place: Integer tensor with the shape of the result.
    """
    exprs = dims(len(extents_of(x.type)))
    exprs[dim] = AffineExpr.symbol(0)
    return gathered(b, x, exprs, extents_of(place.type), [place])


def inside(b: Builder, shape: Sequence[Extent], bounds: Sequence[Bound]) -> SSAValue:
    """Returns a mask of the elements of a shape for which all bounds hold.

    Args:
        b: Builder of the operator.
        shape: Shape of the mask.
        bounds: Constraints, at least one.
    """
    return b.map(b.constant(True, [1], i1), [AffineExpr.constant(0)], shape, bounds, False)


def moved(b: Builder, x: SSAValue, dim: int, offset: Polynomial, shape: Sequence[Extent]) -> SSAValue:
    """Returns `x` from `offset` along `dim`, and 0 where that is outside `x`.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        offset: First index along `dim`; it may be known only at run time, or be negative.
        shape: Shape of the result.
    """
    if offset.number == 0 and extents_of(x.type) == tuple(shape):
        return x
    return pick(b, x, dim, b.add(b.iota(dim, shape), b.measured(offset, shape, i64)))


def numbered(b: Builder, over: Sequence[int], space: Sequence[Extent], first: int = 0) -> SSAValue:
    """Returns the linear index of each element along the dimensions `over`, as i64.

    Args:
        b: Builder of the operator.
        over: Dimensions that are counted, the last one fastest.
        space: Shape of the result.
        first: Number of the first element.
    """
    number: SSAValue = b.constant(first, space, i64)
    for d in over:
        stride = b.algebra.product(space[e] for e in over if e > d)
        place = b.iota(d, space)
        is_constant = stride.number is not None
        term = b.scaled(place, stride.number or 0) if is_constant else b.mul(place, b.measured(stride, space, i64))
        number = b.add(number, term)
    return number


def permuted(b: Builder, x: SSAValue, order: Sequence[int]) -> SSAValue:
    """Returns a permutation of the dimensions of a tensor.

    Args:
        b: Builder of the operator.
        x: Tensor.
        order: For each dimension of the result, the dimension of `x`.
    """
    shape = extents_of(x.type)
    exprs = [AffineExpr.dimension(list(order).index(d)) for d in range(len(shape))]
    return b.map(x, exprs, [shape[d] for d in order])


def sliced(b: Builder, x: SSAValue, dim: int, start: int, size: Extent, step: int = 1) -> SSAValue:
    """Returns a slice of `x`.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        start: First index.
        size: Number of elements.
        step: Distance of elements; negative for backwards.
    """
    shape = list(extents_of(x.type))
    exprs = dims(len(shape))
    exprs[dim] = shifted(exprs[dim] if step == 1 else exprs[dim] * step, start)
    shape[dim] = size
    return b.map(x, exprs, shape)


def flipped(b: Builder, x: SSAValue, dim: int) -> SSAValue:
    """Returns `x` with the elements along a dimension in reverse order.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
    """
    shape = extents_of(x.type)
    extent = shape[dim]
    if isinstance(extent, SymbolAttr):
        last = b.measured(plus(b.algebra.of(extent), constant(-1)), shape, i64)
        return pick(b, x, dim, b.sub(last, b.iota(dim, shape)))
    return x if extent == 1 else sliced(b, x, dim, extent - 1, extent, -1)


def selected(b: Builder, x: SSAValue, dim: int, index: int) -> SSAValue:
    """Returns `x[..., index, ...]`, without the dimension `dim`.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        index: Index, not negative.
    """
    shape = extents_of(x.type)
    exprs = [AffineExpr.dimension(d if d < dim else d - 1) for d in range(len(shape))]
    exprs[dim] = AffineExpr.constant(index)
    return b.map(x, exprs, [n for d, n in enumerate(shape) if d != dim])


def shifted(expr: AffineExpr, offset: int) -> AffineExpr:
    """Returns `expr + offset`, or `expr` itself if the offset is 0."""
    return expr + offset if offset else expr
