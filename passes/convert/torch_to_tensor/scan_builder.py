"""Building folds: the function of one step is written like any decomposition, and called for every slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineMap

from ....dialects import tensor
from ....dialects.kernel.host import padded_row
from ....dialects.payload import element_type
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import Extent, extents_of, static, tensor_of
from ....dialects.tensor.builder import Builder, dims
from .views import reshape_to

Step = Callable[[Builder, list[SSAValue], list[SSAValue], list[SSAValue]], Sequence[SSAValue]]
"""(builder, carries, slices, shared) -> the next carries, of the same types."""


def fold(
    b: Builder,
    step: Step,
    count: int,
    carries: Sequence[SSAValue],
    each: Sequence[SSAValue],
    shared: Sequence[SSAValue],
    history: Sequence[int],
) -> list[SSAValue]:
    """The last value of every carry after `count` steps, or all its values, stacked, for those in `history`.

    `step` must not use values of `b`: what it needs is handed to it. In memory a slice starts at a multiple of 16 bytes
    only if its size is one; tensors of other slices are kept as rows with a gap at their end.
    """
    inputs = [_packed(b, v) if i in history else v for i, v in enumerate(carries)]
    slices = [_packed_rows(b, v) for v in each]
    op = tensor.ScanOp("step", count, inputs, slices, shared, history)
    b.functions.append((op, _function(b, step, op, carries, each)))
    b.insert(op)
    found = list[SSAValue]()
    for i, (carry, result) in enumerate(zip(carries, op.res, strict=True)):
        whole = [count, *extents_of(carry.type)]
        found.append(_unpacked(b, result, whole, 1) if i in history else result)
    return found


def _function(
    b: Builder, step: Step, op: tensor.ScanOp, carries: Sequence[SSAValue], each: Sequence[SSAValue]
) -> FuncOp:
    """The function that `op` applies: unpacks its arguments, computes `step`, and packs the carries again."""
    inner = Builder(b.result_types, b.location, b.algebra, asserts=b.asserts)
    block = Block(arg_types=op.step_types)
    args: list[SSAValue] = list(block.args)
    first, last = len(carries), len(carries) + len(each)
    states = [_unpacked(inner, a, extents_of(v.type)) for a, v in zip(args[:first], carries, strict=True)]
    slices = [_unpacked(inner, a, extents_of(v.type)[1:]) for a, v in zip(args[first:last], each, strict=True)]
    results = list(step(inner, states, slices, args[last:]))
    results = [_packed(inner, r) if i in op.kept else r for i, r in enumerate(results)]
    block.add_ops([*inner.ops, ReturnOp(*results)])
    b.functions += inner.functions
    return FuncOp("step", (op.step_types, [r.type for r in results]), Region(block), "private")


def _packed(b: Builder, x: SSAValue) -> SSAValue:
    """`x` itself if its size is a multiple of 16 bytes, else its elements in a row with a gap."""
    return _with_gap(b, x, padded_row(x.type), 0)


def _packed_rows(b: Builder, x: SSAValue) -> SSAValue:
    """`_packed` for every element of the leading dimension of `x`."""
    count, *rest = extents_of(x.type)
    return x if count == 1 else _with_gap(b, x, padded_row(tensor_of(element_type(x.type), rest)), 1)


def _with_gap(b: Builder, x: SSAValue, row: Sequence[Extent], outer: int) -> SSAValue:
    """`x` with the dimensions behind the first `outer` as `row`, which is longer in its last dimension."""
    shape = extents_of(x.type)
    if shape[outer:] == tuple(row):
        return x
    if len(row) == 1:
        x = reshape_to(b, x, [*shape[:outer], prod(static(shape[outer:]))])
    index = dims(outer + len(row))
    domain = DomainAttr.get(AffineMap(len(index), 0, (index[-1],)), [(0, extents_of(x.type)[-1])])
    return b.map(x, index, [*shape[:outer], *row], domain, 0)


def _unpacked(b: Builder, x: SSAValue, shape: Sequence[Extent], outer: int = 0) -> SSAValue:
    """What was packed to `x`, which has the first `outer` dimensions of `shape` for itself."""
    own = extents_of(x.type)
    if own == tuple(shape):
        return x
    if len(own) == outer + 1:
        exact = b.map(x, dims(len(own)), [*own[:outer], prod(static(shape[outer:]))])
        return reshape_to(b, exact, shape)
    return b.map(x, dims(len(own)), shape)
