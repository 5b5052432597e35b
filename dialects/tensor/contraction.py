"""Contractions: index maps of both operands to the full index space, a multiplication, and a sum.

The *index space* of `x[i, k] @ y[k, j]` is (i, j, k): the dimensions of the result, then those of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ..shapes.extents import Extent
from .builder import Builder, work_type


def contract(
    b: Builder, x: SSAValue, x_at: Sequence[int], y: SSAValue, y_at: Sequence[int], space: Sequence[Extent], over: int
) -> SSAValue:
    """Returns the sum of products of two tensors, such as a matmul.

    Args:
        b: Builder of the operator.
        x: Left operand.
        x_at: Dimension of the index space for each dimension of `x`. Dimensions of size 1 are broadcast.
        y: Right operand.
        y_at: Dimension of the index space for each dimension of `y`.
        space: Extents of the index space.
        over: Number of dimensions at the end of the space that are summed.

    Returns:
        Tensor of the other dimensions, in the type in which the result is computed.
    """
    element = work_type(b.result_element)
    lhs, rhs = b.place(b.cast(x, element), x_at, space), b.place(b.cast(y, element), y_at, space)
    return b.reduce("add", b.mul(lhs, rhs), range(len(space) - over, len(space)))
