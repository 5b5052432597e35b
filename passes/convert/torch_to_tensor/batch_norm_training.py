"""Normalisation by the statistics of the batch, and what else behaves differently in training."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of
from ....dialects.shapes.polynomial import Polynomial, constant, plus
from ....dialects.tensor.builder import Builder
from .registry import decomposes


def _statistics(b: Builder, x: SSAValue) -> tuple[SSAValue, SSAValue, Polynomial]:
    """Mean and variance (by n) of every channel of a float tensor, and n."""
    shape = extents_of(x.type)
    over = [d for d in range(len(shape)) if d != 1]
    count = b.algebra.product(shape[d] for d in over)
    mean = _over(b, b.reduce("add", x, over), count)
    away = b.sub(x, b.keep(mean, over, shape))
    return mean, _over(b, b.reduce("add", b.mul(away, away), over), count), count


def _over(b: Builder, x: SSAValue, count: Polynomial) -> SSAValue:
    """`x / count`"""
    if count.number is not None:
        return b.scaled(x, 1.0 / count.number if count.number else float("nan"))
    return b.div(x, b.measured(count, extents_of(x.type), element_type(x.type)))


def _unbiased(b: Builder, var: SSAValue, count: Polynomial) -> SSAValue:
    """A variance by n as one by n - 1."""
    n = count.number
    if n is not None:
        return b.scaled(var, n / (n - 1) if n > 1 else float("nan"))
    total = b.mul(var, b.measured(count, extents_of(var.type), element_type(var.type)))
    return _over(b, total, plus(count, constant(-1)))


def _normalized(
    b: Builder, x: SSAValue, mean: SSAValue, rstd: SSAValue, weight: SSAValue | None, bias: SSAValue | None
) -> SSAValue:
    shape = extents_of(x.type)
    y = b.mul(b.sub(x, b.place(mean, [1], shape)), b.place(rstd, [1], shape))
    if weight is not None:
        y = b.mul(y, b.place(b.cast(weight, element_type(x.type)), [1], shape))
    if bias is not None:
        y = b.add(y, b.place(b.cast(bias, element_type(x.type)), [1], shape))
    return y


def _blend(b: Builder, old: SSAValue, new: SSAValue, momentum: float) -> SSAValue:
    old = b.cast(old, element_type(new.type))
    return b.add(b.scaled(old, 1.0 - momentum), b.scaled(new, momentum))


@decomposes("_native_batch_norm_legit_functional")
def batch_norm_functional(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    training: bool,
    momentum: float,
    eps: float,
) -> list[SSAValue]:
    """(result, mean of the batch, 1 / standard deviation of the batch, the new running mean and variance)."""
    x = b.working(input)
    if not training:
        mean, var = (b.cast(v, element_type(x.type)) for v in (running_mean, running_var))
        y = _normalized(b, x, mean, b.rsqrt(b.plus(var, eps)), weight, bias)
        empty = b.constant(0, [0], element_type(x.type))
        return [y, empty, empty, running_mean, running_var]
    mean, var, count = _statistics(b, x)
    rstd = b.rsqrt(b.plus(var, eps))
    unbiased = _unbiased(b, var, count)
    new = [_blend(b, running_mean, mean, momentum), _blend(b, running_var, unbiased, momentum)]
    return [_normalized(b, x, mean, rstd, weight, bias), mean, rstd, *new]


@decomposes("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[SSAValue]:
    x = b.working(input)
    mean, var, _ = _statistics(b, x)
    rstd = b.rsqrt(b.plus(var, eps))
    return [_normalized(b, x, mean, rstd, weight, bias), mean, rstd]


@decomposes("_batch_norm_with_update_functional")
def batch_norm_with_update(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: float,
    eps: float,
) -> list[SSAValue]:
    """As `_native_batch_norm_legit_functional`, with an (unused) reserve between."""
    y, mean, rstd, *new = batch_norm_functional(b, input, weight, bias, running_mean, running_var, True, momentum, eps)
    reserve = extents_of(b.result_types[3])
    return [y, mean, rstd, b.constant(0, reserve, element_type(b.result_types[3])), *new]
