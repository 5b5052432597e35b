"""Reductions over parts of a dimension that tensors describe: bags of embeddings, segments."""

from __future__ import annotations

from math import prod

from xdsl.dialects import math
from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import element_type, shape_of
from ....dialects.tensor import ReductionKind
from ....dialects.tensor.builder import Builder, Number, normal_dim
from ....errors import UnsupportedError
from .cumulative import scan
from .gather import gathered
from .registry import decomposes
from .reshape import reshape_to
from .scatter_builder import begun, counted, grouped


@decomposes("embedding_renorm")
def embedding_renorm(b: Builder, self: SSAValue, indices: SSAValue, max_norm: float, norm_type: float) -> SSAValue:
    """Rows that are looked up and longer than `max_norm` are scaled down to it, nearly, as in PyTorch."""
    x, (rows, width) = b.working(self), shape_of(self.type)
    size = b.abs(x)
    if norm_type == float("inf"):
        norm = b.reduce("max", size, [1])
    else:
        total = b.reduce("add", _power(b, size, norm_type), [1])
        norm = _power(b, total, 1 / norm_type)
    count = prod(shape_of(indices.type))
    index = b.index(b.working(reshape_to(b, indices, [count])), rows)
    used = b.cmp("gt", counted(b, index, rows, b.constant(1, [count], i64)), 0)
    scale = b.div(b.like(norm, max_norm), b.plus(norm, 1e-7))
    scale = b.select(b.both(used, b.cmp("gt", norm, max_norm)), scale, b.like(norm, 1))
    return b.mul(x, b.keep(scale, [1], [rows, width]))


def _power(b: Builder, x: SSAValue, exponent: float) -> SSAValue:
    if exponent == 2:
        return b.mul(x, x)
    if exponent == 0.5:
        return b.sqrt(x)
    return x if exponent == 1 else b.math(math.PowFOp, x, b.like(x, exponent))


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


@decomposes("segment_reduce")
def segment_reduce(
    b: Builder,
    data: SSAValue,
    reduce: str,
    lengths: SSAValue | None,
    indices: SSAValue | None,
    offsets: SSAValue | None,
    axis: int,
    unsafe: bool,
    initial: Number | None,
) -> SSAValue:
    """Segments follow each other along `axis`; an empty one gives `initial`, or what PyTorch says of none.

    That lengths add up to the dimension, which PyTorch checks, is left to the caller.
    """
    bounds = lengths if offsets is None else offsets
    if indices is not None or bounds is None:
        raise b.unsupported("indices", "only lengths or offsets")
    if reduce not in _SEGMENTS:
        raise b.unsupported("reduce", f"{reduce!r} is not one of {', '.join(_SEGMENTS)}")
    x = b.working(data)
    shape, element = shape_of(x.type), element_type(x.type)
    axis = normal_dim(axis, len(shape))
    number = _segment_numbers(b, bounds, shape[axis], ends=offsets is None)
    kind, empty = _SEGMENTS[reduce]
    found, count = grouped(b, kind, x, number, axis, b.result_shape[axis])
    joins = {
        ReductionKind.ADD: b.add,
        ReductionKind.MUL: b.mul,
        ReductionKind.MAX: b.maximum,
        ReductionKind.MIN: b.minimum,
    }
    start = empty if initial is None else initial
    found = joins[kind](found, b.like(found, start))
    if reduce != "mean":
        return found
    mean = b.div(found, b.cast(b.maximum(count, b.like(count, 1)), element))
    nothing = b.like(found, float("nan") if initial is None else initial)
    return b.select(b.cmp("eq", count, 0), nothing, mean)


_INF = float("inf")
_SEGMENTS: dict[str, tuple[ReductionKind, float]] = {
    "sum": (ReductionKind.ADD, 0.0),
    "mean": (ReductionKind.ADD, 0.0),
    "prod": (ReductionKind.MUL, 1.0),
    "max": (ReductionKind.MAX, -_INF),
    "min": (ReductionKind.MIN, _INF),
}
"""How segments are reduced, and what an empty one gives."""


def _segment_numbers(b: Builder, bounds: SSAValue, extent: int, *, ends: bool) -> SSAValue:
    """The segment of each position; `bounds` are lengths (`ends`) or first positions, in the last dimension."""
    if ends:
        return begun(b, scan(b, b.cast(bounds, i64), len(shape_of(bounds.type)) - 1, ReductionKind.ADD), extent)
    return b.plus(begun(b, bounds, extent), -1)


@decomposes("tril_indices")
def tril_indices(b: Builder, row: int, col: int, offset: int, dtype: Attribute | None) -> SSAValue:
    """Rows and columns of the lower triangle, row by row."""
    return _triangle_indices(b, row, col, offset, lower=True)


@decomposes("triu_indices")
def triu_indices(b: Builder, row: int, col: int, offset: int, dtype: Attribute | None) -> SSAValue:
    """Rows and columns of the upper triangle, row by row."""
    return _triangle_indices(b, row, col, offset, lower=False)


def _triangle_indices(b: Builder, row: int, col: int, offset: int, *, lower: bool) -> SSAValue:
    def bounded(x: SSAValue, start: int) -> SSAValue:
        return b.minimum(b.maximum(b.plus(x, start), b.like(x, 0)), b.like(x, col))

    count = b.result_shape[1]
    rows = b.iota(0, [row])
    own = bounded(rows, offset + 1) if lower else b.sub(b.like(rows, col), bounded(rows, offset))
    ends = scan(b, own, 0, ReductionKind.ADD)
    line = begun(b, ends, count)
    above = b.maximum(b.plus(line, -1), b.like(line, 0))
    before = gathered(b, ends, [AffineExpr.symbol(0)], [count], [above])
    before = b.select(b.cmp("gt", line, 0), before, b.like(before, 0))
    column = b.sub(b.iota(0, [count]), before)
    column = column if lower else b.add(column, bounded(line, offset))
    pair = [2, count]
    return b.select(b.cmp("eq", b.iota(0, pair), 0), b.place(line, [1], pair), b.place(column, [1], pair))


@decomposes("nonzero_static")
def nonzero_static(b: Builder, self: SSAValue, size: int, fill_value: int) -> SSAValue:
    """Where the first `size` elements that are not zero stand, in order; `fill_value` where there are fewer."""
    shape, count = shape_of(self.type), prod(shape_of(self.type))
    if not shape or not size:
        return b.constant(0, b.result_shape, i64)
    flat = reshape_to(b, b.truth(self), [count])
    passed = scan(b, b.cast(flat, i64), 0, ReductionKind.ADD)
    found = begun(b, passed, size)  # so many stand before it, whether zero or not
    space = [size, len(shape)]
    place = b.place(found, [0], space)
    coordinate: SSAValue = b.constant(0, space, i64)
    for d, n in enumerate(shape):
        step = prod(shape[d + 1 :])
        own = b.rem(b.floordiv(place, b.like(place, max(step, 1))), b.like(place, max(n, 1)))
        coordinate = b.select(b.cmp("eq", b.iota(1, space), d), own, coordinate)
    return b.select(b.cmp("lt", place, count), coordinate, b.like(coordinate, fill_value))
