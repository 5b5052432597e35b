"""The cases of the benchmarks: programs with their inputs, in four suites.

| suite | cases |
|---|---|
| `seed84` | 84 expressions with fixed shapes (`tests/support/seed84.py`), in each data type |
| `classes` | groups of similar cases with a target for their speed (`suites/cpu.toml`, `suites/cuda.toml`) |
| `models` | whole networks |
| `smoke` | three small programs |
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support import seed84  # noqa: E402

from .growing_programs import PROGRAMS  # noqa: E402
from .smoke_programs import PROGRAMS as SMOKE  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SUITES = ("seed84", "classes", "models", "smoke")

Shape = Sequence[int]


@dataclass(frozen=True)
class Group:
    """Cases that have one target for their speed.

    Attributes:
        name: name of the class; empty in other suites.
        baseline: arm of PyTorch to compare with, such as `torch.compile`; `best` is the fastest one.
        targets: least speedups over the baseline (ship, goal, stretch), as geometric means over the cases.
        rate: highest rate of the GPU for these cases, in operations per second, for the lower bound of their time
            (`predictions.floor`).
    """

    name: str
    baseline: str = "best"
    targets: tuple[float, ...] = ()
    rate: float = 790e12


@dataclass(frozen=True)
class Case:
    """A program with its inputs: either an expression of tensors, or the result of `build`.

    Attributes:
        suite: name of the suite.
        group: the target of the case.
        name: name of the case inside its suite and group.
        dtype: data type of the floating-point inputs, a key of `DTYPES`.
        expression: Python expression of the inputs, such as `torch.relu(x @ w)`.
        shapes: shape of each input by name. The shape of an integer input begins with the bound of its values.
        integers: names of the integer inputs.
        flops: least number of operations that the program needs.
        options: options of `deplodock.compile`.
        build: returns a function or module, and its arguments. Replaces `expression`, `shapes` and `integers`.
    """

    suite: str
    group: Group
    name: str
    dtype: str
    expression: str = ""
    shapes: dict[str, Shape] = field(default_factory=dict[str, Shape])
    integers: tuple[str, ...] = ()
    flops: float = 0.0
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    build: Callable[[], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] | None = None

    @property
    def key(self) -> str:
        """Unique name of the case: its key in journals, part of the name of its compiled artifact."""
        group = f" {self.group.name}:" if self.group.name else ""
        return f"{self.suite}:{group} {self.name} {self.dtype}"

    def make(self, seed: int = 1) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        """Returns the function or module and its arguments on the host; equal seeds give equal arguments."""
        torch.manual_seed(seed)
        if self.build is not None:
            function, args = self.build()
            if isinstance(function, torch.nn.Module):
                function = function.eval().to(DTYPES[self.dtype])
            return function, tuple(a.to(DTYPES[self.dtype]) if a.is_floating_point() else a for a in args)
        namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        # The expression is a part of this repository, so it is safe to execute.
        exec(f"def function({', '.join(self.shapes)}): return {self.expression}", namespace)
        return namespace["function"], tuple(self._input(n, s) for n, s in self.shapes.items())

    def _input(self, name: str, shape: Shape) -> torch.Tensor:
        if name in self.integers:
            return torch.randint(shape[0], tuple(shape[1:]))
        return torch.randn(tuple(shape)).to(DTYPES[self.dtype])


def cases(suites: Sequence[str], device: str, dtypes: Sequence[str], only: str = "", small: bool = False) -> list[Case]:
    """Returns the cases of some suites.

    Args:
        suites: names from `SUITES`.
        device: `cpu` or `cuda`; selects the classes with targets.
        dtypes: data types of the 84 shapes. Other suites fix their own.
        only: name of a case; if no case has this name, a part of the keys of the cases to return.
        small: whether the 84 shapes are shrunk to small odd sizes.
    """
    makers = {
        "seed84": partial(_seed84, dtypes, small),
        "classes": partial(_classes, device),
        "models": _models,
        "smoke": _smoke,
    }
    selected = [case for suite in suites for case in makers[suite]()]
    exact = [c for c in selected if c.name == only]
    return exact or [c for c in selected if only in c.key]


def groups(device: str) -> list[Group]:
    """Returns the classes with targets of a device, `cpu` or `cuda`."""
    return list(dict.fromkeys(c.group for c in _classes(device)))


def _seed84(dtypes: Sequence[str], small: bool) -> Iterator[Case]:
    for dtype in dtypes:
        for name in seed84.NAMES:
            expression, shapes = seed84.text_of(name, small=small)
            suite = "seed84 small" if small else "seed84"
            yield Case(suite, Group(""), name, dtype, expression, dict(shapes))


def _classes(device: str) -> Iterator[Case]:
    with (Path(__file__).parent / "suites" / f"{device}.toml").open("rb") as file:
        for name, row in tomllib.load(file).items():
            group = Group(name, row["baseline"], tuple(row["targets"]), row.get("rate", Group.rate))
            for c in row["cases"]:
                options = {"f32_matmul_precision": c["f32_matmul_precision"]} if "f32_matmul_precision" in c else {}
                integers, flops = tuple(c.get("integers", ())), c.get("flops", 0.0)
                yield Case(
                    "classes", group, c["name"], c["dtype"], c["function"], c["inputs"], integers, flops, options
                )


def _smoke() -> Iterator[Case]:
    for name, (dtype, build) in SMOKE.items():
        yield Case("smoke", Group(""), name, dtype, build=build)


def _models() -> Iterator[Case]:
    for name in ("ResNet-50", "UNet depth 3", "2 blocks", "16 unequal blocks", "LSTM 512 steps"):
        yield Case("models", Group(""), name, "f32", build=PROGRAMS[name])
    build = partial(_prefill, "tinyllama-1.1b", layers=4, length=128)
    yield Case("models", Group(""), "TinyLlama, 4 layers, 128 tokens", "f32", build=build)


def _prefill(name: str, layers: int, length: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Returns the first `layers` layers of a language model with random weights, and a prompt of `length` tokens."""
    from deplodock.extras.llm.models import build_model, load_config

    config = load_config(str(ROOT / "tests" / "data" / "models" / f"{name}.json"))
    config.num_hidden_layers = layers
    model = build_model(config, torch.float32, seed=0)
    return _Logits(model), (torch.randint(config.vocab_size, (1, length)),)


class _Logits(torch.nn.Module):
    """A language model that returns its logits and does not use a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, use_cache=False).logits
