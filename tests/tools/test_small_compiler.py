"""The small compiler of `examples/small_compiler`: each chapter compiles all programs right, and its pages are true."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import small_compiler_pages
import torch
from support import ROOT
from support.pages import blocks
from torch import nn
from torch.nn import functional

from deplodock.errors import DeplodockError, UnsupportedError

FOLDER = ROOT / "examples" / "small_compiler"
MOST_LINES = 1000
"""Limit of all lines of the compiler together, with docstrings."""

Inputs = tuple[torch.Tensor, ...]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


def views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns results of all views and reductions, an argument, and one result twice."""
    z = x.permute(2, 1, 0).reshape(6, 8).unsqueeze(1) * y.expand(6, 3, 8)
    z = z.sum((0, 2), keepdim=True).squeeze(0) + x.mean() - x.amax(1).sum() / z.abs().mean(0)
    return (
        z,
        x,
        z,
        torch.maximum(x, -x).pow(3).permute(1, 2, 0),
        torch.log_softmax(x, 1),
        (3 - x) * 0.5 + torch.full_like(x, 2) / (x * x + 1),
    )


def pointwise(x: torch.Tensor) -> torch.Tensor:
    y = x.abs() + 0.5
    return y.log() + y.sqrt() * y.rsqrt() - torch.sigmoid(x) / functional.gelu(y) + torch.add(x, y, alpha=3).tanh()


