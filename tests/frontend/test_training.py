"""Training through torch.compile: losses and weights equal eager PyTorch's in each step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from deplodock.frontend import dynamo

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
    """A convolutional network with batch norms in training mode."""

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
    """Trains a module for some steps with AdamW. Returns the losses and the module."""
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


@pytest.mark.parametrize(("make", "executor"), [(language, "cpu"), (images, "reference")])
def test_fifty_steps_follow_eager(make: Callable[[], Any], executor: str) -> None:
    torch._dynamo.reset()
    compile = functools.partial(torch.compile, backend="deplodock", fullgraph=True, options=EXECUTORS[executor])
    losses, module = train(make, compile, 50)
    expected, other = train(make, lambda m: m, 50)
    assert expected[-1] < 0.7 * expected[0]
    assert losses == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for (name, a), (_, b) in zip(module.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


def _product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def _sum(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sum(-1)


@pytest.fixture
def two_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the backward graph run on another executor than the forward graph, with another order of addition."""
    compiled, others = dynamo.CompiledFunction, iter([{"executor": "reference"}, {"target": "cpu"}])
    monkeypatch.setattr(
        dynamo, "CompiledFunction", lambda captured, **how: compiled(captured, **{**how, **next(others)})
    )


@pytest.mark.usefixtures("two_orders")
@pytest.mark.parametrize("part", [_product, _sum])
@pytest.mark.parametrize("largest", [lambda y: y.amax(-1), lambda y: torch.linalg.vector_norm(y, float("inf"))])
def test_sums_that_are_compared_in_both_graphs(
    part: Callable[..., Tensor], largest: Callable[[Tensor], Tensor]
) -> None:
    """The backward graph recomputes sums whose maximum the forward graph has saved.

    With another order of addition no element would equal the saved maximum, and the gradient would be 0 / 0.
    """

    def function(x: Tensor, w: Tensor) -> Tensor:
        y: Any = checkpoint(part, x, w, use_reentrant=False)
        return largest(y)

    torch.manual_seed(0)
    x, w = (torch.randn(300, 300, requires_grad=True) for _ in range(2))
    torch._dynamo.reset()
    found = torch.autograd.grad(torch.compile(function, backend="deplodock")(x, w).sum(), (x, w))
    expected = torch.autograd.grad(function(x, w).sum(), (x, w))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("two_orders")
def test_choices_that_are_made_again() -> None:
    """Sums of the same numbers differ in the last bits. The gradient goes to the one that the forward graph chose."""

    def part(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        i = y.argmax(-1)
        return y.gather(1, i[:, None]), i

    def function(x: Tensor, w: Tensor) -> Any:
        return checkpoint(part, x, w, use_reentrant=False)

    torch.manual_seed(0)
    w = torch.randn(300)
    w = torch.stack([w, w[torch.randperm(300)]], 1)
    x = torch.randn(300, 1).expand(300, 300).contiguous().requires_grad_()
    torch._dynamo.reset()
    y, i = torch.compile(function, backend="deplodock")(x, w)
    assert 0 < i.sum() < 300
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, w[:, i].T)


class Pooled(nn.Module):
    """Three views of one projection, and a pool whose gradient AOTAutograd writes with `as_strided` of new zeros."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.project, self.pool = nn.Linear(4, 12), pool

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.project(x.permute(0, 2, 3, 1)).unflatten(-1, (3, 4)).permute(3, 0, 4, 1, 2)
        return self.pool(F.normalize(a, dim=1) * F.normalize(b, dim=1) + c).flatten(1)


@pytest.mark.parametrize("batch", [1, 2])
def test_gradient_of_a_global_average_pool(batch: int) -> None:
    torch.manual_seed(0)
    module, x = Pooled(nn.AdaptiveAvgPool2d(1)), torch.randn(batch, 4, 3, 3, requires_grad=True)
    expected = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="deplodock", options={"executor": "reference"})
    gradients = torch.autograd.grad(compiled(x).square().sum(), [x, *module.parameters()])
    for ours, eager in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, eager)
