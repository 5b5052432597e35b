"""Random programs with one dynamic size. Every drawn operator works for any size from 1."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F

Step = tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]

WIDTH = 6
"""Columns of all values. Their number of rows n is dynamic, and differs between values."""


def _weight(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 2


WEIGHT, BIAS = _weight(1, WIDTH, WIDTH), _weight(2, WIDTH)

STEPS: list[Step] = [
    ("tanh", lambda x, y: x.tanh()),
    ("linear", lambda x, y: F.linear(x, WEIGHT, BIAS)),
    ("softmax rows", lambda x, y: x.softmax(-1)),
    ("softmax columns", lambda x, y: x.softmax(0)),
    ("layer norm", lambda x, y: F.layer_norm(x, (WIDTH,))),
    ("minus mean", lambda x, y: x - x.mean(0, keepdim=True)),
    ("largest", lambda x, y: x - x.amax(0)),
    ("cat", lambda x, y: torch.cat([x, y])),
    ("cat of a part", lambda x, y: torch.cat([x[:1], y])),
    ("but the first", lambda x, y: torch.cat([x, x])[1:]),
    ("half", lambda x, y: torch.cat([x, x])[: x.shape[0]]),
    ("second half", lambda x, y: torch.cat([y, x])[y.shape[0] :]),
    ("pad", lambda x, y: F.pad(x, (0, 0, 2, 1))),
    ("gram", lambda x, y: (x @ y.t() / y.shape[0]) @ y),
    ("outer", lambda x, y: (x[:, None] * y[None]).mean(1)),
    ("heads", lambda x, y: x.view(x.shape[0], 2, 3).transpose(1, 2).reshape(x.shape[0], 6)),
    ("last", lambda x, y: x * y[-1]),
    ("positions", lambda x, y: x + torch.arange(x.shape[0])[:, None] / x.shape[0]),
    ("triangle", lambda x, y: torch.ones(x.shape[0], x.shape[0]).tril() @ x / x.shape[0]),
    ("attention", lambda x, y: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]),
    ("gather", lambda x, y: x[(torch.arange(x.shape[0]) * 3) % x.shape[0]]),
    ("flat", lambda x, y: x.reshape(-1).view(x.shape)),
]


class Sized:
    """A program of `steps` steps on (n, WIDTH) and (m, WIDTH). Returns its last two values and the sum of a column."""

    def __init__(self, seed: int, steps: int = 5) -> None:
        rng = random.Random(seed)
        self.steps = [(rng.randrange(i + 2), rng.randrange(i + 2), rng.choice(STEPS)) for i in range(steps)]

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        values = [x, y]
        for a, b, (_, function) in self.steps:
            values.append(function(values[a], values[b]))
        return [values[-1], values[-2], values[-1].sum(0)]

    def __str__(self) -> str:
        return "; ".join(f"v{i} = {name}(v{a}, v{b})" for i, (a, b, (name, _)) in enumerate(self.steps, 2))
