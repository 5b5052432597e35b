"""Matrix products, convolutions and their quantised forms."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import Host, refuse, rule
from ..values import numbers

Ints = Sequence[int]


@rule("MatMul")
def matmul(x: Tensor, y: Tensor) -> Tensor:
    return torch.matmul(x, y)


@rule("Gemm")
def gemm(
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    product = torch.matmul(x.T if transA else x, y.T if transB else y)
    product = product if alpha == 1 else (alpha * product).to(product.dtype)
    if c is None or beta == 0:
        return product
    return product + (c if beta == 1 else (beta * c).to(c.dtype))


@rule("Einsum")
def einsum(*tensors: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *tensors)


@rule("MatMulInteger")
def matmul_integer(x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None) -> Tensor:
    return torch.matmul(_shifted(x, x_zero, rows=True), _shifted(y, y_zero))


def _shifted(x: Tensor, zero: Tensor | None, rows: bool = False) -> Tensor:
    """Returns quantised numbers as int32, with their zero point subtracted.

    Args:
        x: the numbers, of shape (..., rows, columns).
        zero: one zero point, or a vector.
        rows: whether a vector has one zero point for each row; else for each column.
    """
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    zero = zero.to(torch.int32)
    return wide - (zero.unsqueeze(-1) if rows and zero.dim() == 1 and zero.numel() > 1 else zero)


@rule("QLinearMatMul")
def qlinear_matmul(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, y: Tensor, y_scale: Tensor, y_zero: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
    product = torch.matmul(_shifted(x, x_zero, rows=True), _shifted(y, y_zero)).to(torch.float32)
    rows = x_scale.unsqueeze(-1) if x_scale.dim() == 1 and x_scale.numel() > 1 else x_scale
    return quantized(product * (rows * y_scale / scale).to(torch.float32), zero)


def quantized(x: Tensor, zero: Tensor) -> Tensor:
    """Returns numbers rounded to even, plus the zero point, saturated to its type. Adds in f32."""
    limits = torch.iinfo(zero.dtype)
    sums = torch.round(x).to(torch.float32) + zero.to(torch.float32)
    return sums.clamp(limits.min, limits.max).to(zero.dtype)


@dataclass(frozen=True)
class Window:
    """Attributes of an operator that moves a window over the spatial dimensions of a tensor (batch, channels, *sizes).

    Attributes:
        kernel_shape, strides, dilations: sizes by spatial dimension.
        pads: all beginnings, then all ends.
        auto_pad: NOTSET, VALID, SAME_UPPER or SAME_LOWER.
    """

    kernel_shape: Ints = ()
    strides: Ints = ()
    pads: Ints = ()
    dilations: Ints = ()
    auto_pad: str = "NOTSET"

    def completed(self, kernel: Ints) -> Window:
        """Returns the window with a kernel of these sizes, and default values of attributes that are left out."""
        if small := [size for size in (*kernel, *self.strides, *self.dilations) if isinstance(size, int) and size < 1]:
            refuse(f"expected kernel sizes, strides and dilations of 1 or more, but got {small[0]}")
        ones, zeros = [1] * len(kernel), [0] * 2 * len(kernel)
        return Window([*kernel], self.strides or ones, self.pads or zeros, self.dilations or ones, self.auto_pad)

    def padding(self, x: Tensor) -> list[tuple[int, int]]:
        """Returns the padding before and after each spatial dimension of `x`, for a completed window."""
        count = len(self.kernel_shape)
        if self.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            missing = [
                max(0, (-(-extent // stride) - 1) * stride + (kernel - 1) * dilation + 1 - extent)
                for extent, kernel, stride, dilation in zip(
                    x.shape[2:], self.kernel_shape, self.strides, self.dilations, strict=True
                )
            ]
            return halves(missing, self.auto_pad == "SAME_UPPER")
        amounts = [0] * 2 * count if self.auto_pad == "VALID" else self.pads
        return [*zip(amounts[:count], amounts[count:], strict=True)]


def halves(amounts: Ints, upper: bool) -> list[tuple[int, int]]:
    """Returns amounts as (before, after) in equal parts. The larger part of an odd one is at the end for `upper`."""
    pairs = [(amount // 2, amount - amount // 2) for amount in amounts]
    return pairs if upper else [(after, before) for before, after in pairs]


def padded(x: Tensor, amounts: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """Returns a tensor padded along its last dimensions.

    Args:
        x: the tensor.
        amounts: number of elements before and after, for each of the last dimensions.
        value: the added elements.
    """
    flat = [a for pair in reversed(amounts) for a in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


@rule("Conv")
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    window: Window,
    group: int = 1,
) -> Tensor:
    window = window.completed(w.shape[2:])
    amounts, none = window.padding(x), [0] * (w.dim() - 2)
    equal = all(before == after for before, after in amounts)
    symmetric = [before for before, _ in amounts] if equal else none
    x = x if equal else padded(x, amounts)
    return torch.convolution(x, w, b, [*window.strides], symmetric, [*window.dilations], False, none, group)


@rule("ConvInteger")
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    window: Window,
    group: int = 1,
) -> Tensor:
    # Computes in float64, which holds sums of products of 8 bits exactly. The padding is the zero point.
    wide = w.to(torch.float64)
    if w_zero is not None:
        by_filter = w_zero.reshape(-1, *[1] * (w.dim() - 1)) if w_zero.numel() > 1 else w_zero.reshape(())
        wide = wide - by_filter.to(torch.float64)
    shifted = _shifted(x, x_zero).to(torch.float64)
    result = conv(shifted, wide, window=window, group=group)
    return result.to(torch.int32)


@rule("QLinearConv")
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    b: Tensor | None = None,
    *,
    window: Window,
    group: int = 1,
) -> Tensor:
    channels = (-1, *[1] * (w.dim() - 2))
    sums = conv_integer(x, w, x_zero, w_zero, window=window, group=group)
    sums = sums if b is None else sums + b.reshape(channels)
    factor = x_scale * w_scale / scale
    return quantized(sums.to(torch.float32) * (factor.reshape(channels) if factor.numel() > 1 else factor), zero)


@rule("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    window: Window,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    group: int = 1,
) -> Tensor:
    # Computes the whole transposed convolution, then cuts off the padding, which may differ at both ends.
    window = window.completed(w.shape[2:])
    strides, dilations, none = [*window.strides], [*window.dilations], [0] * (w.dim() - 2)
    extra = output_padding or none
    sizes = zip(x.shape[2:], window.kernel_shape, strides, dilations, extra, strict=True)
    full = [(n - 1) * stride + (kernel - 1) * dilation + 1 + e for n, kernel, stride, dilation, e in sizes]
    automatic = window.auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if output_shape is not None or automatic:
        target = output_shape or [n * stride for n, stride in zip(x.shape[2:], strides, strict=True)]
        total = [f - o for f, o in zip(full, target[-len(full) :], strict=True)]
        amounts = halves(total, window.auto_pad == "SAME_UPPER")
    else:
        amounts = window.padding(x)
    fits = _fits(extra, strides, dilations)
    y = torch.convolution(x, w, b, strides, none, dilations, True, [*extra] if fits else none, group)
    y = y if fits else padded(y, [(0, e) for e in extra])
    for dim, (before, after) in enumerate(amounts, 2):
        y = y.narrow(dim, max(before, 0), y.shape[dim] - max(before, 0) - max(after, 0))
    return padded(y, [(max(-before, 0), max(-after, 0)) for before, after in amounts])


def _fits(extra: Ints, strides: Ints, dilations: Ints) -> bool:
    """Returns true if PyTorch takes an output padding: it is less than stride or dilation."""
    return all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))


@rule("Col2Im")
def col2im(
    x: Tensor,
    image: Host,
    block: Host,
    *,
    strides: Ints | None = None,
    pads: Ints | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    sizes, kernel = numbers(image), numbers(block)
    count = len(sizes)
    strides, dilations = strides or [1] * count, dilations or [1] * count
    amounts = pads or [0] * 2 * count
    before, after = amounts[:count], amounts[count:]
    whole = [s + a + b for s, a, b in zip(sizes, before, after, strict=True)]
    steps = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(whole, kernel, dilations, strides, strict=True)]
    channels = x.shape[1]
    for k in kernel:
        channels = channels // k
    y = torch.zeros(x.shape[0], channels, *whole, dtype=x.dtype)
    columns = x.reshape(x.shape[0], channels, *kernel, *steps)
    for offsets in itertools.product(*(range(k) for k in kernel)):
        part = columns[(slice(None), slice(None), *offsets)]
        for dim, (o, d, s, n) in enumerate(zip(offsets, dilations, strides, steps, strict=True)):
            part = _spread(part, 2 + dim, o * d, s, whole[dim], n)
        y = y + part
    for dim, (a, s) in enumerate(zip(before, sizes, strict=True)):
        y = y.narrow(2 + dim, a, s)
    return y


def _spread(x: Tensor, dim: int, start: int, step: int, extent: int, count: int) -> Tensor:
    """Spreads a dimension: element n is moved to position `start + n * step`. All other positions are 0.

    Args:
        x: the tensor.
        dim: the dimension.
        start, step: positions of its elements in the result.
        extent: size of the dimension in the result.
        count: its size in `x`.
    """
    index = torch.arange(extent) - start
    inside = (index >= 0) & (index < count * step) & (torch.remainder(index, step) == 0)
    taken = x.index_select(dim, torch.div(index, step, rounding_mode="floor").clamp(0, count - 1))
    return taken * inside.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1 - dim))
