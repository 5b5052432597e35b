"""Rules of operations that move elements: broadcasts, reshapes, slices, concatenations and pads."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.shapes.binding import Polynomial, constant, plus
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.tensor.builder import Bound, dims
from ....dialects.tensor.concatenation import joined
from ....dialects.tensor.views import flipped, permuted, reshape_to, shifted, sliced
from ..registry import Builder, HloOperation, number_of, rule


@rule("stablehlo.broadcast_in_dim")
def broadcast_in_dim(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return placed(b, op, x, op.shape)


def placed(b: Builder, op: HloOperation, x: SSAValue, shape: Sequence[Extent]) -> SSAValue:
    """Returns a tensor in the dimensions of a larger one.

    Args:
        b: builder of the operation.
        op: a broadcast.
        x: the tensor.
        shape: shape of the result.
    """
    number = number_of(x)
    if number is not None:
        return b.constant(number, shape, op.element)
    return b.place(x, op.ints("broadcast_dimensions"), shape)


@rule("stablehlo.broadcast")
def broadcast(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return b.broadcast(x, op.shape)


@rule("stablehlo.reshape")
def reshape(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return reshape_to(b, x, op.shape)


@rule("stablehlo.transpose")
def transpose(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return permuted(b, x, op.ints("permutation"))


@rule("stablehlo.slice")
def slice_(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    starts, steps = op.ints("start_indices"), op.ints("strides")
    exprs = [shifted(e if k == 1 else e * k, s) for e, k, s in zip(dims(len(steps)), steps, starts, strict=True)]
    return b.map(x, exprs, op.shape)


def sliced_by(b: Builder, x: SSAValue, dim: int, start: int, limit: int, step: int) -> SSAValue:
    """Returns the elements `start`, `start + step`, ... below `limit` along a dimension.

    Args:
        b: builder of the operation.
        x: the tensor.
        dim: the dimension.
        start: first index.
        limit: index after the last one.
        step: distance of elements.
    """
    return sliced(b, x, dim, start, max(-(-(limit - start) // step), 0), step)


@rule("stablehlo.reverse")
def reverse(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    for dim in op.ints("dimensions"):
        x = flipped(b, x, dim)
    return x


@rule("stablehlo.concatenate")
def concatenate(b: Builder, op: HloOperation, *parts: SSAValue) -> SSAValue:
    dim = op.int("dimension")
    wide = [p for p in parts if extents_of(p.type)[dim] != 0]
    return joined(b, wide or parts[:1], dim)


@rule("stablehlo.pad")
def pad(b: Builder, op: HloOperation, x: SSAValue, value: SSAValue) -> SSAValue:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return pad_by(b, op, x, value, *([constant(n) for n in op.ints(name)] for name in names))


def pad_by(
    b: Builder,
    op: HloOperation,
    x: SSAValue,
    value: SSAValue,
    low: Sequence[Polynomial],
    high: Sequence[Polynomial],
    interior: Sequence[Polynomial],
) -> SSAValue:
    """Returns a padded tensor.

    Args:
        b: builder of the operation.
        op: the operation.
        x: the tensor.
        value: element of the padding, a tensor of rank 0.
        low: padding before the first element of each dimension.
        high: padding after the last element.
        interior: padding between elements.
    """
    shape = list[Extent]()
    for extent, before, after, between in zip(extents_of(x.type), low, high, interior, strict=True):
        if before.number is None or between.number is None or between.number and not isinstance(extent, int):
            raise op.refuse("expected numbers as padding before and between the elements of a size that varies")
        inner = max(extent - 1, 0) * between.number if isinstance(extent, int) else 0
        size = plus(plus(b.algebra.of(extent), plus(before, after)), constant(inner))
        shape.append(b.algebra.extent(size))
    numbers = [[p.number or 0 for p in ps] for ps in (low, interior)]
    return padded(b, x, value, numbers[0], numbers[1], shape)


def padded(
    b: Builder, x: SSAValue, value: SSAValue, low: Sequence[int], interior: Sequence[int], shape: Sequence[Extent]
) -> SSAValue:
    """Returns a tensor with padding, which may be negative before and after, between its elements too.

    Args:
        b: builder of the operation.
        x: the tensor.
        value: element of the padding, a tensor of rank 0.
        low: padding before the first element of each dimension.
        interior: padding between elements.
        shape: shape of the result.
    """
    source = extents_of(x.type)
    exprs = list[AffineExpr]()
    bounds = list[Bound]()
    for e, n, before, between, size in zip(dims(len(shape)), source, low, interior, shape, strict=True):
        position = shifted(e, -before)
        step = between + 1
        exprs.append(position if step == 1 else position // step)
        if before > 0 or n != size or step > 1:
            last = n if step == 1 else (n - 1) * step + 1
            bounds.append((position, 0, last))
        if step > 1:
            bounds.append((position % step, 0, 1))
    if not bounds:
        return x
    if (number := number_of(value)) is not None:
        return b.map(x, exprs, shape, bounds, number)
    if 0 in source:
        return b.broadcast(value, shape)
    inside = b.map(b.constant(True, source, i1), exprs, shape, bounds, False)
    return b.select(inside, b.map(x, exprs, shape, bounds), b.broadcast(value, shape))


@rule("stablehlo.optimization_barrier")
def optimization_barrier(b: Builder, op: HloOperation, *values: SSAValue) -> Sequence[SSAValue]:
    return values
