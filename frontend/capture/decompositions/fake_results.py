"""Rules for the results of operators on tensors without data, where PyTorch's own rules refuse types that it computes.

PyTorch consults them whenever it traces a program, in torch.compile too. A rule returns NotImplemented for operands
that PyTorch's own rule takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_impls import register_op_impl

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _grouped_mm(
    mode: Any,
    target: Any,
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Returns the result of a grouped matmul of any float type; the rule of PyTorch 2.13 takes bf16 alone."""
    if self.dtype == torch.bfloat16 or self.dtype != mat2.dtype or not self.is_floating_point():
        return NotImplemented
    rows, columns = self.shape[-2:-1], mat2.shape[-1:]
    if self.dim() == mat2.dim():
        groups = self.shape[:1] if self.dim() == 3 or offs is None else offs.shape
    else:
        groups = ()
    return self.new_empty((*groups, *rows, *columns), dtype=out_dtype or self.dtype)


if hasattr(aten, "_grouped_mm"):
    register_op_impl(aten._grouped_mm.default)(_grouped_mm)
