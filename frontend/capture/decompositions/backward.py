"""Decompositions of backward operators that PyTorch computes in kernels.

Each function takes the gradient of an operator's result and returns the gradient of its input. There are two forms:

- Gather: if the index of an input element determines the results that use it, these gradients are read and summed
  (padding, sums, transposed convolutions).
- Scatter: if only the results know their input element, as after a maximum, the gradients are added to zeros at stored
  indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch._C import DispatchKey

from .operators import along, by_operator, wide
from .sampling import ANTIALIASED, SAMPLING

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _per_dimension(values: Sequence[int], count: int) -> list[int]:
    """Returns one value for each of `count` dimensions. A single value applies to all dimensions."""
    return list(values) * (count if len(values) == 1 else 1)


def _cropped(x: Tensor, dims: Sequence[int], starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Returns the range of `x` from `starts` with `sizes` elements along `dims`, with zeros outside of `x`."""
    pads = [0] * 2 * x.dim()
    for d, start, size in zip(dims, starts, sizes, strict=True):
        pads[2 * (x.dim() - 1 - d) : 2 * (x.dim() - d)] = [-start, start + size - x.shape[d]]
    return F.pad(x, pads) if any(pads) else x


def _average_pool(
    dims: int,
    gradient: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Returns the transposed convolution, with a kernel of ones, of the gradients divided by their window's size."""
    size, step, pad = (_per_dimension(v, dims) for v in (kernel_size, stride or kernel_size, padding))
    inside = range(input.dim() - dims, input.dim())
    share = wide(gradient)
    for i, d in enumerate(inside):
        start = torch.arange(gradient.shape[d], device=input.device) * step[i] - pad[i]
        end = (start + size[i]).clamp(max=input.shape[d] + pad[i])
        if not count_include_pad:
            start, end = start.clamp(min=0), end.clamp(max=input.shape[d])
        if divisor_override is None:
            share = share / along(end - start, d, input.dim())
    share = share if divisor_override is None else share / divisor_override
    image = share.reshape(-1, 1, *gradient.shape[-dims:])
    ones, zeros = image.new_ones([1, 1, *size]), [0] * dims
    spread = aten.convolution(image, ones, None, step, zeros, [1] * dims, True, zeros, 1)
    spread = spread.reshape(*input.shape[:-dims], *spread.shape[2:])
    return _cropped(spread, inside, pad, input.shape[-dims:]).to(input.dtype)


def _adaptive_average_pool(dims: int, gradient: Tensor, input: Tensor) -> Tensor:
    """Returns, along each dimension, the sum of gradient / window size over the windows that contain an element."""
    spread = wide(gradient)
    for d in range(input.dim() - dims, input.dim()):
        size, outputs = input.shape[d], gradient.shape[d]
        if outputs and size % outputs == 0:  # each element is in one window
            spread = spread.repeat_interleave(size // outputs, d) / (size // outputs)
            continue
        o, place = torch.arange(outputs, device=input.device)[:, None], torch.arange(size, device=input.device)
        start, end = o * size // outputs, ((o + 1) * size + outputs - 1) // outputs
        share = spread.movedim(d, -1).unsqueeze(-1) / (end - start)
        spread = torch.where((place >= start) & (place < end), share, 0.0).sum(-2).movedim(-1, d)
    return spread.to(input.dtype)


def _max_pool(dims: int, gradient: Tensor, input: Tensor, *arguments: Any) -> Tensor:
    """Adds the gradients to zeros at the indices of the maxima.

    The indices are the last argument. They count in the plane of the last `dims` dimensions.
    """
    first, places = input.dim() - dims, arguments[-1]
    zeros = torch.zeros_like(wide(input)).flatten(first)
    scattered = zeros.scatter_add(-1, places.flatten(first), wide(gradient).flatten(first))
    return scattered.reshape(input.shape).to(input.dtype)


def _replicated(gradient: Tensor, input: Tensor, padding: Sequence[int]) -> Tensor:
    """Returns the gradient of a replication padding: gradients of copies are added to the border element."""
    summed = wide(gradient)
    for i in range(len(padding) // 2):
        d, (before, after) = input.dim() - 1 - i, padding[2 * i : 2 * i + 2]
        size = input.shape[d]
        inner = _cropped(summed, [d], [before], [size])
        for length, start, place in ((before, 0, 0), (after, before + size, size - 1)):
            if length > 0:
                beyond = summed.narrow(d, start, length).sum(d, keepdim=True)
                inner = inner + _cropped(beyond, [d], [-place], [size])
        summed = inner
    return summed.to(input.dtype)


def _masked_scatter(gradient: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """Returns the gradients at true elements of the mask in their order, followed by zeros."""
    mask, flat = mask.expand(gradient.shape).reshape(-1), gradient.reshape(-1)
    count = math.prod(sizes)
    place = torch.where(mask, mask.cumsum(0) - 1, count)
    return flat.new_zeros(count + 1).scatter(0, place, flat)[:count].reshape(sizes)


def _distance(gradient: Tensor, difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """Returns the gradient of a difference whose p-norm is `distance`; zero where the norm has no derivative."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return gradient * difference.sign()
    if math.isinf(p):
        return gradient * difference.sign() * (difference.abs() == distance)
    derivative = gradient * difference.sign() * difference.abs() ** (p - 1) / distance ** (p - 1)
    undefined = distance == 0 if p >= 1 else (distance == 0) | (difference == 0)
    return torch.where(undefined, 0.0, derivative)


def _cdist(gradient: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _distance(gradient.unsqueeze(-1), difference, cdist.unsqueeze(-1), p).sum(-2)


def _pdist(gradient: Tensor, input: Tensor, p: float, pdist: Tensor) -> Tensor:
    first, second = torch.triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    of_pairs = _distance(gradient[:, None], input[first] - input[second], pdist[:, None], p)
    return torch.zeros_like(input).index_add(0, first, of_pairs).index_add(0, second, -of_pairs)


def _weight_norm(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `v` and `g` in `v * (g / norm)`. The norm is over all dimensions except `dim`."""
    gradient, v, g, norm = (wide(t) for t in (grad_w, saved_v, saved_g, saved_norms))
    along_v = (gradient * v).sum([d for d in range(v.dim()) if d != dim], keepdim=True)
    of_v = (gradient - v * (along_v / (norm * norm))) * (g / norm)
    return of_v.to(saved_v.dtype), (along_v / norm).to(saved_g.dtype)


def _zeros(size: Sequence[int], dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    """Returns ordinary zeros for PyTorch's zero tensor without storage."""
    return torch.zeros(size, dtype=dtype, device=device)


BACKWARD: dict[str, Callable[..., Any]] = {
    "avg_pool2d_backward.default": partial(_average_pool, 2),
    "avg_pool3d_backward.default": partial(_average_pool, 3),
    "_adaptive_avg_pool2d_backward.default": partial(_adaptive_average_pool, 2),
    "_adaptive_avg_pool3d_backward.default": partial(_adaptive_average_pool, 3),
    "adaptive_max_pool2d_backward.default": partial(_max_pool, 2),
    "adaptive_max_pool3d_backward.default": partial(_max_pool, 3),
    "max_pool2d_with_indices_backward.default": partial(_max_pool, 2),
    "max_pool3d_with_indices_backward.default": partial(_max_pool, 3),
    "replication_pad1d_backward.default": _replicated,
    "replication_pad2d_backward.default": _replicated,
    "replication_pad3d_backward.default": _replicated,
    "masked_scatter_backward.default": _masked_scatter,
    "_cdist_backward.default": _cdist,
    "_pdist_backward.default": _pdist,
    "_weight_norm_interface_backward.default": _weight_norm,
    "_efficientzerotensor.default": _zeros,
}


@contextmanager
def above_autograd() -> Generator[None]:
    """While active, autograd differentiates the decompositions of the operators in `DIFFERENTIABLE` in place of the
    operators."""
    with ExitStack() as stack:
        for operator, decomposition in by_operator(DIFFERENTIABLE).items():
            stack.callback(operator._dispatch_cache.clear)
            stack.enter_context(patch.dict(operator.py_kernels, {DispatchKey.Autograd: decomposition}))
            operator._dispatch_cache.clear()
        yield


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reduces rows of `weight` in bags: by sum (`mode` 0), mean (1) or maximum (2).

    A bag begins at each offset. Rows of padding go to an additional bag at the end, which is dropped. Only PyTorch's
    own gradient reads the results after the first.
    """
    bags = offsets.shape[0] - include_last_offset
    begins = offsets.new_zeros(indices.shape[0] + 1).index_add(0, offsets, torch.ones_like(offsets))
    bag = begins[:-1].cumsum(0) - 1
    bag = bag if padding_idx < 0 else torch.where(indices == padding_idx, bags, bag)
    rows = F.embedding(indices, weight, scale_grad_by_freq=scale_grad_by_freq)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    reduced = rows.new_zeros(bags + (padding_idx >= 0), rows.shape[1])
    count = F.pad(offsets, (0, 1), value=indices.shape[0]).diff()[:bags]
    if padding_idx >= 0:
        count = bag.new_zeros(bags + 1).index_add(0, bag, torch.ones_like(bag))
    if mode == 2:
        reduced = reduced.index_reduce(0, bag, rows, "amax", include_self=False)
    else:
        reduced = reduced.index_add(0, bag, rows)
        reduced = reduced / count.clamp(min=1)[:, None] if mode == 1 else reduced
    return reduced[:bags], bag, count[:bags], count[:bags]


BAGS: dict[str, Callable[..., Any]] = {
    "_embedding_bag.default": _embedding_bag,
    "_embedding_bag_forward_only.default": _embedding_bag,
}
"""Decompositions of `embedding_bag`; only their first result is meant to be used."""

DIFFERENTIABLE: dict[str, Callable[..., Any]] = {**ANTIALIASED, **SAMPLING, "_embedding_bag.default": _embedding_bag}
"""Decompositions that are differentiated in place of their operators."""
