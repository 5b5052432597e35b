"""Interpolation: reading a tensor between its elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import math
from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import tensor
from ....dialects.payload import element_type, is_float
from ....dialects.shapes.extents import Extent, extents_of, fixed
from ....dialects.shapes.polynomial import constant, plus
from ....dialects.tensor.builder import Builder, dims
from .registry import decomposes

Weighted = tuple[SSAValue, SSAValue | None]
"""For every output position: an input position (i64), and the factor of the element there (None for 1)."""

Sampler = Callable[[Builder, SSAValue, Extent], list[Weighted]]
"""From source positions (floats) along a dimension of so many elements, the elements to add up."""


def _resample(
    b: Builder,
    self: SSAValue,
    factors: Sequence[float | None],
    source: Callable[[Builder, SSAValue, Extent, Extent, float | None], SSAValue],
    sampler: Sampler,
) -> SSAValue:
    """Resize the last dimensions of `self`, one for each of `factors`, to those of the result, one after the other."""
    rank = len(extents_of(self.type))
    compute = f64 if element_type(self.type) == f64 else f32
    x = b.working(self)
    for i, factor in enumerate(factors):
        dim = rank - len(factors) + i
        extent, outputs = extents_of(x.type)[dim], b.result_shape[dim]
        place = source(b, b.cast(b.iota(0, [outputs]), compute), extent, outputs, factor)
        x = _sum_of_samples(b, x, dim, outputs, sampler(b, place, extent))
    return x


def _sum_of_samples(b: Builder, x: SSAValue, dim: int, outputs: Extent, samples: Sequence[Weighted]) -> SSAValue:
    shape = list(extents_of(x.type))
    shape[dim] = outputs
    exprs = dims(len(shape))
    exprs[dim] = AffineExpr.symbol(0)
    map = AffineMap(len(shape), 1, tuple(exprs))
    total: SSAValue | None = None
    for place, weight in samples:
        value = b.insert(tensor.GatherOp(x, map, [b.place(place, [dim], shape)]))
        if weight is not None:
            value = b.mul(value, b.place(b.cast(weight, element_type(x.type)), [dim], shape))
        total = value if total is None else b.add(total, value)
    assert total is not None
    return total


def _ratio(b: Builder, place: SSAValue, extent: Extent, outputs: Extent, factor: float | None) -> SSAValue:
    """How far apart in the source neighbouring output elements are."""
    return b.like(place, 1.0 / factor if factor else fixed(extent) / fixed(outputs))


def _corner_source(b: Builder, at: SSAValue, extent: Extent, outputs: Extent, factor: float | None) -> SSAValue:
    return b.mul(at, _ratio(b, at, extent, outputs, factor))


def _middle_source(b: Builder, at: SSAValue, extent: Extent, outputs: Extent, factor: float | None) -> SSAValue:
    return b.mul(b.plus(at, 0.5), _ratio(b, at, extent, outputs, factor))


def _centred_source(b: Builder, at: SSAValue, extent: Extent, outputs: Extent, factor: float | None) -> SSAValue:
    return b.plus(_middle_source(b, at, extent, outputs, factor), -0.5)


def _aligned_source(b: Builder, at: SSAValue, extent: Extent, outputs: Extent, factor: float | None) -> SSAValue:
    return b.scaled(at, (fixed(extent) - 1) / (fixed(outputs) - 1) if fixed(outputs) > 1 else 0.0)


def _last(b: Builder, place: SSAValue, extent: Extent) -> SSAValue:
    """The last position along a dimension."""
    return b.measured(plus(b.algebra.of(extent), constant(-1)), extents_of(place.type), element_type(place.type))


def _inside(b: Builder, place: SSAValue, extent: Extent) -> SSAValue:
    return b.minimum(b.maximum(place, b.like(place, 0)), _last(b, place, extent))


def nearest(b: Builder, place: SSAValue, extent: Extent) -> list[Weighted]:
    """The element in whose cell the position lies."""
    return [(_inside(b, b.cast(b.math(math.FloorOp, place), i64), extent), None)]


def linear(b: Builder, place: SSAValue, extent: Extent) -> list[Weighted]:
    """The two neighbours, by nearness."""
    place = b.maximum(place, b.like(place, 0))
    low = b.minimum(b.math(math.FloorOp, place), _last(b, place, extent))
    weight = b.minimum(b.sub(place, low), b.like(place, 1))
    index = b.cast(low, i64)
    return [
        (index, b.sub(b.like(weight, 1), weight)),
        (_inside(b, b.plus(index, 1), extent), weight),
    ]


def cubic(b: Builder, place: SSAValue, extent: Extent) -> list[Weighted]:
    """Four neighbours, by the cubic convolution kernel with a = -0.75."""
    low = b.math(math.FloorOp, place)
    index, weights = b.cast(low, i64), cubic_weights(b, b.sub(place, low))
    return [(_inside(b, b.plus(index, d), extent), w) for d, w in zip((-1, 0, 1, 2), weights, strict=True)]


def cubic_weights(b: Builder, t: SSAValue) -> list[SSAValue]:
    """The factors of the elements at -1, 0, 1, 2 for a position `t` in [0, 1)."""
    rest = b.sub(b.like(t, 1), t)
    return [_outer(b, b.plus(t, 1)), _inner(b, t), _inner(b, rest), _outer(b, b.plus(rest, 1))]


_A = -0.75


def _inner(b: Builder, x: SSAValue) -> SSAValue:
    return b.plus(b.mul(b.mul(b.plus(b.scaled(x, _A + 2), -(_A + 3)), x), x), 1)


def _outer(b: Builder, x: SSAValue) -> SSAValue:
    return b.plus(b.mul(b.plus(b.mul(b.plus(b.scaled(x, _A), -5 * _A), x), 8 * _A), x), -4 * _A)


@decomposes("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def upsample_nearest(
    b: Builder, input: SSAValue, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> SSAValue:
    return _resample(b, input, _listed(input, scale_factors), _corner_source, nearest)


@decomposes("_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec")
def upsample_nearest_exact(
    b: Builder, input: SSAValue, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> SSAValue:
    return _resample(b, input, _listed(input, scale_factors), _middle_source, nearest)


@decomposes("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def upsample_linear(
    b: Builder,
    input: SSAValue,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> SSAValue:
    _needs_float(b, input)
    source = _aligned_source if align_corners else _centred_source
    return _resample(b, input, _listed(input, scale_factors), source, linear)


@decomposes("upsample_bicubic2d.vec")
def upsample_bicubic(
    b: Builder,
    input: SSAValue,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> SSAValue:
    _needs_float(b, input)
    source = _aligned_source if align_corners else _centred_source
    return _resample(b, input, _listed(input, scale_factors), source, cubic)


def _listed(x: SSAValue, factors: Sequence[float] | None) -> list[float | None]:
    return list(factors) if factors else [None] * (len(extents_of(x.type)) - 2)


def _needs_float(b: Builder, x: SSAValue) -> None:
    if not is_float(x.type):
        raise b.unsupported("input", f"interpolation of {element_type(x.type)} rounds in its own way")
