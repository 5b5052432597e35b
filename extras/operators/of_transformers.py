"""Operators of transformers: the grouped matmul of its mixtures of experts, and its gradient."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _grouped_mm(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return aten._grouped_mm(input, weight, offs)


def _grouped_mm_backward(input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the rows and of the weights of all experts."""
    of_input = aten._grouped_mm(grad_output, weight.transpose(1, 2), offs)
    return of_input, aten._grouped_mm(input.transpose(0, 1), grad_output, offs)


DECOMPOSITIONS = {
    "grouped_mm_fallback.default": _grouped_mm,
    "grouped_mm_fallback_backward.default": _grouped_mm_backward,
}
"""Decomposition by overload name, without `transformers.`."""
