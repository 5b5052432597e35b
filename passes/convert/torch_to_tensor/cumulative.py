"""Scans along a dimension: result[i] combines x[0], ..., x[i].

A dimension that is short, or of a size known only at run time, is a reduction over a triangle. A long one is cut into
chunks: each chunk is scanned alone, the scan of the totals, moved by one, gives what stands in front of each chunk, and
one combination adds it. Totals are reductions of their own, which can be computed once for all that need them. The work
is CHUNK for each element at every one of log(n) levels, all of it parallel, and the combination only has to be
associative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from xdsl.dialects import math
from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.shapes.extents import extents_of, most
from ....dialects.tensor import ReductionKind, identity
from ....dialects.tensor.builder import Bound, Builder, Number, dims, normal_dim, work_type
from ....dialects.tensor.reduction_kinds import combine
from .registry import decomposes

CHUNK = 16
"""Elements at most that are scanned as a triangle: as many as a vector has lanes, or half of a warp."""

DIRECT = 32
"""The longest dimension that is one triangle: below it, the totals cost more than the work they save."""

Combined: TypeAlias = Callable[[SSAValue, int], SSAValue]
"""What a tensor's elements along a dimension give, combined."""


def prefixes(b: Builder, x: SSAValue, dim: int, fill: Number) -> SSAValue:
    """All prefixes of `x` along `dim`: with a new last dimension j, x[..., j, ...] where j <= i, else `fill`."""
    shape = extents_of(x.type)
    index = dims(len(shape) + 1)
    exprs = index[:-1]
    exprs[dim] = index[-1]
    extent = 1 if shape[dim] == 0 else shape[dim]
    return b.map(x, exprs, [*shape, shape[dim]], [(index[dim] + index[-1] * -1, 0, extent)], fill)


def scan(b: Builder, x: SSAValue, dim: int, kind: ReductionKind) -> SSAValue:
    """The prefix reductions of `x` along `dim`."""
    if not extents_of(x.type):
        return x

    def combined(part: SSAValue, dim: int) -> SSAValue:
        return b.reduce(kind.value, part, [dim])

    return _scanned_in_chunks(
        b, x, dim, identity(kind, element_type(x.type)), combined, lambda x, y: b.insert(combine(kind, x, y))
    )


def _scanned_in_chunks(
    b: Builder,
    x: SSAValue,
    dim: int,
    fill: Number,
    combined: Combined,
    join: Callable[[SSAValue, SSAValue], SSAValue],
    least: int = CHUNK // 2,
) -> SSAValue:
    """The scan of `x` along `dim`. `fill` is the neutral element of `join`. Chunks have CHUNK elements, or fewer but at
    least `least`, if these leave no rest: the result has the shape of the chunks then."""
    shape = list(extents_of(x.type))
    n = shape[dim]
    if not isinstance(n, int) or n <= DIRECT:
        return combined(prefixes(b, x, dim, fill), len(shape))
    size = next((c for c in range(CHUNK, least - 1, -1) if n % c == 0), CHUNK)
    count = -(-n // size)
    space = [*shape[:dim], count, size, *shape[dim + 1 :]]
    index = dims(len(space))
    chunk, offset = index[dim], index[dim + 1]
    place = chunk * size + offset
    within: list[Bound] = [(place, 0, n)] if n % size else []
    chunks = b.map(x, [*index[:dim], place, *index[dim + 2 :]], space, within, fill)
    inner = combined(prefixes(b, chunks, dim + 1, fill), len(space))
    outer, counted = dims(len(shape)), [*shape[:dim], count, *shape[dim + 1 :]]
    last = [*outer[:dim], outer[dim] - 1, *outer[dim + 1 :]]
    in_front = b.map(combined(chunks, dim + 1), last, counted, [(outer[dim], 1, count)], fill)
    through = _scanned_in_chunks(b, in_front, dim, fill, combined, join, CHUNK)
    before = b.place(through, [d for d in range(len(space)) if d != dim + 1], space)
    whole = join(before, inner)
    return b.map(whole, [*outer[:dim], outer[dim] // size, outer[dim] % size, *outer[dim + 1 :]], shape)


def _scanned(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None, kind: ReductionKind) -> SSAValue:
    return scan(b, b.cast(self, work_type(b.result_element)), normal_dim(dim, len(extents_of(self.type))), kind)


decomposes("cumsum")(partial(_scanned, kind=ReductionKind.ADD))
decomposes("cumprod")(partial(_scanned, kind=ReductionKind.MUL))


def _extreme_so_far(b: Builder, self: SSAValue, dim: int, kind: ReductionKind) -> list[SSAValue]:
    """The extreme value so far and where it was: of equal values the last, and a NaN (the last) beats all."""
    x = b.working(self)
    rank = len(extents_of(x.type))
    if not rank:
        return [x, b.constant(0, [], i64)]
    dim = normal_dim(dim, rank)
    best = scan(b, x, dim, kind)
    # An element that is the extreme of what stands before it sets the place until the next one does.
    hit = b.cmp("eq", x, best)
    if is_float(x.type):
        hit = b.either(hit, b.isnan(x))
    shape = extents_of(x.type)
    place = b.iota(dim, shape, i32 if most(shape[dim]) < 1 << 31 else i64)
    return [best, b.cast(scan(b, b.select(hit, place, b.like(place, 0)), dim, ReductionKind.MAX), i64)]


for _kind in (ReductionKind.MAX, ReductionKind.MIN):
    decomposes(f"cum{_kind.value}")(partial(_extreme_so_far, kind=_kind))


@decomposes("logcumsumexp")
def logcumsumexp(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    x = b.floating(self)
    rank = len(extents_of(x.type))
    if not rank:
        return x
    low = float("-inf")

    def combined(part: SSAValue, dim: int) -> SSAValue:
        frame = b.reduce("max", part, [dim])
        frame = b.select(b.cmp("eq", b.abs(frame), float("inf")), b.like(frame, 0), frame)
        kept = [d for d in range(len(extents_of(part.type))) if d != dim]
        total = b.reduce("add", b.exp(b.sub(part, b.place(frame, kept, extents_of(part.type)))), [dim])
        return b.add(b.log(total), frame)

    return _scanned_in_chunks(b, x, normal_dim(dim, rank), low, combined, lambda x, y: _logaddexp(b, x, y))


def _logaddexp(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """log(exp(x) + exp(y)), where the difference of two equal infinities is NaN."""
    top = b.maximum(x, y)
    total = b.add(top, b.math(math.Log1pOp, b.exp(b.neg(b.abs(b.sub(x, y))))))
    return b.select(b.cmp("eq", b.abs(top), float("inf")), top, total)
