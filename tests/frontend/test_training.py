"""Training through torch.compile: losses and weights follow eager PyTorch's, step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor

EXECUTORS = {"reference": {"executor": "reference"}, "cpu": {"target": "cpu"}}


class Language(nn.Module):
    """A causal transformer that predicts the next token."""

    def __init__(self, tokens: int = 17, width: int = 16, heads: int = 2, length: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        blocks = (
            nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(1)
        )
        self.blocks, self.norm, self.out = nn.ModuleList(blocks), nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return F.cross_entropy(self.out(self.norm(x))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Images(nn.Module):
    """A convolutional network that normalises by the statistics of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Conv2d(4, 8, 3, 2, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(8)])
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(self.norms[0](self.first(x)).relu(), 2)
        x = F.avg_pool2d(self.norms[1](self.second(x)).relu(), 2, padding=1)
        return F.cross_entropy(self.out(x.mean((2, 3))), labels)


def language() -> tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]:
    start = torch.Generator().manual_seed(1)
    return Language(), lambda: ((torch.randint(17, (4, 1), generator=start) + 3 * torch.arange(12)) % 17,)


def images() -> tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]:
    start = torch.Generator().manual_seed(1)

    def batch() -> tuple[Tensor, ...]:
        labels = torch.randint(3, (6,), generator=start)
        return torch.randn(6, 1, 8, 8, generator=start) + labels[:, None, None, None], labels

    return Images(), batch


def train(make: Callable[[], Any], compile: Callable[[nn.Module], Any], steps: int) -> tuple[list[float], nn.Module]:
    """The losses of some steps with Adam, and what was trained."""
    torch.manual_seed(0)
    module, batch = make()
    called, optimizer = (
        compile(module),
        torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-4),
    )  # so that noise in a gradient of zero is no step
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = called(*batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, module


@pytest.mark.parametrize(("make", "executor"), [(language, "cpu"), (images, "cpu"), (images, "reference")])
def test_fifty_steps_follow_eager(make: Callable[[], Any], executor: str) -> None:
    torch._dynamo.reset()
    compile = functools.partial(torch.compile, backend="deplodock", fullgraph=True, options=EXECUTORS[executor])
    losses, module = train(make, compile, 50)
    expected, other = train(make, lambda m: m, 50)
    assert expected[-1] < 0.7 * expected[0]
    assert losses == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for (name, a), (_, b) in zip(module.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)
