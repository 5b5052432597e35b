"""Changes in place through views of which PyTorch's functionalization does not know the inverse.

Functionalization writes a change of a view as the inverse of the view: a new base that holds the changed elements. For
`unfold` and `expand` it takes the sum of the elements with one index, into zeros; `as_strided` has an inverse only
directly on a base. Such a change is traced here as one of a copy, whose elements are then written into the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)

from ...errors import UnsupportedError

Tensor = torch.Tensor

aten: Any = torch.ops.aten

_WITHOUT_INVERSE = {aten.unfold.default, aten.expand.default, aten.as_strided.default}

_OF_STRIDES = {aten.view.default, aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default}
"""Operators whose inverse needs certain strides, which the results of some operators do not have."""

_UNIFORM = {"fill_", "zero_"}
"""Operators that write one value to all elements, so that it does not matter how often an element is written."""

_MAX_ADDRESSES = 1 << 20
"""Elements of a view up to which its addresses are compared one by one."""


def addressed_views(module: GraphModule) -> AbstractContextManager[object]:
    """Returns the mode to functionalize a graph of ATen operators in, which is none for a graph without changes."""
    mutable = (getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in module.graph.nodes)
    return AddressedViews() if any(mutable) else nullcontext()


@dataclass
class _View:
    """A view, the tensor whose memory it has, and the operators that make the view of that tensor.

    `tensor` keeps the view alive, by whose identity it is known.
    """

    tensor: Tensor
    base: Tensor
    steps: tuple[tuple[Any, Callable[[Tensor], Any]], ...]


class AddressedViews(TorchDispatchMode):
    """While active, changes in place through views without an inverse reach all memory of the view, and no other.

    Raises UnsupportedError for a change of elements that several indices of a view share, whose result depends on the
    order of the writes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[int, _View] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls `func`; a change of a view without an inverse is made in the base of the view."""
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.is_write and (view := self._views.get(id(value))) and view.steps:
                    targets = {target for target, _ in view.steps}
                    if targets & _WITHOUT_INVERSE:
                        return _changed(func, args, kwargs, view)
                    if targets & _OF_STRIDES and func is not aten.copy_.default and not _is_in_order(value):
                        return _through_copy(func, args, kwargs, value, partial(aten.copy_.default, value))
        if func is aten.as_strided.default:
            _traced(args[0])
        result = func(*args, **kwargs)
        if func.is_view and isinstance(args[0], FunctionalTensor):
            self._note(partial(_call, func, args[1:], kwargs), func, args[0], result)
        return result

    def _note(self, call: Callable[[Tensor], Any], func: Any, source: Tensor, result: Any) -> None:
        known = self._views.get(id(source)) or _View(source, source, ())
        several = isinstance(result, tuple | list)
        for i, tensor in enumerate(result if several else [result]):
            if isinstance(tensor, FunctionalTensor) and tensor is not known.base:
                step = (func, (lambda x, i=i: call(x)[i]) if several else call)
                self._views[id(tensor)] = _View(tensor, known.base, (*known.steps, step))


def _call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], source: Tensor) -> Any:
    return func(source, *args, **kwargs)


def _traced(tensor: Tensor) -> Tensor:
    """Returns the value that functionalization has for a tensor now.

    Raises UnsupportedError if it has other strides than eager PyTorch's, by which memory is addressed.
    """
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    torch._sync(tensor)  # pyright: ignore[reportPrivateImportUsage]
    value = torch._from_functional_tensor(tensor.elem)  # pyright: ignore[reportPrivateImportUsage]
    if value.stride() != tensor.stride():
        reason = "addresses memory of a tensor with gaps that was changed in place; change a contiguous copy of it"
        raise UnsupportedError(reason, operator="aten.as_strided")
    return value


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], view: _View) -> Any:
    """Changes a copy of a view, and writes its elements into the base."""
    tensor, base = view.tensor, view.base
    if func._schema.name.removeprefix("aten::") not in _UNIFORM and _overlaps(tensor.shape, tensor.stride()):
        reason = (
            "changes elements in place that several indices of a view share, in an order that PyTorch does not define"
        )
        raise UnsupportedError(f"{reason}; change the tensor itself, or a copy of the view", operator=str(func))
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError("a change in place of a conjugated view is not supported", operator=str(func))
    return _through_copy(func, args, kwargs, tensor, lambda copied: aten.copy_.default(base, _written(view, copied)))


def _is_in_order(tensor: Tensor) -> bool:
    """Returns true if any operator gives its result the strides of this tensor. Strides of empty ones vary."""
    return tensor.is_contiguous() and all(isinstance(n, torch.SymInt) or n for n in tensor.shape)


def _through_copy(func: Any, args: Any, kwargs: Any, tensor: Tensor, write: Callable[[Tensor], object]) -> Any:
    """Calls `func` with a copy of an argument that it changes, and `write` with the copy after the change."""
    with torch._C._AutoDispatchBelowAutograd():
        copied = aten.clone.default(tensor, memory_format=torch.contiguous_format)
        result = func(*(copied if a is tensor else a for a in args), **kwargs)
        write(copied)
    return pytree.tree_map_only(Tensor, lambda t: tensor if t is copied else t, result)


def _written(view: _View, elements: Tensor) -> Tensor:
    """Returns the base of a view with these elements in the place of those of the view."""
    base, dtype = view.base, view.tensor.dtype
    place = _place_by_index(view)
    if place is not None:
        flat = _as_type(base.reshape(-1), dtype)
        return _as_type(aten.as_strided_scatter.default(flat, elements, *place), base.dtype).reshape(base.shape)
    if dtype != base.dtype:
        reason = "a change in place of a view of another data type, whose elements follow from strides,"
        raise UnsupportedError(f"{reason} is not supported")
    offset = int(view.tensor.storage_offset() - base.storage_offset())
    memory = Memory(base.shape, base.stride())
    memory.check(view.tensor.shape, view.tensor.stride(), offset, written=True)
    offset += int(_traced(base).storage_offset())
    last = offset + sum((n - 1) * s for n, s in zip(view.tensor.shape, view.tensor.stride(), strict=True))
    if last >= base.numel():  # PyTorch takes the elements of a tensor for its memory
        raise UnsupportedError("a change in place through as_strided of a tensor with gaps is not supported")
    return aten.as_strided_scatter.default(base, elements, view.tensor.shape, view.tensor.stride(), offset)


def _place_by_index(view: _View) -> tuple[Any, Any, Any] | None:
    """Returns size, strides and offset of a view among the elements of its base in their order; None if they follow
    from the strides of the base only."""
    place = torch.empty(view.base.shape, dtype=view.base.dtype, device="meta")
    try:
        for target, step in view.steps:
            if target is aten.as_strided.default:
                return None
            place = step(place)
    except RuntimeError:  # a view that only these strides of the base permit
        return None
    return place.shape, place.stride(), place.storage_offset()


def _as_type(flat: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the memory of a tensor of one dimension as elements of another type."""
    if flat.is_complex() and not dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    if not flat.is_complex() and dtype.is_complex:
        return torch.view_as_complex(flat.view(dtype.to_real()).reshape(-1, 2))
    return flat if flat.dtype == dtype else flat.view(dtype)


