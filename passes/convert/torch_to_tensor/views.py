"""Views: reshape, permute, slice and similar operators.

An operator that only renames indices is one `tensor.index_map`. So is a slice whose start is a constant. If the start
is known only at run time, it is a `tensor.gather`.

Tensors have no strides in the IR. `as_strided` and similar operators address the elements in their logical order; the
frontend rewrites them accordingly (`frontend/capture/features/addresses.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from operator import add

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import tensor
from ....dialects.payload import shape_of
from ....dialects.shapes.binding import Algebra, Polynomial, constant, divided, plus
from ....dialects.shapes.extents import Extent, SymbolAttr, extents_of, extents_text, fixed, least, most, static
from ....dialects.tensor.builder import Builder, dims, normal_dim, normal_dims
from ....errors import ShapeError
from .creation import filled
from .registry import decomposes


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
    """Returns a gather from `source`.

    Args:
        b: Builder of the operator.
        source: Tensor to read.
        exprs: Coordinates, one for each dimension of `source`. Symbol n is the element of `indices[n]`.
        shape: Shape of the result.
        indices: Integer tensors of shape `shape`.
    """
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


@decomposes("view", "reshape", "_unsafe_view")
def reshape(
    b: Builder, self: SSAValue, size: Sequence[Extent] | None = None, shape: Sequence[Extent] | None = None
) -> SSAValue:
    requested = list(size if size is not None else shape or [])
    source_shape = extents_of(self.type)
    if all(isinstance(e, int) for e in (*requested, *source_shape)):
        return reshape_to(b, self, completed(static(requested), prod(static(source_shape))))
    declared = b.result_shape
    if len(requested) != len(declared) or any(w not in (-1, e) for w, e in zip(requested, declared, strict=True)):
        raise ShapeError(
            f"expected {extents_text(declared)}, as declared, but got {extents_text(requested)}", argument="size"
        )
    return reshape_to(b, self, declared)


def completed(shape: Sequence[int], elements: int) -> list[int]:
    """Returns `shape` with a -1 replaced so that it has `elements` elements. Raises ShapeError if that is
    impossible."""
    result = list(shape)
    if result.count(-1) == 1:
        other_product = -prod(result)
        result[result.index(-1)] = elements // other_product if other_product else -1
    if prod(result) != elements or any(n < 0 for n in result):
        raise ShapeError(f"expected a shape of {elements} elements, but got {list(shape)}")
    return result


@decomposes("unsqueeze")
def unsqueeze(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    shape = list(extents_of(self.type))
    shape.insert(normal_dim(dim, len(shape) + 1), 1)
    return reshape_to(b, self, shape)


@decomposes("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(b: Builder, self: SSAValue, dim: int | Sequence[int] | None = None) -> SSAValue:
    shape = extents_of(self.type)
    among = normal_dims(dim, len(shape), empty_is_all=False)
    for n in (shape[d] for d in among):
        if least(n) <= 1 < most(n):
            raise b.unsupported("dim", f"expected a dimension whose size is known to be 1 or not, but got {n}")
    return reshape_to(b, self, [n for d, n in enumerate(shape) if n != 1 or d not in among])


@decomposes("permute")
def permute(b: Builder, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    rank = len(extents_of(self.type))
    order = [normal_dim(d, rank) for d in dims]
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"expected a permutation of {rank} dimensions, but got {list(dims)}")
    return permuted(b, self, order)


@decomposes("expand")
def expand(b: Builder, self: SSAValue, size: Sequence[Extent], implicit: bool) -> SSAValue:
    source_shape = extents_of(self.type)
    offset = len(size) - len(source_shape)
    return b.broadcast(self, [source_shape[i - offset] if n == -1 and i >= offset else n for i, n in enumerate(size)])


@decomposes("flip")
def flip(b: Builder, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    shape = extents_of(self.type)
    for dim in sorted({normal_dim(d, len(shape)) for d in dims}) if shape else []:
        extent = shape[dim]
        if isinstance(extent, SymbolAttr):
            last = b.measured(plus(b.algebra.of(extent), constant(-1)), shape, i64)
            self = pick(b, self, dim, b.sub(last, b.iota(dim, shape)))
        elif extent != 1:
            self = sliced(b, self, dim, extent - 1, extent, -1)
    return self


@decomposes("diagonal")
def diagonal(b: Builder, self: SSAValue, offset: int, dim1: int, dim2: int) -> SSAValue:
    shape = extents_of(self.type)
    row, column = normal_dim(dim1, len(shape)), normal_dim(dim2, len(shape))
    if row == column:
        raise ShapeError(f"expected two different dimensions, but got {dim1} and {dim2}", argument="dim2")
    below, right = max(-offset, 0), max(offset, 0)
    size = max(min(shape[row] - below, shape[column] - right), 0)
    other_dims = [d for d in range(len(shape)) if d not in (row, column)]
    exprs = [
        AffineExpr.dimension(other_dims.index(d) if d in other_dims else len(other_dims)) for d in range(len(shape))
    ]
    exprs[row], exprs[column] = shifted(exprs[row], below), shifted(exprs[column], right)
    return b.map(self, exprs, [*(shape[d] for d in other_dims), size])


@decomposes("unfold")
def unfold(b: Builder, self: SSAValue, dimension: int, size: int, step: int) -> SSAValue:
    shape = list(extents_of(self.type))
    dim = normal_dim(dimension, len(shape))
    exprs = dims(len(shape))
    if shape:
        exprs[dim] = exprs[dim] * step + AffineExpr.dimension(len(shape))
        shape[dim] = (fixed(shape[dim]) - size) // step + 1
    return b.map(self, exprs, [*shape, size])


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


def shifted(expr: AffineExpr, offset: int) -> AffineExpr:
    """Returns `expr + offset`, or `expr` itself if the offset is 0."""
    return expr + offset if offset else expr


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


def clamped_range(start: int | None, end: int | None, step: int, extent: int) -> tuple[int, int]:
    """Returns the first index and the number of elements of the Python slice `start:end:step`.

    Args:
        start: First index, or None.
        end: Index after the last one, or None.
        step: Positive step.
        extent: Elements of the dimension.
    """
    indices = range(extent)[slice(start, end, step)]
    return indices.start, len(indices)


@decomposes("slice.Tensor")
def slice_(b: Builder, self: SSAValue, dim: int, start: Extent | None, end: Extent | None, step: int) -> SSAValue:
    shape = extents_of(self.type)
    dim = normal_dim(dim, len(shape))
    if step <= 0 or not shape:
        raise b.unsupported("step", f"expected a positive step, but got {step}")
    extent = shape[dim]
    if isinstance(start, SymbolAttr) or isinstance(end, SymbolAttr) or isinstance(extent, SymbolAttr):
        return _slice_of_some_size(b, self, dim, start, end, step)
    first, size = clamped_range(start, end, step, extent)
    return sliced(b, self, dim, first, size, step)


def _slice_of_some_size(
    b: Builder, x: SSAValue, dim: int, start: Extent | None, end: Extent | None, step: int
) -> SSAValue:
    """Returns a slice whose size is known only at run time.

    The declared size of the result decides the number of elements; its value range guarantees that they are inside `x`.
    Any other size than these is refused:

    - the size of `start:end:step` without clamping to `x`, or 0;
    - with step 1, all elements from `start`, or the whole dimension.
    """
    shape = list(extents_of(x.type))
    extent = shape[dim]
    first = constant(0) if start is None else from_front(b, extent, start)
    if end is None or isinstance(end, int) and end >= most(extent):
        end = extent
    last = from_front(b, extent, end)
    size = divided("div", plus(plus(last, first, -1), constant(step - 1)), step)
    shape[dim] = b.result_shape[dim]
    declared, whole = b.algebra.of(shape[dim]), b.algebra.of(extent)
    if step == 1 and declared == whole:
        return x
    if declared not in (size, constant(0)) and not (step == 1 and declared == plus(whole, first, -1)):
        raise b.unsupported("end", f"expected {shape[dim]} elements, as declared, but got {start}:{end} of {extent}")
    if first.number is not None:
        return sliced(b, x, dim, first.number, shape[dim], step)
    if step != 1:
        raise b.unsupported("step", f"expected a step of 1 from a start known only at run time, but got {step}")
    return moved(b, x, dim, first, shape)


def from_front(b: Builder, extent: Extent, place: Extent) -> Polynomial:
    """Returns a position along a dimension as a non-negative one.

    Args:
        b: Builder of the operator.
        extent: Elements of the dimension.
        place: Position, which counts from the end if it is negative.
    """
    position = b.algebra.of(place)
    return plus(b.algebra.of(extent), position) if most(place) < 0 else position


@decomposes("select.int")
def select(b: Builder, self: SSAValue, dim: int, index: Extent) -> SSAValue:
    shape = list(extents_of(self.type))
    dim = normal_dim(dim, len(shape))
    extent = shape[dim]
    if isinstance(index, int) and not -least(extent) <= index < least(extent):
        raise ShapeError(f"expected an index of {extent} elements, but got {index}", argument="index")
    if isinstance(index, SymbolAttr):
        b.algebra.promise_within(index, extent)
    place = from_front(b, extent, index)
    if place.number is not None:
        return selected(b, self, dim, place.number)
    shape[dim] = 1
    return selected(b, moved(b, self, dim, place, shape), dim, 0)


def element_count(x: SSAValue) -> int:
    return prod(shape_of(x.type))


def as_strided_places(size: Sequence[int], stride: Sequence[int], offset: int, elements: int) -> AffineExpr:
    """Returns the linear index of each element of an `as_strided` view, as an expression of its indices.

    Args:
        size: Shape of the view.
        stride: Stride of each dimension, in elements.
        offset: Linear index of the first element.
        elements: Elements of the tensor.

    Raises:
        ShapeError: If the view reaches beyond the tensor.
    """
    if len(size) != len(stride):
        raise ShapeError(f"expected {len(size)} strides, one per dimension, but got {len(stride)}", argument="stride")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= offset <= last < elements:
        raise ShapeError(f"expected a view of {elements} elements, but it reaches element {last}", argument="size")
    place = AffineExpr.constant(offset)
    for d, (n, s) in enumerate(zip(size, stride, strict=True)):
        if n > 1 and s:
            place = place + AffineExpr.dimension(d) * s
    return place


@decomposes("as_strided")
def as_strided(
    b: Builder, self: SSAValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> SSAValue:
    if 0 in size:
        return filled(b, 0)
    place = as_strided_places(size, stride, storage_offset or 0, element_count(self))
    return b.map(reshape_to(b, self, [element_count(self)]), [place], size)


@decomposes("resize")
def resize(b: Builder, self: SSAValue, size: Sequence[int]) -> SSAValue:
    """Returns the first elements in another shape. A larger shape is refused, because its last elements are
    undefined."""
    if prod(size) > element_count(self):
        raise b.unsupported("size", f"expected at most {element_count(self)} elements, but got {prod(size)}")
    steps = [prod(size[d + 1 :]) for d in range(len(size))]
    return as_strided(b, self, size, steps, 0)
