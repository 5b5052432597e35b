"""Chapter 4: fusion. One rule moves the computation of a tensor into the nests that read it.

Each nest will be one kernel, and each tensor between two nests is written to memory and read again. The rule removes
a tensor from memory if its elements are not computed more often by that, or if they are cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from deplodock.dialects import loop
from deplodock.dialects.payload import ConstantOp
from deplodock.dialects.shapes.affine import simplify_map
from deplodock.dialects.support.calls import main_function
from deplodock.passes.rewriting import eliminate_common_subexpressions, erase, replace as replace_op

from . import c2_tensors, c3_nests
from .c1_capture import Program


def compile(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> Program:
    """Compiles a PyTorch program to fused nests, which NumPy executes."""
    program = c3_nests.compile(function, inputs)
    fuse(program.module)
    return replace(program, run=c2_tensors.run)


def fuse(module: ModuleOp) -> None:
    """Inlines nests into the nests that read them, in the order of the program."""
    for nest in [op for op in main_function(module).body.block.ops if isinstance(op, loop.NestOp)]:
        while load := next(filter(should_inline, nest.walk()), None):
            inline(load)
            eliminate_common_subexpressions(nest.body)


CHEAP = 64
"""Number of operations that may be executed again by another reader of a tensor."""


def should_inline(op: Operation) -> bool:
    """Returns true for a load whose tensor need not be in memory. This is the rule of the small compiler.

    - A tensor that is only a view, or a constant, is always inlined.
    - Any other tensor is inlined if the load is executed at most once for each of its elements. In addition, the load
      must be its only use, or its computation must be cheap: few operations, and no reduction.
    """
    if not isinstance(op, loop.LoadOp) or not isinstance(op.source.owner, loop.NestOp):
        return False
    producer = op.source.owner
    ops = [*producer.body.block.ops][:-1]
    if len(ops) == 1 and isinstance(ops[0], loop.LoadOp | ConstantOp):
        return True
    executions = prod(prod(outer.shape) for outer in loops_around(op))
    is_cheap = len(ops) <= CHEAP and not any(isinstance(inner, loop.ReduceOp) for inner in ops)
    return executions <= prod(producer.shape) and (is_cheap or op.source.has_one_use())


def loops_around(op: Operation) -> list[loop.NestOp | loop.ReduceOp]:
    """Returns the nest and the reductions around an operation, outermost first."""
    parent = op.parent_op()
    return [*loops_around(parent), parent] if isinstance(parent, loop.NestOp | loop.ReduceOp) else []


def inline(load: loop.LoadOp) -> None:
    """Replaces a load by the computation of the element that it loads."""
    source = load.source
    producer = source.owner.clone()
    # Where the producer uses its indices, the computation uses the coordinates of the load.
    coordinates = dict(zip(producer.body.block.args, load.map.data.results))
    for inner in [op for op in producer.walk() if isinstance(op, loop.LoadOp)]:
        reduced = [index for index in inner.indices if index not in coordinates]
        numbers = {index: len(load.indices) + n for n, index in enumerate(reduced)}
        expressions = [coordinates.get(i) or AffineExpr.dimension(numbers[i]) for i in inner.indices]
        results = [e.replace_dims_and_symbols(expressions, []) for e in inner.map.data.results]
        replace_op(inner, load_of(inner.source, results, [*load.indices, *reduced]))
    *ops, end = producer.body.block.ops
    value = end.operands[0]
    for op in ops:
        op.detach()
    replace_op(load, *ops, results=[value])
    if not source.uses:
        erase(source.owner)


def load_of(source: SSAValue, coordinates: list[AffineExpr], indices: list[SSAValue]) -> loop.LoadOp:
    """Returns a load in normal form: equal loads are equal operations.

    Args:
        source: the tensor.
        coordinates: its coordinates, as expressions of the indices.
        indices: the indices.
    """
    map = simplify_map(AffineMap(len(indices), 0, tuple(coordinates)), extents_of_indices(indices))
    used = sorted(map.used_dims())
    renumbered = [AffineExpr.dimension(used.index(d) if d in used else 0) for d in range(len(indices))]
    map = map.replace_dims_and_symbols(renumbered, [], len(used), 0)
    return loop.LoadOp(source, map, [indices[d] for d in used])


def extents_of_indices(indices: Sequence[SSAValue]) -> list[int]:
    """Returns the extents of indices of nests and reductions."""
    return [index.owner.parent_op().shape[index.index] for index in indices]
