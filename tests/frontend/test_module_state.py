"""Modules that change after compilation: replaced weights, submodules, modes and hooks."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import deplodock
from deplodock.backend.host.calls import building
from deplodock.errors import ExecutionError, ShapeError

building().result()  # so that the second call of a program is made without Python

EXECUTORS = [{"executor": "reference"}, {"target": "cpu"}]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.register_buffer("shift", torch.randn(4))
        self.tied = self.layers[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.layers(x) + self.shift)


def _replaced(net: Any) -> None:
    net.layers[2].weight = nn.Parameter(torch.randn(4, 4))


def _same_class(net: Any) -> None:
    net.layers[2] = nn.Linear(4, 4)


def _buffer(net: Any) -> None:
    net.shift = torch.randn(4)


CHANGES: list[Callable[[Any], Any]] = [
    lambda net: net.load_state_dict(Net().state_dict(), assign=True),
    lambda net: net.load_state_dict(Net().state_dict()),
    lambda net: net.double().float(),
    lambda net: setattr(net.layers[0].weight, "data", torch.randn(4, 4)),
    _replaced,
    _same_class,
    _buffer,
]


@pytest.mark.parametrize("options", EXECUTORS)
def test_weights_that_fit_are_used(options: dict[str, str]) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = deplodock.compile(net, (x,), **options)
        for change in (lambda net: None, *CHANGES):
            change(net)
            for _ in range(3):  # the later calls are repeated ones
                torch.testing.assert_close(compiled(x), net(x))
        other, before = copy.deepcopy(compiled), net(x)
        _replaced(net)
        torch.testing.assert_close(other(x), before)
        torch.testing.assert_close(compiled(x), net(x))


def _wide(net: Any) -> None:
    net.layers[0].bias = nn.Parameter(torch.zeros(1))


def _without(net: Any) -> None:
    del net.shift


@pytest.mark.parametrize("options", EXECUTORS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda net: net.layers.half(),
            r"expected float32\[4, 4\] on cpu, but the module now has float16.*compile the module",
        ),
        (lambda net: setattr(net.layers[0].bias, "data", torch.zeros(1)), r"bias: expected float32\[4\] on cpu"),
        (_wide, r"bias: expected float32\[4\] on cpu, but the module now has float32\[1\]"),
        (_without, "shift: the module has no such tensor any more"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[Any], Any], message: str, options: dict[str, str]
) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = deplodock.compile(net, (x,), **options)
        compiled(x), compiled(x)
        change(net)
        for _ in range(2):
            with pytest.raises(ShapeError, match=message):
                compiled(x)


class Registered(nn.Module):
    """A module with a layer and a buffer that are registered under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layers = nn.ModuleList([self.norm, nn.Linear(4, 4), self.norm])
        self.register_buffer("count", torch.zeros(4), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("count", self.count, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        self.inner.count.add_(1)
        self.count.mul_(2)
        return x + self.count


def test_a_layer_that_is_registered_twice_and_changes_its_buffers() -> None:
    net = Registered()
    eager = copy.deepcopy(net)
    compiled = deplodock.compile(net, (torch.randn(3, 4),), executor="reference")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(dict(net.named_buffers()), dict(eager.named_buffers()))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.BatchNorm1d(2), nn.ReLU())
        self.head = nn.Linear(6, 6, bias=False)
        self.tail = nn.Linear(6, 6, bias=False)
        self.tail.weight = self.head.weight
        self.factor = torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self.head(self.layers(x))) * self.factor


def _convolution(net: Any) -> None:
    """Replaces a layer by one of the same class, with weights of the same shape and another dilation."""
    net.layers[0] = nn.Conv1d(2, 2, 3, padding=2, dilation=2)


def _untied(net: Any) -> None:
    net.head.weight = nn.Parameter(torch.ones(6, 6))


