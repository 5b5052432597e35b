"""Decompositions of operators on lists of tensors, `_foreach_*`, of which optimizers are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
Tensors = list[Tensor]
aten: Any = torch.ops.aten


def _norm(x: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _powsum(x: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return x.to(dtype or x.dtype).abs().pow(ord).sum()


def _addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return torch.addcdiv(x, tensor1, tensor2, value=value)


def _addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    return torch.addcmul(x, tensor1, tensor2, value=value)


_ELEMENT: dict[str, Callable[..., Tensor]] = {
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "copy": aten.copy,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": _norm,
    "powsum": _powsum,
    "zero": torch.zeros_like,
}
"""Function of one tensor for `_foreach_NAME`, where it is not `torch.NAME`."""


def _foreach(operator: Any) -> Callable[..., Tensors]:
    """Returns the decomposition of a `_foreach_` overload, which follows from its schema.

    The function of one tensor takes an element of every list; all other arguments are the same for every element.
    """
    arguments = operator._schema.arguments
    named = {a.name for a in arguments if a.kwarg_only}
    name = operator._schema.name.removeprefix("aten::_foreach_")
    function = _ELEMENT[name] if name in _ELEMENT else getattr(torch, name)

    def made(*args: Any, **kwargs: Any) -> Tensors:
        values = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        split = {n for n, v in values.items() if isinstance(v, list | tuple)}
        count = next(len(v) for v in values.values() if isinstance(v, list | tuple))
        calls = [{n: v[i] if n in split else v for n, v in values.items()} for i in range(count)]
        return [
            function(*(v for n, v in c.items() if n not in named), **{n: v for n, v in c.items() if n in named})
            for c in calls
        ]

    return made


def lists() -> dict[Any, Callable[..., Any]]:
    """Returns the decomposition of every functional `_foreach_` overload."""
    names = [n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::_foreach_")]
    packets = {getattr(aten, n.partition(".")[0]) for n in names}
    operators = [getattr(packet, o) for packet in packets for o in packet.overloads()]
    functional = [o for o in operators if not o._schema.is_mutable and o._schema.returns]
    return {operator: _foreach(operator) for operator in functional}
