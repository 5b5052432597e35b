"""Operators that combine tensors by position: cat, stack, pad, tril, triu, and writes of slices and diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type
from ....dialects.shapes.binding import Polynomial, plus
from ....dialects.shapes.extents import Extent, SymbolAttr, extents_of, fixed, most
from ....dialects.tensor.builder import Bound, Builder, Number, dims, normal_dim
from ....dialects.tensor.concatenation import joined, shifted_into
from ....dialects.tensor.views import inside, reshape_to, shifted
from ....errors import ShapeError
from .registry import decomposes
from .views import clamped_range, from_front


@decomposes("cat")
def cat(b: Builder, tensors: Sequence[SSAValue], dim: int) -> SSAValue:
    element = b.result_element
    # PyTorch ignores operands of shape [0], even if the other operands have another rank.
    real = [b.cast(t, element) for t in tensors if extents_of(t.type) != (0,)]
    if not real:
        return b.cast(tensors[0], element)
    rank = len(extents_of(real[0].type))
    dim = normal_dim(dim, rank)
    for t in real:
        other_extents = [[n for d, n in enumerate(extents_of(v.type)) if d != dim] for v in (t, real[0])]
        if other_extents[0] != other_extents[1] or not rank:
            raise ShapeError(
                f"expected shapes equal except in dimension {dim}, but got {list(extents_of(real[0].type))} and "
                f"{list(extents_of(t.type))}",
                argument="tensors",
            )
    wide = [t for t in real if extents_of(t.type)[dim]]
    return joined(b, wide or real[:1], dim)


@decomposes("stack")
def stack(b: Builder, tensors: Sequence[SSAValue], dim: int) -> SSAValue:
    dim = normal_dim(dim, len(extents_of(tensors[0].type)) + 1)
    parts: list[SSAValue] = []
    for t in tensors:
        shape = list(extents_of(t.type))
        shape.insert(dim, 1)
        parts.append(reshape_to(b, b.cast(t, b.result_element), shape))
    return joined(b, parts, dim)


def _pairs(b: Builder, x: SSAValue, pad: Sequence[Extent]) -> list[tuple[int, Extent, Extent]]:
    """Returns (dimension, padding before, padding after) for each pair of PyTorch's list, which starts at the last
    dimension."""
    rank = len(extents_of(x.type))
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise ShapeError(f"expected pairs for at most {rank} dimensions, but got {list(pad)}", argument="pad")
    return [(rank - 1 - i, pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]


@decomposes("constant_pad_nd")
def constant_pad(b: Builder, self: SSAValue, pad: Sequence[Extent], value: Number) -> SSAValue:
    shape, old_shape = list(extents_of(self.type)), extents_of(self.type)
    exprs = dims(len(shape))
    guarded: list[Bound] = []
    varying: list[tuple[int, Polynomial, Extent]] = []
    for dim, before, after in _pairs(b, self, pad):
        start = b.algebra.of(before)
        size = plus(b.algebra.of(old_shape[dim]), plus(start, b.algebra.of(after)))
        if size.number is not None and size.number < 0:
            raise ShapeError(f"expected a padded size of 0 or more, but {list(pad)} makes it negative", argument="pad")
        if start.number is None:
            varying.append((dim, start, b.algebra.extent(size)))
            continue
        shape[dim] = b.algebra.extent(size)
        exprs[dim] = shifted(exprs[dim], -start.number)
        if start.number > 0 or most(after) > 0:
            guarded.append((exprs[dim], 0, old_shape[dim]))
    x = b.map(self, exprs, shape, guarded, value)
    for dim, start, extent in varying:
        shape[dim] = extent
        inside = _written(b, dim, start, b.algebra.of(old_shape[dim]), shape)
        x = b.select(inside, shifted_into(b, x, dim, start, shape), b.constant(value, shape, element_type(x.type)))
    return x


def _written(b: Builder, dim: int, start: Polynomial, size: Polynomial, shape: Sequence[Extent]) -> SSAValue:
    """Returns a mask of `shape` that is true for `size` elements along `dim`, from `start`."""
    index, begin, end = b.iota(dim, shape), b.measured(start, shape, i64), b.measured(plus(start, size), shape, i64)
    return b.both(b.cmp("ge", index, begin), b.cmp("lt", index, end))


def _triangle(b: Builder, self: SSAValue, diagonal: int, predicate: str) -> SSAValue:
    shape = extents_of(self.type)
    row, column = b.iota(len(shape) - 2, shape), b.iota(len(shape) - 1, shape)
    inside = b.cmp(predicate, column, b.plus(row, diagonal) if diagonal else row)
    x = b.working(self)
    return b.select(inside, x, b.like(x, 0))


decomposes("tril")(partial(_triangle, predicate="le"))
decomposes("triu")(partial(_triangle, predicate="ge"))


@decomposes("select_scatter")
def select_scatter(b: Builder, self: SSAValue, src: SSAValue, dim: int, index: int) -> SSAValue:
    shape = extents_of(self.type)
    dim = normal_dim(dim, len(shape))
    if not -shape[dim] <= index < shape[dim]:
        raise ShapeError(f"expected an index of {shape[dim]} elements, but got {index}", argument="index")
    spread = b.place(b.cast(src, element_type(self.type)), [d for d in range(len(shape)) if d != dim], shape)
    return b.select(b.cmp("eq", b.iota(dim, shape), index % shape[dim]), spread, self)


@decomposes("slice_scatter")
def slice_scatter(
    b: Builder, self: SSAValue, src: SSAValue, dim: int, start: Extent | None, end: Extent | None, step: int
) -> SSAValue:
    shape = extents_of(self.type)
    dim = normal_dim(dim, len(shape))
    size = extents_of(src.type)[dim]
    if step == 1 and any(isinstance(e, SymbolAttr) for e in (start, end, size, shape[dim])):
        place = from_front(b, shape[dim], start or 0)
        written = _written(b, dim, place, b.algebra.of(size), shape)
        return b.select(written, shifted_into(b, b.cast(src, element_type(self.type)), dim, place, shape), self)
    start, end = (None if e is None else fixed(e) for e in (start, end))
    first, size = clamped_range(start, end, step, fixed(shape[dim]))
    if not size:
        return self
    distance = shifted(AffineExpr.dimension(dim), -first)
    exprs = dims(len(shape))
    exprs[dim] = distance if step == 1 else distance // step
    spread = b.map(b.cast(src, element_type(self.type)), exprs, shape, [(distance, 0, (size - 1) * step + 1)])
    index = b.plus(b.iota(dim, shape), -first)
    hit = b.both(b.cmp("ge", index, 0), b.cmp("le", index, (size - 1) * step))
    if step != 1:
        hit = b.both(hit, b.cmp("eq", b.rem(index, b.like(index, step)), 0))
    return b.select(hit, spread, self)


@decomposes("diagonal_scatter")
def diagonal_scatter(b: Builder, self: SSAValue, src: SSAValue, offset: int, dim1: int, dim2: int) -> SSAValue:
    shape = extents_of(self.type)
    row, column = normal_dim(dim1, len(shape)), normal_dim(dim2, len(shape))
    below, right = max(-offset, 0), max(offset, 0)
    size = extents_of(src.type)[-1]
    index = dims(len(shape))
    along = shifted(index[row], -below)
    distance = along + shifted(index[column], -right) * -1
    on_it: list[Bound] = [(distance, 0, 1), (along, 0, size)]
    other_dims = [index[d] for d in range(len(shape)) if d not in (row, column)]
    written = b.map(b.cast(src, element_type(self.type)), [*other_dims, along], shape, on_it)
    return b.select(inside(b, shape, on_it), written, self)
