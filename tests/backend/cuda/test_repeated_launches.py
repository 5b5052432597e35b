"""Repeated calls of GPU programs, without a GPU (`stub_cuda`): which calls skip Python's checks, and their results.

A repeated call has arguments like an earlier call. The extension module sees the stub's tensors as host tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import deplodock
from deplodock.backend.host import calls
from deplodock.frontend.repeated_calls import RepeatedCalls


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    calls.building().result()


def compiled(monkeypatch: pytest.MonkeyPatch, function: Any, *args: Any, **how: Any) -> Any:
    """Returns a program on the stub with the extension module, which recognises repeated calls."""
    native = calls.building().result()
    monkeypatch.setattr(calls, "extension", lambda: native)
    return deplodock.compile(function, args, executor="cuda", **how)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def layers(count: int) -> nn.Sequential:
    """Returns a model with `count` linear layers on the stubbed device."""
    made = [*(nn.Linear(32, 32, device="cuda") for _ in range(count)), nn.LayerNorm(32, device="cuda")]
    return nn.Sequential(*made).requires_grad_(False)


def counted(program: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list that gets an entry for each call that Python checks."""
    found: list[Any] = []
    real = program._call
    monkeypatch.setattr(program, "_call", lambda *how: found.append(how) or real(*how))
    return found


@pytest.mark.parametrize("graphs", [False, True])
def test_calls_like_earlier_ones(stub_cuda, monkeypatch, graphs: bool) -> None:
    """Repeated calls use their own arguments and the present weights."""
    model = layers(2)
    program = compiled(monkeypatch, model, x(24, 32), cuda_graphs=graphs)
    checked, kept = counted(program, monkeypatch), []
    for _ in range(4):
        kept.append((given := x(24, 32), program(given)))
    with torch.no_grad():
        model[0].weight.mul_(2)
    for given, y in kept:
        assert y.shape == (24, 32)
        assert not torch.allclose(y.cpu(), model(given).cpu(), atol=1e-3)
    torch.testing.assert_close(program(given).cpu(), model(given).cpu(), rtol=1e-4, atol=1e-4)
    assert len(checked) == 1


def _elsewhere(model: nn.Sequential) -> None:
    model[0].weight.data = torch.randn(32, 32, device="cuda")


def _transposed(model: nn.Sequential) -> None:
    model[0].weight.data = model[0].weight.data.t()


def _trained(model: nn.Sequential) -> None:
    model[0].weight.requires_grad_()


def _along(model: nn.Sequential) -> None:
    """Moves a weight inside of its storage."""
    model[0].weight.data = model[0].weight.data.as_strided((32, 32), (32, 1), 1024)


@pytest.mark.parametrize("change", [_elsewhere, _transposed, _trained, _along])
def test_constants_that_changed(stub_cuda, monkeypatch, change: Callable[[nn.Sequential], None]) -> None:
    model = layers(1)
    model[0].weight.data = x(64, 32)[:32]
    program, given = compiled(monkeypatch, model, x(8, 32)), x(8, 32)
    checked = counted(program, monkeypatch)
    program(given), program(given)
    assert len(checked) == 1
    change(model)
    y = program(given)
    assert len(checked) == 2
    torch.testing.assert_close(y.detach().cpu(), model(given).detach().cpu(), rtol=1e-4, atol=1e-4)
    assert y.requires_grad is model[0].weight.requires_grad


UNLIKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: t[:4],
    "type": lambda t: t.double(),
    "strides": lambda t: t.t().contiguous().t(),
    "place": lambda t: torch.zeros(257, device="cuda")[1:].view(8, 32),
    "gradient": lambda t: t.clone().requires_grad_(),
    "no tensor": lambda t: 3.0,
}


@pytest.mark.parametrize("name", UNLIKE)
def test_calls_unlike_earlier_ones(stub_cuda, monkeypatch, name: str) -> None:
    """A call that differs from earlier ones goes through Python, which runs or refuses it."""
    program, given = compiled(monkeypatch, lambda t: torch.relu(t) * 2, x(8, 32)), x(8, 32)
    program(given)
    checked = counted(program, monkeypatch)
    program(given)
    assert not checked
    try:
        program(UNLIKE[name](given))
    except deplodock.CompileError:
        assert name in ("shape", "type", "no tensor")
    assert len(checked) == 1
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        program(given)
    assert len(checked) == 2


def test_results_in_trees_and_arguments_among_them(stub_cuda, monkeypatch) -> None:
    program = compiled(monkeypatch, lambda a, b: {"sum": [a + b, a], "turned": (b * 2).t()}, x(8, 32), x(8, 32))
    checked = counted(program, monkeypatch)
    for _ in range(2):
        a, b = x(8, 32), x(8, 32)
        y = program(a, b)
        assert y["sum"][1] is a
        assert y["turned"].stride() == (1, 32)
        torch.testing.assert_close(y["sum"][0].cpu(), (a + b).cpu())
        torch.testing.assert_close(y["turned"].cpu(), (b * 2).t().cpu())
    assert len(checked) == 1


def test_what_is_never_taken_for_it(stub_cuda, monkeypatch) -> None:
    """Calls that change an argument or draw random numbers always go through Python."""
    for function in (lambda t: t.add_(1), lambda t: t + torch.rand_like(t)):
        program = compiled(monkeypatch, function, x(8, 32))
        checked = counted(program, monkeypatch)
        program(x(8, 32)), program(x(8, 32))
        assert len(checked) == 2
        assert isinstance(program._calls, RepeatedCalls)
