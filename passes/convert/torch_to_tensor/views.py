"""Views: reshape, permute, slice and similar operators.

An operator that only renames indices is one `tensor.index_map`. So is a slice whose start is a constant. If the start
is known only at run time, it is a `tensor.gather`.

Tensors have no strides in the IR. `as_strided` and similar operators address the elements in their logical order; the
frontend rewrites them accordingly (`frontend/capture/features/addresses.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import shape_of
from ....dialects.shapes.binding import Polynomial, constant, divided, plus
from ....dialects.shapes.extents import Extent, SymbolAttr, extents_of, extents_text, fixed, least, most, static
from ....dialects.tensor.builder import Builder, dims, normal_dim, normal_dims
from ....dialects.tensor.views import flipped, moved, permuted, reshape_to, selected, shifted, sliced
from ....errors import ShapeError
from .creation import filled
from .registry import decomposes


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
        self = flipped(b, self, dim)
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
