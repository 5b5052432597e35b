"""Kernels that access tensors in another shape than the program: as results, shared, and updated in place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deplodock

EXECUTORS = ("reference", "simulator", "emulator", "cpu")


def _compiled(function: Callable[..., Any], args: tuple[Tensor, ...], executor: str) -> Any:
    target = "cpu" if executor == "cpu" else "sm_90a"
    return deplodock.compile(function, args, target=target, executor=executor)


def _images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _two_shapes(x: Tensor) -> tuple[Tensor, ...]:
    """Returns a matmul and values that read it in its shape and in two others."""
    y = torch.relu(x @ x.transpose(2, 3))
    return y, y.sum((2, 3)), y.sum(0), torch.softmax(y.flatten(2), -1)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_result_in_several_shapes(executor: str) -> None:
    x = _images(2, 3, 7, 5)
    for got, want in zip(_compiled(_two_shapes, (x,), executor)(x), _two_shapes(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


class Mean(nn.Module):
    """A running mean of images, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 6, 7))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.state, Tensor)
        self.state.mul_(0.5).add_(x)
        return self.state.amax((1, 2))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_buffer_is_updated_in_place(executor: str) -> None:
    x, module, other = _images(2, 6, 7), Mean(), Mean()
    compiled = _compiled(module, (x,), executor)
    assert "in_place" in compiled.ir("kernel")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), other(x))
    torch.testing.assert_close(module.state, other.state)


def test_layers_that_are_outlined() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.GroupNorm(2, 6) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for norm in self.norms:
                x = x + torch.relu(norm(x))
            return x

    x, layers = _images(2, 6, 7, 7), Layers()
    torch.testing.assert_close(_compiled(layers, (x,), "cpu")(x), layers(x), rtol=1e-5, atol=1e-5)


def test_kernels_that_share_a_launch_see_a_tensor_in_their_shapes() -> None:
    def products(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.einsum("ijk,kn->ijn", x, a), torch.einsum("ijk,jn->ikn", x, b)

    args = _images(6, 7, 32), _images(32, 32), _images(7, 32)
    found = _compiled(products, args, "emulator")
    assert re.search(r"@k0_k1\(%x: memref<42x32xf32>, .*%x_1: memref<6x7x32xf32>", found.ir("kernel"))
    for got, want in zip(found(*args), products(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_images_of_odd_sides_are_vectors_on_cores() -> None:
    """Images of 7x7 are loaded as one row, not as rows of seven elements."""
    x = _images(4, 16, 7, 7)
    compiled = _compiled(lambda x: F.relu(x) * 2.0, (x,), "cpu")
    assert "memref<3136xf32>" in compiled.ir("tile")
    assert "load_first" not in compiled.compilation.cpp.partition("static void k0(")[2]
    assert torch.equal(compiled(x), F.relu(x) * 2.0)
