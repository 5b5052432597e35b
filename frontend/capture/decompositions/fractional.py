"""Fractional max pooling: windows of one size that begin at places drawn by a sample, in ATen's pseudorandom sequence.

Graham: Fractional Max-Pooling (2014); ATen/native/FractionalMaxPool2d.cpp and FractionalMaxPooling.h of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

Tensor = torch.Tensor


def _begins(sample: Tensor, size: int, count: int, window: int) -> Tensor:
    """Where the `count` windows along one dimension begin, for each sample."""
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
    samples = samples[::-1] if rank == 2 else samples  # PyTorch draws the column first, but the time before the row
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
    last = torch.where(values.isnan(), number, -1).amax(-1)  # of several NaNs PyTorch takes the last
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
