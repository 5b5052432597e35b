"""Padding by the tensor's own elements: reflected, repeated at the border, or from the other end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import tensor
from ...dialects.payload import shape_of
from ...errors import ShapeError
from .builder import Builder, dims
from .registry import decomposes
from .slicing import shifted

Fold = Callable[[Builder, SSAValue, int], SSAValue]
"""Brings positions that may lie outside of `extent` elements onto one of them."""


def _pad(b: Builder, x: SSAValue, padding: Sequence[int], fold: Fold) -> SSAValue:
    """`padding` is (before, after) of the last dimension, then of the one before it, ..."""
    if len(padding) % 2 or len(padding) > 2 * len(shape_of(x.type)):
        raise ShapeError(f"{len(padding)} values for a tensor of rank {len(shape_of(x.type))}", argument="padding")
    for i in range(0, len(padding), 2):
        x = _pad_one(b, x, len(shape_of(x.type)) - 1 - i // 2, padding[i], padding[i + 1], fold)
    return x


def _pad_one(b: Builder, x: SSAValue, dim: int, before: int, after: int, fold: Fold) -> SSAValue:
    shape = list(shape_of(x.type))
    extent = shape[dim]
    shape[dim] += before + after
    if before <= 0 and after <= 0:
        exprs = dims(len(shape))
        exprs[dim] = shifted(exprs[dim], -before)
        return b.map(x, exprs, shape)
    place = fold(b, b.plus(b.iota(0, [shape[dim]]), -before), extent)
    exprs = dims(len(shape))
    exprs[dim] = AffineExpr.symbol(0)
    return b.insert(tensor.GatherOp(x, AffineMap(len(shape), 1, tuple(exprs)), [b.place(place, [dim], shape)]))


def _reflected(b: Builder, at: SSAValue, extent: int) -> SSAValue:
    mirrored = b.math(arith.SubiOp, b.like(at, extent - 1), b.abs(b.sub(b.like(at, extent - 1), b.abs(at))))
    return mirrored


def _clamped(b: Builder, at: SSAValue, extent: int) -> SSAValue:
    return b.minimum(b.maximum(at, b.constant(0, shape_of(at.type), i64)), b.like(at, extent - 1))


@decomposes("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(b: Builder, self: SSAValue, padding: Sequence[int]) -> SSAValue:
    return _pad(b, self, padding, _reflected)


@decomposes("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(b: Builder, self: SSAValue, padding: Sequence[int]) -> SSAValue:
    return _pad(b, self, padding, _clamped)
