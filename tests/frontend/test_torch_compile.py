"""Uses of torch.compile: each one is right, falls back with a warning, or is refused with a reason."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from support import ROOT
from torch_compile import USES
from torch_compile.checking import Use, outcome

from deplodock.errors import UnsupportedError
from deplodock.frontend import dynamo
from deplodock.frontend.dynamo import RecompileWarning

SLICE = [u for i, u in enumerate(USES) if u.refused or u.group in ("changes", "threads") or i % 4 == 0]
"""What the tests try; `python -m benchmarks.compiler.torch_compile` tries all of them."""


@pytest.mark.parametrize("this", SLICE, ids=lambda u: f"{u.group}: {u.name}")
def test_use(this: Use) -> None:
    found = outcome(this)
    assert found.kind in this.expected, found.text
    if found.kind != "right":
        assert re.search(this.says or "", found.text)


def test_a_form_with_symbols_that_is_refused_becomes_a_program_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile(module: Any, examples: Any, dynamic_shapes: Any = None, **options: Any) -> Any:
        if dynamic_shapes is not None:
            raise UnsupportedError("not with symbols")
        compiled.append([tuple(e.shape) for e in examples])
        return real(module, examples, **options)

    real = dynamo.compile
    monkeypatch.setattr(dynamo, "compile", compile)
    torch._dynamo.reset()
    f, x = torch.compile(lambda x, n: x * n + x.shape[0], backend="deplodock"), torch.randn(20)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecompileWarning)
        for n in (3, 5, 7, 5, 7, 3, 9, 10, 11, 12, 13, 14):
            torch.testing.assert_close(f(x[:n], 2), x[:n] * 2 + n)
    assert compiled == [[(n,)] for n in (3, 5, 7, 3, 9, 10, 11, 12, 13)]
    said = [str(w.message) for w in caught if w.category is RecompileWarning]
    assert len(said) == 2
    assert "not with symbols; so there is a program for each shape" in said[0]
    assert "compiled for 8 shapes or numbers" in said[1]


def test_the_page_lists_every_use() -> None:

    page = (ROOT / "docs" / "torch_compile.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[\w ]*) \| (.+?) \| (\w[\w ]*) \|", page, re.M)
    assert [(group, name) for group, name, _ in rows if group != "group"] == [(u.group, u.name) for u in USES]
    assert {kind for group, _, kind in rows if group != "group"} <= {"right", "falls back", "refused"}


def test_sizes_above_those_of_the_first_program() -> None:
    """A dynamic size is below 2^20, unless the example exceeds that; then there is a program for large sizes."""
    function = torch.compile(lambda x: x * 2 + x[-1], backend="deplodock", dynamic=True)
    for size in (10, 20, (1 << 20) + 1, (1 << 20) + 2, 5):
        x = torch.arange(size, dtype=torch.float32)
        torch.testing.assert_close(function(x), x * 2 + x[-1])
