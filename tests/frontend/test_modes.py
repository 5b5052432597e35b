"""PyTorch's modes: gradients switched off inside of a program, and autocast around a call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import deplodock
from deplodock.backend.host import calls
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
    """A rotary embedding as in transformers: the angles, computed without gradients, depend on parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    @torch.no_grad()
    def angles(self, x: torch.Tensor) -> Any:
        return (x * self.scale).cos(), (x * self.scale).sin()

    def forward(self, x: torch.Tensor) -> Any:
        a, b = self.angles(x)
        return a, b, a * x + b, self.scale * 2


def _enabled(x: torch.Tensor) -> Any:
    a = x * 2
    with torch.enable_grad():
        b, c, v = a * 3, x * 3, x.view(2, 8)
        with torch.no_grad():
            d = c * 4
            with torch.set_grad_enabled(True):
                e = c + d
    with torch.inference_mode():
        f = x * 5
    return a, b, c, d, e, f, v, x.t(), x


@torch.enable_grad()
def _always(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def _put_back(x: torch.Tensor) -> Any:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(not before)
    torch.set_grad_enabled(True)
    a = x.exp()
    torch.set_grad_enabled(before)
    return a, x.cos(), x.cos().detach()


def _changed(x: torch.Tensor) -> Any:
    """Changes tensors in place with and without gradients. With gradients, the tensor and its views get them."""
    y, z = torch.zeros(4, 4), torch.zeros(4, 4)
    with torch.enable_grad():
        v, w = y[0], z[0]
        y.mul_(x)
    with torch.no_grad():
        z.mul_(x)
    return y, z, v, w, y + 1, z + 1


def _like(x: torch.Tensor) -> Any:
    y = torch.zeros(1, 4)
    with torch.enable_grad():
        z = (
            y.expand_as(x) * 1,
            torch.zeros_like(x),
            x.new_ones(4),
            (x > 0) * y,
            torch.ops.aten.to.other(y.double(), x) + 1,
        )
        return *z, torch.max(x, 0), x.bool()


def _counted(x: torch.Tensor) -> Any:
    """Changes an integer tensor and a constant in place."""
    n, y = torch.zeros(4, dtype=torch.int64), torch.tensor([1.0, 2.0, 3.0, 4.0])
    n += 1
    y *= 2
    return n, x * n, y.mul_(x[0])


def _cast_inside(x: torch.Tensor) -> Any:
    with torch.enable_grad(), torch.autocast("cpu"):
        y, z = x @ x, x @ torch.ones(4, 4)
        with torch.no_grad():
            return y, z, x @ x


SWITCHING = [_part, _whole, _switched, _nested, _in_place, _raised, _Angles(), _enabled, _always, _put_back, _changed]
SWITCHING += [_like, _counted, _cast_inside]


@pytest.mark.parametrize("function", SWITCHING)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_results_without_gradients(function: Callable[..., Any], target: str) -> None:
    """The same results require gradients as in eager PyTorch, with gradients enabled or disabled around the call."""
    x = X.clone().requires_grad_()
    compiled = deplodock.compile(function, (x,), **(HOW if target == "reference" else {"target": target}))
    for given, enabled in product((x, x.detach()), (True, False) * 3):
        with torch.set_grad_enabled(enabled):
            found, expected = compiled(given), function(given)
            assert torch.is_grad_enabled() == enabled
        torch.testing.assert_close(found, expected)
        pairs = zip(*map(pytree.tree_leaves, (found, expected)), strict=True)
        assert [f.requires_grad for f, _ in pairs] == [e.requires_grad for e in pytree.tree_leaves(expected)]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("function", [f for f in SWITCHING if f not in (_raised, _switched)])
def test_torch_compile_of_results_without_gradients(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    compiled = torch.compile(function, backend="deplodock", options=HOW)
    for given, enabled in product((x, x.detach()), (True, False)):
        with torch.set_grad_enabled(enabled):
            found, expected = compiled(given), function(given)
        pairs = zip(*map(pytree.tree_leaves, (found, expected)), strict=True)
        assert all(f.requires_grad == e.requires_grad for f, e in pairs)


def test_views_of_arguments_while_gradients_are_switched() -> None:
    """A view requires gradients if it is made while they are enabled."""

    def function(x: torch.Tensor) -> Any:
        with torch.enable_grad():
            a = x.t()[1]
        with torch.no_grad():
            return a, x.t()[2]

    x = X.clone().requires_grad_()
    compiled = deplodock.compile(function, (x,), **HOW)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            a, b = compiled(x)
        assert (a.is_leaf, b.is_leaf) == (False, True)
        (g,) = torch.autograd.grad(a.sum(), x)
        torch.testing.assert_close(g, torch.eye(4)[1].expand(4, 4))


class _Averaged(nn.Module):
    """A module that changes its parameter in place without gradients, like a moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x + 1


def test_parameters_changed_without_gradients() -> None:
    module = _Averaged()
    compiled = deplodock.compile(module, (X,), **HOW)
    compiled(X)
    torch.testing.assert_close(module.weight.detach(), torch.full((4,), 0.5))


def test_arguments_changed_with_gradients() -> None:
    """Changes an argument with gradients enabled. Refused for a leaf that requires gradients, as in PyTorch."""

    def function(x: torch.Tensor) -> None:
        with torch.enable_grad():
            x.mul_(3)

    x = X.clone().requires_grad_()
    compiled = deplodock.compile(function, (x.detach(),), **HOW)
    with torch.no_grad(), pytest.raises(ExecutionError, match="a leaf that requires a gradient"):
        compiled(x)
    y = x * 2
    compiled(y)
    torch.testing.assert_close(y, x * 6)
    with pytest.raises(ExecutionError, match="has no gradients"):
        y.sum().backward()


def test_another_thread_switches_for_itself() -> None:
    """While a program without gradients is traced, another thread has gradients enabled."""
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
    """A call under autocast is refused if eager PyTorch would compute in other types than the compiled program."""
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
    """Autocast casts the operands of an operator or of operators in its decomposition. Both are noted at capture."""
    compiled = deplodock.compile(function, (X,), **HOW)
    torch.testing.assert_close(compiled(X), function(X))
    with _autocast(dtype=torch.half), pytest.raises(ExecutionError, match="float16.* and compiled without autocast"):
        compiled(X)


def test_autocast_of_sizes_that_vary() -> None:
    """Noting autocast for decomposed operators does not fix dynamic sizes."""
    shapes: Any = ({0: Dim("n", min=2, max=8)}, None)
    compiled = deplodock.compile(lambda x, y: torch.einsum("ij,jk->ki", x, y), (X, X), **HOW, dynamic_shapes=shapes)
    torch.testing.assert_close(compiled(X[:3], X), (X[:3] @ X).T)
    with _autocast(), pytest.raises(ExecutionError, match="compiled without autocast"):
        compiled(X, X)
    norm = deplodock.compile(lambda x, y: F.layer_norm(x, x.shape) + y[0], (X, X), **HOW, dynamic_shapes=shapes)
    with _autocast():
        torch.testing.assert_close(norm(X[:3], X), F.layer_norm(X[:3], (3, 4)) + X[0])


def test_autocast_of_another_device() -> None:
    """Autocast for CUDA does not concern a program of CPU tensors."""
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
    """Dynamo compiles a second program under autocast."""
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


@pytest.mark.parametrize("how", [HOW, {"target": "cpu"}])
def test_a_change_of_what_autograd_has_saved(how: dict[str, Any]) -> None:
    """If a program overwrites a tensor that autograd saved, the backward pass raises an error, as in eager PyTorch."""
    compiled = deplodock.compile(lambda x: x.mul_(3), (X.clone(),), **how)
    calls.building().exception()  # so that calls after the first do not go through Python
    w = torch.ones(4, 4, requires_grad=True)
    for _ in range(3):
        x = X.clone()
        y, before = (w * x).sum(), x._version
        compiled(x)
        torch.testing.assert_close(x, X * 3)
        assert x._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    with torch.inference_mode():
        for _ in range(3):
            x = X.clone()
            torch.testing.assert_close(compiled(x), X * 3)
    with pytest.raises(ExecutionError, match="a tensor of inference mode would be changed"):
        compiled(x)
    torch.testing.assert_close(x.clone(), X * 3)
