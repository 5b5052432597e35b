"""Decompositions of image sampling (`F.grid_sample`, `F.interpolate`) and of fractional max pooling.

`F.grid_sample` reads an image at fractional positions. Along each dimension, a position reads a few elements with
weights, the *taps*. The result is the weighted sum over all combinations of taps. The decomposition can be
differentiated, with PyTorch's derivatives: zero where a position is clipped to the border, or is exactly on the border
(PyTorch, ATen/native/GridSamplerUtils.h).

`F.interpolate(antialias=True)` is a matmul along each dimension, with a matrix of filter weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size  # pyright: ignore

from ....errors import UnsupportedError
from .operators import operator_named

Tensor = torch.Tensor
Taps = list[tuple[Tensor, Tensor | float]]
aten: Any = torch.ops.aten

LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def _clipped(x: Tensor, size: int) -> Tensor:
    return torch.where(x > 0, torch.where(x < size - 1, x, size - 1), 0.0)


def _reflected(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """Reflects positions until they are between the centres of the outer elements (`align_corners`) or their outer
    edges."""
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return torch.zeros_like(x)
    beyond = torch.where(x < low, low - x, x - low)
    offset, turns = beyond.fmod(span), (beyond / span).floor()
    return _clipped(torch.where(turns.fmod(2) == 0, offset + low, span - offset + low), size)


def _inside(x: Tensor, size: int, padding_mode: int, align_corners: bool) -> Tensor:
    """Moves positions into the image as `padding_mode` specifies. With zeros as padding, positions stay as they are."""
    if padding_mode == ZEROS:
        return x
    return _clipped(x, size) if padding_mode == BORDER else _reflected(x, size, align_corners)


def _taps(x: Tensor, size: int, mode: int, move: Callable[[Tensor], Tensor]) -> Taps:
    """Returns the taps for positions `x` along a dimension: element indices with weights.

    `move` moves positions into the image.
    """
    if mode == NEAREST:
        return [(move(x).round(), 1.0)]
    if mode == LINEAR:
        x = move(x)
        low = x.floor()
        return [(low, low + 1 - x), (low + 1, x - low)]
    low, a = x.floor(), -0.75
    weights: list[Tensor] = []
    for d in (x - low + 1, x - low, 1 - (x - low), 2 - (x - low)):
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        weights.append(near if len(weights) in (1, 2) else ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)
    return [(move(low + k - 1), w) for k, w in enumerate(weights)]


def _grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Returns `input` (N, C, sizes...) sampled at the positions `grid` (N, results..., dimensions).

    Positions are from -1 to 1, in reverse order of the dimensions.
    """
    dtype = torch.promote_types(input.dtype, torch.float32)
    image, sizes = input.to(dtype), input.shape[2:]
    taps_of_dims: list[Taps] = []
    for d, size in enumerate(sizes):
        place = grid[..., len(sizes) - 1 - d].to(dtype).unsqueeze(1) + 1
        place = place * ((size - 1) / 2) if align_corners else place * (size / 2) - 0.5
        taps_of_dims.append(
            _taps(place, size, interpolation_mode, lambda x, n=size: _inside(x, n, padding_mode, align_corners))
        )
    ones = [1] * len(sizes)
    n = torch.arange(input.shape[0], device=input.device).reshape(-1, 1, *ones)
    c = torch.arange(input.shape[1], device=input.device).reshape(1, -1, *ones)
    terms: list[Tensor] = []
    for taps in product(*taps_of_dims):
        inside = reduce(torch.logical_and, [(x >= 0) & (x < size) for (x, _), size in zip(taps, sizes, strict=True)])
        at = [torch.where(inside, x, 0.0).to(torch.int64) for x, _ in taps]
        weight = reduce(lambda u, v: u * v, (w for _, w in taps))
        terms.append(image[(n, c, *at)] * torch.where(inside, weight, 0.0))
    return reduce(torch.add, terms).to(input.dtype)


