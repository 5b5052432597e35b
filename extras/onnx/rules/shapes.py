"""Operators that move, select or repeat elements: views, slices, padding; and arithmetic on sizes.

The second half has functions of host values (`values.py`): arrays of sizes that are computed on the host while a model
is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import Host, host_rule, refuse, rule
from ..values import DTYPES, LARGEST_KNOWN, HostArray, axis_of, dtype_of, number, numbers, sizes_of, to_tensor


@rule("Shape")
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Any:
    return _sizes(x.shape[start:end])


@rule("Size")
def size(x: Tensor) -> Any:
    return _sizes([prod(x.shape)]).reshape(())


def _sizes(sizes: Sequence[Any]) -> HostArray:
    """Returns sizes as a host value, of type `object` if one is symbolic."""
    plain = all(isinstance(s, int) for s in sizes)
    array = np.empty(len(sizes), dtype=np.int64 if plain else object)
    array[:] = [*sizes]
    return array


@rule("Reshape")
def reshape(x: Tensor, shape: Host, *, allowzero: int = 0) -> Tensor:
    sizes = sizes_of(shape)
    if not allowzero:
        sizes = [x.shape[n] if isinstance(s, int) and s == 0 else s for n, s in enumerate(sizes)]
    return x.reshape(sizes)


@rule("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    first = x.dim() if axis == x.dim() else axis_of(axis, x.dim())
    return x.reshape(prod(x.shape[:first]), prod(x.shape[first:]))


@rule("Squeeze")
def squeeze(x: Tensor, axes: Host | None = None) -> Tensor:
    dims = [d for d, s in enumerate(x.shape) if s == 1] if axes is None else [int(a) for a in numbers(axes)]
    return x.squeeze(dims)


@rule("Unsqueeze")
def unsqueeze(x: Tensor, axes: Host) -> Tensor:
    rank = x.dim() + len(sizes_of(axes))
    for axis in sorted(axis_of(a, rank) for a in numbers(axes)):
        x = x.unsqueeze(axis)
    return x


@rule("Transpose")
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute([*reversed(range(x.dim()))] if perm is None else [*perm])


@rule("Expand")
def expand(x: Tensor, shape: Host) -> Tensor:
    return x.expand(
        torch.broadcast_shapes(x.shape, torch.Size(sizes_of(shape)) if shape.dtype != object else sizes_of(shape))
    )


@rule("Tile")
def tile(x: Tensor, repeats: Host) -> Tensor:
    return x.repeat(sizes_of(repeats))


@rule("Concat")
def concat(*tensors: Tensor, axis: int) -> Tensor:
    return torch.cat(tensors, axis)


@rule("Split")
def split(x: Tensor, sizes: Host | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int) -> Any:
    if sizes is not None:
        return [*torch.split(x, numbers(sizes), axis)]
    count = outputs if num_outputs is None else num_outputs
    if count != outputs:
        refuse(f"expected {outputs} for num_outputs, the number of results, but got {count}")
    extent = x.shape[axis]
    return [*torch.split(x, -(-extent // count), axis)] if extent % count else [*torch.chunk(x, count, axis)]


@rule("Slice")
def slice_(x: Tensor, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None) -> Tensor:
    first, last = numbers(starts), numbers(ends)
    dims = range(len(first)) if axes is None else [axis_of(a, x.dim()) for a in numbers(axes)]
    strides = [1] * len(first) if steps is None else numbers(steps)
    for begin, end, dim, step in zip(first, last, dims, strides, strict=True):
        if step > 0:
            x = x[(slice(None),) * dim + (slice(begin, end, step),)]
            continue
        extent = x.shape[dim]
        begin = min(begin + extent if begin < 0 else begin, extent - 1)
        end = max(end + extent, -1) if end < 0 else end
        low, count = end + 1, begin - end
        x = x.narrow(dim, low, max(count, 0)).flip(dim)[(slice(None),) * dim + (slice(None, None, -step),)]
    return x


@rule("Pad")
def pad(
    x: Tensor, pads: Host, value: Tensor | None = None, axes: Host | None = None, *, mode: str = "constant"
) -> Tensor:
    dims = range(x.dim()) if axes is None else [axis_of(a, x.dim()) for a in numbers(axes)]
    amounts = numbers(pads)
    by_dim = dict(zip(dims, zip(amounts[: len(dims)], amounts[len(dims) :], strict=True), strict=True))
    if mode == "constant":
        flat = [a for d in reversed(range(x.dim())) for a in by_dim.get(d, (0, 0))]
        if value is None:
            return F.pad(x, flat)
        # A fill that is a tensor: elements are selected by a padded mask.
        inside = F.pad(torch.ones_like(x, dtype=torch.bool), flat)
        return torch.where(inside, F.pad(x, flat), value.reshape(()))
    for dim, (before, after) in by_dim.items():
        x = x.index_select(dim, _padded_indices(x.shape[dim], before, after, mode))
    return x


def _padded_indices(extent: int, before: int, after: int, mode: str) -> Tensor:
    """Returns the indices that a dimension is read at when it is padded."""
    low = -min(before, 0)
    index = torch.arange(max(-before, 0) - max(before, 0), extent + after)
    if mode == "edge":
        return index.clamp(0, extent - 1)
    if mode == "wrap":
        return torch.remainder(index - low, extent + min(before, 0) + min(after, 0)) + low
    if mode == "reflect":
        period = max(2 * (extent - 1), 1)
        return (torch.remainder(index, period) - (extent - 1)).abs().neg() + (extent - 1)
    return refuse(f"expected the mode constant, edge, reflect or wrap, but got {mode}")


@rule("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    b, (n, c, h, w) = blocksize, x.shape
    if mode == "DCR":
        y = x.reshape(n, b, b, c // b // b, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // b // b, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // b // b, h * b, w * b)


@rule("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    b, (n, c, h, w) = blocksize, x.shape
    y = x.reshape(n, c, h // b, b, w // b, b)
    y = y.permute(0, 3, 5, 1, 2, 4) if mode == "DCR" else y.permute(0, 1, 3, 5, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


@rule("Trilu")
def trilu(x: Tensor, k: Host | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(number(k))
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


@rule("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = x.shape
    on = torch.arange(columns) - torch.arange(rows).unsqueeze(1) == k
    return on.to(x.dtype if dtype is None else dtype_of(dtype))


@rule("ConstantOfShape")
def constant_of_shape(shape: Host, *, value: HostArray | None = None) -> Tensor:
    fill = to_tensor(np.zeros(1, np.float32) if value is None else value)
    return torch.full(sizes_of(shape), fill.item(), dtype=fill.dtype)


@rule("Range")
def arange(start: Host, limit: Host, delta: Host) -> Tensor:
    first, last, step = number(start), number(limit), number(delta)
    dtype = torch.int64 if start.dtype == object else to_tensor(start).dtype
    return torch.arange(first, last, step, dtype=dtype)


@rule("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    steps = torch.arange(x.shape[time_axis])
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    last = lengths.unsqueeze(1) - 1
    index = torch.where(steps <= last, last - steps, steps)
    index = index.reshape(*index.shape, *[1] * (x.dim() - 2)).expand(moved.shape)
    return moved.gather(1, index).movedim((0, 1), (batch_axis, time_axis))


@rule("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Host, *, axes: Sequence[int] | None = None) -> Tensor:
    dims = range(x.dim()) if axes is None else [axis_of(a, x.dim()) for a in axes]
    for dim, size_after in zip(dims, numbers(shape), strict=True):
        extent = x.shape[dim]
        if size_after < extent:
            x = x.narrow(dim, (extent - size_after) // 2, size_after)
        elif size_after > extent:
            before = (size_after - extent) // 2
            flat = [0, 0] * (x.dim() - 1 - dim) + [before, size_after - extent - before]
            x = F.pad(x, flat)
    return x


def _integers(*arrays: HostArray) -> bool:
    """Returns true if all elements are integers or symbolic sizes."""
    return all(a.dtype == object or a.dtype.kind in "iub" for a in arrays)


@host_rule("Shape")
def host_shape(x: HostArray, *, start: int = 0, end: int | None = None) -> Any:
    return np.array(x.shape[start:end], dtype=np.int64)


@host_rule("Size")
def host_size(x: HostArray) -> Any:
    return np.array(x.size, dtype=np.int64)


def _binary(function: Any) -> Any:
    def compute(x: HostArray, y: HostArray) -> Any:
        return np.asarray(function(x, y)) if _integers(x, y) and x.size <= LARGEST_KNOWN >= y.size else NotImplemented

    return compute


def _truncated(x: HostArray, y: HostArray) -> HostArray:
    """Returns quotients of whole numbers, rounded to zero. For sizes this is a floor division."""
    if object in (x.dtype, y.dtype):
        return x // y
    if not y.all():
        refuse("a size is divided by zero")
    return (np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))).astype(x.dtype)


for _name, _function in {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _truncated,
    "Max": np.maximum,
    "Min": np.minimum,
}.items():
    host_rule(_name)(_binary(_function))


@host_rule("Concat")
def host_concat(*arrays: HostArray, axis: int) -> Any:
    if not _integers(*arrays) or sum(a.size for a in arrays) > LARGEST_KNOWN:
        return NotImplemented
    return np.concatenate(arrays, axis)


@host_rule("Gather")
def host_gather(x: HostArray, index: HostArray, *, axis: int = 0) -> Any:
    if not _integers(x) or x.size > LARGEST_KNOWN:
        return NotImplemented
    return np.asarray(np.take(x, index.astype(np.int64), axis))


@host_rule("Slice")
def host_slice(
    x: HostArray, starts: HostArray, ends: HostArray, axes: HostArray | None = None, steps: HostArray | None = None
) -> Any:
    if not _integers(x) or x.size > LARGEST_KNOWN:
        return NotImplemented
    dims = range(starts.size) if axes is None else [axis_of(a, x.ndim) for a in axes]
    index = [slice(None)] * x.ndim
    strides = [1] * starts.size if steps is None else steps.tolist()
    for begin, end, dim, step in zip(starts.tolist(), ends.tolist(), dims, strides, strict=True):
        index[dim] = slice(begin, None if step < 0 and end < -x.shape[dim] else end, step)
    return x[tuple(index)]


@host_rule("Squeeze")
def host_squeeze(x: HostArray, axes: HostArray | None = None) -> Any:
    return np.squeeze(x, None if axes is None else tuple(int(a) for a in axes))


@host_rule("Unsqueeze")
def host_unsqueeze(x: HostArray, axes: HostArray) -> Any:
    return np.expand_dims(x, tuple(int(a) for a in axes))


@host_rule("Reshape")
def host_reshape(x: HostArray, shape: HostArray, *, allowzero: int = 0) -> Any:
    return x.reshape([int(s) for s in shape]) if 0 not in shape and shape.dtype != object else NotImplemented


@host_rule("Cast")
def host_cast(x: HostArray, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    dtype = DTYPES.get(to)
    if x.dtype == object:
        return x if dtype in (torch.int64, torch.int32) else NotImplemented
    return (
        x.astype(str(dtype).removeprefix("torch."))
        if dtype in (torch.int64, torch.int32) and _integers(x)
        else NotImplemented
    )


@host_rule("Expand")
def host_expand(x: HostArray, shape: HostArray) -> Any:
    try:
        sizes = np.broadcast_shapes(x.shape, tuple(numbers(shape)))
    except (TypeError, ValueError):  # symbolic sizes, or sizes that do not fit
        return NotImplemented
    return np.broadcast_to(x, sizes).copy() if prod(sizes) <= LARGEST_KNOWN else NotImplemented


@host_rule("Tile")
def host_tile(x: HostArray, repeats: HostArray) -> Any:
    counts = numbers(repeats)
    small = repeats.dtype != object and x.size * prod(counts) <= LARGEST_KNOWN and len(counts) == x.ndim
    return np.tile(x, counts) if small and min(counts, default=0) >= 0 else NotImplemented


@host_rule("ConstantOfShape")
def host_constant_of_shape(shape: HostArray, *, value: HostArray | None = None) -> Any:
    sizes = numbers(shape)
    if shape.dtype == object or min(sizes, default=0) < 0 or prod(sizes) > LARGEST_KNOWN:
        return NotImplemented
    return np.full(sizes, 0 if value is None else value.reshape(-1)[0], np.float32 if value is None else value.dtype)


@host_rule("Range")
def host_range(start: HostArray, limit: HostArray, delta: HostArray) -> Any:
    if not all(a.dtype.kind in "iu" for a in (start, limit, delta)) or not number(delta):
        return NotImplemented
    values = range(number(start), number(limit), number(delta))
    return np.array(values, dtype=start.dtype) if len(values) <= LARGEST_KNOWN else NotImplemented


@host_rule("Identity")
def host_identity(x: HostArray) -> Any:
    return x


@host_rule("ReduceProd")
def host_product(
    x: HostArray, axes: HostArray | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Any:
    if not _integers(x) or x.ndim != 1:
        return NotImplemented
    result = np.asarray(prod([*x]) if x.dtype == object else np.prod(x), dtype=x.dtype)
    return result.reshape(1) if keepdims else result
