"""Count the work of a program without running it: floating-point operations and bytes moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import SymbolTable

from ..dialects import loop, tensor, tile
from ..dialects.calls import without_calls
from ..dialects.payload import is_float, is_payload
from ..dialects.sizes import Sizes
from .interpreter.domains import numpy_dtype
from .interpreter.running import main_function

_FREE = frozenset({"payload.constant", "payload.cast", "payload.select", "arith.constant"})


@dataclass(frozen=True)
class Counts:
    """`flops`: float operations, one for each element and op. `bytes`: what kernels read and write, each value once."""

    flops: int
    bytes: int


def _size(value: SSAValue, sizes: Sizes) -> int:
    if not isinstance(value.type, TensorType):
        return 0
    dtype = numpy_dtype(value.type.element_type)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return math.prod(sizes.shape(value.type)) * dtype.itemsize


def _op_flops(op: Operation, sizes: Sizes) -> int:
    """Operations of `op` itself, each time it is executed."""
    if isinstance(op, tensor.ReduceOp) and is_float(op.source.type):
        return math.prod(sizes.shape(op.source.type))
    if is_payload(op) and op.name not in _FREE and op.operands and is_float(op.operands[0].type):
        return math.prod(sizes.shape(op.results[0].type))
    return 0


def _flops(op: Operation, sizes: Sizes) -> int:
    if isinstance(op, tensor.FoldOp):
        return op.steps * sum(_flops(inner, sizes) for inner in _step(op).body.block.ops)
    times = 1
    if isinstance(op, loop.NestOp | loop.ReduceOp):
        times = math.prod(sizes.numbers(op.sizes))
    total = sum(_flops(inner, sizes) for region in op.regions for block in region.blocks for inner in block.ops)
    if isinstance(op, loop.ReduceOp) and is_float(op.result.type):
        total += 1
    return total * times + _op_flops(op, sizes)


def _bytes(op: Operation, sizes: Sizes) -> int:
    """What one kernel reads and writes; at the tensor level every op counts as a kernel."""
    if isinstance(op, tensor.FoldOp):
        return op.steps * sum(_bytes(inner, sizes) for inner in _step(op).body.block.ops)
    if isinstance(op, loop.NestOp):
        read = {o for inner in op.walk() for o in inner.operands if isinstance(o.type, TensorType)}
        return sum(_size(v, sizes) for v in read) + sum(_size(r, sizes) for r in op.results)
    if isinstance(op, tile.LaunchOp) or op.name.startswith("tensor.") or is_payload(op):
        return sum(_size(v, sizes) for v in {*op.operands, *op.results})
    return 0


def _step(op: tensor.FoldOp) -> FuncOp:
    """The function that a fold applies."""
    step = SymbolTable.lookup_symbol(op, op.step)
    assert isinstance(step, FuncOp)
    return step


def count(module: ModuleOp, sizes: Sizes | None = None) -> Counts:
    """The work of `@main` at the tensor or loop level, where symbols have the values `sizes`.

    Raises ExecutionError if there is no `@main`.
    Data-dependent values count as if everything were executed; tile kernels count their bytes only.
    """
    ops = list(main_function(without_calls(module)).body.block.ops)
    sizes = sizes or Sizes()
    return Counts(sum(_flops(op, sizes) for op in ops), sum(_bytes(op, sizes) for op in ops))
