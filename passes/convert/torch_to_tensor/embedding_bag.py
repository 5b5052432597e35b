"""Bags of embeddings: reductions over parts of a dimension that a tensor describes."""

from __future__ import annotations

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type, shape_of
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor import ReductionKind, identity
from ....dialects.tensor.builder import Builder
from ....errors import UnsupportedError
from .cumulative import scan
from .gather import gathered
from .registry import decomposes
from .scatter_builder import Writes


@decomposes("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    b: Builder,
    weight: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: SSAValue | None,
    include_last_offset: bool,
    padding_idx: int,
) -> list[SSAValue]:
    """Sums, means or maxima of the rows that each bag looks up; an empty bag gives zeros.

    The further results are for a gradient; they are refused where anything reads them.
    """
    if any(b.used[1:]):
        raise UnsupportedError("only the first result is supported")
    (count,), width, bags = shape_of(indices.type), shape_of(weight.type)[1], b.result_shape[0]
    index = b.working(indices)
    starts = Writes(extents_of(offsets.type), (AffineExpr.symbol(0),), (b.working(offsets),), (0,))
    ones = b.constant(1, extents_of(offsets.type), i64)
    number = scan(b, starts.scatter(b, ReductionKind.ADD, b.constant(0, [count], i64), ones), 0, ReductionKind.ADD)
    number = b.plus(number, -1)
    if padding_idx >= 0:
        number = b.select(b.cmp("ne", index, padding_idx), number, b.like(number, -1))
    row = b.place(b.index(index, shape_of(weight.type)[0]), [0], [count, width])
    rows = b.working(gathered(b, weight, [AffineExpr.symbol(0), AffineExpr.dimension(1)], [count, width], [row]))
    if per_sample_weights is not None:
        rows = b.mul(rows, b.place(b.cast(per_sample_weights, element_type(rows.type)), [0], [count, width]))
    at, element = (AffineExpr.symbol(0), AffineExpr.dimension(1)), element_type(rows.type)
    own = Writes((count, width), at, (b.place(number, [0], [count, width]),), (0,))
    kind = ReductionKind.MAX if _BAGS[mode] == "max" else ReductionKind.ADD
    found = own.scatter(b, kind, b.constant(identity(kind, element), [bags, width], element), rows)
    if _BAGS[mode] != "sum":
        size = b.constant(0, [bags, width], i64)
        size = own.scatter(b, ReductionKind.ADD, size, b.constant(1, [count, width], i64))
        if _BAGS[mode] == "mean":
            found = b.div(found, b.cast(b.maximum(size, b.like(size, 1)), element))
        else:
            found = b.select(b.cmp("eq", size, 0), b.like(found, 0), found)
    return [found, *(b.constant(0, shape_of(t), element_type(t)) for t in b.result_types[1:])]


_BAGS = ("sum", "mean", "max")
"""What `mode` numbers."""
