"""Decompositions of two families of operators, derived from schemas and from functions of PyTorch.

- `_foreach_*`: operators on lists of tensors, which optimizers use.
- `torch.ops.prims`: primitive operators, which remain in graphs of Dynamo and of PyTorch's own decompositions. PyTorch
  defines each by a function of ATen operators, `impl_aten`, which is the decomposition here. Exceptions are the
  operators in `_BY_NAME`: their functions write to new memory, or use arguments that ATen does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._prims

from ....dialects.torch import SCHEMAS

Tensor = torch.Tensor
Tensors = list[Tensor]
prims: Any = torch.ops.prims
aten: Any = torch.ops.aten


_ELEMENT: dict[str, Callable[..., Tensor]] = {
    "addcdiv": lambda x, first, second, value=1: torch.addcdiv(x, first, second, value=value),
    "addcmul": lambda x, first, second, value=1: torch.addcmul(x, first, second, value=value),
    "copy": aten.copy,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "powsum": lambda x, ord=2, dtype=None: x.to(dtype or x.dtype).abs().pow(ord).sum(),
    "zero": torch.zeros_like,
}
"""Function of one tensor for `_foreach_NAME`, if it is not `torch.NAME`."""


def _foreach(operator: Any) -> Callable[..., Tensors]:
    """Returns the decomposition of a `_foreach_` overload, which follows from its schema.

    The function of one tensor takes an element of every list; all other arguments are the same for every element.
    """
    arguments = operator._schema.arguments
    named = {a.name for a in arguments if a.kwarg_only}
    name = operator._schema.name.removeprefix("aten::_foreach_")
    function = _ELEMENT[name] if name in _ELEMENT else getattr(torch, name)

    def decomposition(*args: Any, **kwargs: Any) -> Tensors:
        values = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        split = {n for n, v in values.items() if isinstance(v, list | tuple)}
        count = next(len(v) for v in values.values() if isinstance(v, list | tuple))
        calls = [{n: v[i] if n in split else v for n, v in values.items()} for i in range(count)]
        return [
            function(*(v for n, v in c.items() if n not in named), **{n: v for n, v in c.items() if n in named})
            for c in calls
        ]

    return decomposition


def lists() -> dict[Any, Callable[..., Any]]:
    """Returns the decomposition of every functional `_foreach_` overload."""
    names = [n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::_foreach_")]
    packets = {getattr(aten, n.partition(".")[0]) for n in names}
    operators = [getattr(packet, o) for packet in packets for o in packet.overloads()]
    functional = [o for o in operators if not o._schema.is_mutable and o._schema.returns]
    return {operator: _foreach(operator) for operator in functional}


def _copy_strided(a: Tensor, stride: Sequence[int]) -> Tensor:
    order = sorted(range(a.dim()), key=lambda d: (-stride[d], d))
    copy = a.permute(order).clone(memory_format=torch.contiguous_format)
    return copy.permute([order.index(d) for d in range(a.dim())])


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the decomposition of a primitive reduction over `dims`, whose result has the type `output_dtype`."""

    def reduced(
        inp: Tensor, dims: Sequence[int] | None, *others: Any, output_dtype: torch.dtype | None = None
    ) -> Tensor:
        result = function(inp, list(range(inp.dim())) if dims is None else list(dims), *others)
        return result if output_dtype is None else result.to(output_dtype)

    return reduced


def _prod(inp: Tensor, dims: Sequence[int]) -> Tensor:
    for d in sorted(dims, reverse=True):
        inp = torch.prod(inp, d, dtype=inp.dtype)
    return inp


_BY_NAME: dict[str, Callable[..., Any]] = {
    "convert_element_type": lambda a, dtype: aten._to_copy(a, dtype=dtype),
    "collapse": lambda a, start, end: a.flatten(start, end).clone(),
    "copy_strided": _copy_strided,
    "amax": _reduction(torch.amax),
    "amin": _reduction(torch.amin),
    "prod": _reduction(_prod),
    "sum": _reduction(lambda inp, dims: torch.sum(inp, dims, dtype=inp.dtype)),
    "var": _reduction(lambda inp, dims, correction=1: torch.var(inp, dims, correction=correction)),
}
"""Decomposition by the name of the primitive operator, where `impl_aten` is not usable."""


def primitives() -> dict[Any, Callable[..., Any]]:
    """Returns the decomposition of every primitive operator that is functional, deterministic, and not supported as it
    is."""
    names = [n.removeprefix("prims::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("prims::")]
    operators = {n: getattr(prims, n).default for n in names if "." not in n and f"prims.{n}" not in SCHEMAS}
    decompositions = {o: _BY_NAME.get(n, getattr(o, "impl_aten", None)) for n, o in operators.items()}
    return {
        operator: function
        for operator, function in decompositions.items()
        if function is not None
        and torch.Tag.nondeterministic_seeded not in operator.tags
        and not operator._schema.is_mutable
    }
