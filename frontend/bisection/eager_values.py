"""The operators that PyTorch executes for the user's function, with their values and places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.source_locations import users_place

ROUNDINGS = 32
"""Number of roundings by which two values may differ and count as one."""


@dataclass(frozen=True)
class EagerValue:
    """Operator that the user's function called, with its result; the first one if it has several.

    Attributes:
        operator: the operator: `aten.gelu.default`.
        location: `file:line` where the user's code calls the operator, or None.
        value: copy of the result.
    """

    operator: str
    location: str | None
    value: torch.Tensor


_COMPARED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)


class _Recorder(TorchDispatchMode):
    """Records the first result of each operator, except views: a program may address their source instead."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[EagerValue] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        tensor = next((t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)), None)
        if tensor is not None and not func.is_view and tensor.dtype in _COMPARED:
            self.values.append(EagerValue(str(func), users_place(), tensor.detach().clone()))
        return results


def record(call: Callable[[], Any]) -> list[EagerValue]:
    """Returns the values of the operators that PyTorch executes during a call without gradients, in order."""
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        call()
    return recorder.values


def first_missing(eager: Iterable[EagerValue], captured: Iterable[torch.Tensor]) -> EagerValue | None:
    """Returns the first operator of the user's function whose result the captured program does not compute.

    A result counts as computed if a value of the captured program has the same elements up to rounding and the shape.

    Args:
        eager: results of the user's operators, in order.
        captured: all values of the captured program, in any order.

    Returns:
        the operator with its result, or None if all results are computed.
    """
    values = [*captured]
    return next((e for e in eager if not any(_equal(e.value, v) for v in values)), None)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns true if two tensors have the same elements in the same order, up to the shape and rounding."""
    if a.numel() != b.numel() or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a.flatten(), b.flatten())
    x, y = a.flatten().double(), b.flatten().double()
    permitted = ROUNDINGS * torch.finfo(a.dtype).eps
    largest = float(y.nan_to_num(0, 0, 0).abs().max()) if y.numel() else 0.0
    return torch.allclose(x, y, rtol=permitted, atol=permitted * largest, equal_nan=True)
