"""Changes in place through views that PyTorch cannot invert: `unfold`, `expand` and `as_strided`.

Functionalization rewrites a change of a view as a new base tensor. The inverse of the view computes that base: the
tensor whose view has the changed elements. Some inverses are wrong or missing:

- `unfold` and `expand`: the inverse sums all elements with one address. The sum is wrong if several indices share an
  address.
- `as_strided`: there is an inverse only if the view is taken directly from the base.

So the mode `AddressedViews` traces such a change as a change of a copy, then writes the elements of the copy into the
base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch._ops import HigherOrderOperator
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
"""Views that functionalization cannot invert in all cases."""

_OF_STRIDES = {aten.view.default, aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default}
"""Views that are possible only for some strides.

An operator that changes such a view may return other strides than the view has. The inverse then fails.
"""

_UNIFORM = {"fill_", "zero_"}
"""Operators that write one value to all elements. Repeated writes to one address do not matter."""

_MAX_ADDRESSES = 1 << 20
"""Largest number of elements of a view whose addresses are enumerated."""


def addressed_views(module: GraphModule) -> AbstractContextManager[object]:
    """Returns the mode for functionalization of a graph; it does nothing for a graph without changes in place."""
    mutable = (getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in module.graph.nodes)
    return AddressedViews() if any(mutable) else nullcontext()


@dataclass
class _View:
    """View of a tensor, as the mode has seen it.

    Attributes:
        tensor: the view. The mode finds it by its identity, so this reference keeps it alive.
        base: tensor whose memory it is.
        steps: operators from the base to the view, each with a function that applies it.
    """

    tensor: Tensor
    base: Tensor
    steps: tuple[tuple[Any, Callable[[Tensor], Any]], ...]


class AddressedViews(TorchDispatchMode):
    """Mode in which a change in place through a view without an inverse changes exactly the memory of the view.

    Raises UnsupportedError for a change of elements that several indices of a view share, because its result depends on
    the order of the writes.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[int, _View] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls `func`. A change of a view without an inverse is made in the base of the view."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
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
        origin = self._views.get(id(source)) or _View(source, source, ())
        several = isinstance(result, tuple | list)
        for i, tensor in enumerate(result if several else [result]):
            if isinstance(tensor, FunctionalTensor) and tensor is not origin.base:
                step = (func, (lambda x, i=i: call(x)[i]) if several else call)
                self._views[id(tensor)] = _View(tensor, origin.base, (*origin.steps, step))


def _call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], source: Tensor) -> Any:
    return func(source, *args, **kwargs)


def _traced(tensor: Tensor) -> Tensor:
    """Returns the plain tensor that a tensor of functionalization wraps, with all changes applied.

    Raises UnsupportedError if its strides differ from those in eager PyTorch: addresses would then mean other elements.
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
    """Changes a copy of a view, and writes the copy into the base."""
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
    """Returns true if the tensor is contiguous and not empty. Operators do not agree on the strides of empty
    results."""
    return tensor.is_contiguous() and all(isinstance(n, torch.SymInt) or n for n in tensor.shape)


def _through_copy(func: Any, args: Any, kwargs: Any, tensor: Tensor, write: Callable[[Tensor], object]) -> Any:
    """Calls an operator that changes a tensor, on a copy of that tensor.

    Args:
        func: the operator.
        args, kwargs: its arguments.
        tensor: the argument that it changes.
        write: called with the changed copy; writes it back.

    Returns:
        The result of the operator, with `tensor` in place of the copy.
    """
    with torch._C._AutoDispatchBelowAutograd():
        copied = aten.clone.default(tensor, memory_format=torch.contiguous_format)
        result = func(*(copied if a is tensor else a for a in args), **kwargs)
        write(copied)
    return pytree.tree_map_only(Tensor, lambda t: tensor if t is copied else t, result)


def _written(view: _View, elements: Tensor) -> Tensor:
    """Returns the base of a view with the view's elements replaced by `elements`."""
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
    # `as_strided_scatter` numbers the elements of the base without gaps, so an address must be less than their number.
    if last >= base.numel():
        raise UnsupportedError("a change in place through as_strided of a tensor with gaps is not supported")
    return aten.as_strided_scatter.default(base, elements, view.tensor.shape, view.tensor.stride(), offset)


