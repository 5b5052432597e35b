"""Programs with dynamic sizes: captured once, right at every size of the declared range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.dynamic_programs import BATCH, SIZES, Mlp, compiled, creation, derived, reductions, rows, views
from support.torch_versions import needs_torch
from torch.export import Dim

import deplodock
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.errors import CaptureError, CompileError, ShapeError, UnsupportedError
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture


def assert_right_at(program: CompiledFunction, function: Callable[..., Any], args: Sequence[Any]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(*args), function(*args), rtol=2e-4, atol=2e-5)


NEEDS_SLICES = needs_torch(2, 13, "makes sizes of data of a slice whose bound is half a size")


@pytest.mark.parametrize("function", [Mlp(), reductions, views, creation], ids=lambda f: getattr(f, "__name__", "mlp"))
def test_one_program_for_every_batch(function: Callable[..., Any]):
    program = compiled(function, (rows(5, 8),), ({0: BATCH},))
    for n in SIZES:
        assert_right_at(program, function, (rows(n, 8),))


@NEEDS_SLICES
def test_sizes_that_follow_from_others():
    program = compiled(derived, (rows(5, 8), rows(3, 8)), ({0: BATCH}, {0: Dim("more", min=1, max=1000)}))
    assert "deplodock.sizes = [#payload.derived<" in program.ir("torch")
    for n, m in zip(SIZES, (7, 1, 1, 3, 1000), strict=True):
        assert_right_at(program, derived, (rows(n, 8), rows(m, 8)))


def test_two_sizes_in_one_dimension():
    """Merging two dynamic dimensions makes strides dynamic, so coordinates are computed."""

    def merged(x: torch.Tensor) -> list[torch.Tensor]:
        flat = x.reshape(-1, 4)
        return [flat, (flat * 2).view(x.shape), x.flatten()]

    shapes = ({0: BATCH, 1: Dim("length", min=1, max=1000)},)
    program = compiled(merged, (rows(5, 6, 4),), shapes)
    for n, m in ((1, 1), (2, 7), (7, 2), (128, 3), (1, 1000)):
        assert_right_at(program, merged, (rows(n, m, 4),))


@NEEDS_SLICES
def test_the_text_of_every_level_reads_back():
    program = compiled(derived, (rows(5, 8), rows(3, 8)), ({0: BATCH}, {0: Dim("more", min=1, max=1000)}))
    for level in ("torch", "tensor"):
        text = print_module(program.compilation.at(level))
        assert print_module(parse_module(make_context(), text, "x.mlir")) == text
    assert "#batch = #payload.symbol<batch[1:1001]>" in program.ir("tensor")


def test_arguments_outside_of_what_was_declared():
    program = compiled(lambda x, y: x + y, (rows(5, 8), rows(5, 8)), ({0: BATCH}, {0: BATCH}))
    for shapes, message in (
        (((0, 8), (0, 8)), "x, dimension 0: the size batch is 0, outside of 1 to 1000"),
        (((1001, 8), (1001, 8)), "the size batch is 1001, outside of 1 to 1000"),
        (((5, 8), (6, 8)), "y: dimension 0 is 6, not 5, which batch is elsewhere"),
        (((5, 7), (5, 7)), "x: dimension 1 is 7, not 8"),
        (((5,), (5,)), "x: a tensor of rank 1 where one of rank 2 is needed"),
    ):
        with pytest.raises(ShapeError, match=message):
            program(*(torch.zeros(s) for s in shapes))
    with pytest.raises(ShapeError, match="float64"):
        program(rows(5, 8).double(), rows(5, 8))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + 1 if x.shape[0] >= 2 else x - 1, "where batch is 1: add.Tensor .* becomes sub.Tensor"),
        (lambda x: x + 1 if x.shape[0] == 1 else x - 1, "where batch is 1: sub.Tensor .* becomes add.Tensor"),
        (lambda x: x + 1 if x.shape[0] == 1 else x + 2, "where batch is 1: add.Tensor"),
        (lambda x: x + 1 if x.shape[0] >= 3 else x - 1, "batch"),
        (lambda x: x + 1 if x.shape[0] == 7 else x - 1, "batch"),
    ],
)
def test_a_program_that_is_another_one_for_some_sizes(function: Callable[..., Any], message: str):
    with pytest.raises(CaptureError, match=message):
        capture(function, (rows(5, 8),), dynamic_shapes=({0: BATCH},))


def test_a_program_that_asks_for_one_and_stays_the_same():
    def asking(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).expand(x.shape) if x.shape[0] == 1 else x[: x.shape[0]] * 2

    program = compiled(asking, (rows(5, 8),), ({0: BATCH},))
    for n in (1, 2, 7):
        assert_right_at(program, asking, (rows(n, 8),))


def test_a_dimension_that_might_go():
    with pytest.raises(CompileError, match="squeeze.*known to be 1 or not, but got batch"):
        compiled(lambda x: x.squeeze(), (rows(5, 8),), ({0: BATCH},)).compilation.at("tensor")


def test_a_size_as_an_argument_is_refused():
    with pytest.raises(UnsupportedError, match="an integer argument that varies"):
        capture(lambda x, n: x * n, (rows(5, 8), 3), dynamic_shapes=({0: BATCH}, Dim.DYNAMIC))


def test_what_cannot_be_done_names_operator_and_size():
    with pytest.raises(CompileError, match=r"x\.unfold\(0, 1, 1\): the size batch is known only at run time"):
        compiled(lambda x: x.unfold(0, 1, 1), (rows(5, 8),), ({0: BATCH},)).compilation.at("tensor")


@NEEDS_SLICES
def test_one_cuda_text_and_its_artifact(tmp_path: Path):
    """A saved and loaded program runs one CUDA text for all sizes, and checks the range of sizes."""
    shapes = ({0: BATCH}, {0: Dim("more", min=1, max=1000)})
    program = deplodock.compile(derived, (rows(5, 8), rows(3, 8)), executor="emulator", dynamic_shapes=shapes)
    program.save(tmp_path / "derived")
    loaded = deplodock.load(tmp_path / "derived", executor="emulator")
    for n, m in ((1, 1), (7, 2), (130, 1)):
        assert_right_at(program, derived, (rows(n, 8), rows(m, 8)))
        torch.testing.assert_close(loaded(rows(n, 8), rows(m, 8)), program(rows(n, 8), rows(m, 8)), rtol=0, atol=0)
    with pytest.raises(ShapeError, match="the size more is 0, outside of 1 to 1000"):
        loaded(rows(5, 8), rows(0, 8))


@pytest.mark.parametrize("function", [Mlp(), reductions], ids=["mlp", "reductions"])
def test_as_printed_cuda(function: Callable[..., Any]):
    program = CompiledFunction(capture(function, (rows(5, 8),), dynamic_shapes=({0: BATCH},)), "sm_90a", "emulator")
    for n in SIZES:
        assert_right_at(program, function, (rows(n, 8),))


def test_indices_that_are_sizes_are_checked_at_every_call() -> None:
    some, more = Dim("some", min=0, max=10), Dim("more", min=0, max=10)
    middle = deplodock.compile(
        lambda x: x[x.shape[0] // 2] + 1, (rows(6, 3),), executor="reference", dynamic_shapes=({0: some},)
    )
    assert torch.equal(middle(rows(1, 3)), rows(1, 3)[0] + 1)
    with pytest.raises(ShapeError, match="some_from_index0 is 0"):
        middle(torch.empty(0, 3))  # as eager PyTorch, an IndexError
    other = deplodock.compile(
        lambda x, y: x[y.shape[0]] + 1,
        (rows(6, 3), rows(4, 1)),
        executor="reference",
        dynamic_shapes=({0: some}, {0: more}),
    )
    assert torch.equal(other(rows(5, 3), rows(2, 1)), rows(5, 3)[2] + 1)
    with pytest.raises(ShapeError, match="some_from_index0 is 0"):
        other(rows(5, 3), rows(5, 1))
