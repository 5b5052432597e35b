"""Views: everything that only renames indices is one index map. So are parts along a dimension at places that are known
before run time.

In the IR a tensor has no strides: `as_strided` and its relatives address the elements in their order, one after the
other. The frontend writes them so (`frontend/capture/addresses.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import shape_of
from ....dialects.shapes.binding import Polynomial, constant, divided, plus
from ....dialects.shapes.extents import (
    Extent,
    SymbolAttr,
    extents_of,
    extents_text,
    fixed,
    least,
    most,
    static,
)
from ....dialects.tensor.builder import Builder, dims, normal_dim, normal_dims
from ....errors import ShapeError
from .creation import filled
from .registry import decomposes
from .reshape import moved, pick, reshape_to
from .scatter import slices_written


def permuted(b: Builder, x: SSAValue, order: Sequence[int]) -> SSAValue:
    """Dimension `i` of the result is dimension `order[i]` of `x`."""
    shape = extents_of(x.type)
    exprs = [AffineExpr.dimension(list(order).index(d)) for d in range(len(shape))]
    return b.map(x, exprs, [shape[d] for d in order])


@decomposes("view", "reshape", "_unsafe_view")
def reshape(
    b: Builder, self: SSAValue, size: Sequence[Extent] | None = None, shape: Sequence[Extent] | None = None
) -> SSAValue:
    wanted = list(size if size is not None else shape or [])
    own = extents_of(self.type)
    if all(isinstance(e, int) for e in (*wanted, *own)):
        return reshape_to(b, self, completed(static(wanted), prod(static(own))))
    declared = b.result_shape
    if len(wanted) != len(declared) or any(w not in (-1, e) for w, e in zip(wanted, declared, strict=True)):
        raise ShapeError(f"{extents_text(wanted)} is not the declared {extents_text(declared)}", argument="size")
    return reshape_to(b, self, declared)


def completed(shape: Sequence[int], elements: int) -> list[int]:
    """`shape` with a -1 in it replaced by what makes up `elements`; ShapeError if nothing does."""
    found = list(shape)
    if found.count(-1) == 1:
        rest = -prod(found)
        found[found.index(-1)] = elements // rest if rest else -1
    if prod(found) != elements or any(n < 0 for n in found):
        raise ShapeError(f"{elements} elements do not make up {list(shape)}")
    return found


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
            raise b.unsupported("dim", f"whether {n} is 1, so that this dimension goes, is known only at run time")
    return reshape_to(b, self, [n for d, n in enumerate(shape) if n != 1 or d not in among])


@decomposes("permute")
def permute(b: Builder, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    rank = len(extents_of(self.type))
    order = [normal_dim(d, rank) for d in dims]
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"{list(dims)} is not a permutation of {rank} dimensions")
    return permuted(b, self, order)


@decomposes("expand")
def expand(b: Builder, self: SSAValue, size: Sequence[Extent], implicit: bool) -> SSAValue:
    own = extents_of(self.type)
    offset = len(size) - len(own)
    return b.broadcast(self, [own[i - offset] if n == -1 and i >= offset else n for i, n in enumerate(size)])


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
        raise ShapeError("the two dimensions of a diagonal are the same", argument="dim2")
    below, right = max(-offset, 0), max(offset, 0)
    size = max(min(shape[row] - below, shape[column] - right), 0)
    kept = [d for d in range(len(shape)) if d not in (row, column)]
    exprs = [AffineExpr.dimension(kept.index(d) if d in kept else len(kept)) for d in range(len(shape))]
    exprs[row], exprs[column] = shifted(exprs[row], below), shifted(exprs[column], right)
    return b.map(self, exprs, [*(shape[d] for d in kept), size])


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
    """`size` elements of `x` along `dim`, from `start` on, `step` apart (negative: backwards)."""
    shape = list(extents_of(x.type))
    exprs = dims(len(shape))
    exprs[dim] = shifted(exprs[dim] if step == 1 else exprs[dim] * step, start)
    shape[dim] = size
    return b.map(x, exprs, shape)


def shifted(expr: AffineExpr, offset: int) -> AffineExpr:
    """`expr + offset`, without adding 0."""
    return expr + offset if offset else expr


def selected(b: Builder, x: SSAValue, dim: int, index: int) -> SSAValue:
    """The slice `index` of `x` along `dim`, without that dimension."""
    shape = extents_of(x.type)
    exprs = [AffineExpr.dimension(d if d < dim else d - 1) for d in range(len(shape))]
    exprs[dim] = AffineExpr.constant(index)
    return b.map(x, exprs, [n for d, n in enumerate(shape) if d != dim])


def clamped_range(start: int | None, end: int | None, step: int, extent: int) -> tuple[int, int]:
    """First index and number of elements of Python's `start:end:step` (step > 0) on `extent` elements."""
    found = range(extent)[slice(start, end, step)]
    return found.start, len(found)


