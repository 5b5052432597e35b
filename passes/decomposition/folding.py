"""Building folds: the function of one step is written like any decomposition, and called for every slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import tensor
from ...dialects.domain import DomainAttr
from ...dialects.kernel_host import padded_row
from ...dialects.payload import element_type, shape_of
from .builder import Builder, dims
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
    op = tensor.FoldOp("step", count, inputs, slices, shared, history)
    b.functions.append((op, _function(b, step, op, carries, each)))
    b.insert(op)
    found = list[SSAValue]()
    for i, (carry, result) in enumerate(zip(carries, op.res, strict=True)):
        whole = [count, *shape_of(carry.type)]
        found.append(_unpacked(b, result, whole, 1) if i in history else result)
    return found


def _function(
    b: Builder, step: Step, op: tensor.FoldOp, carries: Sequence[SSAValue], each: Sequence[SSAValue]
) -> FuncOp:
    """The function that `op` applies: unpacks its arguments, computes `step`, and packs the carries again."""
    inner = Builder(b.result_types, b.location, b.algebra)
    block = Block(arg_types=op.step_types)
    args: list[SSAValue] = list(block.args)
    first, last = len(carries), len(carries) + len(each)
    states = [_unpacked(inner, a, shape_of(v.type)) for a, v in zip(args[:first], carries, strict=True)]
    slices = [_unpacked(inner, a, shape_of(v.type)[1:]) for a, v in zip(args[first:last], each, strict=True)]
    results = list(step(inner, states, slices, args[last:]))
    results = [_packed(inner, r) if i in op.kept else r for i, r in enumerate(results)]
    block.add_ops([*inner.ops, ReturnOp(*results)])
    b.functions += inner.functions
    return FuncOp("step", (op.step_types, [r.type for r in results]), Region(block), "private")


def _packed(b: Builder, x: SSAValue) -> SSAValue:
    """`x` itself if its size is a multiple of 16 bytes, else its elements in a row with a gap."""
    n, row = prod(shape_of(x.type)), padded_row(x.type)
    if n == row:
        return x
    return _with_gap(b, reshape_to(b, x, [n]), row)


def _packed_rows(b: Builder, x: SSAValue) -> SSAValue:
    """`_packed` for every element of the leading dimension of `x`."""
    count, *rest = shape_of(x.type)
    n, row = prod(rest), padded_row(TensorType(element_type(x.type), rest))
    if n == row or count == 1:
        return x
    return _with_gap(b, reshape_to(b, x, [count, n]), row)


def _with_gap(b: Builder, x: SSAValue, row: int) -> SSAValue:
    *outer, n = shape_of(x.type)
    index = dims(len(outer) + 1)
    domain = DomainAttr.get(AffineMap(len(index), 0, (index[-1],)), [(0, n)])
    return b.map(x, index, [*outer, row], domain, 0)


def _unpacked(b: Builder, x: SSAValue, shape: Sequence[int], outer: int = 0) -> SSAValue:
    """What was packed to `x`, which has the first `outer` dimensions of `shape` for itself."""
    if shape_of(x.type) == tuple(shape):
        return x
    n = prod(shape[outer:])
    exact = b.map(x, [AffineExpr.dimension(d) for d in range(outer + 1)], [*shape[:outer], n])
    return reshape_to(b, exact, shape)
