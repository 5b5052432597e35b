"""Decompositions of operators that sort, search, count or group elements, into sorts, scans and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, prod
from typing import Any

import torch
import torch._refs  # adds entries to PyTorch's table
from torch._decomp import decomposition_table

from ....errors import ShapeError, UnsupportedError
from .operators import along, operator_named, wide

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


def _at(x: Tensor, dim: int, number: Tensor, keepdim: bool) -> Pair:
    """Returns the elements with sorted position `number` along `dim`, and their indices.

    `number` has size 1 along `dim`.
    """
    value, place = (v.gather(dim, number) for v in x.sort(dim=dim, stable=True))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    if not self.dim():
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    # A dimension of a symbolic size is sorted as a whole.
    is_fixed = isinstance(self.shape[dim], int)
    smallest = self.topk(k, dim, largest=False) if is_fixed and k > 0 else self.sort(dim=dim, stable=True)
    values, places = (v.narrow(dim, k - 1, 1) for v in smallest)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median_along(ignores_nan: bool) -> Callable[..., Pair]:
    """Returns the function for the lower median along a dimension, of all elements or of all except NaNs.

    Unless `ignores_nan`, the median of elements with a NaN is NaN.
    """

    def median(self: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
        extent = self.shape[dim] if self.dim() else 1
        if not extent:
            raise ShapeError("no median over an empty dimension", argument="dim")
        if not self.is_floating_point() or not self.dim():
            return _kthvalue(self, (extent - 1) // 2 + 1, dim, keepdim)
        # NaNs are sorted after all numbers.
        count = (~self.isnan()).sum(dim, keepdim=True)
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
    """Returns the most frequent value along `dim`, and the last index of that value. Of equally frequent values, the
    smallest.

    Equal values form a run in the sorted values. The result is the last element of the first longest run.
    """
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
    """Returns the indices of the first `size` nonzero elements in order, padded with `fill_value`."""
    shape, count = self.shape, self.numel()
    if not shape or not size or not count:
        return self.new_full((size, len(shape)), fill_value, dtype=torch.int64)
    nonzero = self.reshape(-1) != 0
    number = torch.where(nonzero, nonzero.cumsum(0) - 1, size).clamp(max=size)
    place = torch.full((size + 1,), count).scatter(0, number, torch.arange(count))[:size]
    at = [place // prod(shape[d + 1 :]) % n for d, n in enumerate(shape)]
    return torch.where(place[:, None] < count, torch.stack(at, -1), fill_value)


MOST_PAIRS = 1 << 37
"""Largest number of comparisons of a search: about 0.1 seconds on a large GPU. Larger searches are refused."""


def _searchsorted(
    sorted_sequence: Tensor,
    self: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Returns, for each value, the number of sorted elements that are less, or also equal if `right`."""
    edges = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    x = self if isinstance(self, Tensor) else edges.new_full((), self)
    size = edges.shape[-1]
    pairs = x.numel() * size
    if isinstance(pairs, int) and pairs > MOST_PAIRS:
        reason = f"too large: looks at {pairs} pairs of elements, more than {MOST_PAIRS}"
        raise UnsupportedError(reason, operator="aten.searchsorted", argument="self")
    aligned = edges.unsqueeze(-2) if edges.dim() > 1 else edges
    before = aligned <= x.unsqueeze(-1) if right or side == "right" else aligned < x.unsqueeze(-1)
    count = before.sum(-1, dtype=torch.int64)
    if edges.is_floating_point() and not (isinstance(size, int) and size == 0):
        last = _last_number(edges)
        count = torch.where((count > (last.unsqueeze(-1) if edges.dim() > 1 else last)) | x.isnan(), size, count)
    return count.to(torch.int32) if out_int32 else count


def _last_number(edges: Tensor) -> Tensor:
    """Returns the last position without NaN that a binary search visits if it always goes right, or -1.

    The caller needs it to find values for which PyTorch's search (ATen/native/cpu/Bucketization.cpp) ends at `size`:

    - The search goes right at a NaN. NaNs are sorted to the end, so a search that meets a NaN ends at `size`.
    - A search that always goes right visits the positions size - (size + 1) // 2^k.
    - So a search ends at `size` if more elements precede its value than the number that this function returns.
    """
    size = edges.shape[-1]
    steps = (size + 1).bit_length() - 1 if isinstance(size, int) else 62
    behind = (torch.zeros(steps, dtype=torch.int64) + (size + 1)) >> torch.arange(1, steps + 1)
    place = torch.where(behind > 0, size - behind, 0)
    return torch.where((behind > 0) & ~edges[..., place].isnan(), place, -1).amax(-1)


def _bucketize(self: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searchsorted(boundaries, self, out_int32=out_int32, right=right)


def _triangle_indices(name: str) -> Callable[..., Tensor]:
    """Returns PyTorch's decomposition, without its division by zero for an empty matrix."""

    def indices(row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, **where: Any) -> Tensor:
        if not row * col:
            return torch.zeros((2, 0), dtype=dtype)
        return decomposition_table[operator_named(name)](row, col, offset, dtype=dtype, **where)

    return indices


# Histograms (ATen/native/cpu/HistogramKernel.cpp of PyTorch 2.13): an element belongs to the bin that begins at the
# last edge that is not greater. An element on the last edge belongs to the last bin. Elements outside of the edges,
# and NaN, are not counted.


def _edges(x: Tensor, bins: int, low: float | None, high: float | None) -> Tensor:
    """Returns the edges of `bins` equal bins between two numbers, or between the least and the greatest element."""
    if x.numel() == 0:
        low, high = (0.0, 1.0) if low is None else (low, high)
    first, last = (x.amin(), x.amax()) if low is None else (x.new_full((), low), x.new_full((), high))
    flat = first == last
    first, last = torch.where(flat, first - 0.5, first), torch.where(flat, last + 0.5, last)
    step, number = (last - first) / bins, torch.arange(bins + 1, device=x.device)
    return torch.where(number < (bins + 1) // 2, first + step * number, last - step * (bins - number))


def _ranges(bins: Sequence[int], range: Sequence[float] | None) -> list[tuple[float | None, float | None]]:
    """Returns the first and the last edge in each dimension, or (None, None) if the caller specifies no range."""
    ends = list(range or [None] * (2 * len(bins)))
    return list(zip(ends[::2], ends[1::2], strict=True))


def _histogram_of_rows(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Returns the histogram of the rows of `x`. `edges` has the edges of the bins for each column."""
    counts = [e.shape[0] - 1 for e in edges]
    place, inside = torch.zeros_like(x[:, 0], dtype=torch.int64), torch.ones_like(x[:, 0], dtype=torch.bool)
    for d, (column, ends) in enumerate(zip(x.unbind(1), edges, strict=True)):
        number = torch.searchsorted(ends.contiguous(), column.contiguous(), right=True) - 1
        place = place * counts[d] + number.clamp(0, counts[d] - 1)
        inside = inside & (column >= ends[0]) & (column <= ends[-1])
    values = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1)
    total = torch.zeros(prod(counts), dtype=x.dtype, device=x.device)
    histogram = total.index_add(0, place, torch.where(inside, values, 0)).reshape(counts)
    if density:
        histogram = histogram / histogram.sum()
        for d, ends in enumerate(edges):
            histogram = histogram / ends.diff().reshape([-1 if e == d else 1 for e, _ in enumerate(edges)])
    return histogram


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
    return _histogram_of_rows(self.reshape(-1, 1), [edges], weight, density), edges.clone()


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
    return _histogram_of_rows(self.reshape(-1, len(bins)), bins, weight, density)


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
