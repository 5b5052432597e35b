"""Images that are resized through a filter (`F.interpolate(antialias=True)`), as products with a matrix a dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....errors import UnsupportedError

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """The cubic convolution kernel with a = -0.5, as Pillow has it."""
    x, a = x.abs(), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _weights(
    size: int,
    out: int,
    align_corners: bool,
    factor: float | None,
    kernel: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """What each of `size` elements adds to each of `out`: shape (out, size), computed in `dtype`. The kernel is as wide
    as an element of the result (PyTorch, ATen/native/cpu/UpSampleKernel.cpp, `compute_indices_min_size_weights_aa`)."""
    if align_corners:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = 1 / factor if factor else size / out
    centre = (torch.arange(out, dtype=dtype) + 0.5) * scale
    place = torch.arange(size, dtype=dtype) + 0.5
    weights = kernel((place - centre[:, None]) * (1 / max(scale, 1.0)))
    return weights / weights.sum(1, keepdim=True)


def _resized(kernel: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def made(
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        if not self.is_floating_point():
            raise UnsupportedError(f"interpolation of {self.dtype} rounds in its own way", argument="input")
        if not all(isinstance(n, int) for n in (*self.shape[2:], *output_size)):
            raise UnsupportedError("a filter for a size that varies is not supported", argument="output_size")
        wide = torch.promote_types(self.dtype, torch.float32)
        rows = _weights(self.shape[2], output_size[0], align_corners, scales_h, kernel, wide)
        columns = _weights(self.shape[3], output_size[1], align_corners, scales_w, kernel, wide)
        return (rows @ (self.to(wide) @ columns.T)).to(self.dtype)

    return made


ANTIALIASED: dict[Any, Callable[..., Tensor]] = {
    aten._upsample_bilinear2d_aa.default: _resized(_triangle),
    aten._upsample_bicubic2d_aa.default: _resized(_cubic),
}
