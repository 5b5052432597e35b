"""Sampling an image at computed positions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from xdsl.dialects import math
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects.payload import element_type, shape_of
from ...dialects.tensor import GatherOp
from .builder import Builder, dims
from .registry import decomposes
from .resampling import cubic_weights

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


@decomposes("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    b: Builder, input: SSAValue, grid: SSAValue, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> SSAValue:
    """`input` is (batch, channels, spatial...), `grid` (batch, outputs..., coordinates, the last dimension's first)."""
    x, g = b.working(input), b.working(grid)
    batch, channels, *extents = shape_of(x.type)
    outputs = shape_of(g.type)[1:-1]
    space = [batch, channels, *outputs]
    # One tensor of positions for each spatial dimension, over the result's indices.
    index = dims(len(space))
    at: list[SSAValue] = []
    for d, extent in enumerate(extents):
        last = AffineExpr.constant(len(extents) - 1 - d)
        unit = b.map(g, [index[0], *index[2:], last], space)
        at.append(_position(b, unit, extent, align_corners))
    if interpolation_mode == _BICUBIC:
        if len(extents) != 2:
            raise b.unsupported("interpolation_mode", "bicubic sampling is of two dimensions")
        return _bicubic(b, x, at, extents, padding_mode, align_corners)
    at = [_padded(b, p, n, padding_mode, align_corners) for p, n in zip(at, extents, strict=True)]
    if interpolation_mode == _NEAREST:
        return _read(b, x, [b.math(math.RoundEvenOp, p) for p in at])
    lows = [b.math(math.FloorOp, p) for p in at]
    parts = [b.sub(p, low) for p, low in zip(at, lows, strict=True)]
    total: SSAValue | None = None
    for corner in product((0, 1), repeat=len(extents)):
        weight: SSAValue | None = None
        for part, up in zip(parts, corner, strict=True):
            factor = part if up else b.sub(b.like(part, 1), part)
            weight = factor if weight is None else b.mul(weight, factor)
        value = _read(b, x, [b.plus(low, up) if up else low for low, up in zip(lows, corner, strict=True)])
        assert weight is not None
        term = b.mul(value, weight)
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def _position(b: Builder, unit: SSAValue, extent: int, align_corners: bool) -> SSAValue:
    """From [-1, 1] to element positions."""
    if align_corners:
        return b.scaled(b.plus(unit, 1), (extent - 1) / 2)
    return b.scaled(b.plus(b.scaled(b.plus(unit, 1), extent), -1), 0.5)


def _padded(b: Builder, at: SSAValue, extent: int, mode: int, align_corners: bool) -> SSAValue:
    """Positions outside of the image brought to where they are read."""
    if mode == _REFLECTION:
        low, span = (0.0, extent - 1) if align_corners else (-0.5, extent)
        if span <= 0:
            at = b.like(at, 0)
        else:
            away = b.abs(b.plus(at, -low))
            rest = b.rem(away, b.like(away, span))
            turns = b.math(math.FloorOp, b.div(away, b.like(away, span)))
            odd = b.cmp("ne", b.rem(turns, b.like(turns, 2)), 0)
            at = b.plus(b.select(odd, b.sub(b.like(rest, span), rest), rest), low)
    if mode != _ZEROS:
        return b.minimum(b.maximum(at, b.like(at, 0)), b.like(at, extent - 1))
    # Beyond two elements outside nothing is read, however far; that keeps the position an index.
    at = b.select(b.isnan(at), b.like(at, -100), at)
    return b.minimum(b.maximum(at, b.like(at, -100)), b.like(at, extent + 100))


def _read(b: Builder, x: SSAValue, at: Sequence[SSAValue]) -> SSAValue:
    """`x` at whole positions, zero outside."""
    rank = len(shape_of(at[0].type))
    exprs = [*dims(rank)[:2], *(AffineExpr.symbol(i) for i in range(len(at)))]
    return b.insert(GatherOp(x, AffineMap(rank, len(at), tuple(exprs)), [b.cast(p, i64) for p in at]))


def _bicubic(
    b: Builder, x: SSAValue, at: Sequence[SSAValue], extents: Sequence[int], mode: int, align_corners: bool
) -> SSAValue:
    lows = [b.math(math.FloorOp, p) for p in at]
    weights = [cubic_weights(b, b.sub(p, low)) for p, low in zip(at, lows, strict=True)]
    total = b.constant(0, shape_of(at[0].type), element_type(x.type))
    for i, j in product(range(4), repeat=2):
        places = [
            _padded(b, b.plus(low, k - 1), n, mode, align_corners)
            for low, k, n in zip(lows, (i, j), extents, strict=True)
        ]
        total = b.add(total, b.mul(_read(b, x, places), b.mul(weights[0][i], weights[1][j])))
    return total
