"""Concatenation of tensors, as selects between shifted views."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ..shapes.binding import Polynomial, constant, plus, times
from ..shapes.extents import Extent, extents_of
from .builder import Builder, dims
from .views import moved, shifted


def joined(b: Builder, tensors: Sequence[SSAValue], dim: int) -> SSAValue:
    """Returns the concatenation of tensors along `dim`, as selects between the tensors.

    Args:
        b: Builder of the operator.
        tensors: Tensors of one element type and equal other dimensions.
        dim: Dimension, not negative.
    """
    extents = [extents_of(t.type)[dim] for t in tensors]
    shape = list(extents_of(tensors[0].type))
    ends = [*accumulate(map(b.algebra.of, extents), plus)]
    if len(tensors) == 1:
        return tensors[0]
    shape[dim] = b.algebra.extent(ends[-1])
    spread = [shifted_into(b, t, dim, start, shape) for t, start in zip(tensors, [constant(0), *ends], strict=False)]
    index = b.iota(dim, shape)
    result = spread[-1]
    for i in reversed(range(len(tensors) - 1)):
        result = b.select(b.cmp("lt", index, b.measured(ends[i], shape, i64)), spread[i], result)
    return result


def shifted_into(b: Builder, x: SSAValue, dim: int, start: Polynomial, shape: Sequence[Extent]) -> SSAValue:
    """Returns a tensor of `shape` with `x` at an offset along one dimension, and 0 elsewhere.

    Args:
        b: Builder of the operator.
        x: Tensor.
        dim: Dimension, not negative.
        start: Index along `dim` of the first element of `x`.
        shape: Shape of the result.
    """
    if start.number is None:
        return moved(b, x, dim, times(start, constant(-1)), shape)
    exprs = dims(len(shape))
    exprs[dim] = shifted(exprs[dim], -start.number)
    return b.map(x, exprs, shape, [(exprs[dim], 0, extents_of(x.type)[dim])])
