"""Decompositions of operators whose result has a size that depends on data.

Each decomposition computes the size as a tensor and reads it by `Tensor.item`. The importer turns that into
`host.bind_size`. All other operators have shapes that are symbols. A decomposition returns NotImplemented for calls
whose sizes do not depend on data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeGuard

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..symbolic_shapes import depends_on_data

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def read_size(count: Tensor, most: Any = None) -> Any:
    """Returns the integer in a tensor as a size. `most`: its largest value.

    PyTorch allows up to 2 elements of a smaller mask, so that sizes of 0 and 1 are no special cases.
    """
    size = count.item()
    torch._check(size >= 0)
    if most is not None:
        torch._check(size <= (max(most, 2) if isinstance(most, int) else most))
    return size


def true_positions(mask: Tensor) -> Tensor:
    """Returns the positions of the true elements of a flat mask, in order.

    A scatter adds position p to row i of zeros, where i is the number of true elements before p. Positions of false
    elements add 0 to a row nearby. The additional last row makes every row legal if no element is true.
    """
    total = mask.shape[0]
    # The host waits for the size, so all operators that do not depend on it come first.
    row = (mask.cumsum(0) - 1).clamp(min=0)
    place = torch.where(mask, torch.arange(total, device=mask.device), 0)
    size = read_size(mask.sum(), total)
    rows = torch.zeros(size + 1, dtype=torch.int64, device=mask.device)
    return rows.index_add(0, row, place).narrow(0, 0, size)


def true_indices(mask: Tensor) -> list[Tensor]:
    """Returns the indices of the true elements of a mask along each dimension. A mask is read once."""
    indices = getattr(mask, _MEMO, None)
    if indices is None:
        place, shape, indices = true_positions(mask.reshape(-1)), mask.shape, list[Tensor]()
        for d, n in enumerate(shape):
            inner = prod(shape[d + 1 :])
            if isinstance(inner, int):
                row = place if inner == 1 else place // max(inner, 1)
            else:
                row = place // inner
            indices.append(row % (max(n, 1) if isinstance(n, int) else n) if d else row)
        setattr(mask, _MEMO, indices)
    return indices


_MEMO = "_deplodock_true_indices"
"""Attribute of a traced mask with the result of `true_indices`."""


def _as_mask(x: Tensor) -> Tensor:
    return x if x.dtype == torch.bool else x != 0


def _is_mask(index: Tensor | None) -> TypeGuard[Tensor]:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _nonzero(self: Tensor) -> Tensor:
    if not self.dim():
        return self.new_zeros((read_size(_as_mask(self).to(torch.int64), 1), 0), dtype=torch.int64)
    return torch.stack(true_indices(_as_mask(self)), 1)


def _masked_select(self: Tensor, mask: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(self.shape, mask.shape)
    return self.expand(shape).reshape(-1).index_select(0, true_positions(mask.expand(shape).reshape(-1)))


def _expanded(indices: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """Returns indices with each mask replaced by the indices of its true elements, or None without such a mask."""
    if not any(map(_is_mask, indices)) or any(_is_mask(i) and not i.dim() for i in indices):
        return None
    expanded: list[Tensor | None] = []
    for i in indices:
        expanded += true_indices(_as_mask(i)) if _is_mask(i) else [i]
    return expanded


def _index(self: Tensor, indices: Sequence[Tensor | None]) -> Any:
    expanded = _expanded(indices)
    return NotImplemented if expanded is None else aten.index.Tensor(self, expanded)


def _index_put(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    # A single mask needs no sizes: the torch level selects between old and new elements.
    expanded = None if len(indices) == 1 and all(isinstance(n, int) for n in self.shape) else _expanded(indices)
    return NotImplemented if expanded is None else aten.index_put.default(self, expanded, values, accumulate)


def _slice(self: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Returns a slice whose bounds, or whose dimension, depend on data. Bounds are clamped as in Python."""
    size, start = self.shape[dim], 0 if start is None else start
    if not any(map(depends_on_data, (start, end, size))):
        return NotImplemented
    if all(map(statically_known_true, (start >= 0, end is None or start <= end, end is None or end <= size))):
        return NotImplemented
    if isinstance(start, int) and (end is None or isinstance(end, int)):
        first, length = _numbered_rows(size, start, end, step)
    else:
        first, length = _computed_rows(size, start, end, step, self.device)
    if isinstance(start, int) and start == 0 and step == 1:
        return self.narrow(dim, 0, length)
    return self.index_select(dim, first + torch.arange(length, device=self.device) * step)


