"""A small array language above the tensor dialect, without PyTorch: functions of traced arrays become modules."""

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
    """An f32 array of a function that is traced."""

    builder: Builder
    value: SSAValue

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        assert isinstance(self.value.type, TensorType)
        return self.value.type.get_shape()

    def _new(self, value: SSAValue) -> Array:
        return Array(self.builder, value)

    def _with(self, other: Array | Number, compute: Callable[[Builder, SSAValue, SSAValue], SSAValue]) -> Array:
        operand = other.value if isinstance(other, Array) else other
        return self._new(compute(self.builder, *self.builder.unify(self.value, operand, element=f32)))

    def __add__(self, other: Array | Number) -> Array:
        return self._with(other, Builder.add)

    def __sub__(self, other: Array | Number) -> Array:
        return self._with(other, Builder.sub)

    def __mul__(self, other: Array | Number) -> Array:
        return self._with(other, Builder.mul)

    def __truediv__(self, other: Array | Number) -> Array:
        return self._with(other, Builder.div)

    def __matmul__(self, other: Array) -> Array:
        """The contraction of the last dimension with the first of a matrix: a sum over one more dimension."""
        (*rows, inner), (_, columns) = self.shape, other.shape
        space = [*rows, columns, inner]
        last = len(space) - 1
        lhs = self.builder.place(self.value, [*range(last - 1), last], space)
        rhs = self.builder.place(other.value, [last, last - 1], space)
        return self._new(self.builder.reduce("add", self.builder.mul(lhs, rhs), [last]))

    def broadcast(self, *shape: int) -> Array:
        """The array repeated along dimensions of size 1 and along new ones at the front."""
        return self._new(self.builder.broadcast(self.value, broadcast_shape([self.shape, shape])))

    def exp(self) -> Array:
        """The exponential of each element."""
        return self._new(self.builder.exp(self.value))

    def max(self, dim: int) -> Array:
        """The maxima along `dim`, which becomes a dimension of size 1."""
        return self._reduced("max", dim)

    def sum(self, dim: int) -> Array:
        """The sums along `dim`, which becomes a dimension of size 1."""
        return self._reduced("add", dim)

    def _reduced(self, kind: str, dim: int) -> Array:
        dim = normal_dim(dim, len(self.shape))
        shape = [1 if d == dim else n for d, n in enumerate(self.shape)]
        reduced = self.builder.reduce(kind, self.value, [dim])
        return self._new(self.builder.place(reduced, [d for d in range(len(shape)) if d != dim], shape))


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
    """The softmax along the last dimension."""
    e = (x - x.max(-1)).exp()
    return e / e.sum(-1)


def linear(x: Array, w: Array, b: Array) -> Array:
    """A matrix product and a bias for each column."""
    return x @ w + b


def attention(q: Array, k: Array, v: Array) -> Array:
    """Rows of `v`, weighted by the softmax of products of rows; `k` is transposed already."""
    return softmax(q @ k * 0.25) @ v


def outer(x: Array, y: Array) -> Array:
    """Differences of all pairs, by broadcasts to a rank that neither has."""
    return (x.broadcast(2, 3, 5) * 2.0 - y) / 4.0


def random_arrays(*shapes: Sequence[int]) -> list[np.ndarray]:
    """Returns arguments of a traced function."""
    return [np.random.default_rng(i).standard_normal(shape, np.float32) for i, shape in enumerate(shapes)]
