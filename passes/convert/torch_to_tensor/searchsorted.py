"""Searching and counting: positions in sorted boundaries, histograms, the most frequent element."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.payload import element_type, shape_of
from ....dialects.shapes.extents import extents_of, most
from ....dialects.tensor.builder import Builder, Number
from ....errors import ShapeError
from .registry import decomposes
from .sort import pick
from .type_promotion import promote

MOST_PAIRS = 1 << 37
"""About a tenth of a second of a large GPU. What would take longer needs another algorithm."""


@decomposes("bucketize.Tensor", "bucketize.Scalar")
def bucketize(b: Builder, self: SSAValue | Number, boundaries: SSAValue, out_int32: bool, right: bool) -> SSAValue:
    if len(shape_of(boundaries.type)) != 1:
        raise ShapeError("boundaries have one dimension", argument="boundaries")
    return _position(b, boundaries, self, right)


@decomposes("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    b: Builder,
    sorted_sequence: SSAValue,
    self: SSAValue | Number,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: SSAValue | None,
) -> SSAValue:
    if sorter is not None:
        sorted_sequence = pick(b, sorted_sequence, len(extents_of(sorted_sequence.type)) - 1, sorter)
    return _position(b, sorted_sequence, self, right or side == "right")


def _position(b: Builder, ordered: SSAValue, values: SSAValue | Number, right: bool) -> SSAValue:
    """How many elements of the last dimension of `ordered` come before each value, or are equal to it if `right`."""
    values = b.operand(values, element_type(ordered.type), []) if not isinstance(values, SSAValue) else values
    common = promote(element_type(ordered.type), element_type(values.type))
    edges, x = b.working(b.cast(ordered, common)), b.working(b.cast(values, common))
    shape, rank = extents_of(x.type), len(extents_of(x.type))
    space = [*shape, extents_of(edges.type)[-1]]
    pairs = prod(map(most, space))
    if pairs > MOST_PAIRS:
        raise b.unsupported("self", f"too large: looks at {pairs} pairs of elements, more than {MOST_PAIRS}")
    at = [*range(rank - 1), rank] if len(extents_of(edges.type)) > 1 else [rank]
    # Written with `not`, so that a NaN comes after everything.
    beyond = b.cmp("gt" if right else "ge", b.place(edges, at, space), b.place(x, range(rank), space))
    return b.reduce("add", b.cast(b.negated(beyond), i64), [rank])
