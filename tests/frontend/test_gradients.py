"""Gradients through torch.compile equal those of eager PyTorch, for operators and for modules as people write them.

`--gradients all` runs every program on the reference and as C++; `benchmarks/compiler/coverage.py --backward` runs
every operator.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

pytest.importorskip("expecttest")

from conformance import gradients, opdb, summary
from programs.people import PROGRAMS
from support.layers import make_layer

SEED, COUNT = 12, 8


def test_operators() -> None:
    """A random selection from PyTorch's operator database, with one sample each."""
    found = [op for op in opdb.operators() if gradients.is_differentiable(op, torch.float32)]
    verdicts = [
        gradients.judge_gradients(op, i, sample)
        for op in random.Random(SEED).sample(found, COUNT)
        for i, sample in opdb.samples(op, torch.float32, 1, requires_grad=True)
    ]
    assert sum(v.kind == "right" for v in verdicts) > COUNT / 2
    assert not summary.unexpected(verdicts, "float32 backward")


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from deplodock.frontend.capture.decompositions import table

    wrong = {**table.decomposition_table(), torch.ops.aten.avg_pool2d_backward.default: lambda g, x, *how: x * 0}
    monkeypatch.setattr("deplodock.frontend.dynamo.decomposition_table", lambda: wrong)
    (op,) = opdb.operators(["nn.functional.avg_pool2d"])
    ((number, sample),) = opdb.samples(op, torch.float32, 1, requires_grad=True)
    assert gradients.judge_gradients(op, number, sample).kind == "wrong"


def test_a_lost_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from deplodock.frontend import dynamo

    monkeypatch.setattr(dynamo, "compile_fixed", lambda graph, *_: lambda *args: [r.detach() for r in graph(*args)])
    (op,) = opdb.operators(["sin"])
    ((number, sample),) = opdb.samples(op, torch.float32, 1, requires_grad=True)
    assert gradients.judge_gradients(op, number, sample).kind == "wrong"


def layer(model: str) -> Callable[[], tuple[Any, Any]]:
    return lambda: (make_layer(model, torch.float32, small=True), (torch.randn(1, 9, 48),))


CASES = {**PROGRAMS, "tinyllama": layer("tinyllama"), "qwen": layer("qwen2.5-7b")}
del CASES["binary_cross_entropy_with_weights"]  # a derivative that PyTorch does not have
EXECUTORS = {"reference": {"executor": "reference"}, "cpu": {"target": "cpu"}}
SLICE = [(name, "reference") for name in [*CASES][::80]] + [
    ("spatial_transformer", "cpu"),
    ("dilated_pyramid", "cpu"),
    ("edge_convolution", "cpu"),
    ("tinyllama", "reference"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "executor" in metafunc.fixturenames:
        wanted = product(CASES, EXECUTORS) if metafunc.config.getoption("--gradients") == "all" else SLICE
        metafunc.parametrize(("name", "executor"), list(wanted))


def test_module(name: str, executor: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    function, args = CASES[name]()
    other = copy.deepcopy(function)
    required, values = differentiated(function, function, args)
    compiled = torch.compile(other, backend="deplodock", dynamic=False, options=EXECUTORS[executor])
    found_required, found = differentiated(compiled, other, args)
    assert found_required == required
    largest = max((t.abs().nan_to_num(0, 0, 0).max().item() for t in values if t.numel()), default=1.0)
    for a, b in zip(found, values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * largest + 1e-6, equal_nan=True)


def differentiated(call: Callable[..., Any], function: Any, args: Any) -> tuple[list[bool], list[torch.Tensor]]:
    """Returns which results require gradients, the results, and the gradients of arguments and parameters."""
    leaves, spec = pytree.tree_flatten(args)
    is_float = [isinstance(v, torch.Tensor) and v.is_floating_point() for v in leaves]
    leaves = [v.detach().clone().requires_grad_() if f else v for v, f in zip(leaves, is_float, strict=True)]
    torch.manual_seed(0)
    results = [r for r in pytree.tree_leaves(call(*pytree.tree_unflatten(leaves, spec))) if isinstance(r, torch.Tensor)]
    ends = [r for r in results if r.requires_grad]
    wanted = [v for v, f in zip(leaves, is_float, strict=True) if f]
    wanted += [p for p in function.parameters() if p.requires_grad] if isinstance(function, nn.Module) else []
    weights = [torch.randn(r.shape, generator=torch.Generator().manual_seed(1)).to(r.dtype) for r in ends]
    found = torch.autograd.grad(ends, wanted, weights, allow_unused=True) if ends and wanted else ()
    given = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=bool(found))]
    return [r.requires_grad for r in results], [*(r.detach() for r in results), *given]