def _overlaps(shape: Iterable[Any], stride: Iterable[Any]) -> bool:
    """Returns true if several elements of a view may have one address."""
    runs = sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1)
    reach, apart = 0, True
    for step, extent in runs:
        apart = apart and step > reach
        reach += step * (extent - 1)
    count = prod(n for _, n in runs)
    if apart or count == 0 or count > _MAX_ADDRESSES:
        return not apart and count > 0
    addresses = {0}
    for step, extent in runs:
        addresses = {a + i * step for a in addresses for i in range(extent)}
    return len(addresses) < count


class Memory:
    """The memory between the first and the last element of a tensor.

    Args:
        shape: Extents of the tensor.
        stride: Strides of the tensor, in elements.

    Raises:
        UnsupportedError: Different elements have one address.
    """

    def __init__(self, shape: Sequence[int], stride: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self._repeated = [d for d, (n, s) in enumerate(zip(shape, stride, strict=True)) if n > 1 and s == 0]
        alone = {d for d, n in enumerate(shape) if n == 1 or d in self._repeated}
        inner = sorted((d for d in range(len(shape)) if d not in alone), key=lambda d: stride[d])
        self._order = [*alone, *reversed(inner)]
        self._runs: list[tuple[int, int, int]] = []  # extent, stride and length of an element, innermost first
        length = 1
        for d in inner:
            if stride[d] < length:
                raise UnsupportedError("the elements of the tensor overlap in memory; use a contiguous copy of it")
            self._runs.append((shape[d], stride[d], length))
            length = shape[d] * stride[d]
        self._length = length

    def flat(self, x: Tensor) -> Tensor:
        """Returns this memory of the tensor `x` as one dimension, with zeros in its gaps."""
        for d in self._repeated:
            x = aten.slice(x, d, 0, 1)
        x = x.permute(self._order).reshape([*(n for n, _, _ in reversed(self._runs)), 1])
        for _, stride, length in self._runs:
            x = aten.constant_pad_nd(x, (0, stride - length)) if stride > length else x
            x = x.reshape([*x.shape[:-2], x.shape[-2] * stride])
        return x

    def written(self, x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], start: int) -> Tensor:
        """Returns the tensor `x` after `source` was written to the addresses of a view of this memory.

        Args:
            x: The tensor.
            source: Elements of the view.
            size: Extents of the view.
            stride: Strides of the view, in elements.
            start: Address of the first element of the view, from the first one of `x`.
        """
        y = torch.as_strided_scatter(self.flat(x), source, size, stride, start)
        for extent, stride_of_element, length in reversed(self._runs):
            y = y.reshape([*y.shape[:-1], extent, stride_of_element])
            y = aten.slice(y, -1, 0, length) if stride_of_element > length else y
        y = y.reshape([self._shape[d] for d in self._order])
        return y.permute([self._order.index(d) for d in range(len(self._order))])

    def check(self, size: Sequence[int], stride: Sequence[int], start: int, written: bool) -> None:
        """Raises UnsupportedError unless the tensor has an element at each address of a view."""
        if 0 in size:
            return
        last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        inside = 0 not in self._shape and 0 <= start <= last < self._length
        if inside and any(s > length for _, s, length in self._runs):
            with _disable_current_modes():
                mask = self.flat(torch.ones(self._shape, dtype=torch.bool))
                inside = bool(mask.as_strided(size, stride, start).all())
        if not inside:
            raise UnsupportedError(
                "addresses memory outside of the elements of its tensor",
                kind="mutation-and-aliasing",
                remedy="apply as_strided to the tensor that has all elements",
            )
        if written and self._repeated:
            raise UnsupportedError("writes to a tensor of which several elements have one address; use a copy of it")
