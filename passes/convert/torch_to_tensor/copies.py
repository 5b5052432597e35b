"""Operators that PyTorch has a second time, as copies, and writes into a view."""

from __future__ import annotations

from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects.payload import element_type
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.builder import Builder, dims, normal_dim
from .registry import decomposes
from .slicing import shifted


@decomposes("diagonal_scatter")
def diagonal_scatter(b: Builder, self: SSAValue, src: SSAValue, offset: int, dim1: int, dim2: int) -> SSAValue:
    shape = extents_of(self.type)
    row, column = normal_dim(dim1, len(shape)), normal_dim(dim2, len(shape))
    below, right = max(-offset, 0), max(offset, 0)
    size = extents_of(src.type)[-1]
    index = dims(len(shape))
    along = shifted(index[row], -below)
    distance = along + shifted(index[column], -right) * -1
    on_it = DomainAttr.get(AffineMap(len(shape), 0, (distance, along)), [(0, 1), (0, size)])
    kept = [index[d] for d in range(len(shape)) if d not in (row, column)]
    written = b.map(b.cast(src, element_type(self.type)), [*kept, along], shape, on_it, 0)
    hit = b.map(b.constant(True, [1], i1), [AffineExpr.constant(0)], shape, on_it, False)
    return b.select(hit, written, self)
