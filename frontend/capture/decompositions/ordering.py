"""Operators that order, search, count and group elements, made of sorts, scans and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, prod
from typing import Any

import torch
import torch._refs  # which completes PyTorch's table
from torch._decomp import decomposition_table

from ....errors import ShapeError, UnsupportedError
from .operators import along, operator_named, wide

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


def _at(x: Tensor, dim: int, number: Tensor, keepdim: bool) -> Pair:
    """The elements numbered `number`, of size 1 along `dim`, of the sorted order along `dim`, and their places."""
    value, place = (v.gather(dim, number) for v in x.sort(dim=dim, stable=True))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    if not self.dim():
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    known = isinstance(self.shape[dim], int)  # of a size that varies, all are sorted
    found = self.topk(k, dim, largest=False) if known and k > 0 else self.sort(dim=dim, stable=True)
    values, places = (v.narrow(dim, k - 1, 1) for v in found)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median_along(ignores_nan: bool) -> Callable[..., Pair]:
    """The lower median: of the elements that are not NaN, or the first NaN if there is one."""

    def median(self: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
        extent = self.shape[dim] if self.dim() else 1
        if not extent:
            raise ShapeError("no median over an empty dimension", argument="dim")
        if not self.is_floating_point() or not self.dim():
            return _kthvalue(self, (extent - 1) // 2 + 1, dim, keepdim)
        count = (~self.isnan()).sum(dim, keepdim=True)  # NaNs are sorted behind all others
        if ignores_nan:
            return _at(self, dim, (count - 1).clamp(min=0) // 2, keepdim)
        return _at(self, dim, torch.where(count < extent, count, (extent - 1) // 2), keepdim)

    return median


def _median_of_all(ignores_nan: bool) -> Callable[[Tensor], Tensor]:
    def median(self: Tensor) -> Tensor:
        if self.numel():
            return _median_along(ignores_nan)(self.reshape(-1), 0)[0]
        if not self.is_floating_point():
            raise ShapeError("no median of no integers", argument="self")
        return self.new_full((), nan)

    return median


def _mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    """The most frequent value along `dim` (of equally frequent ones the smallest) and the last place it has: the end of
    the first of the longest runs of equal values in sorted order."""
    if not self.dim():
        return _kthvalue(self, 1, dim, keepdim)
    if not self.shape[dim]:
        raise ShapeError("no mode over an empty dimension", argument="dim")
    values, _ = self.sort(dim=dim, stable=True)
    number = along(torch.arange(self.shape[dim]), dim % self.dim(), self.dim()).expand_as(self)
    begins = torch.where(values != values.roll(1, dim), number, 0).cummax(dim).values
    return _at(self, dim, (number - begins).argmax(dim, keepdim=True), keepdim)


def _histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    x = self.reshape(-1)
    x = wide(x) if x.is_floating_point() else x
    low, high = x.new_full((), min), x.new_full((), max)
    if min == max and x.numel():
        low, high = x.amin(), x.amax()
    flat = low == high
    low, high = torch.where(flat, low - 1, low), torch.where(flat, high + 1, high)
    place = (x - low) * bins
    number = (place / (high - low) if x.is_floating_point() else place // (high - low)).to(torch.int64)
    number = torch.where((x >= low) & (x <= high), number.clamp(max=bins - 1), bins)
    return torch.zeros(bins + 1, dtype=torch.int64).index_add(0, number, torch.ones_like(number))[:bins].to(self.dtype)


def _nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Where the first `size` elements that are not zero stand, in order; `fill_value` where there are fewer."""
    shape, count = self.shape, self.numel()
    if not shape or not size or not count:
        return self.new_full((size, len(shape)), fill_value, dtype=torch.int64)
    there = self.reshape(-1) != 0
    number = torch.where(there, there.cumsum(0) - 1, size).clamp(max=size)
    place = torch.full((size + 1,), count).scatter(0, number, torch.arange(count))[:size]
    at = [place // prod(shape[d + 1 :]) % n for d, n in enumerate(shape)]
    return torch.where(place[:, None] < count, torch.stack(at, -1), fill_value)


MOST_PAIRS = 1 << 37
"""About a tenth of a second of a large GPU. What would take longer needs another algorithm."""


def _searchsorted(
    sorted_sequence: Tensor,
    self: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many elements of the last dimension come before each value, or are equal to it if `right`."""
    edges = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    x = self if isinstance(self, Tensor) else edges.new_full((), self)
    size = edges.shape[-1]
    pairs = x.numel() * size
    if isinstance(pairs, int) and pairs > MOST_PAIRS:
        reason = f"too large: looks at {pairs} pairs of elements, more than {MOST_PAIRS}"
        raise UnsupportedError(reason, operator="aten.searchsorted", argument="self")
    each = edges.unsqueeze(-2) if edges.dim() > 1 else edges
    before = each <= x.unsqueeze(-1) if right or side == "right" else each < x.unsqueeze(-1)
    count = before.sum(-1, dtype=torch.int64)
    if edges.is_floating_point() and not (isinstance(size, int) and size == 0):
        last = _last_number(edges)
        count = torch.where((count > (last.unsqueeze(-1) if edges.dim() > 1 else last)) | x.isnan(), size, count)
    return count.to(torch.int32) if out_int32 else count


def _last_number(edges: Tensor) -> Tensor:
    """Returns the last place, of those that a search to the end looks at, whose element is a number; -1 if none is.

    PyTorch bisects (ATen/native/cpu/Bucketization.cpp) and goes to the right of a NaN. NaNs are at the end, so a search
    that meets one goes on to the end. Before that it went to the right only: it looked at the first of the places
    size - (size + 1) // 2^k. So a value ends there if more elements come before it than this function returns.
    """
    size = edges.shape[-1]
    steps = (size + 1).bit_length() - 1 if isinstance(size, int) else 62
    behind = (torch.zeros(steps, dtype=torch.int64) + (size + 1)) >> torch.arange(1, steps + 1)
    place = torch.where(behind > 0, size - behind, 0)
    return torch.where((behind > 0) & ~edges[..., place].isnan(), place, -1).amax(-1)


def _bucketize(self: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searchsorted(boundaries, self, out_int32=out_int32, right=right)


def _triangle_indices(name: str) -> Callable[..., Tensor]:
    """PyTorch's decomposition, which divides by the number of columns."""

    def indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, **where: Any) -> Tensor:
        if not row * col:
            return torch.zeros((2, 0), dtype=dtype)
        return decomposition_table[operator_named(name)](row, col, offset, dtype=dtype, **where)

    return indices


# Histograms over edges of bins (ATen/native/cpu/HistogramKernel.cpp of PyTorch 2.13): an element belongs to the bin
# that begins at the last edge that is not greater, on the last edge to the last bin. Elements outside of the edges, and
# NaN, are not counted.


def _edges(x: Tensor, bins: int, low: float | None, high: float | None) -> Tensor:
    """The edges of `bins` equal bins between two numbers, or between the least and the greatest element."""
    if x.numel() == 0:
        low, high = (0.0, 1.0) if low is None else (low, high)
    first, last = (x.amin(), x.amax()) if low is None else (x.new_full((), low), x.new_full((), high))
    flat = first == last
    first, last = torch.where(flat, first - 0.5, first), torch.where(flat, last + 0.5, last)
    step, number = (last - first) / bins, torch.arange(bins + 1, device=x.device)
    return torch.where(number < (bins + 1) // 2, first + step * number, last - step * (bins - number))


def _ranges(bins: Sequence[int], range: Sequence[float] | None) -> list[tuple[float | None, float | None]]:
    """The least and the last edge in each dimension, as far as the caller says them."""
    ends = list(range or [None] * (2 * len(bins)))
    return list(zip(ends[::2], ends[1::2], strict=True))


def _counted(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """The histogram of the rows of `x`, of which each column has its own edges."""
    counts = [e.shape[0] - 1 for e in edges]
    place, inside = torch.zeros_like(x[:, 0], dtype=torch.int64), torch.ones_like(x[:, 0], dtype=torch.bool)
    for d, (column, ends) in enumerate(zip(x.unbind(1), edges, strict=True)):
        number = torch.searchsorted(ends.contiguous(), column.contiguous(), right=True) - 1
        place = place * counts[d] + number.clamp(0, counts[d] - 1)
        inside = inside & (column >= ends[0]) & (column <= ends[-1])
    values = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1)
    total = torch.zeros(prod(counts), dtype=x.dtype, device=x.device)
    found = total.index_add(0, place, torch.where(inside, values, 0)).reshape(counts)
    if density:
        found = found / found.sum()
        for d, ends in enumerate(edges):
            found = found / ends.diff().reshape([-1 if e == d else 1 for e, _ in enumerate(edges)])
    return found


def _checked(x: Tensor, edges: Sequence[Tensor]) -> None:
    if any(e.dim() != 1 for e in edges):
        raise UnsupportedError("the edges of bins have one dimension", argument="bins")
    if not x.is_floating_point():
        raise UnsupportedError("PyTorch has histograms of floats only", argument="self")


def _histogram(
    self: Tensor,
    bins: int | Tensor = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    edges = bins if isinstance(bins, Tensor) else _edges(self, bins, *_ranges([bins], range)[0])
    _checked(self, [edges])
    return _counted(self.reshape(-1, 1), [edges], weight, density), edges.clone()


def _bin_edges(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    columns = self.reshape(-1, len(bins)).unbind(1)
    return [_edges(c, n, *ends) for c, n, ends in zip(columns, bins, _ranges(bins, range), strict=True)]


def _of_counts(self: Tensor, bins: Sequence[int], *, density: bool = False, weight: Any = None, **how: Any) -> Tensor:
    return _of_edges(self, _bin_edges(self, bins, **how), weight=weight, density=density)


def _of_edges(self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False) -> Tensor:
    _checked(self, bins)
    return _counted(self.reshape(-1, len(bins)), bins, weight, density)


ORDERING: dict[str, Callable[..., Any]] = {
    "kthvalue.default": _kthvalue,
    "median.default": _median_of_all(False),
    "median.dim": _median_along(False),
    "nanmedian.default": _median_of_all(True),
    "nanmedian.dim": _median_along(True),
    "mode.default": _mode,
    "histc.default": _histc,
    "nonzero_static.default": _nonzero_static,
    "searchsorted.Tensor": _searchsorted,
    "searchsorted.Scalar": _searchsorted,
    "bucketize.Tensor": _bucketize,
    "bucketize.Scalar": _bucketize,
    "tril_indices.default": _triangle_indices("tril_indices.default"),
    "triu_indices.default": _triangle_indices("triu_indices.default"),
    "histogram.bin_ct": _histogram,
    "histogram.bins_tensor": _histogram,
    "_histogramdd_bin_edges.default": _bin_edges,
    "_histogramdd_from_bin_cts.default": _of_counts,
    "_histogramdd_from_bin_tensors.default": _of_edges,
}
