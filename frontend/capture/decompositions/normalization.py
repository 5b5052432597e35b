"""Normalisations of groups and of channels: wholly in f32 inside, one rounding at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _along_channels(values: Tensor, rank: int) -> Tensor:
    """A vector as a tensor that varies along its second dimension only."""
    return values.reshape([-1 if d == 1 else 1 for d in range(rank)])


def _finished(y: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`y * weight + bias`, which have an element for each channel."""
    y = y if weight is None else y * _along_channels(weight, y.dim())
    y = y if bias is None else y + _along_channels(bias, y.dim())
    return y.to(dtype)


def _group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    x = input.to(torch.promote_types(input.dtype, torch.float32)).reshape(N, group, C // group, *input.shape[2:])
    y, mean, scale = aten.native_layer_norm(x, x.shape[2:], None, None, eps)
    y = _finished(y.reshape(input.shape), weight, bias, input.dtype)
    return y, *(v.reshape(N, group).to(input.dtype) for v in (mean, scale))


def _normalised(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """By the running statistics; the results after the first are empty."""
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    scale = (running_var.to(x.dtype) + eps).rsqrt()
    y = (x - _along_channels(running_mean.to(x.dtype), x.dim())) * _along_channels(scale, x.dim())
    return _finished(y, weight, bias, input.dtype), input.new_empty(0), input.new_empty(0)


NORMALIZATION: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_no_training.default: _normalised,
    aten.native_group_norm.default: _group_norm,
}
