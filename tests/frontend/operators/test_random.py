"""Random numbers: the generator's known answers, distributions, and that they do not depend on how a program is run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from xdsl.dialects.builtin import ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

import deplodock
from deplodock.backend.check_each import Checker
from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.tensor.builder import Builder
from deplodock.frontend.capture.export import capture
from deplodock.passes.convert.torch_to_tensor.random import philox
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""(counter, key, words): the test vectors that the authors of Philox4x32-10 published."""


def test_known_answers() -> None:
    t = TensorType(i64, [len(KNOWN)])
    block, b = Block(arg_types=[t] * 6), Builder()
    words = philox(b, block.args[:4], block.args[4:])
    block.add_ops([*b.ops, ReturnOp(*words)])
    module = ModuleOp([FuncOp("main", ([t] * 6, [t] * 4), Region(block))])
    columns = [np.array(c, np.int64) for c in zip(*((*counter, *key) for counter, key, _ in KNOWN), strict=True)]
    assert np.stack(run(module, columns)).T.tolist() == [list(w) for *_, w in KNOWN]


X = torch.full((200, 300), 0.25)

Draw = Callable[[torch.Tensor], torch.Tensor]

MOMENTS: dict[str, tuple[Draw, float, float]] = {
    "rand": (lambda x: torch.rand(60_000), 0.5, 1 / 12),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 1 / 12),
    "rand in f64": (lambda x: torch.rand(60_000, dtype=torch.float64), 0.5, 1 / 12),
    "rand in bf16": (lambda x: torch.rand_like(x, dtype=torch.bfloat16), 0.5 - 2**-9, 1 / 12),
    "randn": (lambda x: torch.randn_like(x), 0, 1),
    "randint": (lambda x: torch.randint(-3, 7, (60_000,)), 1.5, 99 / 12),
    "bernoulli": (lambda x: torch.bernoulli(x), 0.25, 3 / 16),
    "bernoulli of a number": (lambda x: torch.empty_like(x).bernoulli_(0.1), 0.1, 0.09),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1, 16 / 12),
    "normal": (lambda x: torch.empty_like(x).normal_(2, 3), 2, 9),
    "normal of tensors": (lambda x: torch.normal(x, 2 * x), 0.25, 0.25),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2), 0.5, 0.25),
    "geometric": (lambda x: torch.empty_like(x).geometric_(0.25), 4, 12),
    "log_normal": (lambda x: torch.empty_like(x).log_normal_(0, 0.5), math.exp(0.125), 0.3646),
    "dropout": (lambda x: F.dropout(x, 0.2, True), 0.25, 0.25**2 * 0.25),
    "multinomial": (lambda x: torch.multinomial(x[:, :5], 300, True), 2, 2),
    "rrelu": (lambda x: F.rrelu(-x, 0.0, 1.0, True), -0.125, 1 / 192),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str) -> None:
    """Mean and variance are within five standard deviations, and neighbours are uncorrelated."""
    draw, mean, variance = MOMENTS[name]
    torch.manual_seed(1)
    got = deplodock.compile(draw, (X,), executor="reference")(X).double().flatten()
    n = got.numel()
    assert abs(got.mean() - mean) < 5 * math.sqrt(variance / n)
    spread = got - got.mean()
    fourth = (spread**4).mean()
    assert abs(spread.square().mean() - variance) < 5 * math.sqrt(float(fourth) / n)
    for distance in (1, 2, 300):
        assert abs((spread[:-distance] * spread[distance:]).mean()) < 5 * variance / math.sqrt(n)


def test_dropout_scales_what_it_keeps() -> None:
    compiled = deplodock.compile(lambda x: torch.ops.aten.native_dropout(x, 0.3, True), (X,), executor="reference")
    y, mask = compiled(X)
    torch.testing.assert_close(y, X * mask / 0.7)
    assert 0.68 < mask.double().mean() < 0.72
    assert torch.equal(deplodock.compile(lambda x: F.dropout(x, 1.0, True), (X,))(X), torch.zeros_like(X))
    assert deplodock.compile(lambda x: F.dropout(x, 0.5, False) + 1, (X,)).captured.draws is False


