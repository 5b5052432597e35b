"""Softmax, its logarithm and logsumexp: wholly in f32 inside, one rounding at the end."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, SSAValue

from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.builder import Builder, normal_dim
from .registry import decomposes


def shifted_exp(b: Builder, x: SSAValue, over: Sequence[int]) -> tuple[SSAValue, SSAValue, SSAValue]:
    """exp(x - max), its sum, and x - max. The exponentials may be approximate: one of them is 1, and an error of the
    size of x's own rounding does not count."""
    shape = extents_of(x.type)
    distance = b.sub(x, b.keep(b.reduce("max", x, over), over, shape))
    e = b.exp(distance, permit=FastMathFlag.APPROX_FUNC)
    return e, b.reduce("add", e, over), distance


def _softmax_input(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None) -> tuple[SSAValue, list[int]]:
    x = b.floating(self if dtype is None else b.cast(self, dtype))
    rank = len(extents_of(x.type))
    return x, [normal_dim(dim, rank)] if rank else []


@decomposes("softmax.int", "_softmax")
def softmax(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None = None) -> SSAValue:
    x, over = _softmax_input(b, self, dim, dtype)
    e, total, _ = shifted_exp(b, x, over)
    # The sum is at least 1, so its inverse is neither an infinity nor too small to be exact.
    return b.div(e, b.keep(total, over, extents_of(x.type)), permit=FastMathFlag.ALLOW_RECIP)


@decomposes("log_softmax.int", "_log_softmax")
def log_softmax(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None = None) -> SSAValue:
    x, over = _softmax_input(b, self, dim, dtype)
    _, total, distance = shifted_exp(b, x, over)
    return b.sub(distance, b.keep(b.log(total), over, extents_of(x.type)))
