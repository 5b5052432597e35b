"""Rules of operations whose shape is an operand: programs with symbolic sizes.

The shape is evaluated during the import, as polynomials of the sizes of arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....dialects.shapes.binding import Polynomial, plus
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.tensor.views import moved, reshape_to
from ..registry import Builder, HloOperation, rule
from .constants import numbers_along
from .indexing import gather_slices
from .views import pad_by, placed, sliced_by


def shape_operand(b: Builder, op: HloOperation, operand: int) -> list[Extent]:
    """Returns the shape in an operand.

    Args:
        b: builder of the operation.
        op: the operation.
        operand: number of the operand.

    Raises:
        UnsupportedError: the shape depends on data.
    """
    return [b.algebra.extent(p) for p in sizes_operand(op, operand)]


def sizes_operand(op: HloOperation, operand: int) -> list[Polynomial]:
    """Returns the integers in an operand. Raises UnsupportedError if they depend on data."""
    if op.operands[operand].dims == (0,):
        return []
    sizes = op.sizes(operand)
    if sizes is None:
        raise op.refuse("expected sizes that are computed from shapes, but got sizes that depend on data")
    return sizes


@rule("stablehlo.get_dimension_size")
def get_dimension_size(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    return b.measured(b.algebra.of(extents_of(x.type)[op.int("dimension")]), (), op.element)


@rule("stablehlo.dynamic_reshape")
def dynamic_reshape(b: Builder, op: HloOperation, x: SSAValue, _: SSAValue) -> SSAValue:
    return reshape_to(b, x, shape_operand(b, op, 1))


@rule("stablehlo.dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(b: Builder, op: HloOperation, x: SSAValue, _: SSAValue) -> SSAValue:
    return placed(b, op, x, shape_operand(b, op, 1))


@rule("stablehlo.dynamic_iota")
def dynamic_iota(b: Builder, op: HloOperation, _: SSAValue) -> SSAValue:
    return numbers_along(b, op, shape_operand(b, op, 0))


@rule("stablehlo.dynamic_gather")
def dynamic_gather(b: Builder, op: HloOperation, x: SSAValue, index: SSAValue, _: SSAValue) -> SSAValue:
    return gather_slices(b, op, x, index, shape_operand(b, op, 2))


@rule("stablehlo.real_dynamic_slice")
def real_dynamic_slice(b: Builder, op: HloOperation, x: SSAValue, *_: SSAValue) -> SSAValue:
    starts, limits, steps = (sizes_operand(op, n) for n in (1, 2, 3))
    steps_of_loop = op.scope.steps
    if steps_of_loop is not None and starts:
        sizes = [b.algebra.extent(plus(limit, start, -1)) for start, limit in zip(starts, limits, strict=True)]
        if (row := steps_of_loop.read(b, x, sizes, starts[0])) is not None:
            return row
    for dim, (start, limit, step) in enumerate(zip(starts, limits, steps, strict=True)):
        shape = list(extents_of(x.type))
        numbers = [p.number for p in (start, limit, step) if p.number is not None]
        if len(numbers) == 3 and isinstance(shape[dim], int):
            x = sliced_by(b, x, dim, *numbers)
        elif step.number == 1:
            shape[dim] = b.algebra.extent(plus(limit, start, -1))
            x = moved(b, x, dim, start, shape)
        else:
            raise op.refuse("expected a step of 1 along a size that varies")
    return x


@rule("stablehlo.dynamic_pad")
def dynamic_pad(b: Builder, op: HloOperation, x: SSAValue, value: SSAValue, *_: SSAValue) -> SSAValue:
    low, high, interior = (sizes_operand(op, n) for n in (2, 3, 4))
    return pad_by(b, op, x, value, low, high, interior)


@rule("stablehlo.set_dimension_size")
def set_dimension_size(b: Builder, op: HloOperation, *_: SSAValue) -> Sequence[SSAValue]:
    raise op.refuse("a size that depends on data is not supported")