def _computed_rows(size: Any, start: Any, end: Any, step: int, device: torch.device) -> tuple[Tensor, Any]:
    """Returns the first row and the length of a slice with a bound from data. Its sign is known at run time only, so
    that the device computes the length, and the host reads it."""

    def bound(number: Any) -> Tensor:
        place = torch.full((), number, dtype=torch.int64, device=device)
        return torch.where(place < 0, place + size, place).clamp(min=0, max=size)

    first = bound(start)
    last = first.new_full((), size) if end is None else bound(end)
    rows = (last - first).clamp(min=0) if step == 1 else (last - first + (step - 1)).clamp(min=0) // step
    return first, read_size(rows, size)


def _numbered_rows(size: Any, start: int, end: int | None, step: int) -> tuple[Any, Any]:
    """Returns the first row and the length of a slice whose bounds are numbers. The host computes both of them from
    the size of the dimension, which depends on data."""

    def bound(number: int) -> Any:
        return torch.sym_min(number, size) if number >= 0 else torch.sym_max(size + number, 0)

    first, last = bound(start) if start else 0, size if end is None else bound(end)
    length = torch.sym_max(last - first, 0) if start or end is not None and end < 0 else last
    length = length if step == 1 else (length + (step - 1)) // step
    torch._check(length >= 0)
    torch._check(length <= size)
    return first, length


def _repeat_interleave(repeats: Tensor, *, output_size: Any = None) -> Tensor:
    """Returns i, `repeats[i]` times, for each i: the number of runs that end at or before each position."""
    ends = repeats.to(torch.int64).cumsum(0)
    torch._assert_async((repeats >= 0).all(), "repeat_interleave: a number of repeats is negative")
    size = read_size(repeats.sum())
    if output_size is not None:
        torch._check(size == output_size)
    begins = torch.zeros(size + 1, dtype=torch.int64, device=repeats.device)
    runs = begins.index_add(0, ends, torch.ones_like(ends)).cumsum(0).narrow(0, 0, size)
    return runs.to(repeats.dtype)


def _groups(changed: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the first positions of runs, the number of the run of each element, and the lengths of the runs.

    Args:
        changed: true for each element that begins a run.
        order: original position of each element, or None if the elements are in their order.
    """
    begins = true_positions(changed)
    number = changed.cumsum(0) - 1
    counts = number.new_zeros(begins.shape[0]).index_add(0, number, torch.ones_like(number))
    inverse = number if order is None else torch.zeros_like(number).scatter(0, order, number)
    return begins, inverse, counts


def _begins(rows: Tensor) -> Tensor:
    """Returns true for each row that differs from the row before it, and for the first row."""
    before = rows.roll(1, 0)
    differs = rows != before if rows.dim() == 1 else (rows != before).any(1)
    return differs | (torch.arange(rows.shape[0], device=rows.device) == 0)


def _unique(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    values, order = self.reshape(-1).sort(stable=True)
    begins, inverse, counts = _groups(_begins(values), order)
    return values.index_select(0, begins), inverse.reshape(self.shape), counts


def _unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    rows = self.reshape(-1) if dim is None else self.movedim(dim, 0).flatten(1)
    begins, inverse, counts = _groups(_begins(rows), None)
    if dim is None:
        return rows.index_select(0, begins), inverse.reshape(self.shape), counts
    return self.index_select(dim, begins), inverse, counts


def _unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorts the slices along a dimension in lexicographic order, by one stable sort for each element of a slice."""
    rows = self.movedim(dim, 0).flatten(1)
    order = torch.arange(rows.shape[0], device=self.device)
    for column in reversed(rows.unbind(1)):
        order = order.index_select(0, column.index_select(0, order).argsort(stable=True))
    begins, inverse, counts = _groups(_begins(rows.index_select(0, order)), order)
    return self.index_select(dim, order.index_select(0, begins)), inverse, counts


def _bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    number = self.to(torch.int64)
    torch._assert_async((number >= 0).all(), "bincount: a number is negative")
    largest = torch.cat([number, number.new_full((1,), minlength - 1)]).amax()
    values = torch.ones_like(number) if weights is None else weights
    if weights is not None and weights.dtype != torch.float32:
        values = values.to(torch.float64)
    return values.new_zeros(read_size(largest + 1)).index_add(0, number, values)


def _of_elements(self: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Adds a check that an extreme is taken of at least one element, as in eager PyTorch."""
    dims = range(self.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    for n in (self.shape[d] for d in dims if self.dim()):
        if depends_on_data(n):
            torch._check(n >= 1)
    return NotImplemented


_EXTREMES = "max.default min.default max.dim min.dim amax.default amin.default argmax.default argmin.default"

DATA_SIZES: dict[str, Callable[..., Any]] = {
    "nonzero.default": _nonzero,
    "masked_select.default": _masked_select,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "slice.Tensor": _slice,
    "repeat_interleave.Tensor": _repeat_interleave,
    "_unique2.default": _unique,
    "unique_consecutive.default": _unique_consecutive,
    "unique_dim.default": _unique_dim,
    "bincount.default": _bincount,
    **dict.fromkeys(_EXTREMES.split(), _of_elements),
}
