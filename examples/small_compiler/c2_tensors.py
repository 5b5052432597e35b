"""Chapter 2: decomposition. Each ATen operator becomes a few operations of the `tensor` dialect.

There are three kinds of operations at the tensor level:

- arithmetic on the elements of tensors of one shape, such as `arith.addf`;
- `tensor.index_map`, a view: element `d` of the result is element `map(d)` of the source;
- `tensor.reduce`, for example a sum over some dimensions.

A matmul is two views, a multiplication and a sum. All later chapters need only these three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

import torch
from xdsl.dialects import math
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern

from deplodock.backend import reference
from deplodock.dialects.shapes.affine import simplify_map
from deplodock.dialects.shapes.extents import extents_of
from deplodock.dialects.tensor.builder import Builder, dims, normal_dims
from deplodock.dialects.torch import AtenOp
from deplodock.errors import UnsupportedError

from . import c1_capture
from .c1_capture import Program


def compile(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> Program:
    """Compiles a PyTorch program to the tensor level, which NumPy executes."""
    program = c1_capture.compile(function, inputs)
    PatternRewriteWalker(LowerOperator()).rewrite_module(program.module)
    return replace(program, run=run)


def run(module: ModuleOp, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Executes `@main` of a module at the tensor level or the loop level by the interpreter of deplodock."""
    results = reference.run(module, [argument.detach().numpy() for argument in arguments])
    return [torch.from_numpy(result) for result in results]


class LowerOperator(RewritePattern):
    """Replaces an operation of the torch dialect by operations of the tensor dialect.

    ```
    %1 = torch.relu(self = %0) : (tensor<8xf32>) -> tensor<8xf32>
    ```
    becomes
    ```
    %1 = payload.constant 0.0 : tensor<8xf32>
    %2 = arith.maximumf %0, %1 : tensor<8xf32>
    ```
    """

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, AtenOp):
            return
        builder = Builder(op.result_types)
        result = LOWERINGS[op.SCHEMA.name.partition(".")[0]](builder, *op.values.values())
        rewriter.replace(op, builder.ops, [result])


def _binary(method: Callable[[Builder, SSAValue, SSAValue], SSAValue]) -> Callable[..., SSAValue]:
    """Returns the lowering of an operator with two operands, which broadcast to one shape."""

    def lower(b: Builder, x: SSAValue, y: SSAValue | float, alpha: float = 1) -> SSAValue:
        x, y = b.unify(x, y, element=f32)
        return method(b, x, b.scaled(y, alpha))

    return lower


def _power(b: Builder, x: SSAValue, exponent: float) -> SSAValue:
    if exponent not in (1, 2, 3, 4):
        raise UnsupportedError(f"expected an exponent from 1 to 4, but got {exponent}", operator="aten.pow")
    return reduce(b.mul, [x] * int(exponent))


def _reduction(kind: str, mean: bool = False) -> Callable[..., SSAValue]:
    """Returns the lowering of a reduction over some dimensions, or over all."""

    def lower(b: Builder, x: SSAValue, dim: list[int] | None = None, *_: object) -> SSAValue:
        shape = extents_of(x.type)
        over = normal_dims(dim, len(shape))
        result = b.reduce(kind, x, over)
        return _reshape(b, b.div(result, b.like(result, prod(shape[d] for d in over))) if mean else result)

    return lower


def _matmul(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """Lowers a matmul, or a batch of them: the sum of `x[..., i, k] * y[..., k, j]` over `k`."""
    space = [*b.result_shape, extents_of(y.type)[-2]]
    *batch, i, j, k = range(len(space))
    return b.reduce("add", b.mul(b.place(x, [*batch, i, k], space), b.place(y, [*batch, k, j], space)), [k])


def _addmm(b: Builder, bias: SSAValue, x: SSAValue, y: SSAValue, beta: float, alpha: float) -> SSAValue:
    return b.add(b.scaled(b.broadcast(bias, b.result_shape), beta), b.scaled(_matmul(b, x, y), alpha))


def _permute(b: Builder, x: SSAValue, order: list[int]) -> SSAValue:
    """Lowers a permutation of dimensions to a view."""
    order = [d % len(order) for d in order]
    return b.map(x, [AffineExpr.dimension(order.index(d)) for d in range(len(order))], b.result_shape)


def _reshape(b: Builder, x: SSAValue, *_: object) -> SSAValue:
    """Lowers a change of shape to a view: equal elements have equal numbers in row-major order."""
    shape, result_shape = extents_of(x.type), b.result_shape
    number = sum((d * prod(result_shape[n + 1 :]) for n, d in enumerate(dims(len(result_shape)))), ZERO)
    map = AffineMap(len(result_shape), 0, tuple(coordinates_of(number, shape)))
    return b.map(x, simplify_map(map, result_shape).results, result_shape)


def coordinates_of(number: AffineExpr, shape: Sequence[int]) -> list[AffineExpr]:
    """Returns the coordinates of an element from its number in row-major order."""
    return [number // prod(shape[n + 1 :]) % extent for n, extent in enumerate(shape)]


ZERO = AffineExpr.constant(0)

LOWERINGS: dict[str, Callable[..., SSAValue]] = {
    **{name: _binary(getattr(Builder, name)) for name in ("add", "sub", "mul", "div", "maximum")},
    **{name: getattr(Builder, name) for name in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sigmoid")},
    "tanh": lambda b, x: b.math(math.TanhOp, x),
    "erf": lambda b, x: b.math(math.ErfOp, x),
    "relu": lambda b, x: b.maximum(x, b.like(x, 0)),
    "reciprocal": lambda b, x: b.div(b.like(x, 1), x),
    "pow": _power,
    "sum": _reduction("add"),
    "mean": _reduction("add", mean=True),
    "amax": _reduction("max"),
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "permute": _permute,
    "full": lambda b, size, number, *_: b.constant(number, size, f32),
    "full_like": lambda b, x, number, *_: b.like(x, number),
    "expand": lambda b, x, *_: b.broadcast(x, b.result_shape),
    **dict.fromkeys(("view", "unsqueeze", "squeeze", "clone"), _reshape),
}
"""Operator -> function that appends operations to a `Builder` and returns their result. After the builder it takes the
arguments of the operator, in PyTorch's order."""