@decomposes("slice.Tensor")
def slice_(b: Builder, self: SSAValue, dim: int, start: Extent | None, end: Extent | None, step: int) -> SSAValue:
    shape = extents_of(self.type)
    dim = normal_dim(dim, len(shape))
    if step <= 0 or not shape:
        raise b.unsupported("step", f"a slice needs a positive step, not {step}")
    extent = shape[dim]
    if isinstance(start, SymbolAttr) or isinstance(end, SymbolAttr) or isinstance(extent, SymbolAttr):
        return _slice_of_some_size(b, self, dim, start, end, step)
    first, size = clamped_range(start, end, step, extent)
    return sliced(b, self, dim, first, size, step)


def _slice_of_some_size(
    b: Builder, x: SSAValue, dim: int, start: Extent | None, end: Extent | None, step: int
) -> SSAValue:
    """A slice with a size known at run time. The declared result says how many elements there are; that none of them
    is outside is what its range promises. It has to be what start and end say without being clamped, or the end, or all
    of the dimension."""
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
        raise b.unsupported("end", f"{start}:{end} of {extent} elements is not known to be {shape[dim]}")
    if first.number is not None:
        return sliced(b, x, dim, first.number, shape[dim], step)
    if step != 1:
        raise b.unsupported("step", f"a step of {step} from a place known only at run time is not supported")
    return moved(b, x, dim, first, shape)


def from_front(b: Builder, extent: Extent, place: Extent) -> Polynomial:
    """A place along a dimension, counted from the front."""
    found = b.algebra.of(place)
    return plus(b.algebra.of(extent), found) if most(place) < 0 else found


@decomposes("select.int")
def select(b: Builder, self: SSAValue, dim: int, index: Extent) -> SSAValue:
    shape = list(extents_of(self.type))
    dim = normal_dim(dim, len(shape))
    extent = shape[dim]
    if isinstance(index, int) and not -least(extent) <= index < least(extent):
        raise ShapeError(f"{index} is outside of {extent} elements", argument="index")
    if isinstance(index, SymbolAttr):
        b.algebra.promise_within(index, extent)
    place = from_front(b, extent, index)
    if place.number is not None:
        return selected(b, self, dim, place.number)
    shape[dim] = 1
    return selected(b, moved(b, self, dim, place, shape), dim, 0)


def _count(x: SSAValue) -> int:
    return prod(shape_of(x.type))


def _places(size: Sequence[int], stride: Sequence[int], offset: int, elements: int) -> AffineExpr:
    """Where each element of the view lies. Raises ShapeError for one that is outside of `elements`."""
    if len(size) != len(stride):
        raise ShapeError(f"{len(stride)} strides for {len(size)} dimensions", argument="stride")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= offset <= last < elements:
        raise ShapeError(f"reaches element {last} of {elements}", argument="size")
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
    place = _places(size, stride, storage_offset or 0, _count(self))
    return b.map(reshape_to(b, self, [_count(self)]), [place], size)


@decomposes("as_strided_scatter")
def as_strided_scatter(
    b: Builder, self: SSAValue, src: SSAValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> SSAValue:
    """Of several writes to one place the last in order counts, as in PyTorch's copy into the view."""
    if 0 in size:
        return self
    _places(size, stride, storage_offset or 0, _count(self))
    place: SSAValue = b.constant(storage_offset or 0, size, i64)
    for d, s in enumerate(stride):
        place = b.add(place, b.scaled(b.iota(d, size), s))
    flat, count = reshape_to(b, self, [_count(self)]), prod(size)
    places, values = reshape_to(b, place, [count]), reshape_to(b, b.broadcast(src, size), [count])
    return reshape_to(b, slices_written(b, flat, 0, places, values, None), shape_of(self.type))


@decomposes("resize")
def resize(b: Builder, self: SSAValue, size: Sequence[int]) -> SSAValue:
    """The first elements in another shape; further ones would be undefined."""
    if prod(size) > _count(self):
        raise b.unsupported("size", f"{prod(size)} elements out of {_count(self)}")
    steps = [prod(size[d + 1 :]) for d in range(len(size))]
    return as_strided(b, self, size, steps, 0)
