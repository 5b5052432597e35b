"""Gradients that PyTorch computes in kernels of its own, made of other operators.

Each takes the gradient of a result and gives that of the input. Where every input element knows the results that it was
used for, they are read (`F.pad`, sums, transposed convolutions); where only the results know, as after a maximum, they
are added to zeros at their places.
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


def _each(values: Sequence[int], count: int) -> list[int]:
    """A value for each of `count` dimensions, of which PyTorch takes one for all."""
    return list(values) * (count if len(values) == 1 else 1)


def _cropped(x: Tensor, dims: Sequence[int], starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Of `x` the elements from `starts` on, `sizes` many along `dims`; zeros beyond its end."""
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
    """The transposed convolution with a kernel of ones, after each gradient is divided by the size of its window."""
    size, step, pad = (_each(v, dims) for v in (kernel_size, stride or kernel_size, padding))
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
    """Along each dimension, the sum over the windows that an element is in, by the sizes of these."""
    found = wide(gradient)
    for d in range(input.dim() - dims, input.dim()):
        size, outputs = input.shape[d], gradient.shape[d]
        if outputs and size % outputs == 0:  # each element is in one window
            found = found.repeat_interleave(size // outputs, d) / (size // outputs)
            continue
        o, place = torch.arange(outputs, device=input.device)[:, None], torch.arange(size, device=input.device)
        start, end = o * size // outputs, ((o + 1) * size + outputs - 1) // outputs
        share = found.movedim(d, -1).unsqueeze(-1) / (end - start)
        found = torch.where((place >= start) & (place < end), share, 0.0).sum(-2).movedim(-1, d)
    return found.to(input.dtype)


def _max_pool(dims: int, gradient: Tensor, input: Tensor, *how: Any) -> Tensor:
    """Gradients are added to zeros at the places of the maxima, the last argument: numbers in the planes of `dims`
    dimensions."""
    first, places = input.dim() - dims, how[-1]
    zeros = torch.zeros_like(wide(input)).flatten(first)
    found = zeros.scatter_add(-1, places.flatten(first), wide(gradient).flatten(first))
    return found.reshape(input.shape).to(input.dtype)


def _replicated(gradient: Tensor, input: Tensor, padding: Sequence[int]) -> Tensor:
    """What was copied beyond an end is added to the last element there."""
    found = wide(gradient)
    for i in range(len(padding) // 2):
        d, (before, after) = input.dim() - 1 - i, padding[2 * i : 2 * i + 2]
        size = input.shape[d]
        own = _cropped(found, [d], [before], [size])
        for length, start, place in ((before, 0, 0), (after, before + size, size - 1)):
            if length > 0:
                beyond = found.narrow(d, start, length).sum(d, keepdim=True)
                own = own + _cropped(beyond, [d], [-place], [size])
        found = own
    return found.to(input.dtype)


def _masked_scatter(gradient: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradients where the mask holds, one after the other, and zeros behind them."""
    mask, flat = mask.expand(gradient.shape).reshape(-1), gradient.reshape(-1)
    count = math.prod(sizes)
    place = torch.where(mask, mask.cumsum(0) - 1, count)
    return flat.new_zeros(count + 1).scatter(0, place, flat)[:count].reshape(sizes)


def _distance(gradient: Tensor, difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """The gradient of a difference, of whose elements `distance` is the p-norm; zero where that has none."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return gradient * difference.sign()
    if math.isinf(p):
        return gradient * difference.sign() * (difference.abs() == distance)
    found = gradient * difference.sign() * difference.abs() ** (p - 1) / distance ** (p - 1)
    none = distance == 0 if p >= 1 else (distance == 0) | (difference == 0)
    return torch.where(none, 0.0, found)


def _cdist(gradient: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _distance(gradient.unsqueeze(-1), difference, cdist.unsqueeze(-1), p).sum(-2)


def _pdist(gradient: Tensor, input: Tensor, p: float, pdist: Tensor) -> Tensor:
    first, second = torch.triu_indices(input.shape[0], input.shape[0], 1, device=input.device)
    found = _distance(gradient[:, None], input[first] - input[second], pdist[:, None], p)
    return torch.zeros_like(input).index_add(0, first, found).index_add(0, second, -found)


def _weight_norm(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `v` and `g` in `v * (g / norm)`, where the norm is over all dimensions except `dim`."""
    gradient, v, g, norm = (wide(t) for t in (grad_w, saved_v, saved_g, saved_norms))
    along_v = (gradient * v).sum([d for d in range(v.dim()) if d != dim], keepdim=True)
    of_v = (gradient - v * (along_v / (norm * norm))) * (g / norm)
    return of_v.to(saved_v.dtype), (along_v / norm).to(saved_g.dtype)


def _zeros(size: Sequence[int], dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    """Zeros that PyTorch does not store."""
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
    """While it is open, a traced program that is differentiated has the parts of these operators."""
    with ExitStack() as stack:
        for operator, made in by_operator(DIFFERENTIABLE).items():
            stack.callback(operator._dispatch_cache.clear)
            stack.enter_context(patch.dict(operator.py_kernels, {DispatchKey.Autograd: made}))
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
    """Rows of `weight`, summed (`mode` 0), averaged (1) or their maxima (2) in bags that begin at `offsets`; rows that
    are padding go to a bag behind the last one. The results after the first are for PyTorch's own gradient only."""
    bags = offsets.shape[0] - include_last_offset
    begins = offsets.new_zeros(indices.shape[0] + 1).index_add(0, offsets, torch.ones_like(offsets))
    bag = begins[:-1].cumsum(0) - 1
    bag = bag if padding_idx < 0 else torch.where(indices == padding_idx, bags, bag)
    rows = F.embedding(indices, weight, scale_grad_by_freq=scale_grad_by_freq)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    found = rows.new_zeros(bags + (padding_idx >= 0), rows.shape[1])
    count = F.pad(offsets, (0, 1), value=indices.shape[0]).diff()[:bags]
    if padding_idx >= 0:
        count = bag.new_zeros(bags + 1).index_add(0, bag, torch.ones_like(bag))
    if mode == 2:
        found = found.index_reduce(0, bag, rows, "amax", include_self=False)
    else:
        found = found.index_add(0, bag, rows)
        found = found / count.clamp(min=1)[:, None] if mode == 1 else found
    return found[:bags], bag, count[:bags], count[:bags]


BAGS: dict[str, Callable[..., Any]] = {
    "_embedding_bag.default": _embedding_bag,
    "_embedding_bag_forward_only.default": _embedding_bag,
}

DIFFERENTIABLE: dict[str, Callable[..., Any]] = {**ANTIALIASED, **SAMPLING, "_embedding_bag.default": _embedding_bag}
