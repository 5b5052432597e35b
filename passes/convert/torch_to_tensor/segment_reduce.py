"""Reductions over parts of a dimension that tensors describe: bags of embeddings, segments."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type, shape_of
from ....dialects.tensor import ReductionKind
from ....dialects.tensor.builder import Builder
from ....errors import UnsupportedError
from .gather import gathered
from .registry import decomposes
from .scatter_builder import begun, grouped


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
    number = b.plus(begun(b, offsets, count), -1)
    if padding_idx >= 0:
        number = b.select(b.cmp("ne", index, padding_idx), number, b.like(number, -1))
    row = b.place(b.index(index, shape_of(weight.type)[0]), [0], [count, width])
    rows = b.working(gathered(b, weight, [AffineExpr.symbol(0), AffineExpr.dimension(1)], [count, width], [row]))
    if per_sample_weights is not None:
        rows = b.mul(rows, b.place(b.cast(per_sample_weights, element_type(rows.type)), [0], [count, width]))
    found, number = grouped(b, ReductionKind.MAX if _BAGS[mode] == "max" else ReductionKind.ADD, rows, number, 0, bags)
    if _BAGS[mode] == "mean":
        found = b.div(found, b.cast(b.maximum(number, b.like(number, 1)), element_type(rows.type)))
    elif _BAGS[mode] == "max":
        found = b.select(b.cmp("eq", number, 0), b.like(found, 0), found)
    return [found, *(b.constant(0, shape_of(t), element_type(t)) for t in b.result_types[1:])]


_BAGS = ("sum", "mean", "max")
"""What `mode` numbers."""
