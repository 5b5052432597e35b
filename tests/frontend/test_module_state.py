"""Weights that are replaced after a module was compiled: used where they fit, else refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import deplodock
from deplodock.errors import ShapeError


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


@pytest.mark.parametrize("options", [{"executor": "reference"}, {"target": "cpu"}])
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


def _another_class(net: Any) -> None:
    net.layers[2] = nn.Bilinear(4, 1, 4)


def _without(net: Any) -> None:
    del net.shift


@pytest.mark.parametrize("options", [{"executor": "reference"}, {"target": "cpu"}])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda net: net.layers.half(),
            r"expected float32\[4, 4\] on cpu, but the module now has float16.*compile the module",
        ),
        (lambda net: setattr(net.layers[0].bias, "data", torch.zeros(1)), r"bias: expected float32\[4\] on cpu"),
        (_wide, r"bias: expected float32\[4\] on cpu, but the module now has float32\[1\]"),
        (_another_class, "layers.2.weight: the submodule '2' is now a Bilinear"),
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
    """A layer under two names, and a buffer under two names."""

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
