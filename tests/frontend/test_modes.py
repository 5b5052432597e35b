"""Modes of PyTorch and compiled programs: gradients switched off inside of them, autocast around them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import deplodock
from deplodock.errors import ExecutionError

F = nn.functional

HOW: dict[str, Any] = {"executor": "reference", "target": "sm_90a"}
X = torch.randn(4, 4)


def _part(x: torch.Tensor) -> Any:
    with torch.no_grad():
        a = x * 2
    return a + x, a, x * 3


@torch.no_grad()
def _whole(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def _switched(x: torch.Tensor) -> Any:
    before = torch.set_grad_enabled(False)
    a = x.split(2)
    torch.set_grad_enabled(before.prev)
    return (*a, x.exp())


def _nested(x: torch.Tensor) -> Any:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        c = x * 4
    return a, b, c, x * 5


def _in_place(x: torch.Tensor) -> Any:
    y = x * 1
    with torch.no_grad():
        y.mul_(2)
        z = y.t()
    return y, z


def _raised(x: torch.Tensor) -> Any:
    try:
        with torch.no_grad():
            a = x * 2
            raise ValueError
    except ValueError:
        return a, x * 3


class _Angles(nn.Module):
    """A rotary embedding, as transformers has it: angles without gradients, of a module with its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    @torch.no_grad()
    def angles(self, x: torch.Tensor) -> Any:
        return (x * self.scale).cos(), (x * self.scale).sin()

    def forward(self, x: torch.Tensor) -> Any:
        a, b = self.angles(x)
        return a, b, a * x + b, self.scale * 2


@pytest.mark.parametrize("function", [_part, _whole, _switched, _nested, _in_place, _raised, _Angles()])
def test_results_without_gradients(function: Callable[..., Any]) -> None:
    """Results require gradients where eager PyTorch's do."""
    x = X.clone().requires_grad_()
    compiled = deplodock.compile(function, (x,), **HOW)
    for _ in range(2):
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(found, expected)
        pairs = zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, expected)), strict=True)
        assert all(f.requires_grad == e.requires_grad for f, e in pairs)
    assert torch.is_grad_enabled()


def test_another_thread_switches_for_itself() -> None:
    """While a program is traced that has gradients switched off."""
    here, found = Barrier(2), []

    def other() -> None:
        here.wait()
        found.append(torch.is_grad_enabled())
        with torch.no_grad():
            found.append((X.clone().requires_grad_() * 2).requires_grad)
        found.append((X.clone().requires_grad_() * 2).requires_grad)
        here.wait()

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            here.wait()
            here.wait()
            return x * 2

    thread = Thread(target=other)
    thread.start()
    deplodock.compile(function, (X,), **HOW)
    thread.join()
    assert found == [True, False, True]


def _autocast(enabled: bool = True, dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


def test_autocast_around_a_call() -> None:
    """A program is refused where eager PyTorch would compute with other types."""
    layer = nn.Linear(4, 4).requires_grad_(False)
    plain = deplodock.compile(layer, (X,), **HOW)
    torch.testing.assert_close(plain(X), layer(X))
    with _autocast(enabled=False):
        torch.testing.assert_close(plain(X), layer(X))
    with (
        _autocast(),
        pytest.raises(ExecutionError, match=r"under torch.autocast\('cpu', torch.bfloat16\) and compiled w"),
    ):
        plain(X)
    with _autocast():
        cast = deplodock.compile(layer, (X,), **HOW)
        assert cast(X).dtype == layer(X).dtype == torch.bfloat16
    with _autocast(dtype=torch.half), pytest.raises(ExecutionError, match="torch.float16.*compiled under"):
        cast(X)
    with pytest.raises(ExecutionError, match="called without autocast"):
        cast(X)


@pytest.mark.parametrize("function", [torch.relu, lambda x: F.layer_norm(x, (4,)).reshape(2, 8)])
def test_autocast_that_casts_nothing(function: Callable[..., Any]) -> None:
    compiled = deplodock.compile(function, (X,), **HOW)
    with _autocast():
        assert compiled(X).dtype == function(X).dtype == torch.float32


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.conv2d(x[None, None], x[None, None]),
        lambda x: F.cross_entropy(x.bfloat16(), torch.zeros(4, dtype=torch.int64)),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: torch.einsum("ij,jk->ik", x.bfloat16(), x.bfloat16()),
        lambda x: F.mse_loss(x.bfloat16(), x.bfloat16()),
        lambda x: torch.func.grad(lambda y: F.l1_loss(y.bfloat16(), y.bfloat16().sin()))(x),
    ],
)
def test_autocast_of_operators_that_are_decomposed(function: Callable[..., Any]) -> None:
    """Autocast casts what they read, or what the operators read that they are made of, and not what is left of them."""
    compiled = deplodock.compile(function, (X,), **HOW)
    torch.testing.assert_close(compiled(X), function(X))
    with _autocast(dtype=torch.half), pytest.raises(ExecutionError, match="float16.* and compiled without autocast"):
        compiled(X)


def test_autocast_of_sizes_that_vary() -> None:
    """What an operator of these sizes is made of does not fix them."""
    shapes: Any = ({0: Dim("n", min=2, max=8)}, None)
    compiled = deplodock.compile(lambda x, y: torch.einsum("ij,jk->ki", x, y), (X, X), **HOW, dynamic_shapes=shapes)
    torch.testing.assert_close(compiled(X[:3], X), (X[:3] @ X).T)
    with _autocast(), pytest.raises(ExecutionError, match="compiled without autocast"):
        compiled(X, X)
    norm = deplodock.compile(lambda x, y: F.layer_norm(x, x.shape) + y[0], (X, X), **HOW, dynamic_shapes=shapes)
    with _autocast():
        torch.testing.assert_close(norm(X[:3], X), F.layer_norm(X[:3], (3, 4)) + X[0])


def test_autocast_of_another_device() -> None:
    """A program of products is not that of a GPU where all of its tensors are on the CPU."""
    compiled = deplodock.compile(torch.matmul, (X, X), **HOW)
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        torch.testing.assert_close(compiled(X, X), X @ X)
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert set(compiled.captured.autocast) == {"cpu", "cuda"}


def test_autocast_inside() -> None:
    layer = nn.Linear(4, 4).requires_grad_(False)

    def function(x: torch.Tensor) -> torch.Tensor:
        with _autocast():
            return layer(x)

    compiled = deplodock.compile(function, (X,), **HOW)
    assert compiled(X).dtype == function(X).dtype == torch.bfloat16


@pytest.mark.parametrize("gradients", [False, True])
def test_autocast_around_torch_compile(gradients: bool) -> None:
    """Dynamo compiles again where autocast changes."""
    torch._dynamo.reset()
    layer = nn.Linear(4, 4).requires_grad_(gradients)
    compiled = torch.compile(layer, backend="deplodock", options=HOW)
    for _ in range(2):
        assert compiled(X).dtype == torch.float32
        with _autocast():
            y = compiled(X)
            assert y.dtype == torch.bfloat16
        if gradients:
            y.sum().backward()
