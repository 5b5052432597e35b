"""Three small programs with different kinds of kernels (a reduction, a matmul, attention) for a first run on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _rms_norm() -> Program:
    return nn.RMSNorm(2048), (torch.randn(1, 32, 2048),)


def _matmul() -> Program:
    return torch.matmul, (torch.randn(128, 256), torch.randn(256, 128))


def _attention() -> Program:
    q, k, v = (torch.randn(2, 4, 256, 128) for _ in range(3))
    return _causal_attention, (q, k, v)


def _causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


PROGRAMS: dict[str, tuple[str, Callable[[], Program]]] = {
    "rms norm": ("f32", _rms_norm),
    "matmul": ("bf16", _matmul),
    "attention": ("bf16", _attention),
}
"""Name -> data type, and a function that returns the program and its arguments on the host."""


class Block(nn.Module):
    """A residual feed-forward block, for a test of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))