def shared(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose reductions have several readers, each at another place."""
    norms, y = (x * x).sum(1, keepdim=True), x
    for _ in range(6):
        y = y + norms / (y.exp() + norms)
    return (functional.gelu(y) @ w).amax(1) + norms.squeeze(1)


def r(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) * 2 - 1


def programs() -> dict[str, tuple[Callable[..., Any], Inputs]]:
    torch.manual_seed(0)
    return {
        "rmsnorm": (nn.RMSNorm(24), (r(2, 3, 24),)),
        "softmax": (nn.Softmax(-1), (r(5, 17),)),
        "mlp": (nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4)), (r(5, 6),)),
        "gelu mlp": (nn.Sequential(nn.Linear(6, 10), nn.GELU("tanh"), nn.Linear(10, 4)), (r(2, 3, 6),)),
        "attention": (attention, (r(4, 5), r(6, 5), r(6, 3))),
        "heads": (attention, (r(2, 3, 4), r(2, 5, 4), r(2, 5, 3))),
        "views": (views, (r(4, 2, 6), r(1, 3, 8))),
        "pointwise": (pointwise, (r(3, 90),)),
        "shared": (shared, (r(5, 7), r(7, 3))),
        "builtin": (torch.relu, (r(3, 4),)),
    }


PROGRAMS = programs()
KERNELS = {
    "rmsnorm": 2,
    "softmax": 3,
    "mlp": 2,
    "gelu mlp": 2,
    "attention": 5,
    "heads": 5,
    "pointwise": 1,
    "shared": 3,
    "builtin": 1,
}
"""Program -> number of its kernels after fusion."""

CHAPTERS = sorted(path.stem for path in FOLDER.glob("c*.py"))


@pytest.fixture(scope="module", autouse=True)
def chapters() -> Iterator[dict[str, Any]]:
    """Yields the modules of the chapters. A program is captured once for all chapters."""
    sys.path.insert(0, str(FOLDER.parent))
    modules = {name: import_module(f"small_compiler.{name}") for name in CHAPTERS}
    capture = modules["c1_capture"].compile
    captured = cache(capture)

    def copy(function: Callable[..., Any], inputs: Any) -> Any:
        # Tensors are equal to themselves only, so a program is captured again for other inputs.
        program = captured(function, inputs)
        return replace(program, module=program.module.clone())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules["c1_capture"], "compile", copy)
        yield modules
    sys.path.remove(str(FOLDER.parent))


@pytest.mark.parametrize("chapter", CHAPTERS[:6])
def test_each_chapter_compiles_all_programs(chapters: dict[str, Any], chapter: str) -> None:
    for name, (function, inputs) in PROGRAMS.items():
        program = chapters[chapter].compile(function, inputs)
        program.module.verify()
        torch.testing.assert_close(program(*inputs), function(*inputs), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("target", "executor"), [("cpu", "cpu"), ("sm_90a", "emulator")])
def test_the_text_of_all_programs_runs(chapters: dict[str, Any], target: str, executor: str) -> None:
    functions = {f"f{i}": function for i, (function, _) in enumerate(PROGRAMS.values())}
    modules = nn.ModuleDict({name: f for name, f in functions.items() if isinstance(f, nn.Module)})

    class All(nn.Module):
        """All programs as one, so that the C++ compiler starts once."""

        def __init__(self) -> None:
            super().__init__()
            self.modules_of_programs = modules

        def forward(self, *inputs: Inputs) -> list[Any]:
            return [f(*x) for f, x in zip(functions.values(), inputs, strict=True)]

    function, inputs = All(), tuple(inputs for _, inputs in PROGRAMS.values())
    program = chapters["c7_text"].compile(function, inputs, target, executor)
    torch.testing.assert_close(program(*inputs), function(*inputs))


@pytest.mark.parametrize("name", KERNELS)
def test_the_rule_of_fusion_leaves_few_kernels(chapters: dict[str, Any], name: str) -> None:
    module = chapters["c4_fusion"].compile(*PROGRAMS[name]).module
    assert sum(op.name == "loop.nest" for op in module.walk()) == KERNELS[name]


def test_a_call_uses_new_inputs_and_new_weights(chapters: dict[str, Any]) -> None:
    linear = nn.Linear(4, 3)
    program = chapters["c6_schedule"].compile(linear, (r(2, 4),))
    with torch.no_grad():
        linear.weight.mul_(2)
        torch.testing.assert_close(program(r(2, 4) + 1), linear(r(2, 4) + 1))
        with pytest.raises(DeplodockError, match=r"expected float32\[2, 4\], but got float32\[3, 4\]"):
            chapters["c4_fusion"].compile(linear, (r(2, 4),))(r(3, 4))


REFUSED = {
    "aten.cumsum.default: the small compiler does not have this operator": (lambda x: x.cumsum(0), (r(3),)),
    "aten.pow: expected an exponent from 1 to 4, but got 0.5": (lambda x: x**0.5, (r(3),)),
    "x: expected a tensor of float32 that is not empty, but got torch.int64[3]": (lambda x: x, (r(3).long(),)),
    "expected a tensor of float32 that is not empty, but got torch.float32[0]": (lambda x: x, (r(3)[:0],)),
    "aten.gt.Scalar: the small compiler does not have this operator": (lambda x: x * (x > 0), (r(3),)),
    "expected tensors as results, but got 3": (lambda x: (x + 1, 3), (r(3),)),
    "the program changes a buffer in place": (nn.BatchNorm1d(3), (r(2, 3),)),
}


def test_fusion_does_not_double_a_program_at_each_step(chapters: dict[str, Any]) -> None:
    def shuffles(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):  # two orders of elements, which do not commute
            x = x + x.reshape(6, 4).T
            x = x + x.reshape(2, 3, 4).permute(1, 0, 2).reshape(4, 6)
        return x

    program = chapters["c4_fusion"].compile(shuffles, (r(4, 6),))
    assert max(len(op.body.block.ops) for op in program.module.walk() if op.name == "loop.nest") < 200
    torch.testing.assert_close(program(r(4, 6)), shuffles(r(4, 6)))


def test_a_cpu_kernel_checks_no_bounds(chapters: dict[str, Any]) -> None:
    for function, inputs in PROGRAMS.values():
        module = chapters["c6_schedule"].compile(function, inputs, "cpu").module
        assert all(op.predicate is None for op in module.walk() if op.name == "kernel.store")


@pytest.mark.parametrize("message", REFUSED)
def test_other_programs_are_refused_in_one_line(chapters: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        chapters["c2_tensors"].compile(*REFUSED[message])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_compiler_is_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in FOLDER.rglob("*.py"))
    assert lines <= MOST_LINES


PAGES = sorted(small_compiler_pages.FOLDER.glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_pages_show_the_code_and_the_texts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == small_compiler_pages.page(text), "run `make docs`"


def test_the_python_of_the_pages_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    parts = [part for path in PAGES for part in path.read_text(encoding="utf-8").split("<!-- runs -->")[1:]]
    assert len(parts) == 2
    for part in parts:
        exec(blocks(part)[0].text, {})
    assert "static void k0(" in capsys.readouterr().out
