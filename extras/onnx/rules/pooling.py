"""Pooling over windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import Host, rule
from ..values import numbers
from .contractions import Ints, Window, padded


def _outputs(x: Tensor, window: Window, amounts: Sequence[tuple[int, int]], ceil_mode: int) -> list[int]:
    """Returns the number of windows along each spatial dimension.

    With `ceil_mode` the last window may end after the padding, but it begins in the input or in the padding before it.
    """
    counts: list[int] = []
    sizes = zip(x.shape[2:], amounts, window.kernel_shape, window.strides, window.dilations, strict=True)
    for size, (before, after), kernel, stride, dilation in sizes:
        extent = size + before + after - (kernel - 1) * dilation - 1
        count = (-(-extent // stride) if ceil_mode else extent // stride) + 1
        counts.append(count - 1 if ceil_mode and (count - 1) * stride >= size + before else count)
    return counts


def windows(x: Tensor, window: Window, ceil_mode: int, fill: float, beyond: float | None = None) -> Tensor:
    """Returns the elements of all windows, of shape (batch, channels, *windows, *kernel).

    Args:
        x: the input, of shape (batch, channels, *sizes).
        window: attributes of the operator.
        ceil_mode: whether the last window may end after the padding.
        fill: elements of the padding.
        beyond: elements after the padding, which a last window has with `ceil_mode`; default: `fill`.
    """
    window = window.completed(window.kernel_shape)
    kernel, strides, dilations, count = window.kernel_shape, window.strides, window.dilations, len(window.kernel_shape)
    amounts = window.padding(x)
    outputs = _outputs(x, window, amounts, ceil_mode)
    needed = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(outputs, strides, kernel, dilations, strict=True)]
    ends = [n - x.shape[2 + i] - amounts[i][0] for i, n in enumerate(needed)]
    inner = [(before, min(after, max(end, 0))) for (before, after), end in zip(amounts, ends, strict=True)]
    outer = [(0, max(end, 0) - after) for end, (_, after) in zip(ends, inner, strict=True)]
    y = padded(padded(x, inner, fill), outer, fill if beyond is None else beyond)
    for i in range(count):
        index = torch.arange(outputs[i]).unsqueeze(1) * strides[i] + torch.arange(kernel[i]) * dilations[i]
        dim = 2 + 2 * i
        taken = y.index_select(dim, index.reshape(-1))
        y = taken.reshape(*y.shape[:dim], outputs[i], kernel[i], *y.shape[dim + 1 :])
    order = [0, 1, *(2 + 2 * i for i in range(count)), *(3 + 2 * i for i in range(count))]
    return y.permute(order)


@rule("AveragePool")
def average_pool(
    x: Tensor,
    *,
    window: Window,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Tensor:
    count = x.dim() - 2
    plain = window.auto_pad == "NOTSET" and not any(window.pads) and not ceil_mode
    if plain and count <= 3 and not any(d > 1 for d in window.dilations):
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[count - 1]
        return pool(x, [*window.kernel_shape], [*window.strides] if window.strides else [1] * count)
    inner = [*range(-count, 0)]
    sums = windows(x, window, ceil_mode, 0.0).sum(inner)
    ones = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    return sums / windows(ones, window, ceil_mode, 1.0 if count_include_pad else 0.0, beyond=0.0).sum(inner)


@rule("MaxPool")
def max_pool(
    x: Tensor,
    *,
    window: Window,
    ceil_mode: int = 0,
    storage_order: int = 0,
    outputs: int,
) -> Any:
    count = x.dim() - 2
    least = -float("inf") if x.is_floating_point() else float(torch.iinfo(x.dtype).min)
    parts = windows(x, window, ceil_mode, least)
    flat = parts.reshape(*parts.shape[: 2 + count], prod(window.kernel_shape))
    if outputs == 1:
        return flat.amax(-1)
    sizes = [*x.shape[2:]]
    weights = [prod(sizes[i + 1 :]) if not storage_order else prod(sizes[:i]) for i in range(count)]
    position = torch.zeros(sizes, dtype=torch.int64)
    for i, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        position = position + (torch.arange(size) * weight).reshape(-1, *[1] * (count - 1 - i))
    outer = torch.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *[1] * count) * prod(sizes)
    numbered = windows((outer + position).to(torch.float64), window, ceil_mode, 0.0).reshape(flat.shape).to(torch.int64)
    where = flat.argmax(-1, keepdim=True)
    return [flat.gather(-1, where).squeeze(-1), numbered.gather(-1, where).squeeze(-1)]


@rule("LpPool")
def lp_pool(
    x: Tensor,
    *,
    window: Window,
    ceil_mode: int = 0,
    p: int = 2,
) -> Tensor:
    count = x.dim() - 2
    parts = windows(x, window, ceil_mode, 0.0)
    return parts.abs().pow(p).sum([*range(-count, 0)]).pow(1 / p)


@rule("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean([*range(2, x.dim())], True)


@rule("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.amax([*range(2, x.dim())], True)


@rule("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return x.abs().pow(p).sum([*range(2, x.dim())], True).pow(1 / p)


@rule("MaxUnpool")
def max_unpool(
    x: Tensor,
    indices: Tensor,
    shape: Host | None = None,
    *,
    kernel_shape: Ints,
    strides: Ints | None = None,
    pads: Ints | None = None,
) -> Tensor:
    # The indices count over the whole tensor that was pooled, whose sizes follow from the attributes.
    count = len(kernel_shape)
    strides, amounts = strides or [1] * count, pads or [0] * 2 * count
    inferred = [
        (x.shape[2 + i] - 1) * strides[i] - amounts[i] - amounts[count + i] + kernel_shape[i] for i in range(count)
    ]
    small = [x.shape[0], x.shape[1], *inferred]
    flat = torch.zeros(prod(small), dtype=x.dtype).scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(small)
    if shape is None:
        return flat
    sizes = numbers(shape)
    return F.pad(flat, [a for d in reversed(range(len(sizes))) for a in (0, sizes[d] - small[d])])