SAMPLING: dict[str, Callable[..., Any]] = {
    "grid_sampler_2d.default": _grid_sampler,
    "grid_sampler_3d.default": _grid_sampler,
}


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """Returns the cubic convolution kernel with a = -0.5, as in Pillow."""
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
    """Returns the filter matrix of shape (out, size): the weight of each element in each result, computed in `dtype`.

    The kernel is as wide as an element of the result (PyTorch, ATen/native/cpu/UpSampleKernel.cpp,
    `compute_indices_min_size_weights_aa`).
    """
    if align_corners:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = 1 / factor if factor else size / out
    centre = (torch.arange(out, dtype=dtype) + 0.5) * scale
    place = torch.arange(size, dtype=dtype) + 0.5
    weights = kernel((place - centre[:, None]) * (1 / max(scale, 1.0)))
    return weights / weights.sum(1, keepdim=True)


def _resized(kernel: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def resize(
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
        scales = _scales(self, output_size, (scales_h, scales_w))
        rows, columns = (
            _weights(size, out, align_corners, scale, kernel, wide)
            for size, out, scale in zip(self.shape[2:], output_size, scales, strict=True)
        )
        return (rows @ (self.to(wide) @ columns.T)).to(self.dtype)

    return resize


ANTIALIASED: dict[str, Callable[..., Tensor]] = {
    "_upsample_bilinear2d_aa.default": _resized(_triangle),
    "_upsample_bicubic2d_aa.default": _resized(_cubic),
}


def _scales(
    self: Tensor, new_sizes: Sequence[int], scales: Sequence[float | None], *, doubled: bool = False
) -> list[float | None]:
    """Returns the scale of each dimension, or None for a dimension that is copied.

    PyTorch's CPU kernels copy each dimension whose size stays the same. With `doubled`, they also ignore the scale of a
    dimension of twice the size (ATen/native/UpSample.h, `compute_source_index_and_lambda` and `nearest_idx`). CUDA
    kernels do so only if all sizes stay the same.
    """
    sizes = self.shape[2:]
    fixed = [isinstance(n, int) and isinstance(m, int) for n, m in zip(sizes, new_sizes, strict=True)]
    same = [k and m in ((n, 2 * n) if doubled else (n,)) for k, n, m in zip(fixed, sizes, new_sizes, strict=True)]
    if self.device.type == "cuda" and not (all(fixed) and list(sizes) == list(new_sizes)):
        return list(scales)
    return [None if s else scale for s, scale in zip(same, scales, strict=True)]


def _interpolated(name: str) -> dict[str, Callable[..., Tensor]]:
    """Returns the decompositions of both overloads of an interpolation, based on PyTorch's decomposition."""
    default = f"{name}.default"

    def interpolate(self: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> Tensor:
        used_scales = _scales(self, output_size, [*scales, *[None for _ in output_size]][: len(output_size)])
        return decomposition_table[operator_named(default)](self, output_size, align_corners, *used_scales)

    def interpolate_by_factors(
        input: Tensor, output_size: Sequence[int] | None, align_corners: bool, scale_factors: Sequence[float] | None
    ) -> Tensor:
        new_sizes = upsample_compute_output_size(input.shape, output_size, scale_factors)
        return interpolate(input, new_sizes, align_corners, *(scale_factors or ()))

    return {default: interpolate, f"{name}.vec": interpolate_by_factors}


INTERPOLATED: dict[str, Callable[..., Tensor]] = {
    overload: decomposition
    for name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
    for overload, decomposition in _interpolated(name).items()
}


def _nearest(name: str, offset: float) -> Callable[..., Tensor]:
    """Returns the decomposition of a nearest-neighbour interpolation, with index (i + `offset`) * scale.

    It repeats or slices elements where `_at` can. Otherwise it uses PyTorch's decomposition, which gathers elements.
    """
    packet = name.removesuffix(".vec")

    def resize(self: Tensor, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None) -> Tensor:
        resized, sizes = self, self.shape[2:]
        scales: list[float | None] = [*scale_factors] if scale_factors else [None for _ in sizes]
        new_sizes = upsample_compute_output_size(self.shape, output_size, scale_factors)
        if packet == "upsample_nearest2d":
            scales = _scales(self, new_sizes, scales, doubled=True)
        for dim, (size, new, scale) in enumerate(zip(sizes, new_sizes, scales, strict=True), 2):
            fixed = isinstance(size, int) and isinstance(new, int)
            along_dim = _at(resized, dim, _nearest_indices(size, new, scale, offset)) if fixed else None
            if along_dim is None:
                return decomposition_table[operator_named(f"{packet}.default")](self, new_sizes, *scales)
            resized = along_dim
        return resized.clone() if resized is self else resized

    return resize


def _nearest_indices(size: int, new_size: int, scale: float | None, offset: float) -> list[int]:
    """Returns the index of the nearest of `size` elements for each element of the new size, in f32 as in PyTorch."""
    step = size / (size * scale) if scale is not None and scale > 0 else size / new_size
    return ((np.arange(new_size, dtype=np.float32) + np.float32(offset)) * np.float32(step)).astype(np.int64).tolist()


def _at(x: Tensor, dim: int, places: list[int]) -> Tensor | None:
    """Returns the elements of `x` at `places` along `dim` without a gather, or None if that is not possible.

    Possible are a repeat, such as 0, 0, 1, 1, and a slice, such as 1, 3, 5.
    """
    times, (first, *others) = max(1, len(places) // x.shape[dim]), places
    if places == [i // times for i in range(x.shape[dim] * times)]:
        return x.repeat_interleave(times, dim) if times > 1 else x
    step = others[0] - first if others else 1
    if step < 1 or places != [*range(first, places[-1] + 1, step)]:
        return None
    return aten.slice.Tensor(x, dim, first, places[-1] + 1, step)


NEAREST_ELEMENTS: dict[str, Callable[..., Tensor]] = {
    (name := f"{kind}{n}d.vec"): _nearest(name, offset)
    for offset, kind in ((0.0, "upsample_nearest"), (0.5, "_upsample_nearest_exact"))
    for n in (1, 2, 3)
}


# Fractional max pooling: windows of one size. A random sample determines their first indices, by ATen's sequence.
# Graham: Fractional Max-Pooling (2014); ATen/native/FractionalMaxPool2d.cpp and FractionalMaxPooling.h of PyTorch 2.13.


def _begins(sample: Tensor, size: int, count: int, window: int) -> Tensor:
    """Returns the first index of each of `count` windows along one dimension, for each random sample."""
    number = torch.arange(count, device=sample.device)
    if count == 1:
        return torch.zeros_like(sample[..., None], dtype=torch.int64) + (size - window)
    step = (size - window) / (count - 1)
    sample = sample[..., None]
    begin = ((number + sample) * step).to(torch.int64) - (sample * step).to(torch.int64)
    return torch.where(number == count - 1, size - window, begin)


def _pooled(
    self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor, *, rank: int
) -> tuple[Tensor, Tensor]:
    kernel, counts, sizes = list(kernel_size), list(output_size), self.shape[-rank:]
    outer = self.shape[:-rank]
    samples = random_samples.reshape(*outer, rank).unbind(-1)
    # PyTorch's sample has the column first in two dimensions, but the depth first in three.
    samples = samples[::-1] if rank == 2 else samples
    place = torch.zeros([1] * (2 * rank), dtype=torch.int64, device=self.device)
    for d in range(rank):
        begin = _begins(samples[d], sizes[d], counts[d], kernel[d])
        at = begin[..., None] + torch.arange(kernel[d], device=self.device)
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = counts[d], kernel[d]
        place = place * sizes[d] + at.reshape(*outer, *shape)
    place = place.reshape(*outer, prod(counts), prod(kernel))
    values = self.flatten(-rank).gather(-1, place.flatten(-2)).reshape(place.shape)
    number = torch.arange(prod(kernel), device=self.device)
    # Of several NaNs, PyTorch selects the last.
    last = torch.where(values.isnan(), number, -1).amax(-1)
    chosen = torch.where(last >= 0, last, values.argmax(-1))[..., None]
    results = values.gather(-1, chosen), place.gather(-1, chosen)
    result, index = (t.reshape(*outer, *counts) for t in results)
    return result, index


def _gradient(
    grad_output: Tensor, self: Tensor, kernel_size: Any, output_size: Any, indices: Tensor, *, rank: int
) -> Tensor:
    zeros = torch.zeros_like(self).flatten(-rank)
    return zeros.scatter_add(-1, indices.flatten(-rank), grad_output.flatten(-rank)).reshape(self.shape)


FRACTIONAL: dict[str, Callable[..., Any]] = {
    f"fractional_max_pool{rank}d{part}.default": partial(function, rank=rank)
    for rank in (2, 3)
    for part, function in (("", _pooled), ("_backward", _gradient))
}
