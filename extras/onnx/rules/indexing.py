"""Reads and writes at computed indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import Host, refuse, rule
from ..values import axis_of, number


def _wrapped(index: Tensor, extent: int) -> Tensor:
    """Returns indices as int64, with negative ones counted from the end."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + extent, index)


@rule("Gather")
def gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    dim = axis_of(axis, x.dim())
    taken = x.index_select(dim, _wrapped(index, x.shape[dim]).reshape(-1))
    return taken.reshape(*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])


@rule("GatherElements")
def gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, _wrapped(index, x.shape[axis]))


@rule("GatherND")
def gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = index.shape[-1]
    batch = [torch.arange(s).reshape(-1, *[1] * (index.dim() - 2 - d)) for d, s in enumerate(x.shape[:batch_dims])]
    parts = [_wrapped(index[..., d], x.shape[batch_dims + d]) for d in range(depth)]
    return x[(*batch, *parts)]


def _combined(reduction: str) -> str | None:
    names = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    if reduction not in names:
        refuse(f"expected the reduction none, add, mul, max or min, but got {reduction}")
    return names[reduction]


@rule("Scatter", "ScatterElements")
def scatter_elements(x: Tensor, index: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    index, reduce = _wrapped(index, x.shape[axis]), _combined(reduction)
    if reduce is None:
        return torch.scatter(x, axis, index, updates)
    return torch.scatter_reduce(x, axis, index, updates, reduce, include_self=True)


@rule("ScatterND")
def scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth, reduce = index.shape[-1], _combined(reduction)
    rows, width = prod(x.shape[:depth]), prod(x.shape[depth:])
    place = torch.zeros(index.shape[:-1], dtype=torch.int64)
    for d in range(depth):
        place = place * x.shape[d] + _wrapped(index[..., d], x.shape[d])
    flat, new = x.reshape(rows, width), updates.reshape(-1, width)
    where = place.reshape(-1, 1).expand(new.shape)
    if reduce is None:
        return torch.scatter(flat, 0, where, new).reshape(x.shape)
    return torch.scatter_reduce(flat, 0, where, new, reduce, include_self=True).reshape(x.shape)


@rule("TensorScatter")
def tensor_scatter(
    past: Tensor, update: Tensor, write: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    # Writes rows into a cache from the index `write` of each batch on; `circular` wraps around its end.
    extent, count = past.shape[axis], update.shape[axis]
    steps = torch.arange(count)
    begin = torch.zeros(past.shape[0], dtype=torch.int64) if write is None else write.to(torch.int64)
    index = begin.unsqueeze(1) + steps
    index = torch.remainder(index, extent) if mode == "circular" else index
    dim = axis_of(axis, past.dim())
    shape = [past.shape[0] if d == 0 else count if d == dim else 1 for d in range(past.dim())]
    return torch.scatter(past, dim, index.reshape(shape).expand(update.shape), update)


@rule("OneHot")
def one_hot(index: Tensor, depth: Host, values: Tensor, *, axis: int = -1) -> Tensor:
    count = int(number(depth))
    wrapped = _wrapped(index, count)
    hot = (wrapped.unsqueeze(-1) == torch.arange(count)).movedim(-1, axis)
    return torch.where(hot, values[1], values[0])


@rule("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(x: Tensor, index: Tensor) -> Tensor:
    taken = x.index_select(-1, index.reshape(-1))
    return taken.reshape(1, -1) if x.dim() == 1 else taken


@rule("Binarizer", domain="ai.onnx.ml")
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    return (x > threshold).to(x.dtype)


@rule("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    names = {
        "linear": "bilinear",
        "bilinear": "bilinear",
        "cubic": "bicubic",
        "bicubic": "bicubic",
        "nearest": "nearest",
    }
    return F.grid_sample(x, grid, names[mode], padding_mode, bool(align_corners))


@rule("AffineGrid")
def affine_grid(theta: Tensor, size: Host, *, align_corners: int = 0) -> Tensor:
    return F.affine_grid(theta, [int(s) for s in size], bool(align_corners))


@rule("NegativeLogLikelihoodLoss")
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Tensor:
    ignored = -100 if ignore_index is None else ignore_index
    return F.nll_loss(x, target.to(torch.int64), weight, ignore_index=ignored, reduction=reduction)


@rule("SoftmaxCrossEntropyLoss")
def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    outputs: int,
) -> Tensor | Sequence[Tensor]:
    log = torch.log_softmax(x, 1)
    loss = nll_loss(log, target, weight, ignore_index=ignore_index, reduction=reduction)
    return [loss, log] if outputs > 1 else loss
