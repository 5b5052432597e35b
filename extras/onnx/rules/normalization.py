"""Normalisation, and quantisation of tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import refuse, rule
from ..values import DTYPES, axis_of, dtype_of
from .contractions import quantized


@rule("BatchNormalization")
def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    outputs: int,
) -> Any:
    shape = [1, -1, *[1] * (x.dim() - 2)]
    if not training_mode:
        return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)
    axes = [0, *range(2, x.dim())]
    new_mean, new_var = x.mean(axes), x.var(axes, correction=0)
    y = (x - new_mean.reshape(shape)) / torch.sqrt(new_var.reshape(shape) + epsilon)
    y = y * scale.reshape(shape) + bias.reshape(shape)
    running = [mean * momentum + new_mean * (1 - momentum), var * momentum + new_var * (1 - momentum)]
    return [y, *running][:outputs] if outputs > 1 else y


@rule("InstanceNormalization")
def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=epsilon)


@rule("LayerNormalization")
def layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int,
) -> Any:
    axis = axis_of(axis, x.dim())
    shape = x.shape[axis:]
    y = F.layer_norm(x, shape, None, None, epsilon) * scale
    y = y if bias is None else y + bias
    if outputs == 1:
        return y
    axes = [*range(axis, x.dim())]
    wide = x.to(dtype_of(stash_type))
    mean = wide.mean(axes, True)
    return [y, mean, torch.rsqrt((wide - mean).square().mean(axes, True) + epsilon)][:outputs]


@rule("RMSNormalization")
def rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    return F.rms_norm(x, x.shape[axis_of(axis, x.dim()) :], None, epsilon) * scale


@rule("LRN")
def local_response_norm(x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = F.pad((x * x).movedim(1, -1), [before, after])
    sums = squares.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (bias + alpha / size * sums).pow(beta)


def _along(values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Returns scales or zero points in a shape that broadcasts to `x`: one for all, one per index, or one per block."""
    if block_size:
        return values.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    if values.numel() == 1 and values.dim() <= 1:
        return values.reshape(())
    return values.reshape([-1 if d == axis_of(axis, x.dim()) else 1 for d in range(x.dim())])


@rule("QuantizeLinear")
def quantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    saturate: int = 1,
    precision: int = 0,
) -> Tensor:
    dtype = zero.dtype if zero is not None else dtype_of(output_dtype) if output_dtype else torch.uint8
    if dtype.is_floating_point:
        refuse(f"expected a quantised type of whole numbers, but got {dtype}")
    zero = torch.zeros((), dtype=dtype) if zero is None else _along(zero, x, axis, block_size)
    return quantized(x / _along(scale, x, axis, block_size), zero)


@rule("DequantizeLinear")
def dequantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    y = x.to(torch.int32) if not x.is_floating_point() else x
    if zero is not None:
        y = y - _along(zero, x, axis, block_size).to(y.dtype)
    result = y.to(scale.dtype) * _along(scale, x, axis, block_size)
    return result.to(DTYPES[output_dtype]) if output_dtype else result
