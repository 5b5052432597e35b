"""Operators that name places in memory, on tensors whose elements lie there densely and in order.

That they do is for whoever captures the program to know: in the IR a tensor has no strides, and an operator here means
the flat sequence of its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import shape_of
from ....dialects.tensor.builder import Builder
from ....errors import ShapeError
from .creation import filled
from .registry import decomposes
from .reshape import reshape_to
from .scatter import slices_written

DENSE = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter", "resize"})
"""The operators whose first argument has to be dense."""


def _count(x: SSAValue) -> int:
    return prod(shape_of(x.type))


def _places(size: Sequence[int], stride: Sequence[int], offset: int, elements: int) -> AffineExpr:
    """Where each element of the view lies. Raises ShapeError for one that is outside of `elements`."""
    if len(size) != len(stride):
        raise ShapeError(f"{len(stride)} strides for {len(size)} dimensions", argument="stride")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= offset <= last < elements:
        raise ShapeError(f"reaches element {last} of {elements}", argument="size")
    place = AffineExpr.constant(offset)
    for d, (n, s) in enumerate(zip(size, stride, strict=True)):
        if n > 1 and s:
            place = place + AffineExpr.dimension(d) * s
    return place


@decomposes("as_strided")
def as_strided(
    b: Builder, self: SSAValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> SSAValue:
    if 0 in size:
        return filled(b, 0)
    place = _places(size, stride, storage_offset or 0, _count(self))
    return b.map(reshape_to(b, self, [_count(self)]), [place], size)


@decomposes("as_strided_scatter")
def as_strided_scatter(
    b: Builder, self: SSAValue, src: SSAValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> SSAValue:
    """Of several writes to one place the last in order counts, as in PyTorch's copy into the view."""
    if 0 in size:
        return self
    _places(size, stride, storage_offset or 0, _count(self))
    place: SSAValue = b.constant(storage_offset or 0, size, i64)
    for d, s in enumerate(stride):
        place = b.add(place, b.scaled(b.iota(d, size), s))
    flat, count = reshape_to(b, self, [_count(self)]), prod(size)
    places, values = reshape_to(b, place, [count]), reshape_to(b, b.broadcast(src, size), [count])
    return reshape_to(b, slices_written(b, flat, 0, places, values, None, True), shape_of(self.type))


@decomposes("resize")
def resize(b: Builder, self: SSAValue, size: Sequence[int]) -> SSAValue:
    """The first elements in another shape; further ones would be undefined."""
    if prod(size) > _count(self):
        raise b.unsupported("size", f"{prod(size)} elements out of {_count(self)}")
    steps = [prod(size[d + 1 :]) for d in range(len(size))]
    return as_strided(b, self, size, steps, 0)
