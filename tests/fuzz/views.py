"""Random chains of views of small integers, for which every order of addition gives the same bits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .graphs import Program, Step

SIZES = (1, 2, 3, 3, 4, 5, 6, 7, 12)
MOST_ELEMENTS = 400

View = tuple[str, Callable[..., torch.Tensor]]


def draw(seed: int, steps: int = 6) -> Program:
    """Returns a program: views of one or two inputs, then a reduction, an elementwise operation or nothing."""
    source, values = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = [source.choice(SIZES) for _ in range(source.randint(1, 4))]
    while math.prod(shape) > MOST_ELEMENTS // 2:
        shape[source.randrange(len(shape))] = 1
    x = torch.randint(-4, 5, shape, generator=values).float()
    program = Program([x])
    last = 0
    for _ in range(steps):
        name, view = _view(x, source)
        try:
            result = view(x)
        except (RuntimeError, IndexError, ValueError):
            continue  # PyTorch refuses the program.
        if not 0 < result.numel() <= MOST_ELEMENTS or result.ndim > 5:
            continue
        program.steps.append(Step(name, view, (last,)))
        last, x = len(program.steps), result
    name, end, operands = _end(x, last, source)
    program.steps.append(Step(name, end, operands))
    program.results = (last, len(program.steps)) if source.random() < 0.3 else (len(program.steps),)
    return program


def _view(x: torch.Tensor, source: random.Random) -> View:
    rank = max(x.ndim, 1)
    d, e, n = source.randrange(-rank, rank), source.randrange(rank), x.shape[source.randrange(rank)] if x.ndim else 1
    a, b, step = source.randint(-2, 3), source.randint(-1, 3), source.randint(1, 3)
    order = source.sample(range(x.ndim), x.ndim)
    shape = _reshaped(x.shape, source)
    wide = [source.choice((2, 3)) if k == 1 and source.random() < 0.6 else k for k in (1, *x.shape)]
    views: list[View] = [
        (f"permute {order}", lambda x: x.permute(order)),
        (f"reshape {shape}", lambda x: x.reshape(shape)),
        (f"reshape {shape} (2)", lambda x: x.reshape(shape)),
        (f"slice {d} from {a} step {step}", lambda x: torch.ops.aten.slice.Tensor(x, d, a, 1 << 60, step)),
        (f"narrow {d} to {n - 1}", lambda x: x.narrow(d, 0, max(n - 1, 1))),
        (f"flip {d}", lambda x: x.flip(d)),
        (f"flip {d} {e}", lambda x: x.flip(tuple({d % rank, e}))),
        (f"roll {a} {d}", lambda x: x.roll(a, d)),
        (f"pad {a} {b} with 1", lambda x: F.pad(x, (a, b), value=1.0)),
        (f"pad two {a} {b} {step}", lambda x: F.pad(x, (0, step, a, b))),
        (f"expand {wide}", lambda x: x.unsqueeze(0).expand(wide)),
        (f"cat {d}", lambda x: torch.cat([x, x.flip(d), x * 2], d)),
        (f"stack {d}", lambda x: torch.stack([x, -x], d)),
        (f"repeat {step}", lambda x: x.repeat(step, *[1] * (x.ndim - 1))),
        (f"repeat_interleave {step} {d}", lambda x: x.repeat_interleave(step, d)),
        (f"unfold {d} {step}", lambda x: x.unfold(d, min(2, x.shape[d]), step)),
        (f"diagonal {a}", lambda x: x.diagonal(a)),
        (f"tril {a}", lambda x: x.tril(a)),
        (f"select {d} {a}", lambda x: x.select(d, a)),
        (f"circular {b}", lambda x: F.pad(x[None, None].flatten(2), (max(b, 0), 1), mode="circular")),
    ]
    return source.choice(views)


def _reshaped(shape: torch.Size, source: random.Random) -> list[int]:
    """Returns a random shape with as many elements."""
    left, found = math.prod(shape), list[int]()
    while left > 1 and len(found) < 4:
        factor = source.choice([k for k in range(2, left + 1) if left % k == 0])
        found.append(factor)
        left //= factor
    found.append(left)
    if source.random() < 0.7 and left == 1:
        found.pop()
    source.shuffle(found)
    return found


def _end(x: torch.Tensor, last: int, source: random.Random) -> tuple[str, Callable[..., Any], tuple[int, ...]]:
    dims = source.sample(range(x.ndim), source.randint(min(1, x.ndim), x.ndim))
    ends: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = [
        (f"sum {dims}", lambda x: x.sum(dims) if dims else x.sum(), (last,)),
        (f"amax {dims}", lambda x: x.amax(dims), (last,)),
        ("relu", torch.relu, (last,)),
        ("x * first", lambda x, y: x * y.flatten()[0], (last, 0)),
        ("matmul", lambda x: x @ x.transpose(-1, -2) if x.ndim > 1 else x @ x, (last,)),
        ("argmax", lambda x: x.argmax(-1), (last,)),
        ("cumsum", lambda x: x.cumsum(0), (last,)),
    ]
    return source.choice(ends)