def _place_by_index(view: _View) -> tuple[Any, Any, Any] | None:
    """Returns size, strides and offset of a view, counted in elements of its contiguous base.

    Returns None if the view depends on the base's strides.
    """
    place = torch.empty(view.base.shape, dtype=view.base.dtype, device="meta")
    try:
        for target, step in view.steps:
            if target is aten.as_strided.default:
                return None
            place = step(place)
    # The base is contiguous here, and the view needs the actual strides.
    except RuntimeError:
        return None
    return place.shape, place.stride(), place.storage_offset()


def _as_type(flat: Tensor, dtype: torch.dtype) -> Tensor:
    """Reinterprets the memory of a one-dimensional tensor as elements of another data type."""
    if flat.is_complex() and not dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    if not flat.is_complex() and dtype.is_complex:
        return torch.view_as_complex(flat.view(dtype.to_real()).reshape(-1, 2))
    return flat if flat.dtype == dtype else flat.view(dtype)


def _overlaps(shape: Iterable[Any], stride: Iterable[Any]) -> bool:
    """Returns true if several elements of a view may have one address."""
    runs = sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1)
    reach, disjoint = 0, True
    for step, extent in runs:
        disjoint = disjoint and step > reach
        reach += step * (extent - 1)
    count = prod(n for _, n in runs)
    if disjoint or count == 0 or count > _MAX_ADDRESSES:
        return not disjoint and count > 0
    addresses = {0}
    for step, extent in runs:
        addresses = {a + i * step for a in addresses for i in range(extent)}
    return len(addresses) < count


class Memory:
    """Memory of a tensor, from its first element to its last one, as a one-dimensional tensor.

    Args:
        shape: extents of the tensor.
        stride: strides of the tensor, in elements.

    Raises:
        UnsupportedError: different elements have one address.
    """

    def __init__(self, shape: Sequence[int], stride: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self._repeated = [d for d, (n, s) in enumerate(zip(shape, stride, strict=True)) if n > 1 and s == 0]
        alone = {d for d, n in enumerate(shape) if n == 1 or d in self._repeated}
        inner = sorted((d for d in range(len(shape)) if d not in alone), key=lambda d: stride[d])
        self._order = [*alone, *reversed(inner)]
        # (extent, stride, length) by dimension, innermost first. The length is the memory of the inner dimensions, in
        # elements; a larger stride leaves a gap after them.
        self._runs: list[tuple[int, int, int]] = []
        length = 1
        for d in inner:
            if stride[d] < length:
                raise UnsupportedError("the elements of the tensor overlap in memory; use a contiguous copy of it")
            self._runs.append((shape[d], stride[d], length))
            length = shape[d] * stride[d]
        self._length = length

    def flat(self, x: Tensor) -> Tensor:
        """Returns the memory of `x` as one dimension, with zeros in gaps between elements."""
        for d in self._repeated:
            x = aten.slice(x, d, 0, 1)
        x = x.permute(self._order).reshape([*(n for n, _, _ in reversed(self._runs)), 1])
        for _, stride, length in self._runs:
            x = aten.constant_pad_nd(x, (0, stride - length)) if stride > length else x
            x = x.reshape([*x.shape[:-2], x.shape[-2] * stride])
        return x

    def written(self, x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], start: int) -> Tensor:
        """Returns the tensor `x` after `source` was written to a view of its memory.

        Args:
            x: the tensor.
            source: elements of the view.
            size: extents of the view.
            stride: strides of the view, in elements.
            start: address of the view's first element, relative to the first element of `x`.
        """
        y = torch.as_strided_scatter(self.flat(x), source, size, stride, start)
        for extent, stride_of_element, length in reversed(self._runs):
            y = y.reshape([*y.shape[:-1], extent, stride_of_element])
            y = aten.slice(y, -1, 0, length) if stride_of_element > length else y
        y = y.reshape([self._shape[d] for d in self._order])
        return y.permute([self._order.index(d) for d in range(len(self._order))])

    def check(self, size: Sequence[int], stride: Sequence[int], start: int, written: bool) -> None:
        """Checks that the tensor has an element at each address of a view.

        Args:
            size: extents of the view.
            stride: strides of the view, in elements.
            start: address of the view's first element, relative to the first element of the tensor.
            written: whether the view is written. Then no two elements of the tensor may have one address.

        Raises:
            UnsupportedError: the check fails.
        """
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
