"""Repeated layers: the search for repeats in a program, and functions for several kinds of layers."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import deplodock
from deplodock.passes.torch.outline_layers import _longest_repetition


def by_comparing_every_distance(colors: list[int], min_period: int) -> tuple[int, int, int]:
    best = (0, 0, 0)
    for period in range(min_period, len(colors) // 2 + 1):
        run = 0
        for i in range(len(colors) - period):
            run = run + 1 if colors[i] == colors[i + period] else 0
            if run >= period and run + period > best[2]:
                best = (i - run + 1, period, run + period)
    return best


@pytest.mark.parametrize("seed", range(200))
def test_longest_repetition(seed: int) -> None:
    random.seed(seed)
    colors = [random.randrange(random.choice([1, 2, 3, 5])) for _ in range(random.randrange(60))]
    unit = colors[: random.randrange(1, 12)]
    colors = colors[:20] + unit * random.randrange(5) + colors[20:]
    for min_period in (1, 3, 7):
        assert _longest_repetition(colors, min_period) == by_comparing_every_distance(colors, min_period)


class Layer(nn.Module):
    """A layer of one of three kinds; it also reads the latest results of the other kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.function = {"A": torch.tanh, "B": torch.sin, "C": torch.sigmoid}[kind]

    def forward(self, x: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = self.function(x * self.weight) + others
        return x


class Layers(nn.Module):
    def __init__(self, kinds: str) -> None:
        super().__init__()
        self.kinds = kinds
        self.lists = nn.ModuleDict({k: nn.ModuleList(Layer(k) for _ in range(kinds.count(k))) for k in set(kinds)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        latest, layers = dict.fromkeys("ABC", x), {kind: iter(layers) for kind, layers in self.lists.items()}
        for kind in self.kinds:
            first, second = (value for name, value in latest.items() if name != kind)
            latest[kind] = x = next(layers[kind])(x, first * second)
        return x


@pytest.mark.parametrize("kinds", ["AABB", "AAB", "ABB", "ABAB", "AABBCC", "ABCABC", "ABBACC", "CABBAC"])
def test_kinds_of_layers_that_read_one_another(kinds: str) -> None:
    module, x = Layers(kinds).eval(), torch.rand(2, 4)
    with torch.no_grad():
        compiled = deplodock.compile(module, (x,), target="sm_90a", executor="reference")
        torch.testing.assert_close(compiled(x), module(x))
    calls = sum(kinds.count(kind) for kind in "ABC" if kinds.count(kind) > 1)
    assert compiled.ir("tensor").count("func.call @layer") == calls
