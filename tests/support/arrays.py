"""A small frontend for arrays without PyTorch: traces Python functions of arrays to modules of the tensor dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from deplodock.dialects.tensor.builder import Builder, Number, broadcast_shape, normal_dim


@dataclass(frozen=True, eq=False)
class Array:
    """An f32 array in a traced function: a value of the tensor dialect."""

    builder: Builder
    value: SSAValue

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        assert isinstance(self.value.type, TensorType)
        return self.value.type.get_shape()

    def _wrap(self, value: SSAValue) -> Array:
        return Array(self.builder, value)

    def _combine(self, other: Array | Number, compute: Callable[[Builder, SSAValue, SSAValue], SSAValue]) -> Array:
        operand = other.value if isinstance(other, Array) else other
        return self._wrap(compute(self.builder, *self.builder.unify(self.value, operand, element=f32)))

    def __add__(self, other: Array | Number) -> Array:
        return self._combine(other, Builder.add)

    def __sub__(self, other: Array | Number) -> Array:
        return self._combine(other, Builder.sub)

    def __mul__(self, other: Array | Number) -> Array:
        return self._combine(other, Builder.mul)

    def __truediv__(self, other: Array | Number) -> Array:
        return self._combine(other, Builder.div)

    def __matmul__(self, other: Array) -> Array:
        """Contracts the last dimension with the first one of a matrix.

        Both operands are broadcast to shape [..., columns, inner], multiplied, and summed along `inner`.
        """
        (*rows, inner), (_, columns) = self.shape, other.shape
        space = [*rows, columns, inner]
        last = len(space) - 1
        lhs = self.builder.place(self.value, [*range(last - 1), last], space)
        rhs = self.builder.place(other.value, [last, last - 1], space)
        return self._wrap(self.builder.reduce("add", self.builder.mul(lhs, rhs), [last]))

    def broadcast(self, *shape: int) -> Array:
        """Returns the array repeated along dimensions of size 1 and along new leading dimensions."""
        return self._wrap(self.builder.broadcast(self.value, broadcast_shape([self.shape, shape])))

    def exp(self) -> Array:
        """Returns the exponential of each element."""
        return self._wrap(self.builder.exp(self.value))

    def max(self, dim: int) -> Array:
        """Returns the maxima along `dim`, which becomes a dimension of size 1."""
        return self._reduced("max", dim)

    def sum(self, dim: int) -> Array:
        """Returns the sums along `dim`, which becomes a dimension of size 1."""
        return self._reduced("add", dim)

    def _reduced(self, kind: str, dim: int) -> Array:
        dim = normal_dim(dim, len(self.shape))
        shape = [1 if d == dim else n for d, n in enumerate(self.shape)]
        reduced = self.builder.reduce(kind, self.value, [dim])
        return self._wrap(self.builder.place(reduced, [d for d in range(len(shape)) if d != dim], shape))


def trace(function: Callable[..., Array], *shapes: Sequence[int]) -> ModuleOp:
    """Returns the module of a function of f32 arrays.

    Args:
        function: takes and returns `Array`.
        shapes: the shape of each argument.
    """
    main = FuncOp("main", ([TensorType(f32, shape) for shape in shapes], []))
    builder = Builder()
    result = function(*(Array(builder, argument) for argument in main.args)).value
    main.body.block.add_ops([*builder.ops, ReturnOp(result)])
    main.update_function_type()
    return ModuleOp([main])


def softmax(x: Array) -> Array:
    """Returns the softmax along the last dimension."""
    e = (x - x.max(-1)).exp()
    return e / e.sum(-1)


def linear(x: Array, w: Array, b: Array) -> Array:
    """Returns `x @ w + b`.

    Args:
        x: rows.
        w: matrix.
        b: bias of each column.
    """
    return x @ w + b


def attention(q: Array, k: Array, v: Array) -> Array:
    """Returns attention.

    Args:
        q: queries, one a row.
        k: keys, one a column.
        v: values, one a row.
    """
    return softmax(q @ k * 0.25) @ v


def outer(x: Array, y: Array) -> Array:
    """Returns scaled differences of all pairs. Both arguments are broadcast to a higher rank."""
    return (x.broadcast(2, 3, 5) * 2.0 - y) / 4.0


def random_arrays(*shapes: Sequence[int]) -> list[np.ndarray]:
    """Returns random arguments of a traced function, one for each shape."""
    return [np.random.default_rng(i).standard_normal(shape, np.float32) for i, shape in enumerate(shapes)]
