"""Weights of 8 bits: each group of a row has a scale, and products are computed in f32 of what these stand for.

Symmetric, by the largest element of a group, as in LLM.int8() (Dettmers et al., 2022), by groups instead of rows. A
token reads half of the bytes that it reads of bf16.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

GROUP = 128
"""Elements of a row that share a scale, or a divisor of that."""


class Int8Linear(nn.Module):
    """A linear layer whose weight (N, K) is int8, with scales (N, K / group) in the type of what it replaces."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        group = math.gcd(weight.shape[1], GROUP)
        rows = weight.float().unflatten(1, (-1, group))
        scale = rows.abs().amax(-1, keepdim=True) / 127
        self.register_buffer("weight", (rows / scale.clamp_min(1e-30)).round().to(torch.int8).flatten(1))
        self.register_buffer("scale", scale.squeeze(-1).to(weight.dtype))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` (..., K) times the weight, in the type of `x`, plus the bias."""
        weight, scale = self.get_buffer("weight"), self.get_buffer("scale")
        rows = weight.float().unflatten(1, (scale.shape[1], -1)) * scale.float().unsqueeze(-1)
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), rows.flatten(1), bias).to(x.dtype)


def to_int8(model: nn.Module) -> nn.Module:
    """`model`, changed in place: its linear layers as `Int8Linear`. Embeddings, norms and biases stay."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Int8Linear(module))
    return model
