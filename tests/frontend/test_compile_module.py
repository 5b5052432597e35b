"""Compilation of programs written as IR, at each level, to functions of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deplodock
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import MalformedIRError, parse_module
from deplodock.errors import BorderError, CompileError, ExecutionError
from deplodock.frontend.modules import level_of

LEVELS = ("torch", "tensor", "loop", "tile", "kernel")


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).sum(1)


ARGS = torch.randn(8, 12), torch.randn(12, 16)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    compiled = deplodock.compile(rows, ARGS, target="sm_90a", executor="reference")
    return {level: compiled.ir(level) for level in LEVELS}


@pytest.mark.parametrize("level", LEVELS)
def test_a_text_at_each_level_runs(level: Any, texts: dict[str, str]) -> None:
    executor = "simulator" if level == "kernel" else "reference"
    program = deplodock.compile_module(texts[level], ARGS, target="sm_90a", executor=executor)
    assert program.compilation.level == level
    torch.testing.assert_close(program(*ARGS), rows(*ARGS))
    assert "__global__" in program.ir("cuda")


def test_a_module_and_a_file_on_cores(texts: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "rows.mlir"
    file.write_text(texts["tensor"])
    module = parse_module(make_context(), texts["tensor"], "rows.mlir")
    before = str(module)
    for source in file, module:
        program = deplodock.compile_module(source, target="cpu", schedule="block=8")
        torch.testing.assert_close(program(*(a.numpy() for a in ARGS)), rows(*ARGS))
    assert str(module) == before


def test_results_are_as_many_as_main_returns() -> None:
    two = "func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) { func.return %x, %y : A }"
    two = two.replace("{ ", "{\n %y = arith.addf %x, %x : tensor<3xf32>\n ").replace(
        "A", "tensor<3xf32>, tensor<3xf32>"
    )
    x = np.arange(3, dtype=np.float32)
    first, second = deplodock.compile_module(two, executor="reference", target="sm_90a")(x)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [0, 2, 4])


def test_the_level_of_a_module(texts: dict[str, str]) -> None:
    for level, text in texts.items():
        assert level_of(parse_module(make_context(), text, "text")) == level


def test_a_pipeline_begins_at_the_level(texts: dict[str, str]) -> None:
    passes = deplodock.compile_module(texts["loop"], target="sm_90a", executor="reference").compilation.pipeline()
    program = deplodock.compile_module(texts["loop"], target="sm_90a", executor="reference", pipeline=passes)
    assert program.compilation.pipeline() == passes
    with pytest.raises(CompileError, match="has to pass verify-level.* at tile"):
        deplodock.compile_module(texts["loop"], target="sm_90a", pipeline="cse")


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "syntax": (lambda t: deplodock.compile_module("foo"), MalformedIRError, "unknown operation 'foo'"),
    "verifier": (
        lambda t: deplodock.compile_module(t["tensor"].replace("tensor<8xf32> attr", "tensor<9xf32> attr")),
        MalformedIRError,
        "tensor<9xf32>",
    ),
    "level": (
        lambda t: deplodock.compile_module(t["loop"], level="tensor", target="sm_90a"),
        BorderError,
        "loop.nest: not legal at the tensor level",
    ),
    "mixed levels": (
        lambda t: deplodock.compile_module(
            t["loop"].replace("{\n", "{\n" + t["tensor"].replace("@main", "@other").partition("{\n")[2][:-2] + "\n", 1)
        ),
        BorderError,
        "those of: tensor, loop",
    ),
    "unknown level": (
        lambda t: deplodock.compile_module(t["loop"], level="sky"),  # pyright: ignore[reportArgumentType]
        CompileError,
        "sky.*torch, tensor",
    ),
    "no main": (lambda t: deplodock.compile_module("func.func @f() { func.return }"), CompileError, "has no @main"),
    "level above": (
        lambda t: deplodock.compile_module(t["loop"], target="sm_90a", executor="reference").ir("tensor"),
        CompileError,
        "begins at the loop level",
    ),
    "kernel level on the reference": (
        lambda t: deplodock.compile_module(t["kernel"], target="sm_90a", executor="reference"),
        CompileError,
        "simulator or emulator",
    ),
    "count of a reference": (
        lambda t: deplodock.compile_module(t["loop"], ARGS[:1], target="sm_90a", executor="reference"),
        ExecutionError,
        "expected 2 arguments of @main, but got 1",
    ),
    "count": (lambda t: deplodock.compile_module(t["loop"], ARGS[:1], target="sm_90a"), ExecutionError, "is missing"),
    "type": (
        lambda t: deplodock.compile_module(t["loop"], (ARGS[0].double(), ARGS[1]), target="sm_90a"),
        ExecutionError,
        "float64",
    ),
    "shape": (
        lambda t: deplodock.compile_module(t["loop"], (ARGS[0].T, ARGS[1]), target="sm_90a"),
        ExecutionError,
        r"float32\[12, 8\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, texts: dict[str, str]) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(texts)
