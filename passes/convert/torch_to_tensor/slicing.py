"""Parts of tensors along one dimension: slices, single elements, pieces. All are index maps where the place is known
before run time."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.shapes.extents import Extent, SymbolAttr, extents_of, least, most
from ....dialects.shapes.polynomial import Polynomial, constant, divided, plus
from ....dialects.tensor.builder import Builder, dims, normal_dim
from ....errors import ShapeError
from .registry import decomposes
from .reshape import moved


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
    is outside is what its range promises, and it has to be what start and end say without being clamped."""
    shape = list(extents_of(x.type))
    extent = shape[dim]
    first = constant(0) if start is None else _from_front(b, extent, start)
    if end is None or isinstance(end, int) and end >= most(extent):
        end = extent
    last = _from_front(b, extent, end)
    size = divided("div", plus(plus(last, first, -1), constant(step - 1)), step)
    shape[dim] = b.result_shape[dim]
    if b.algebra.of(shape[dim]) != size:
        raise b.unsupported("end", f"{start}:{end} of {extent} elements is not known to be {shape[dim]}")
    if first.number is not None:
        return sliced(b, x, dim, first.number, shape[dim], step)
    if step != 1:
        raise b.unsupported("step", f"a step of {step} from a place known only at run time is not supported")
    return moved(b, x, dim, first, shape)


def _from_front(b: Builder, extent: Extent, place: Extent) -> Polynomial:
    """A place along a dimension, counted from the front."""
    found = b.algebra.of(place)
    return plus(b.algebra.of(extent), found) if isinstance(place, int) and place < 0 else found


@decomposes("select.int")
def select(b: Builder, self: SSAValue, dim: int, index: Extent) -> SSAValue:
    shape = list(extents_of(self.type))
    dim = normal_dim(dim, len(shape))
    extent = shape[dim]
    if isinstance(index, int) and not -least(extent) <= index < least(extent):
        raise ShapeError(f"{index} is outside of {extent} elements", argument="index")
    if isinstance(index, SymbolAttr):
        b.algebra.promise_within(index, extent)
    place = _from_front(b, extent, index)
    if place.number is not None:
        return selected(b, self, dim, place.number)
    shape[dim] = 1
    return selected(b, moved(b, self, dim, place, shape), dim, 0)
