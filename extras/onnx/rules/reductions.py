"""Reductions, scans and orders along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..registry import Host, rule
from ..values import axis_of, number, numbers


def _axes(x: Tensor, axes: Host | Sequence[int] | None) -> list[int]:
    chosen = [*range(x.dim())] if axes is None or not len(axes) else [int(a) for a in axes]
    return sorted(axis_of(a, max(x.dim(), 1)) for a in chosen)


def _none(x: Tensor, axes: list[int]) -> bool:
    return any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in axes)


def _largest(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype == torch.bool:
        return torch.any(x.to(torch.int32), axes, keep)
    return _of_none(x, axes, keep, -1) if _none(x, axes) else torch.amax(x, axes, keep)


def _smallest(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype == torch.bool:
        return ~torch.any(~x, axes, keep)
    return _of_none(x, axes, keep, 1) if _none(x, axes) else torch.amin(x, axes, keep)


def _of_none(x: Tensor, axes: list[int], keep: bool, sign: int) -> Tensor:
    """Returns the largest (`sign` is -1) or smallest of no elements: an end of the type's range, or an infinity."""
    limits = None if x.is_floating_point() else torch.iinfo(x.dtype)
    fill = sign * float("inf") if limits is None else limits.min if sign < 0 else limits.max
    return torch.full_like(x.sum(axes, keep).to(x.dtype), fill)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keep)
    return x


REDUCTIONS = {
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: (x * x).sum(axes, keep).sqrt(),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keep),
    "ReduceMax": _largest,
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep) if x.is_floating_point() else _integer_mean(x, axes, keep),
    "ReduceMin": _smallest,
    "ReduceProd": _product,
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keep),
}


def _integer_mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return torch.div(x.sum(axes, keep), count, rounding_mode="trunc")


def _reduced(x: Tensor, axes: Host | Sequence[int] | None, keepdims: int, noop_with_empty_axes: int, op: str) -> Tensor:
    if (axes is None or not len(axes)) and noop_with_empty_axes:
        pointwise = op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "ReduceLogSumExp")
        return REDUCTIONS[op](x.unsqueeze(0), [0], False).to(x.dtype) if pointwise else torch.clone(x)
    if x.dim() == 0:
        return REDUCTIONS[op](x.reshape(1), [0], False).to(x.dtype)
    return REDUCTIONS[op](x, _axes(x, axes), bool(keepdims)).to(x.dtype)


@rule(*REDUCTIONS)
def reduction(
    x: Tensor,
    axes: Host | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    op: str,
    axes_: Sequence[int] | None = None,
) -> Tensor:
    # The axes are an input, or an attribute in operator sets before 18.
    return _reduced(x, axes_ if axes is None else axes, keepdims, noop_with_empty_axes, op)


@rule("ArgMax", "ArgMin")
def arg_extreme(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, op: str) -> Tensor:
    find = torch.argmax if op == "ArgMax" else torch.argmin
    if select_last_index:
        return x.shape[axis] - 1 - find(x.flip(axis), axis, bool(keepdims))
    return find(x, axis, bool(keepdims))


@rule("CumSum", "CumProd")
def cumulate(x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0, op: str) -> Tensor:
    dim = axis_of(number(axis), x.dim())
    y = x.flip(dim) if reverse else x
    if exclusive:
        start = torch.full_like(y.narrow(dim, 0, 1), 0 if op == "CumSum" else 1)
        y = torch.cat([start, y.narrow(dim, 0, y.shape[dim] - 1)], dim)
    y = (torch.cumsum if op == "CumSum" else torch.cumprod)(y, dim).to(x.dtype)
    return y.flip(dim) if reverse else y


@rule("TopK")
def top_k(x: Tensor, k: Host, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Tensor]:
    # The sort is stable, because equal values are ordered by their indices.
    values, indices = torch.sort(x, stable=True, dim=axis, descending=bool(largest))
    count = int(number(k))
    return [values.narrow(axis, 0, count), indices.narrow(axis, 0, count)]


@rule("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    norm = x.abs().sum(axis, True) if p == 1 else (x * x).sum(axis, True).sqrt()
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


@rule("Compress")
def compress(x: Tensor, condition: Host, *, axis: int | None = None) -> Tensor:
    positions = [n for n, c in enumerate(numbers(condition)) if c]
    index = torch.tensor(positions, dtype=torch.int64)
    return x.reshape(-1).index_select(0, index) if axis is None else x.index_select(axis, index)


@rule("NonZero")
def non_zero(x: Host) -> Any:
    return np.array(np.nonzero(x), dtype=np.int64)


@rule("Det")
def det(x: Tensor) -> Tensor:
    return torch.linalg.det(x)


@rule("Unique")
def unique(x: Host, *, axis: int | None = None, sorted: int = 1, outputs: int) -> Any:
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    if not sorted:
        order = np.argsort(first)
        rank = np.argsort(order)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse.reshape(-1)]
    results = [values, *(a.reshape(-1).astype(np.int64) for a in (first, inverse, counts))]
    return results[:outputs] if outputs > 1 else results[0]
