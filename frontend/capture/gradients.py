"""What autograd learns of a program that was compiled without its gradients: that they are missing.

In eager PyTorch a result requires a gradient where a parameter does. Here it does, too, but to ask for the gradient is
an error: were it a plain tensor, whatever is trained through it would silently not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ExecutionError


class _Missing(torch.autograd.Function):
    """The identity, in place, on the first of its arguments, as if it depended on the others."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ExecutionError(
            "a program of deplodock.compile has no gradients; call it under torch.no_grad(), or train with "
            'torch.compile(module, backend="deplodock")'
        )


def without_gradient(value: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """`value`, which a program computed, as a result that depends on those of `others` that require gradients."""
    requiring = [t for t in others if t.requires_grad]
    if not requiring or not (value.is_floating_point() or value.is_complex()):
        return value
    if value._base is not None:  # of which autograd would not know
        memory = value.untyped_storage()
        place = value.storage_offset(), value.shape, value.stride()
        value = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory, *place)
    return _Missing.apply(value, *requiring)  # pyright: ignore[reportReturnType]


def changed_without_gradient(target: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
    """Note that `target`, which a program changed in place, now depends on `others`."""
    requiring = [t for t in others if t.requires_grad and t is not target]
    if requiring:
        _Missing.apply(target, *requiring)
