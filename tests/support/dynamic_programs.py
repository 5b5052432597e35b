"""Programs with dynamic sizes, known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture

SIZES = (1, 2, 7, 128, 1000)


BATCH = Dim("batch", min=1, max=1000)


def compiled(function: Callable[..., Any], args: Sequence[Any], shapes: Any) -> CompiledFunction:
    return CompiledFunction(capture(function, args, dynamic_shapes=shapes), "sm_90a", "reference")


def rows(n: int, *rest: int) -> torch.Tensor:
    return torch.randn(n, *rest, generator=torch.Generator().manual_seed(n))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + self.down(torch.relu(self.norm(self.up(x)))), -1)


def reductions(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        x.mean(0),
        x.sum(),
        x.softmax(0),
        x.amax(0),
        x.argmax(0),
        x - x.mean(0, keepdim=True),
        x.std(0, correction=0),
    ]


def views(x: torch.Tensor) -> list[torch.Tensor]:
    n = x.shape[0]
    heads = x.view(n, 4, 2).transpose(1, 2)
    return [heads.reshape(n, 8), heads.flatten(), x[:, 2:5], x[-1], x[:, :, None] * x[:, None], x.t() @ x, x[0]]


def creation(x: torch.Tensor) -> list[torch.Tensor]:
    n = x.shape[0]
    i = torch.arange(n)
    return [i[:, None] >= i, torch.ones(n, 3), torch.full((n,), 2.5), torch.zeros(n, n).tril() + i, x * n, x / (n + 3)]


def derived(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    both = torch.cat([x, y, x])
    return [
        both,
        both.flatten(),
        both[1:],
        x[:-1],
        both.mean(0),
        torch.nn.functional.pad(x, (0, 0, 2, 1)),
        x[x.shape[0] // 2 :],
    ]
