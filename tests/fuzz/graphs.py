"""Random programs of PyTorch operators.

A program is drawn operator by operator while PyTorch runs it, so each operator fits the shapes of its operands. Inputs
are small integers. A value is `exact` if every order of computation gives the same bits. Discontinuous operators
(comparisons, sorting, rounding) are drawn only on exact values, because they would amplify rounding differences.

PyTorch does not check the types of empty tensors. Operators that it refuses for a type are not drawn for empty tensors
of this type either.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

SIZES = (0, 1, 1, 2, 3, 3, 5, 7, 8)
MOST_ELEMENTS = 300
BOUND = 1 << 10
"""Bound of exact values, for which sums and products of a few are exact in f32."""


@dataclass(frozen=True)
class Step:
    """A call of an operator. Its operands are indices of earlier values."""

    name: str
    function: Callable[..., torch.Tensor]
    operands: tuple[int, ...]


@dataclass
class Value:
    """An intermediate result, and whether it is exact: independent of the order of computation."""

    tensor: torch.Tensor
    exact: bool


@dataclass
class Program:
    """Inputs and steps of a random program. A call with similar inputs returns the last values as a list."""

    inputs: list[torch.Tensor]
    steps: list[Step] = field(default_factory=list)
    results: tuple[int, ...] = ()

    def __call__(self, *inputs: torch.Tensor) -> list[Any]:
        values = list(inputs)
        for step in self.steps:
            values.append(step.function(*(values[i] for i in step.operands)))
        return [values[i] for i in self.results]

    def __str__(self) -> str:
        lines = [f"v{i} = {str(x.dtype)[6:]}{list(x.shape)} strides {x.stride()}" for i, x in enumerate(self.inputs)]
        for i, step in enumerate(self.steps, len(self.inputs)):
            lines.append(f"v{i} = {step.name}({', '.join(f'v{o}' for o in step.operands)})")
        return "\n".join([*lines, f"return {', '.join(f'v{i}' for i in self.results)}"])


Draft = tuple[str, Callable[..., torch.Tensor], tuple[int, ...], bool]
"""Name, function and operands of a drawn step, and whether exact operands give an exact result."""


class Generator:
    """Draws a program from a seed. `simple` restricts data types to f32."""

    def __init__(self, seed: int, *, simple: bool = False) -> None:
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.simple = simple
        self.values: list[Value] = []

    def draw(self, steps: int) -> Program:
        """Returns a program of at most `steps` operators."""
        program = Program([self._input() for _ in range(self.random.randint(1, 3))])
        self.values = [Value(x, True) for x in program.inputs]
        for _ in range(steps):
            draft = self._step()
            if draft is None:
                continue
            name, function, operands, keeps = draft
            try:
                result = function(*(self.values[i].tensor for i in operands))
            except (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError):
                continue  # PyTorch refuses the program.
            if result.numel() > MOST_ELEMENTS:
                continue
            exact = keeps and all(self.values[i].exact for i in operands) and self._small(result)
            program.steps.append(Step(name, function, operands))
            self.values.append(Value(result, exact))
        count = len(self.values)
        wanted = {count - 1, *(self.random.randrange(count) for _ in range(self.random.randint(0, 2)))}
        program.results = tuple(sorted(wanted))
        return program

    # Inputs

    def _shape(self) -> list[int]:
        while True:
            shape = [self.random.choice(SIZES) for _ in range(self.random.choice((0, 1, 2, 2, 3, 3, 4)))]
            if torch.Size(shape).numel() <= MOST_ELEMENTS // 2:
                return shape

    def _input(self) -> torch.Tensor:
        """Returns a tensor of small integers, often not contiguous."""
        shape = self._shape()
        kind = self.random.choice(("plain", "transposed", "strided", "expanded"))
        stored = list(shape)
        if kind == "transposed":
            stored.reverse()
        elif kind == "strided" and shape:
            stored[-1] *= 2
        elif kind == "expanded" and shape:
            stored[0] = min(stored[0], 1)
        x = torch.randint(-4, 5, stored, generator=self.torch).to(self._dtype())
        if kind == "transposed":
            return x.permute(list(range(x.ndim))[::-1])
        if kind == "strided" and shape:
            return x[..., ::2]
        return x.expand(shape) if kind == "expanded" and shape and shape[0] else x.reshape(shape)

    def _dtype(self) -> torch.dtype:
        others = (torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
        return torch.float32 if self.simple or self.random.random() < 0.6 else self.random.choice(others)

    @staticmethod
    def _small(x: torch.Tensor) -> bool:
        if x.dtype in (torch.bool, torch.int64, torch.int32):
            return True
        whole = x.float()
        return bool(((whole == whole.round()) & (whole.abs() < BOUND)).all())

    # Operators

    def _pick(self, accept: Callable[[Value], bool] = lambda v: True) -> int | None:
        found = [i for i, v in enumerate(self.values) if accept(v)]
        return self.random.choice(found[-6:]) if found else None

    def _step(self) -> Draft | None:
        kinds = (self._unary, self._binary, self._reduction, self._view, self._view, self._combination, self._exact)
        return self.random.choice(kinds)()

    def _dim(self, i: int) -> int:
        rank = max(self.values[i].tensor.ndim, 1)
        return self.random.randrange(-rank, rank)

    def _unary(self) -> Draft | None:
        i = self._pick()
        assert i is not None
        smooth: list[Any] = [torch.tanh, torch.sigmoid, torch.sin, torch.erf, F.silu, torch.atan]
        exact: list[Any] = [torch.neg, torch.abs, torch.relu, torch.square, torch.clone]
        if self.random.random() < 0.5:
            f = self.random.choice(smooth)
            return f.__name__, f, (i,), False
        if not self.simple and self.random.random() < 0.3:
            dtype = self._dtype()
            if self.values[i].exact or dtype.is_floating_point:
                return f"to {dtype}", lambda x: x.to(dtype), (i,), True
        f = self.random.choice(exact)
        return f.__name__, f, (i,), True

    def _binary(self) -> Draft | None:
        i, j = self._pick(), self._pick()
        assert i is not None
        assert j is not None
        if self.random.random() < 0.25:
            c = self.random.choice((-2, 2, 3, 0.5))
            return f"x + {c}", lambda x: x + c, (i,), True
        f: Any = self.random.choice([torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum])
        return f.__name__, f, (i, j), True

    def _reduction(self) -> Draft | None:
        i = self._pick()
        assert i is not None
        d, keep = self._dim(i), self.random.random() < 0.5
        exact: list[Any] = [torch.sum, torch.amax, torch.amin]
        f: Any = self.random.choice([*exact, torch.mean, torch.logsumexp])
        if self.random.random() < 0.3:
            g: Any = self.random.choice([F.softmax, F.log_softmax])
            if not self.values[i].tensor.is_floating_point():
                return None
            return f"{g.__name__} dim {d}", lambda x: g(x, d), (i,), False
        return f"{f.__name__} dim {d} keepdim {keep}", lambda x: f(x, d, keepdim=keep), (i,), f in exact

    def _view(self) -> Draft | None:
        i = self._pick()
        assert i is not None
        x = self.values[i].tensor
        d, e = self._dim(i), self._dim(i)
        n = x.shape[d] if x.ndim else 1
        start, size = self.random.randint(-n - 1, n), self.random.randint(0, n + 1)
        step, k = self.random.randint(1, 3), self.random.randint(-3, 3)
        choices: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            f"transpose {d} {e}": lambda x: x.transpose(d, e),
            f"slice {d} {start} {size} {step}": lambda x: torch.ops.aten.slice.Tensor(x, d, start, start + size, step),
            f"flip {d}": lambda x: x.flip(d),
            f"roll {k} {d}": lambda x: x.roll(k, d),
            f"unsqueeze {d}": lambda x: x.unsqueeze(d),
            f"select {d} {k}": lambda x: x.select(d, k),
            f"pad {k} {step}": lambda x: F.pad(x, (k, step), value=2),
            "flatten": lambda x: x.flatten(),
            f"tril {k}": lambda x: x.tril(k),
            f"diagonal {k}": lambda x: x.diagonal(k),
            f"unfold {d} {step}": lambda x: x.unfold(d, min(2, n), step),
            f"split {d}": lambda x: x.split(max(n // 2, 1), d)[-1],
            f"repeat {step}": lambda x: x.repeat(step, *[1] * x.ndim),
            f"narrow fold {d}": lambda x: x.reshape(self._factored(x.shape, d)),
        }
        name = self.random.choice(sorted(choices))
        if name.startswith("narrow fold"):
            shape = self._factored(x.shape, d)
            return f"reshape {shape}", lambda x: x.reshape(shape), (i,), True
        return name, choices[name], (i,), True

    def _factored(self, shape: torch.Size, d: int) -> list[int]:
        """Returns a new shape: a dimension split at a divisor, or two adjacent dimensions joined."""
        found = list(shape)
        if not found:
            return [1, 1]
        d %= len(found)
        if self.random.random() < 0.5 and d + 1 < len(found):
            return [*found[:d], found[d] * found[d + 1], *found[d + 2 :]]
        divisors = [k for k in range(1, found[d] + 1) if found[d] % k == 0] or [1]
        k = self.random.choice(divisors)
        return [*found[:d], k, found[d] // k, *found[d + 1 :]]

    def _combination(self) -> Draft | None:
        kind = self.random.choice(("matmul", "cat", "stack", "where", "conv", "pool", "cumsum", "norm"))
        i = self._pick()
        assert i is not None
        x, d = self.values[i].tensor, self._dim(i)
        if kind == "matmul":
            j = self._pick(lambda v: v.tensor.dtype == x.dtype and v.tensor.ndim >= 1)
            if j is None or x.ndim < 1 or x.dtype == torch.bool:
                return None
            if self.values[j].tensor.shape[-1] == x.shape[-1]:
                return "x @ y.T", lambda x, y: x @ (y.transpose(-1, -2) if y.ndim > 1 else y), (i, j), True
            return "x @ y", lambda x, y: x @ y, (i, j), True
        if kind in ("cat", "stack"):
            j = self._pick(lambda v: v.tensor.shape == x.shape)
            f: Any = torch.cat if kind == "cat" else torch.stack
            return f"{kind} {d}", lambda x, y: f([x, y], d), (i, i if j is None else j), True
        if kind == "where":
            c = self._pick(lambda v: v.tensor.dtype == torch.bool)
            j = self._pick()
            return ("where", torch.where, (c, i, j), True) if c is not None and j is not None else None
        if kind == "conv":
            j = self._pick(lambda v: v.tensor.ndim == 3 and v.tensor.dtype == x.dtype)
            stride, pad, dilation = (self.random.randint(1, 2) for _ in range(3))
            if j is None or x.ndim != 3 or not x.shape[1]:
                return None
            if x.dtype == torch.float16 and self.values[j].tensor.shape[2] == 1 and dilation > 1:
                return None  # PyTorch's CPU convolution would end the process.
            name = f"conv1d {stride} {pad} {dilation}"
            return name, lambda x, w: F.conv1d(x, w, None, stride, pad, dilation), (i, j), True
        if kind == "pool":
            k = self.random.randint(1, 3)
            f = self.random.choice([F.max_pool1d, F.avg_pool1d])
            return f"pool {k}", lambda x: f(x, k, 1, k // 2), (i,), f is F.max_pool1d
        if kind == "cumsum":
            return f"cumsum {d}", lambda x: x.cumsum(d), (i,), True
        return "layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), (i,), False

    def _exact(self) -> Draft | None:
        """Draws a discontinuous operator, on exact values only."""
        i = self._pick(lambda v: v.exact)
        if i is None:
            return None
        d = self._dim(i)
        j = self._pick(lambda v: v.exact)
        assert j is not None
        f: Any = self.random.choice([torch.lt, torch.ge, torch.eq])
        choices: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
            f.__name__: (f, (i, j)),
            f"sort {d}": (lambda x: x.sort(d, stable=True).values, (i,)),
            f"argsort {d}": (lambda x: x.argsort(d, stable=True, descending=True), (i,)),
            f"argmax {d}": (lambda x: x.argmax(d), (i,)),
            f"any {d}": (lambda x: x.any(d), (i,)),
            "gather": (lambda x, y: x.gather(d, (y.long() % max(x.shape[d] if x.ndim else 1, 1))), (i, j)),
            "floor_divide": (lambda x: x // 3, (i,)),
            "remainder": (lambda x: x % 3, (i,)),
            "masked_fill": (lambda x: x.masked_fill(x > 1, -3), (i,)),
        }
        name = self.random.choice(sorted(choices))
        return (name, *choices[name], True)
