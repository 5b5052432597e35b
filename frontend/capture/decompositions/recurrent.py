"""Cells of recurrent networks, which on a GPU are fused operators that PyTorch cannot trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._C import DispatchKey

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes `torch.lstm_cell`: returns the hidden and the cell state after one step."""
    hidden, cell = hx
    entry, forget, update, output = (F.linear(input, w_ih, b_ih) + F.linear(hidden, w_hh, b_hh)).chunk(4, 1)
    cell = forget.sigmoid() * cell + entry.sigmoid() * update.tanh()
    return output.sigmoid() * cell.tanh(), cell


def _gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Computes `torch.gru_cell`: returns the hidden state after one step."""
    of_input = F.linear(input, w_ih, b_ih).chunk(3, 1)
    of_hidden = F.linear(hx, w_hh, b_hh).chunk(3, 1)
    reset = (of_input[0] + of_hidden[0]).sigmoid()
    update = (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    return new + update * (hx - new)


RECURRENT = {"lstm_cell.default": _lstm_cell, "gru_cell.default": _gru_cell}

if DispatchKey.CompositeImplicitAutograd not in aten.gru_cell.default.py_kernels:
    # PyTorch's kernel calls `_thnn_fused_gru_cell` for tensors of a GPU, which has no rule for tensors without data.
    aten.gru_cell.default.py_impl(DispatchKey.CompositeImplicitAutograd)(_gru_cell)
