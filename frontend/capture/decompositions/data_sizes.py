"""Decompositions of operators whose result has a size that depends on data.

Each decomposition computes the size as a tensor and reads it by `Tensor.item`. The importer turns that into
`host.bind_size`. All other operators have shapes that are symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from .ordering import _searchsorted  # noqa: F401

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def read_size(count: Tensor, most: Any = None) -> Any:
    """Returns the integer in a tensor as a size. `most`: its largest value."""
    size = count.item()
    torch._check(size >= 0)
    if most is not None:
        torch._check(size <= most)
    return size


def true_positions(mask: Tensor) -> Tensor:
    """Returns the positions of the true elements of a flat mask, in order.

    Element i of the result is the position p with i true elements before it. A scatter adds each such p to row i of
    zeros. Positions that are not selected add 0 to a row nearby.
    """
    total = mask.shape[0]
    number = mask.cumsum(0)
    size = read_size(mask.sum(), total)
    rows = torch.zeros(size + 1, dtype=torch.int64, device=mask.device)
    place = torch.where(mask, torch.arange(total, device=mask.device), 0)
    return rows.index_add(0, (number - 1).clamp(min=0), place).narrow(0, 0, size)


def _columns(mask: Tensor) -> list[Tensor]:
    """Returns the indices of the true elements of a mask along each dimension. Equal masks share them."""
    columns = getattr(mask, "_deplodock_columns", None)
    if columns is None:
        shape = mask.shape
        place = true_positions(mask.reshape(-1))
        columns = [place // prod(shape[d + 1 :]) % n if d else place // prod(shape[1:]) for d, n in enumerate(shape)]
        mask._deplodock_columns = columns
    return columns


def _nonzero(self: Tensor) -> Tensor:
    mask = self if self.dtype == torch.bool else self != 0
    if not self.dim():
        return mask.reshape(1).new_empty((read_size(mask.to(torch.int64), 1), 0), dtype=torch.int64)
    return torch.stack(_columns(mask), 1)


def _masked_select(self: Tensor, mask: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(self.shape, mask.shape)
    return self.expand(shape).reshape(-1).index_select(0, true_positions(mask.expand(shape).reshape(-1)))


def _index(self: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Indexes with masks as with the indices of their true elements."""
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return NotImplemented
    expanded: list[Tensor | None] = []
    for i in indices:
        if i is None or i.dtype not in (torch.bool, torch.uint8):
            expanded.append(i)
        elif not i.dim():
            return NotImplemented
        else:
            expanded += _columns(i if i.dtype == torch.bool else i != 0)
    return aten.index.Tensor(self, expanded)


DATA_SIZES: dict[str, Callable[..., Any]] = {
    "nonzero.default": _nonzero,
    "masked_select.default": _masked_select,
    "index.Tensor": _index,
}
