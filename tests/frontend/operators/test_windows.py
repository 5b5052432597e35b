"""Window sizes as lists of one number, which PyTorch uses for every dimension, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import deplodock

image, volume = torch.randn(2, 3, 9, 10), torch.randn(1, 2, 6, 7, 8)

POOLS: list[tuple[Callable[..., Any], torch.Tensor]] = [
    (lambda x: F.max_pool2d(x, [2], [2]), image),
    (lambda x: F.max_pool2d(x, [2]), image[0]),
    (lambda x: F.max_pool2d(x, [3], [2], [1], [1], return_indices=True), image),
    (nn.MaxPool2d([2], [1], [1], [2]), image),
    (lambda x: F.max_pool3d(x, [2], [2], [1], return_indices=True), volume),
    (lambda x: F.avg_pool2d(x, [3]), image),
    (lambda x: F.avg_pool2d(x, [3], [2], [1], True, False), image),
    (lambda x: F.avg_pool3d(x, [3], [2], [1]), volume),
    (nn.Conv2d(3, 4, 3, stride=[2], padding=[1], dilation=[2]), image),  # pyright: ignore[reportArgumentType]
    (nn.ConvTranspose2d(3, 4, 3, stride=[2], padding=[1], output_padding=[1]), image),  # pyright: ignore
]


@pytest.mark.parametrize(("function", "x"), POOLS)
def test_one_number_for_all_dimensions(function: Callable[..., Any], x: torch.Tensor) -> None:
    found = deplodock.compile(function, (x,), executor="reference")(x)
    torch.testing.assert_close(found, function(x))


@pytest.mark.parametrize(("function", "x"), [POOLS[0], POOLS[3], POOLS[6]])
def test_gradients_of_one_number_for_all_dimensions(function: Callable[..., Any], x: torch.Tensor) -> None:
    torch._dynamo.reset()
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    function(first).square().sum().backward()
    compiled = torch.compile(function, backend="deplodock", options={"executor": "reference"})
    compiled(second).square().sum().backward()
    torch.testing.assert_close(second.grad, first.grad)
