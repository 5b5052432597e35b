"""A pass is skipped if the module lacks operations that it needs. Such a pass would change and remark nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import TESTS
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError
from deplodock.frontend.capture.export import capture
from deplodock.passes.loop.fuse_siblings import FuseSiblingsPass
from deplodock.passes.pass_manager import (
    Observer,
    collect_remarks,
    contents_of,
    lacking,
    run_passes,
    verify_module,
    words_of,
)
from deplodock.passes.pipelines import get_all_passes, parse_passes
from deplodock.target.attribute import target_of
from deplodock.tools.dl_opt import split_chunks

CORPUS = sorted((TESTS / "filecheck").rglob("*.mlir"))

PASSES = [p for load in get_all_passes().values() if getattr(p := load(), "needs", None)]


def mistakes(module: ModuleOp, passes: list[type[ModulePass]]) -> Iterator[str]:
    """Runs every pass that would be skipped on `module`. Yields a message for each change, remark or error."""
    context, words, before = make_context(), words_of(module), contents_of(module)
    for make in passes:
        module_pass = make()
        if why := lacking(module_pass.needs, words):  # pyright: ignore[reportAttributeAccessIssue]
            with collect_remarks() as remarks:
                try:
                    module_pass.apply(context, module)
                except CompileError as error:
                    yield f"{module_pass.name} refuses a module with {why}: {error}"
            yield from (f"{module_pass.name} remarks on a module with {why}: {remark}" for remark in remarks)
            if (after := contents_of(module)) != before:
                yield f"{module_pass.name} changes a module with {why}"
                before = after


def chunks(file: Path) -> Iterator[ModuleOp]:
    """Yields the modules of a lit test that are valid and have a known target."""
    for chunk, _ in split_chunks(file.read_text(encoding="utf-8")):
        try:
            module = parse_module(make_context(), chunk, file.name)
            verify_module(module)
            target_of(module)
            yield module
        except CompileError:
            continue


def test_the_corpus() -> None:
    failures = [f"{file.name}: {m}" for file in CORPUS for module in chunks(file) for m in mistakes(module, PASSES)]
    assert not failures


def _programs() -> dict[str, tuple[Any, tuple[torch.Tensor, ...]]]:
    x, w = torch.randn(8, 64), torch.randn(64, 64)
    return {
        "add": (lambda x: x + x, (x,)),
        "layer": (lambda x, w: torch.softmax(torch.relu(x @ w), -1) @ w, (x, w)),
        "updates": (lambda x, y: (y.add_(x), x.sum(-1)), (x, x.clone())),
        "padded": (lambda x: torch.nn.functional.pad(x, (1, 1)).view(torch.uint8).sum(0), (x,)),
        "gathered": (lambda x: x.gather(1, x.argsort(1)[:, :3]), (x[:, :8],)),
        "float8": (lambda x: x.to(torch.float8_e4m3fn), (x,)),
    }


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize("name", _programs())
def test_programs_on_their_way_down(name: str, target: str) -> None:
    """Before each pass of the pipeline, every pass that would be skipped changes nothing."""

    class Check(Observer):
        def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
            assert [*mistakes(module.clone(), PASSES)] == []

    module = capture(*_programs()[name]).module
    run_passes(make_context(), module, parse_passes("default", {"target": (target,)}), [Check()])


@pytest.mark.parametrize("name", _programs())
def test_the_result_is_that_of_all_passes(name: str) -> None:
    module, passes = capture(*_programs()[name]).module, parse_passes("default")
    whole = module.clone()
    run_passes(make_context(), module, passes)
    run_passes(make_context(), whole, passes, skip=False)
    assert str(module) == str(whole)


def test_observers_are_told_of_skipped_passes() -> None:
    class Listing(Observer):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
            self.lines.append(module_pass.name)

        def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
            self.lines.append(f"{module_pass.name}: {why}")

    listing = Listing()
    module = capture(lambda x: x.exp().sum(), (torch.randn(4, 4),)).module
    passes = parse_passes("torch-to-tensor,tensor-to-loop,loop-split-k,loop-fuse-siblings")
    run_passes(make_context(), module, passes, [listing])
    assert "tensor-emulate-float8: no f8E4M3FN or f8E5M2" in listing.lines
    assert "loop-hoist-reduction-factors" in listing.lines
    assert listing.lines[-2:] == ["loop-split-k: no split_k", "loop-fuse-siblings: fewer than 2 loop.nest"]


def test_a_wrong_need_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FuseSiblingsPass, "needs", {"loop.nest": 3})
    file = next(f for f in CORPUS if f.name == "loop-fuse-siblings.mlir")
    seen = [m for module in chunks(file) for m in mistakes(module, [FuseSiblingsPass])]
    assert "loop-fuse-siblings changes a module with fewer than 3 loop.nest" in seen