REBUILT: dict[str, Callable[[Any], Any]] = {
    "training": lambda net: net.train(),
    "one in evaluation": lambda net: net.layers[1].eval(),
    "evaluation": lambda net: net.eval(),
    "other parameters": _convolution,
    "another class": lambda net: net.layers.__setitem__(2, nn.Hardswish()),
    "appended": lambda net: net.layers.append(nn.Tanh()),
    "a weight of its own": _untied,
    "a tensor": lambda net: setattr(net, "factor", torch.full((6,), 2.0)),
    "evaluation again": lambda net: net.eval(),
}


@pytest.mark.parametrize("options", EXECUTORS)
def test_modes_and_submodules_are_those_of_the_module(options: dict[str, str]) -> None:
    net, x = Block().eval(), torch.randn(3, 2, 6)
    with torch.no_grad():
        compiled = deplodock.compile(net, (x,), **options)
        for name, change in REBUILT.items():
            change(net)
            eager = copy.deepcopy(net)  # which has the running statistics of as many calls
            for _ in range(3):
                torch.testing.assert_close(compiled(x), eager(x), msg=lambda text, name=name: f"{name}: {text}")
            torch.testing.assert_close(net.state_dict(), eager.state_dict())


def test_programs_of_earlier_modes_are_kept() -> None:
    net, x = Block().eval(), torch.randn(3, 2, 6)
    compiled = deplodock.compile(net, (x,), executor="reference")
    evaluated = compiled.compilation
    compiled(x), net.train(), compiled(x)
    assert compiled.compilation is not evaluated
    assert compiled.eval() is compiled
    _replaced(compiled)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
    assert compiled.compilation is evaluated


def test_a_deep_copy_follows_its_own_module() -> None:
    net, x = Block().eval(), torch.randn(3, 2, 6)
    with torch.no_grad():
        compiled = deplodock.compile(net, (x,), executor="reference")
        before, other = net(x), copy.deepcopy(compiled)
        other.train()
        assert not torch.allclose(other(x), before)
        torch.testing.assert_close(compiled(x), before)


@pytest.mark.parametrize("register", [
    lambda net: net.layers[0].register_forward_hook(lambda module, args, result: result * 2),
    lambda net: net.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    lambda net: nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 2),
])  # fmt: skip
@pytest.mark.parametrize("options", EXECUTORS)
def test_hooks_are_refused(register: Callable[[Any], Any], options: dict[str, str]) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = deplodock.compile(net, (x,), **options)
        compiled(x), compiled(x)
        handle = register(net)
        try:
            with pytest.raises(ExecutionError, match="a forward hook of the module was added or removed.*undo that"):
                compiled(x)
        finally:
            handle.remove()
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x))


def _of_global(x: torch.Tensor) -> torch.Tensor:
    return GLOBAL(x)


GLOBAL = Net().eval()


@pytest.mark.parametrize("name", ["closure", "method", "partial", "list", "global"])
def test_modules_that_a_function_calls(name: str) -> None:
    net, x = GLOBAL if name == "global" else Net().eval(), torch.randn(2, 4)
    nets = [net]
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "closure": lambda x: net(x),
        "method": net.forward,
        "partial": partial(lambda module, x: module(x), net),
        "list": lambda x: nets[0](x),
        "global": _of_global,
    }
    with torch.no_grad():
        compiled = deplodock.compile(functions[name], (x,), target="cpu")
        compiled(x), compiled(x)
        for change in (_replaced, _buffer, lambda net: net.load_state_dict(Net().state_dict(), assign=True)):
            change(net)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), net(x))
        net.layers[0].bias = nn.Parameter(torch.zeros(1))
        with pytest.raises(ShapeError, match=r"layers\.0\.bias: expected float32\[4\] on cpu"):
            compiled(x)


def test_calls_like_earlier_ones_need_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = deplodock.compile(net, (x,), target="cpu")
        compiled(x), compiled(x)
        monkeypatch.setattr(compiled, "_call", lambda *args: pytest.fail("a call of Python's"))
        torch.testing.assert_close(compiled(x), net(x))


def test_a_module_with_its_program_is_collected() -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with torch.no_grad():
        net.compiled = deplodock.compile(net, (x,), target="cpu")
        net.compiled(x), net.compiled(x)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
