"""Matmuls, as contractions (`dialects/tensor/contraction.py`)."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.builder import Builder, Number, broadcast_shape, work_type
from ....dialects.tensor.contraction import contract
from ....errors import ShapeError
from .registry import decomposes


def product(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """Returns `torch.matmul(x, y)` for vectors, matrices and batches of matrices, with broadcasting.

    Args:
        b: Builder of the operator.
        x: Left operand.
        y: Right operand.
    """
    lhs_shape, rhs_shape = extents_of(x.type), extents_of(y.type)
    if not lhs_shape or not rhs_shape:
        raise ShapeError("expected matmul operands of one or more dimensions, but got a scalar tensor")
    inner = lhs_shape[-1]
    if rhs_shape[max(len(rhs_shape) - 2, 0)] != inner:
        raise ShapeError(
            f"expected operands with equal inner dimensions, but got shapes {list(lhs_shape)} and {list(rhs_shape)}"
        )
    batch = broadcast_shape([lhs_shape[:-2], rhs_shape[:-2]])
    n = len(batch)
    rows, columns = list(lhs_shape[-2:-1]), list(rhs_shape[-1:]) if len(rhs_shape) > 1 else []
    space = [*batch, *rows, *columns, inner]
    k = len(space) - 1
    x_at = [*range(n - len(lhs_shape[:-2]), n), *([n] if rows else []), k]
    y_at = [*range(n - len(rhs_shape[:-2]), n), k, *([k - 1] if columns else [])]
    return contract(b, x, x_at, y, y_at, space, 1)


@decomposes("matmul", "mm", "bmm")
def matmul(b: Builder, self: SSAValue, other: SSAValue | None = None, mat2: SSAValue | None = None) -> SSAValue:
    return product(b, self, mat2 if other is None else other)  # pyright: ignore[reportArgumentType]


def times_transposed(b: Builder, x: SSAValue, weight: SSAValue) -> SSAValue:
    """Returns `x @ weight.T` over the last dimension of both.

    Args:
        b: Builder of the operator.
        x: Tensor of shape [..., k].
        weight: Tensor of shape [..., k].
    """
    rows, rank = extents_of(x.type)[:-1], len(extents_of(x.type))
    space = [*rows, *extents_of(weight.type)]
    k = len(space) - 1
    return contract(b, x, [*range(rank - 1), k], weight, [*range(rank - 1, k), k], space, 1)


@decomposes("linear")
def linear(b: Builder, input: SSAValue, weight: SSAValue, bias: SSAValue | None) -> SSAValue:
    y = times_transposed(b, input, weight)
    return y if bias is None else b.add(*b.unify(y, bias, element=work_type(b.result_element)))


def _added(b: Builder, self: SSAValue, y: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    """Computes `beta * self + alpha * y`. An operand with factor 0 is not read, so that its NaN has no
    effect, as in PyTorch."""
    x, y = b.unify(b.broadcast(self, extents_of(y.type)), y, element=work_type(b.result_element))
    if beta == 0:
        return b.like(y, 0) if alpha == 0 else b.scaled(y, alpha)
    return b.scaled(x, beta) if alpha == 0 else b.add(b.scaled(x, beta), b.scaled(y, alpha))


@decomposes("addmm")
def addmm(b: Builder, self: SSAValue, mat1: SSAValue, mat2: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    return _added(b, self, product(b, mat1, mat2), beta, alpha)


@decomposes("addmv")
def addmv(b: Builder, self: SSAValue, mat: SSAValue, vec: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    return _added(b, self, product(b, mat, vec), beta, alpha)


@decomposes("addbmm")
def addbmm(b: Builder, self: SSAValue, batch1: SSAValue, batch2: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    batch, rows, inner = extents_of(batch1.type)
    space = [rows, extents_of(batch2.type)[2], batch, inner]
    return _added(b, self, contract(b, batch1, [2, 0, 3], batch2, [2, 3, 1], space, 2), beta, alpha)
