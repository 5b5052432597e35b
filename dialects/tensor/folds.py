"""Folds: a step function that is applied to its previous results, the *carries*, once per step (`tensor.scan`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from .. import tensor
from ..payload import element_type
from ..payload.rows import padded_row
from ..shapes.extents import Extent, extents_of, static, tensor_of
from .builder import Builder, dims
from .views import reshape_to

Step = Callable[[Builder, list[SSAValue], list[SSAValue], list[SSAValue]], Sequence[SSAValue]]
"""Step function: (builder, carries, slices of this step, shared tensors) -> the next carries, of the same types."""


def fold(
    b: Builder,
    step: Step,
    count: int,
    carries: Sequence[SSAValue],
    sliced_inputs: Sequence[SSAValue],
    shared: Sequence[SSAValue],
    history: Sequence[int],
) -> list[SSAValue]:
    """Returns the last value of each carry after `count` steps, or all values, stacked, for the carries in `history`.

    A slice of a step must start at a multiple of 16 bytes in memory. If its size is no such multiple, the tensor is
    stored with padding at the end of each slice.

    Args:
        b: Builder of the operator.
        step: Step function. It must use only its arguments, no other values of `b`.
        count: Number of steps.
        carries: Initial carries.
        sliced_inputs: Tensors of which step i gets slice i along the first dimension.
        shared: Tensors that every step gets as a whole.
        history: Positions of the carries whose values of all steps are returned.
    """
    inputs = [_packed(b, v) if i in history else v for i, v in enumerate(carries)]
    op = tensor.ScanOp("step", count, inputs, [_packed(b, v, 1) for v in sliced_inputs], shared, history)
    inner = Builder(b.result_types, b.location, b.algebra, b.asserts)
    block = Block(arg_types=op.step_types)
    first, last = len(carries), len(carries) + len(sliced_inputs)
    shapes = [*(extents_of(v.type) for v in carries), *(extents_of(v.type)[1:] for v in sliced_inputs)]
    args = [_unpacked(inner, a, shape) for a, shape in zip(block.args, shapes, strict=False)]
    results = list(step(inner, args[:first], args[first:], list(block.args[last:])))
    results = [_packed(inner, r) if i in history else r for i, r in enumerate(results)]
    block.add_ops([*inner.ops, ReturnOp(*results)])
    function = FuncOp("step", (op.step_types, [r.type for r in results]), Region(block), "private")
    b.functions += [(op, function), *inner.functions]
    b.insert(op)
    whole = [(count, *extents_of(carry.type)) for carry in carries]
    return [_unpacked(b, r, whole[i], 1) if i in history else r for i, r in enumerate(op.res)]


def needs_padding(op: tensor.ScanOp) -> bool:
    """Returns true if a slice of a scan, or a row of a history, does not start at a multiple of 16 bytes."""
    rows = [v.type for i, v in enumerate(op.carries) if i in op.stacked]
    rows += [tensor_of(element_type(v.type), extents_of(v.type)[1:]) for v in op.each if op.steps > 1]
    return any(extents_of(t) != tuple(padded_row(t)) for t in rows)


def _packed(b: Builder, x: SSAValue, outer: int = 0) -> SSAValue:
    """Returns `x` with each slice padded to a multiple of 16 bytes; `x` itself if it needs no padding.

    Slices are indexed by the first `outer` dimensions."""
    shape = extents_of(x.type)
    row = padded_row(tensor_of(element_type(x.type), shape[outer:]))
    if shape[outer:] == tuple(row) or outer and shape[0] == 1:
        return x
    if len(row) == 1:
        x = reshape_to(b, x, [*shape[:outer], prod(static(shape[outer:]))])
    index = dims(outer + len(row))
    return b.map(x, index, [*shape[:outer], *row], [(index[-1], 0, extents_of(x.type)[-1])])


def _unpacked(b: Builder, x: SSAValue, shape: Sequence[Extent], outer: int = 0) -> SSAValue:
    """Returns the tensor of `shape` from which `_packed` made `x`."""
    packed_shape = extents_of(x.type)
    if packed_shape != tuple(shape) and len(packed_shape) == outer + 1:
        exact = b.map(x, dims(len(packed_shape)), [*packed_shape[:outer], prod(static(shape[outer:]))])
        return reshape_to(b, exact, shape)
    return b.map(x, dims(len(packed_shape)), shape)
