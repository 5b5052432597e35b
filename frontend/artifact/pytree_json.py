"""Python values as JSON: numbers, strings, None, and what a captured program says of tensors, in tuples, lists, sets
and dictionaries; nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_list

from ...dialects.shapes.extents import SymbolAttr
from ...errors import CompileError
from ..capture.aliasing import A_COPY, Place, Step
from ..capture.captured_program import Output
from ..capture.dtypes import dtype_name, dtype_named
from ..capture.eager_fallback import COMPLEX, Operand

_CLASSES: dict[str, Any] = {c.__name__: c for c in (Operand, Output, Place, Step)}
"""Dataclasses, which are written with their fields in order."""


def encode(value: Any) -> object:
    """`value` as JSON that `decode` reads back, a tensor without what is in it. Raises CompileError for a value of
    another type."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (tuple, list, immutable_list, frozenset):
        name = "list" if kind is immutable_list else kind.__name__
        return {name: [encode(v) for v in (sorted(value) if kind is frozenset else value)]}
    if kind is dict:
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    if kind in _CLASSES.values():
        return {kind.__name__: [encode(getattr(value, f.name)) for f in fields(value)]}
    if isinstance(value, torch.Tensor):
        return {"tensor": [dtype_name(value.dtype), list(value.shape)]}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch._ops.OpOverload):
        return {"operator": str(value).removeprefix("aten.")}
    if isinstance(value, SymbolAttr):
        return {"size": [value.hint, value.lower.data, value.upper.data]}
    raise CompileError(f"a value of type {kind.__name__} cannot be saved")


def decode(value: Any) -> Any:
    """The value that was encoded. Raises ValueError for JSON that `encode` does not write."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, items),) = value.items()
        if kind in _CLASSES:
            return _CLASSES[kind](*map(decode, items))
        if kind in _KINDS:
            return _KINDS[kind](items)
    raise ValueError("a value that is not understood")


def _dtype(name: str) -> torch.dtype:
    """A data type of the caller's, complex ones included."""
    return {dtype_name(d): d for d in COMPLEX}.get(name) or dtype_named(name)


def _operator(name: str) -> torch._ops.OpOverload:
    """An operator of ATen that makes a view, or a copy."""
    base, _, overload = str(name).partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload) or found._schema.is_mutable:
        raise ValueError("a view that is not understood")
    if found is not A_COPY.operator and not any(a.alias_info for a in found._schema.arguments):
        raise ValueError("a view that is not understood")
    return found


_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda items: tuple(map(decode, items)),
    "list": lambda items: [*map(decode, items)],
    "frozenset": lambda items: frozenset(map(decode, items)),
    "dict": lambda pairs: {decode(k): decode(v) for k, v in pairs},
    "dtype": _dtype,
    "tensor": lambda tensor: torch.empty(tensor[1], dtype=_dtype(tensor[0]), device="meta"),
    "operator": _operator,
    "size": lambda size: SymbolAttr.get(str(size[0]), int(size[1]), int(size[2]) - 1),
}
