"""Floating-point operations of a program, counted without running it."""

from __future__ import annotations

import math

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.traits import SymbolTable

from ..dialects import loop, tensor
from ..dialects.payload import is_float, is_payload
from ..dialects.shapes.binding import Sizes
from ..dialects.support.calls import without_calls
from .interpreter.running import main_function

_FREE = frozenset({"payload.constant", "payload.cast", "payload.select", "arith.constant"})


def _op_flops(op: Operation, sizes: Sizes) -> int:
    """Operations of `op` itself, each time it is executed."""
    if isinstance(op, tensor.ReduceOp) and is_float(op.source.type):
        return math.prod(sizes.shape(op.source.type))
    if is_payload(op) and op.name not in _FREE and op.operands and is_float(op.operands[0].type):
        return math.prod(sizes.shape(op.results[0].type))
    return 0


def _flops(op: Operation, sizes: Sizes) -> int:
    if isinstance(op, tensor.ScanOp):
        return op.steps * sum(_flops(inner, sizes) for inner in _step(op).body.block.ops)
    times = 1
    if isinstance(op, loop.NestOp | loop.ReduceOp):
        times = math.prod(sizes.numbers(op.sizes))
    total = sum(_flops(inner, sizes) for region in op.regions for block in region.blocks for inner in block.ops)
    if isinstance(op, loop.ReduceOp) and is_float(op.result.type):
        total += 1
    return total * times + _op_flops(op, sizes)


def _step(op: tensor.ScanOp) -> FuncOp:
    """The function that a fold applies."""
    step = SymbolTable.lookup_symbol(op, op.step)
    assert isinstance(step, FuncOp)
    return step


def count_flops(module: ModuleOp, sizes: Sizes | None = None) -> int:
    """The float operations of `@main` at the tensor or loop level, one for each element and operation, where symbols
    have the values `sizes`.

    Raises ExecutionError if there is no `@main`.
    Data-dependent values count as if everything were executed; tile kernels count nothing.
    """
    sizes = sizes or Sizes()
    return sum(_flops(op, sizes) for op in main_function(without_calls(module)).body.block.ops)
