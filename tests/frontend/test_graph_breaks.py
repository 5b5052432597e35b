"""Tensors that share memory, are made before a graph break of torch.compile, and are written after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Clears Dynamo's compiled programs."""
    torch._dynamo.reset()


def whole_and_row(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty(3, 4)
    row = y[1]
    y.copy_(x)
    total = y.sum().item()
    row.add_(total)
    y[:, 0] = 7
    return y, row


def overlapping(x: Tensor) -> Tensor:
    y = torch.zeros(16)
    a, b = y[:12], y[4:16]
    a.add_(x.flatten())
    torch._dynamo.graph_break()
    b.mul_(2)
    a.add_(1)
    return y


def transposed(x: Tensor) -> Tensor:
    y = x * 2
    t = y.t()
    if y.sum() > -1e9:
        t[1:].sub_(1)
    y.mul_(3)
    return t


def written_again(x: Tensor) -> Tensor:
    y = torch.zeros(3, 4)
    y[0] = x[0]
    if y.sum() > -1e9:
        y[1] = 5
    y[2] += 1
    return y


@pytest.mark.parametrize("function", [whole_and_row, overlapping, transposed, written_again])
def test_is_what_eager_pytorch_gives(function: Callable[[Tensor], Any]) -> None:
    compiled = torch.compile(function, backend="deplodock", options={"executor": "reference"})
    for x in (torch.linspace(-1, 2, 12).view(3, 4), torch.ones(3, 4)):
        torch.testing.assert_close(compiled(x.clone()), function(x.clone()))
