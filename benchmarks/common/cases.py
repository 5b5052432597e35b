"""The programs of the benchmarks, from data: the 84 shapes, the classes with targets (`suites/cpu.toml`,
`suites/cuda.toml`), and whole models."""

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
    """Cases with one target: `baseline` over our time is to be at least each of `targets` (ship, goal, stretch), by the
    geometric mean. The baseline `best` is the fastest of PyTorch's. `rate` is what a GPU of this kind computes at best,
    in operations a second, for the floor of a time."""

    name: str
    baseline: str = "best"
    targets: tuple[float, ...] = ()
    rate: float = 790e12


@dataclass(frozen=True)
class Case:
    """A program: an expression of the tensors `shapes`, of which `integers` have first the number that they stay below,
    or else what `build` gives, a function or a module with its arguments. It computes `flops` at least."""

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
        """What it is called in journals, among prepared programs and in results."""
        group = f" {self.group.name}:" if self.group.name else ""
        return f"{self.suite}:{group} {self.name} {self.dtype}"

    def make(self, seed: int = 1) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        """The function and its arguments on the host: normal random numbers, the same for the same seed."""
        torch.manual_seed(seed)
        if self.build is not None:
            function, args = self.build()
            if isinstance(function, torch.nn.Module):
                function = function.eval().to(DTYPES[self.dtype])
            return function, tuple(a.to(DTYPES[self.dtype]) if a.is_floating_point() else a for a in args)
        namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(f"def function({', '.join(self.shapes)}): return {self.expression}", namespace)  # a line of our own data
        return namespace["function"], tuple(self._input(n, s) for n, s in self.shapes.items())

    def _input(self, name: str, shape: Shape) -> torch.Tensor:
        if name in self.integers:
            return torch.randint(shape[0], tuple(shape[1:]))
        return torch.randn(tuple(shape)).to(DTYPES[self.dtype])


def cases(suites: Sequence[str], device: str, dtypes: Sequence[str], only: str = "", small: bool = False) -> list[Case]:
    """The cases of some suites on a device: those whose keys have `only` in them. The 84 shapes are of each of the
    `dtypes`, and `small` ones are shrunk."""
    makers = {
        "seed84": partial(_seed84, dtypes, small),
        "classes": partial(_classes, device),
        "models": _models,
        "smoke": _smoke,
    }
    found = [case for suite in suites for case in makers[suite]()]
    exact = [c for c in found if c.name == only]
    return exact or [c for c in found if only in c.key]


def groups(device: str) -> list[Group]:
    """The classes on a device with their targets."""
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
                more = {"f32_matmul_precision": c["f32_matmul_precision"]} if "f32_matmul_precision" in c else {}
                integers, flops = tuple(c.get("integers", ())), c.get("flops", 0.0)
                yield Case("classes", group, c["name"], c["dtype"], c["function"], c["inputs"], integers, flops, more)


def _smoke() -> Iterator[Case]:
    for name, (dtype, build) in SMOKE.items():
        yield Case("smoke", Group(""), name, dtype, build=build)


def _models() -> Iterator[Case]:
    for name in ("ResNet-50", "UNet depth 3", "2 blocks", "16 unequal blocks", "LSTM 512 steps"):
        yield Case("models", Group(""), name, "f32", build=PROGRAMS[name])
    build = partial(_prefill, "tinyllama-1.1b", layers=4, length=128)
    yield Case("models", Group(""), "TinyLlama, 4 layers, 128 tokens", "f32", build=build)


def _prefill(name: str, layers: int, length: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Some layers of a language model on a prompt, with random weights."""
    from deplodock.extras.llm.models import build_model, load_config

    config = load_config(str(ROOT / "tests" / "data" / "models" / f"{name}.json"))
    config.num_hidden_layers = layers
    model = build_model(config, torch.float32, seed=0)
    return _Logits(model), (torch.randint(config.vocab_size, (1, length)),)


class _Logits(torch.nn.Module):
    """A language model that gives logits, without a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, use_cache=False).logits