def test_permutations_and_choices() -> None:
    order = deplodock.compile(lambda x: torch.randperm(50) + 0 * x.long().sum(), (X,), executor="reference")
    first, second = order(X), order(X)
    assert first.sort().values.tolist() == list(range(50))
    assert first.tolist() != second.tolist()
    weights = torch.tensor([[1.0, 0.0, 2.0, 3.0]]).repeat(500, 1)
    chosen = deplodock.compile(lambda w: torch.multinomial(w, 3), (weights,), executor="reference")(weights)
    assert chosen.sort(-1).values.tolist() == [[0, 2, 3]] * 500
    assert 200 < (chosen[:, 0] == 3).sum() < 300  # half of the weight


def test_seeds() -> None:
    """`torch.manual_seed` determines the numbers. Other calls, and other draws of a call, have other numbers."""
    compiled = deplodock.compile(lambda x: (torch.rand_like(x), torch.rand_like(x)), (X,), executor="reference")
    torch.manual_seed(5)
    a, b = compiled(X)
    c, _ = compiled(X)
    torch.manual_seed(5)
    again, _ = compiled(X)
    assert torch.equal(a, again)
    for other in (b, c):
        assert abs(float(((a - 0.5) * (other - 0.5)).mean())) < 5 / 12 / math.sqrt(X.numel())


def _noisy(x: torch.Tensor) -> Any:
    h = F.dropout(x, 0.5, True)
    return h.t() + torch.randn(8, 4), h.sum(0)


def _attention(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)


@pytest.mark.parametrize(("executor", "function"), [("simulator", _attention), ("emulator", _noisy)])
def test_executors_draw_the_same(executor: str, function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    found: list[Any] = []
    for name in ("reference", executor):
        compiled = deplodock.compile(function, (x,), executor=name)
        torch.manual_seed(7)
        found.append(compiled(x))
    torch.testing.assert_close(*found)


def test_fusion_does_not_change_the_numbers() -> None:
    """Numbers are the same if they are drawn once and materialised, or drawn in every kernel that uses them."""
    captured = capture(lambda x: (F.dropout(x, 0.5, True) * 2, F.dropout(x, 0.5, True).sum(1)), (torch.ones(6, 5),))
    inputs = [np.ones((6, 5), np.float32), np.array([3, 0]), np.array([3, 1])]
    found: list[list[np.ndarray]] = []
    for strategy in ("none", "all", "model"):
        module = captured.module.clone()
        passes = f"torch-to-tensor,tensor-plan-fusion{{strategy={strategy}}},convert-tensor-to-loop"
        run_passes(make_context(), module, parse_passes(passes))
        found.append(run(module, inputs))
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_every_pass_keeps_the_answer() -> None:
    module = capture(lambda x: F.dropout(x, 0.5, True).sum(1), (torch.ones(3, 5),)).module.clone()
    run_passes(make_context(), module, parse_passes("torch-to-tensor"))
    checker = Checker(module)
    for p in parse_passes("tensor-to-loop,loop-to-tile,tile-to-kernel"):
        run_passes(make_context(), module, [p])
        checker.after(p.name, module)


def test_layers_that_draw_stay_one_function() -> None:
    class Block_(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.layer_norm(torch.tanh(self.linear(x)), (8,))
            return x + F.dropout(torch.sigmoid(y) * y, 0.5, True)

    model = nn.Sequential(*(Block_() for _ in range(4)))
    module = capture(model, (torch.randn(4, 8),)).module
    run_passes(make_context(), module, parse_passes("torch-outline-layers{min_ops=3},convert-torch-to-tensor"))
    text = str(module)
    assert text.count("func.func private") == 1
    assert text.count("func.call") == 4


def test_saved_and_loaded(tmp_path: Any) -> None:
    compiled = deplodock.compile(lambda x: F.dropout(x, 0.5, True), (torch.ones(8, 8),), executor="reference")
    compiled.save(tmp_path / "drop")
    loaded = deplodock.load(tmp_path / "drop", executor="reference")
    x = torch.ones(8, 8)
    torch.manual_seed(2)
    want = compiled(x)
    torch.manual_seed(2)
    assert torch.equal(loaded(x), want)


def test_refused_by_name() -> None:
    with pytest.raises(deplodock.CompileError, match="poisson"):
        deplodock.compile(lambda x: torch.poisson(x), (X,))
