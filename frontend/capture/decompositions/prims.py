"""Decompositions of PyTorch's primitive operators (`torch.ops.prims`), which its own decompositions and Dynamo leave in
graphs.

PyTorch defines every primitive operator by a function of ATen operators, `impl_aten`. That function is the
decomposition, except for operators of `_BY_NAME`: theirs write to new memory or take arguments that ATen does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._prims

from ....dialects.torch import SCHEMAS

Tensor = torch.Tensor
prims: Any = torch.ops.prims
aten: Any = torch.ops.aten


def _copy_strided(a: Tensor, stride: Sequence[int]) -> Tensor:
    """Returns a copy whose dimensions are in memory in the order of `stride`."""
    order = sorted(range(a.dim()), key=lambda d: (-stride[d], d))
    copy = a.permute(order).clone(memory_format=torch.contiguous_format)
    return copy.permute([order.index(d) for d in range(a.dim())])


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the decomposition of a primitive reduction over `dims`, whose result has the type `output_dtype`."""

    def reduced(inp: Tensor, dims: Sequence[int] | None, *rest: Any, output_dtype: torch.dtype | None = None) -> Tensor:
        result = function(inp, list(range(inp.dim())) if dims is None else list(dims), *rest)
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


def primitives() -> dict[Any, Callable[..., Any]]:
    """Returns the decomposition of every primitive operator that is functional and deterministic, and not of ours."""
    names = [n.removeprefix("prims::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("prims::")]
    operators = {n: getattr(prims, n).default for n in names if "." not in n and f"prims.{n}" not in SCHEMAS}
    made = {o: _BY_NAME.get(n, getattr(o, "impl_aten", None)) for n, o in operators.items()}
    return {
        operator: function
        for operator, function in made.items()
        if function is not None
        and torch.Tag.nondeterministic_seeded not in operator.tags
        and not operator._schema.is_mutable
    }
