"""Chapter 3: nests. Each tensor is computed by one `loop.nest`, whose body computes one element.

An operation of the tensor level computes a whole tensor. A nest computes one element of it, from elements of others.
In this form, operations can be fused (chapter 4) and become kernels (chapter 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from xdsl.dialects.builtin import IndexType, ModuleOp, TensorType, f32
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern

from deplodock.dialects import loop, tensor
from deplodock.dialects.payload import retyped
from deplodock.dialects.shapes.extents import extents_of

from . import c2_tensors
from .c1_capture import Program


def compile(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> Program:
    """Compiles a PyTorch program to the loop level, which NumPy executes."""
    program = c2_tensors.compile(function, inputs)
    make_nests(program.module)
    return replace(program, run=c2_tensors.run)


def make_nests(module: ModuleOp) -> None:
    """Lowers a module from the tensor level to the loop level."""
    PatternRewriteWalker(MakeNest()).rewrite_module(module)
    PatternRewriteWalker(CopyReturned(), apply_recursively=False).rewrite_module(module)


def add(block: Block, op: Operation) -> SSAValue:
    """Appends an operation to a block and returns its result."""
    block.add_op(op)
    return op.results[0]


def nest_of(result: SSAValue, element: Callable[[Block], SSAValue]) -> loop.NestOp:
    """Returns a nest over the elements of a tensor.

    Args:
        result: the tensor.
        element: appends the computation of one element to a block, whose arguments are the indices, and returns it.
    """
    shape = extents_of(result.type)
    body = Block(arg_types=[IndexType()] * len(shape))
    for name, index in zip("ijlmnopq", body.args):
        index.name_hint = name
    body.add_op(loop.YieldOp(element(body)))
    return loop.NestOp(shape, [f32], Region(body))


def element_of_copy(source: SSAValue, body: Block) -> SSAValue:
    """Returns an element of a copy: the same element of the source."""
    return add(body, loop.LoadOp(source, AffineMap.identity(len(body.args)), body.args))


def element_of_view(op: tensor.IndexMapOp, body: Block) -> SSAValue:
    """Returns an element of a view: the element of the source at the map."""
    return add(body, loop.LoadOp(op.source, op.map, body.args))


def element_of_reduction(op: tensor.ReduceOp, body: Block) -> SSAValue:
    """Returns an element of a reduction: a loop over the reduced dimensions."""
    shape, over = extents_of(op.source.type), op.dims.get_values()
    inner = Block(arg_types=[IndexType()] * len(over))
    for index in inner.args:
        index.name_hint = "k"
    free, bound = iter(body.args), iter(inner.args)
    indices = [next(bound) if d in over else next(free) for d in range(len(shape))]
    inner.add_op(loop.YieldOp(add(inner, loop.LoadOp(op.source, AffineMap.identity(len(shape)), indices))))
    return add(body, loop.ReduceOp(op.kind, [shape[d] for d in over], Region(inner), f32))


def element_of_arithmetic(op: Operation, body: Block) -> SSAValue:
    """Returns an element of an elementwise operation: the same operation on elements."""
    elements = {operand: element_of_copy(operand, body) for operand in dict.fromkeys(op.operands)}
    return add(body, retyped(op, [elements[operand] for operand in op.operands], f32))


ELEMENTS = {tensor.IndexMapOp: element_of_view, tensor.ReduceOp: element_of_reduction}
"""Operation -> computation of an element. All other operations are elementwise."""


class MakeNest(RewritePattern):
    """Replaces an operation of the tensor level by a nest.

    ```
    %1 = tensor.reduce add %0 over [1] : tensor<4x8xf32> -> tensor<4xf32>
    ```
    becomes
    ```
    %1 = loop.nest (%i) in [4] -> tensor<4xf32> {
      %2 = loop.reduce add (%k) in [8] -> f32 {
        %3 = loop.load %0[%i, %k] : tensor<4x8xf32>
        loop.yield %3 : f32
      }
      loop.yield %2 : f32
    }
    ```
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if op.results and isinstance(op.results[0].type, TensorType) and not isinstance(op, loop.NestOp):
            element = ELEMENTS.get(type(op), element_of_arithmetic)
            rewriter.replace(op, nest_of(op.results[0], partial(element, op)))


class CopyReturned(RewritePattern):
    """Copies returned tensors that are arguments, or are returned twice, so that each result has its own memory."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        for position, value in enumerate(op.operands if isinstance(op, ReturnOp) else ()):
            if not isinstance(value.owner, loop.NestOp) or value in op.operands[:position]:
                nest = nest_of(value, partial(element_of_copy, value))
                rewriter.insert(nest)
                op.operands[position] = nest.res[0]
