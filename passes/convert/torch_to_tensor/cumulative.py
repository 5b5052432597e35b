"""Cumulative operators: inclusive scans along a dimension."""

from __future__ import annotations

from functools import partial

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.shapes.extents import extents_of, most
from ....dialects.tensor import ReductionKind
from ....dialects.tensor.builder import Builder, normal_dim, work_type
from .registry import decomposes


def _scanned(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None, kind: ReductionKind) -> SSAValue:
    return b.scan(kind, b.cast(self, work_type(b.result_element)), normal_dim(dim, len(extents_of(self.type))))


decomposes("cumsum")(partial(_scanned, kind=ReductionKind.ADD))
decomposes("cumprod")(partial(_scanned, kind=ReductionKind.MUL))


def _extreme_so_far(b: Builder, self: SSAValue, dim: int, kind: ReductionKind) -> list[SSAValue]:
    """Returns the extreme value so far and its position: of equal values the last one, and the last NaN before all
    numbers."""
    x = b.working(self)
    rank = len(extents_of(x.type))
    if not rank:
        return [x, b.constant(0, [], i64)]
    dim = normal_dim(dim, rank)
    best = b.cast(b.scan(kind, x, dim), element_type(self.type))
    # An element that equals the extreme of all elements up to it sets the position until the next one does.
    hit = b.cmp("eq", x, b.working(best))
    if is_float(x.type):
        hit = b.either(hit, b.isnan(x))
    shape = extents_of(x.type)
    position = b.iota(dim, shape, i32 if most(shape[dim]) < 1 << 31 else i64)
    return [best, b.cast(b.scan(ReductionKind.MAX, b.select(hit, position, b.like(position, 0)), dim), i64)]


for _kind in (ReductionKind.MAX, ReductionKind.MIN):
    decomposes(f"cum{_kind.value}")(partial(_extreme_so_far, kind=_kind))


@decomposes("logcumsumexp")
def logcumsumexp(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    x = b.floating(self)
    return b.scan(ReductionKind.LOGADDEXP, x, normal_dim(dim, len(extents_of(x.type))))
