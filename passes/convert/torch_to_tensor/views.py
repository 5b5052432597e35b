"""Views: everything that only renames indices is one index map. So are parts along a dimension at places that are known
before run time; reads at other places are gathers.

In the IR a tensor has no strides: `as_strided` and its relatives address the elements in their order, one after the
other. The frontend writes them so (`frontend/capture/features/addresses.py`).
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


def element_count(x: SSAValue) -> int:
    return prod(shape_of(x.type))


def as_strided_places(size: Sequence[int], stride: Sequence[int], offset: int, elements: int) -> AffineExpr:
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
    place = as_strided_places(size, stride, storage_offset or 0, element_count(self))
    return b.map(reshape_to(b, self, [element_count(self)]), [place], size)


@decomposes("resize")
def resize(b: Builder, self: SSAValue, size: Sequence[int]) -> SSAValue:
    """The first elements in another shape; further ones would be undefined."""
    if prod(size) > element_count(self):
        raise b.unsupported("size", f"{prod(size)} elements out of {element_count(self)}")
    steps = [prod(size[d + 1 :]) for d in range(len(size))]
    return as_strided(b, self, size, steps, 0)
