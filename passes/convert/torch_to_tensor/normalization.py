"""Softmax and the normalisations: wholly in f32 inside, one rounding at the end."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.builder import Builder, normal_dim, normal_dims, work_type
from ....errors import ShapeError
from .reductions import extreme, kept, mean_over, moments
from .registry import decomposes
from .reshape import reshape_to


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


@decomposes("logsumexp")
def logsumexp(b: Builder, self: SSAValue, dim: Sequence[int], keepdim: bool) -> SSAValue:
    x = b.cast(self, work_type(b.result_element))
    shape = extents_of(x.type)
    over = normal_dims(dim, len(shape))
    if 0 in [shape[d] for d in over]:
        return kept(b, b.log(b.reduce("add", b.exp(x), over)), shape, over, keepdim)
    top = extreme(b, "max", x, over)
    frame = b.select(b.cmp("eq", b.abs(top), float("inf")), b.like(top, 0), top)
    total = b.reduce("add", b.exp(b.sub(x, b.keep(frame, over, shape))), over)
    return kept(b, b.add(b.log(total), frame), shape, over, keepdim)


def _trailing(x: SSAValue, normalized_shape: Sequence[int]) -> list[int]:
    shape = extents_of(x.type)
    first = len(shape) - len(normalized_shape)
    if first < 0 or list(shape[first:]) != list(normalized_shape):
        raise ShapeError(f"{list(normalized_shape)} does not end {list(shape)}", argument="normalized_shape")
    return list(range(first, len(shape)))


def _affine(b: Builder, y: SSAValue, weight: SSAValue | None, bias: SSAValue | None, at: Sequence[int]) -> SSAValue:
    """`y * weight + bias`, whose dimensions lie at `at`."""
    shape, element = extents_of(y.type), element_type(y.type)
    if weight is not None:
        y = b.mul(y, b.place(b.cast(weight, element), at, shape))
    return y if bias is None else b.add(y, b.place(b.cast(bias, element), at, shape))


@decomposes("rms_norm", "_fused_rms_norm")
def rms_norm(
    b: Builder, input: SSAValue, normalized_shape: Sequence[int], weight: SSAValue | None, eps: float | None
) -> list[SSAValue]:
    x = b.working(input)
    shape = extents_of(x.type)
    over = _trailing(x, normalized_shape)
    if eps is None:
        eps = {"f64": 2.220446049250313e-16}.get(str(element_type(x.type)), 1.1920928955078125e-07)
    scale = b.rsqrt(b.plus(mean_over(b, b.mul(x, x), over), eps))
    y = _affine(b, b.mul(x, b.keep(scale, over, shape)), weight, None, over)
    return [y, kept(b, scale, shape, over, True)]


@decomposes("layer_norm", "native_layer_norm")
def layer_norm(
    b: Builder,
    input: SSAValue,
    normalized_shape: Sequence[int],
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: float,
) -> list[SSAValue]:
    x = b.working(input)
    shape = extents_of(x.type)
    over = _trailing(x, normalized_shape)
    y, mean, scale = _standardised(b, x, over, eps)
    return [_affine(b, y, weight, bias, over), *(kept(b, v, shape, over, True) for v in (mean, scale))]


def _standardised(b: Builder, x: SSAValue, over: Sequence[int], eps: float) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(x - mean) / sqrt(var + eps), the mean, and 1 / sqrt(var + eps)."""
    shape = extents_of(x.type)
    variance, mean = moments(b, x, over, 0)
    scale = b.rsqrt(b.plus(variance, eps))
    centred = b.sub(x, b.keep(mean, over, shape))
    return b.mul(centred, b.keep(scale, over, shape)), mean, scale


@decomposes("group_norm", "native_group_norm")
def group_norm(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: float,
    num_groups: int = 0,
    group: int = 0,
    N: int = 0,
    C: int = 0,
    HxW: int = 0,
) -> list[SSAValue]:
    """The two overloads have other names for the number of groups."""
    shape, groups = extents_of(input.type), num_groups or group
    if len(shape) < 2 or groups <= 0 or shape[1] % groups:
        raise ShapeError(f"{groups} groups of the channels of {list(shape)}", argument="num_groups")
    x = b.working(reshape_to(b, input, [shape[0], groups, shape[1] // groups, *shape[2:]]))
    over = list(range(2, len(shape) + 1))
    y, mean, scale = _standardised(b, x, over, eps)
    return [_affine(b, reshape_to(b, y, shape), weight, bias, [1]), mean, scale]


@decomposes("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue | None,
    running_var: SSAValue | None,
    momentum: float,
    eps: float,
    training: bool = False,
) -> list[SSAValue]:
    if training or running_mean is None or running_var is None:
        raise b.unsupported("training", "statistics of the batch are not supported; call the module's eval() first")
    x = b.working(input)
    shape, element = extents_of(x.type), element_type(x.type)
    scale = b.rsqrt(b.plus(b.cast(running_var, element), eps))
    centred = b.sub(x, b.place(b.cast(running_mean, element), [1], shape))
    y = _affine(b, b.mul(centred, b.place(scale, [1], shape)), weight, bias, [1])
    return [y, *(b.constant(0, (0,), element_type(t)) for t in b.result_types[1:])]
