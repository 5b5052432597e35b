"""Bisection: a planted fault of the capture, an operator, a pass of each level or the printer is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import deplodock
from deplodock.backend.cpu import printer
from deplodock.dialects.support.printing import PrintedText
from deplodock.errors import ExecutionError
from deplodock.frontend.bisection.search import Bisection, bisect
from deplodock.frontend.capture.decompositions import DECOMPOSITIONS as ABOVE
from deplodock.frontend.capture.decompositions.table import decomposition_table, tables
from deplodock.passes import OWN_PASSES
from deplodock.passes.convert.torch_to_tensor.conversion import get_decompositions
from deplodock.tools.bisection import as_dict, outcome_text

X, Y = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)), torch.ones(7)


def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(x) + y
    return hidden.sum(-1) * 2


def bisected(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Bisection:
    compiled = deplodock.compile(function, args, **{"target": "cpu", "executor": "cpu", **options})
    return bisect(compiled, compiled.captured.bind(args, {}), lambda: function(*args))


@dataclasses.dataclass(frozen=True)
class Plant(ModulePass):
    """Replaces the first addition of floats by a subtraction."""

    name = "plant"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        add = next(o for o in op.walk() if isinstance(o, arith.AddfOp))
        less = arith.SubfOp(add.lhs, add.rhs)
        block = add.parent
        assert block is not None
        block.insert_op_before(less, add)
        add.results[0].replace_all_uses_with(less.results[0])
        add.detach()
        add.erase()


def test_right_results_blame_nothing() -> None:
    outcome = bisected(program, X, Y)
    assert outcome.culprit is None
    assert "no part is to blame" in outcome_text(outcome, False)


@pytest.mark.parametrize(
    "place", ["tensor-emulate-float8", "loop-use-fast-math", "tile-fuse-fma", "kernel-insert-barriers"]
)
def test_a_pass_of_each_level(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN_PASSES, "plant", f"{__name__}:Plant")
    outcome = bisected(program, X, Y, insert=f"plant:after={place}")
    assert outcome.culprit is not None
    assert (outcome.culprit.part, outcome.culprit.name) == ("pass", "plant")
    assert 1 < outcome.executed <= outcome.versions
    assert any(line.startswith("-") and "addf" in line for line in outcome.culprit.diff)
    assert any(line.startswith("+") and "subf" in line for line in outcome.culprit.diff)
    mismatch = outcome.culprit.mismatch
    assert mismatch is not None
    assert mismatch.element is not None
    assert mismatch.expected == pytest.approx(float(program(X, Y)[mismatch.element]))
    assert mismatch.error > mismatch.tolerance


def test_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    right = get_decompositions()["relu"]
    monkeypatch.setitem(get_decompositions(), "relu", lambda b, self: right(b, self=b.add(self, b.like(self, 0.25))))
    outcome = bisected(program, X, Y)
    assert outcome.culprit is not None
    assert (outcome.culprit.part, outcome.culprit.name) == ("operator", "torch.relu")
    assert (outcome.culprit.location or "").endswith(f":{program.__code__.co_firstlineno + 1}")
    assert outcome.culprit.mismatch is not None
    assert outcome.culprit.mismatch.actual == pytest.approx(outcome.culprit.mismatch.expected + 0.25)


@pytest.fixture
def fresh_table() -> Iterator[None]:
    """Makes the tables of decompositions anew in the test, and after it."""
    for made in (decomposition_table, tables):
        made.cache_clear()
    yield
    for made in (decomposition_table, tables):
        made.cache_clear()


@pytest.mark.usefixtures("fresh_table")
def test_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def smooth(x: torch.Tensor) -> torch.Tensor:
        y = torch.special.i0e(x + 1)
        return y * 3

    right = ABOVE["special_i0e.default"]
    monkeypatch.setitem(ABOVE, "special_i0e.default", lambda x: right(x * 0.5))
    outcome = bisected(smooth, X)
    assert outcome.culprit is not None
    assert (outcome.culprit.part, outcome.culprit.name) == ("capture", "aten.special_i0e.default")
    assert (outcome.culprit.location or "").endswith(f":{smooth.__code__.co_firstlineno + 1}")


def test_the_printed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    right = printer.cpp_with_owners

    def printed(module: ModuleOp) -> PrintedText:
        text = right(module)
        return dataclasses.replace(text, text=text.text.replace("2.0f", "2.5f"))

    monkeypatch.setattr(printer, "cpp_with_owners", printed)
    outcome = bisected(program, X, Y)
    assert outcome.culprit is not None
    assert (outcome.culprit.part, outcome.culprit.name) == ("executor", "cpu")
    assert "the kernel level is right" in outcome_text(outcome, True)
    assert as_dict(outcome)["culprit"]["mismatch"]["result"] == 0


def test_updates_of_arguments_are_undone() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x = torch.ones(3)
    assert bisected(update, x).culprit is None
    assert x.tolist() == [1, 1, 1]


def test_random_programs_are_refused() -> None:
    with pytest.raises(ExecutionError, match="draws other random numbers"):
        bisected(lambda x: torch.nn.functional.dropout(x, 0.5), X)
