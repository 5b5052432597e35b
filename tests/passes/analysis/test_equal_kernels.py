"""Equal kernels and nests are analysed once, and only equal ones are taken for equal."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.growing_programs import KINDS
from torch import Tensor
from xdsl.context import Context

from deplodock.dialects import make_context
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.support.parsing import parse_module
from deplodock.frontend.capture.export import capture
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.planning import plan_schedules
from deplodock.passes.planning.choose import Candidate
from deplodock.passes.tensor.fusion.candidates import candidates, required_values
from deplodock.passes.tensor.fusion.cost import Kernel
from deplodock.passes.tensor.fusion.graph import Load, Payload, TooLarge
from deplodock.passes.tensor.fusion.search import Search
from deplodock.target.attribute import get_target

Program = tuple[Callable[..., object], tuple[Tensor, ...]]


def layers(n: int) -> Program:
    """Returns a program of `n` layers of equal shapes."""
    weights = [torch.linspace(-1, 1, 64).reshape(8, 8) * (i + 1) for i in range(n)]

    def run(x: Tensor) -> Tensor:
        for w in weights:
            x = torch.softmax(x @ w, -1) + x * 0.5
        return x

    return run, (torch.rand(4, 8),)


def slices_and_slices_of_slices(n: int) -> Program:
    """Returns a program with sums of two slices of one tensor, some of the same elements, and with padded slices."""

    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        pairs = [x[i : i + 4].sin() + x[j : j + 5][1:].cos() for i in range(n) for j in range(i)]
        padded = [F.pad(x[i : i + 4] * y, (0, 0, 1, 1)).exp() for i in range(n)]
        return pairs + padded

    return run, (torch.rand(n + 5, 8), torch.rand(4, 8))


def operands_in_other_places(n: int) -> Program:
    """Returns a program whose kernels have the same operations and numbers of tensors, but use other tensors twice."""

    def run(*xs: Tensor) -> list[Tensor]:
        a = [(x * y) + (x * z) for x, y, z in zip(xs, xs[1:], xs[2:], strict=False)]
        return a + [(x * y) + (y * z) for x, y, z in zip(xs, xs[1:], xs[2:], strict=False)]

    return run, tuple(torch.rand(4, 8) for _ in range(n))


def search_of(program: Program, target: str) -> Search:
    """Returns the search for a fusion plan of a program."""
    module, ctx = capture(*program).module, make_context()
    for module_pass in parse_passes("convert-torch-to-tensor,cse,dce"):
        module_pass.apply(ctx, module)
    function = main_function(module)
    return Search(Context(), function, candidates(function), required_values(function), get_target(target))


def shape_of(kernel: Kernel) -> list[object]:
    """Returns the nodes of a graph and the edges between them, without names and offsets."""
    numbers = {node: i for i, node in enumerate(dict.fromkeys(node for node, _ in kernel.visited))}
    shape = list[object]()
    for node in numbers:
        name = node.name if isinstance(node, Payload) else ""
        guarded = isinstance(node, Load) and bool(node.guard)
        shape.append((type(node), name, node.free, guarded, [numbers[child] for child in node.children]))
    return shape


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{
        kind: lambda kind=kind, n=n: KINDS[kind](n)
        for kind, n in {
            "chain_of_gathers": 4,
            "chain_of_softmaxes": 3,
            "growing_concatenations": 4,
            "heads_as_a_loop": 3,
            "masked_updates": 4,
            "pooling_chain": 2,
            "slice_assignments": 5,
            "unrolled_lstm_cells": 3,
            "unrolled_scan": 4,
        }.items()
    },
    "layers": lambda: layers(3),
    "slices": lambda: slices_and_slices_of_slices(4),
    "operands": lambda: operands_in_other_places(4),
}


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_with_equal_keys_cost_the_same(name: str, target: str) -> None:
    search, known, roots = search_of(PROGRAMS[name](), target), dict[bytes, object](), dict[bytes, set[int]]()

    def cost(root: int, inlined: int) -> tuple[float, int]:
        key = search.structure.key(root, inlined)
        try:
            kernel = search.kernel(root, inlined)
            result = kernel.time(), kernel.value_count, shape_of(kernel)
        except TooLarge:
            result = inf, 0, []
        assert known.setdefault(key, result) == result
        roots.setdefault(key, set()).add(root)
        return result[:2]

    search.cost = cost  # pyright: ignore[reportAttributeAccessIssue]
    search.run()
    assert any(len(r) > 1 for r in roots.values())


def test_graphs_are_made_once_for_equal_layers() -> None:
    """Planning twice as many equal layers makes no additional graphs of kernels."""
    numbers = list[int]()
    for n in (4, 8):
        search, made = search_of(layers(n), "cpu"), 0
        kernel = search.kernel

        def counted(root: int, inlined: int, kernel: Callable[..., Kernel] = kernel) -> Kernel:
            nonlocal made
            made += 1
            return kernel(root, inlined)

        search.kernel = counted  # pyright: ignore[reportAttributeAccessIssue]
        search.run()
        numbers.append(made)
    assert numbers[1] < 1.3 * numbers[0]


def test_equal_nests_are_ranked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests are equal if only their names and tensors differ, but not if their index maps differ."""
    nest = """
      %{r} = loop.nest (%i, %j) in [8, 64] -> tensor<8x64xf32> {{
        %a = loop.load %{x}[%i, {at}] : tensor<8x64xf32>
        %b = math.exp %a : f32
        loop.yield %b : f32
      }}"""
    reads = [("r0", "x", "%j"), ("r1", "r0", "%j"), ("r2", "r1", "63 - %j"), ("r3", "y", "%j"), ("r4", "y", "63 - %j")]
    nests = "".join(nest.format(r=r, x=x, at=at) for r, x, at in reads)
    text = f"""func.func @main(%x: tensor<8x64xf32>, %y: tensor<8x64xf32>) -> tensor<8x64xf32> {{{nests}
      func.return %r4 : tensor<8x64xf32>
    }}"""
    ranked, rank = list[object](), plan_schedules.rank

    def counted(*args: Any) -> list[Candidate]:
        ranked.append(args)
        return rank(*args)

    monkeypatch.setattr(plan_schedules, "rank", counted)
    ctx = make_context()
    module = parse_module(ctx, text, "test")
    plan_schedules.PlanSchedulesPass(target="cpu").apply(ctx, module)
    assert len(ranked) == 2
