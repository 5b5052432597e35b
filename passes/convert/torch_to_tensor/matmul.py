"""Products of matrices: two index maps to the full index space, a multiplication, and a sum."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....dialects.shapes.extents import Extent, extents_of
from ....dialects.tensor.builder import Builder, Number, broadcast_shape, work_type
from ....errors import ShapeError
from .registry import decomposes


def contract(
    b: Builder, x: SSAValue, x_at: Sequence[int], y: SSAValue, y_at: Sequence[int], space: Sequence[Extent], over: int
) -> SSAValue:
    """Sum of products over the last `over` dimensions of the index space `space`.

    Dimension `i` of `x` runs along dimension `x_at[i]` of the space, and is repeated if its size is 1; same for `y`.
    Both are cast to the type in which the result is computed before they are spread out.
    """
    element = work_type(b.result_element)
    lhs, rhs = b.place(b.cast(x, element), x_at, space), b.place(b.cast(y, element), y_at, space)
    return b.reduce("add", b.mul(lhs, rhs), range(len(space) - over, len(space)))


def product(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """`torch.matmul`: vectors, matrices, and stacks of them with broadcasting."""
    left, right = extents_of(x.type), extents_of(y.type)
    if not left or not right:
        raise ShapeError("a matrix product needs at least one dimension on both sides")
    inner = left[-1]
    if right[max(len(right) - 2, 0)] != inner:
        raise ShapeError(f"shapes {list(left)} and {list(right)} cannot be multiplied")
    batch = broadcast_shape([left[:-2], right[:-2]])
    n = len(batch)
    rows, columns = list(left[-2:-1]), list(right[-1:]) if len(right) > 1 else []
    space = [*batch, *rows, *columns, inner]
    k = len(space) - 1
    x_at = [*range(n - len(left[:-2]), n), *([n] if rows else []), k]
    y_at = [*range(n - len(right[:-2]), n), k, *([k - 1] if columns else [])]
    return contract(b, x, x_at, y, y_at, space, 1)


@decomposes("matmul", "mm", "bmm")
def matmul(b: Builder, self: SSAValue, other: SSAValue | None = None, mat2: SSAValue | None = None) -> SSAValue:
    return product(b, self, mat2 if other is None else other)  # pyright: ignore[reportArgumentType]


def times_transposed(b: Builder, x: SSAValue, weight: SSAValue) -> SSAValue:
    """x [..., k] times the transpose of weight [..., k]."""
    rows, rank = extents_of(x.type)[:-1], len(extents_of(x.type))
    space = [*rows, *extents_of(weight.type)]
    k = len(space) - 1
    return contract(b, x, [*range(rank - 1), k], weight, [*range(rank - 1, k), k], space, 1)


@decomposes("linear")
def linear(b: Builder, input: SSAValue, weight: SSAValue, bias: SSAValue | None) -> SSAValue:
    y = times_transposed(b, input, weight)
    return y if bias is None else b.add(*b.unify(y, bias, element=work_type(b.result_element)))


def _added(b: Builder, self: SSAValue, y: SSAValue, beta: Number, alpha: Number) -> SSAValue:
    """Computes `beta * self + alpha * y`. An operand whose factor is 0 is not read, so its NaN does not show."""
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
