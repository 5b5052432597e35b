"""Quantization as it is simulated in training, and products of integers of 8 bits, made of ATen operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _quantized(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """`x` rounded to the nearest of the values (q - zero_point) * scale, and where q was in its range.

    Computed in f32. A zero point that is a number with a fraction is added before rounding (PyTorch,
    ATen/native/quantized/cuda/FakeQuantizeCore.cu). NaN becomes the least q, as the cast to an integer does on CUDA.
    """
    narrow = x.to(torch.float32)
    steps = narrow * (1 / scale)
    with_fraction = isinstance(zero_point, Tensor) and zero_point.is_floating_point()
    q = torch.round(steps + zero_point) if with_fraction else torch.round(steps) + zero_point
    inside = (q >= quant_min) & (q <= quant_max)
    q = torch.where(q.isnan(), quant_min, q.clamp(quant_min, quant_max))
    return ((q - zero_point) * scale).to(x.dtype), inside


def _by_tensors(
    self: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """With a scale and a zero point for all, in tensors of one element, and a switch."""
    on = fake_quant_enabled.reshape(()) != 0
    made, inside = _quantized(self, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    return torch.where(on, made, self), inside | ~on


def _per_channel(
    self: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    shape = [-1 if d == axis else 1 for d in range(self.dim())]
    return _quantized(self, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


def _int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    return self.to(torch.int32) @ mat2.to(torch.int32)


QUANTIZED: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: _quantized,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
    aten.fake_quantize_per_channel_affine_cachemask.default: _per_channel,
    aten._int_mm.default: _int_mm,
}
