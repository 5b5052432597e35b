"""Rules of operations whose shape is an operand: programs with symbolic sizes.

The shape is evaluated during the import, as polynomials of the sizes of arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue

from ....dialects.payload import is_float
from ....dialects.shapes.binding import Polynomial, plus
from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.tensor.views import moved, reshape_to
from ..registry import Builder, HloOperation, number_of, rule
from .indexing import gather_slices
from .views import pad_by, sliced_by


def shape_operand(op: HloOperation, operand: int) -> list[Extent]:
    """Returns the shape in an operand. Raises UnsupportedError if it depends on data."""
    return [op.scope.extent(p) for p in sizes_operand(op, operand)]


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
    return reshape_to(b, x, shape_operand(op, 1))


@rule("stablehlo.dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(b: Builder, op: HloOperation, x: SSAValue, _: SSAValue) -> SSAValue:
    shape, number = shape_operand(op, 1), number_of(x)
    if number is not None:
        return b.constant(number, shape, op.element)
    return b.place(x, op.ints("broadcast_dimensions"), shape)


@rule("stablehlo.dynamic_iota")
def dynamic_iota(b: Builder, op: HloOperation, _: SSAValue) -> SSAValue:
    integers = i64 if is_float(op.element) or op.element == i1 else op.element
    return b.cast(b.iota(op.int("iota_dimension"), shape_operand(op, 0), integers), op.element)


@rule("stablehlo.dynamic_gather")
def dynamic_gather(b: Builder, op: HloOperation, x: SSAValue, index: SSAValue, _: SSAValue) -> SSAValue:
    return gather_slices(b, op, x, index, shape_operand(op, 2))


@rule("stablehlo.real_dynamic_slice")
def real_dynamic_slice(b: Builder, op: HloOperation, x: SSAValue, *_: SSAValue) -> SSAValue:
    starts, limits, steps = (sizes_operand(op, n) for n in (1, 2, 3))
    shape = list(extents_of(x.type))
    steps_of_loop = op.scope.steps
    if steps_of_loop is not None and starts:
        sizes = [op.scope.extent(plus(limit, start, -1)) for start, limit in zip(starts, limits, strict=True)]
        if (row := steps_of_loop.read(b, x, sizes, starts[0])) is not None:
            return row
    numbers = [[p.number for p in ps] for ps in (starts, limits, steps)]
    for dim, (start, limit, step) in enumerate(zip(starts, limits, steps, strict=True)):
        if None not in (n := [part[dim] for part in numbers]) and isinstance(shape[dim], int):
            x = sliced_by(b, x, dim, *(v for v in n if v is not None))
        elif step.number == 1:
            shape = list(extents_of(x.type))
            shape[dim] = op.scope.extent(plus(limit, start, -1))
            x = moved(b, x, dim, start, shape)
        else:
            raise op.refuse("expected a step of 1 along a size that varies")
    return x


@rule("stablehlo.dynamic_pad")
def dynamic_pad(b: Builder, op: HloOperation, x: SSAValue, value: SSAValue, *_: SSAValue) -> SSAValue:
    low, high, interior = (sizes_operand(op, n) for n in (2, 3, 4))
    return pad_by(b, op, x, value, low, high, interior)


def refuse_set_size(b: Builder, op: HloOperation, *_: SSAValue) -> Sequence[SSAValue]:
    raise op.refuse("a size that depends on data is not supported")


rule("stablehlo.set_dimension_size")(refuse_set_size)
