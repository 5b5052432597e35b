"""Histograms over edges of bins: `histogram` and `histogramdd`.

ATen/native/cpu/HistogramKernel.cpp of PyTorch 2.13: an element belongs to the bin that begins at the last edge that is
not greater, on the last edge to the last bin. Elements outside of the edges, and NaN, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from ....errors import UnsupportedError

Tensor = torch.Tensor


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


HISTOGRAMS: dict[str, Callable[..., Any]] = {
    "histogram.bin_ct": _histogram,
    "histogram.bins_tensor": _histogram,
    "_histogramdd_bin_edges.default": _bin_edges,
    "_histogramdd_from_bin_cts.default": _of_counts,
    "_histogramdd_from_bin_tensors.default": _of_edges,
}
