"""Reductions by a region that is no reduction kind, as trees of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue

from ....dialects.shapes.extents import extents_of, static
from ....dialects.tensor.builder import dims
from ....dialects.tensor.views import permuted, reshape_to, shifted, sliced
from ..registry import Body, Builder


def reduced_by_tree(
    b: Builder, body: Body, values: Sequence[SSAValue], initial: Sequence[SSAValue], over: Sequence[int]
) -> list[SSAValue]:
    """Returns the reduction of several tensors by an associative region.

    Each step combines the first half of the elements with the second half, so the number of steps is the logarithm of
    the number of elements.

    Args:
        b: builder of the operation.
        body: function of (accumulators..., elements...).
        values: tensors of one shape.
        initial: initial values, tensors of rank 0.
        over: dimensions to reduce.
    """
    shape = static(extents_of(values[0].type))
    rows = [d for d in range(len(shape)) if d not in over]
    row_shape, rank = [shape[d] for d in rows], len(rows)
    count = prod(shape[d] for d in over)
    first = [b.broadcast(v, row_shape) for v in initial]
    if not count:
        return first
    parts = [reshape_to(b, permuted(b, v, [*rows, *over]), [*row_shape, count]) for v in values]
    while count > 1:
        half = -(-count // 2)
        space = [*row_shape, half]
        exprs = dims(rank + 1)
        exprs[-1] = shifted(exprs[-1], half)
        bounds = [(exprs[-1], 0, count)] if 2 * half > count else []
        first_half = [sliced(b, v, rank, 0, half) for v in parts]
        parts = body(b, [*first_half, *(b.map(v, exprs, space, bounds) for v in parts)])
        if bounds:
            # The element in the middle has no partner.
            exists = b.cmp("lt", b.iota(rank, space), count - half)
            parts = [b.select(exists, pair, single) for pair, single in zip(parts, first_half, strict=True)]
        count = half
    return body(b, [*first, *(reshape_to(b, v, row_shape) for v in parts)])
