"""Computed operands of contractions: the plan materialises them if the planning model predicts that this is faster.

The plan asks the model about no other kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from deplodock.backend.reference import run
from deplodock.dialects import loop, make_context
from deplodock.dialects.loop.dependence import Dependence, find_contraction
from deplodock.dialects.payload import tensor_bytes
from deplodock.dialects.support.calls import main_function
from deplodock.frontend.capture.export import capture
from deplodock.passes.analysis.host_memory import MEMORY_LIMIT
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import PIPELINES, parse_passes
from deplodock.passes.planning.matmul import loads_of
from deplodock.passes.tensor.fusion import search
from deplodock.passes.tensor.fusion.cost import Kernel
from deplodock.target.model import Target

Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
BF16 = torch.bfloat16


def _of(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype)


def _norm(x: torch.Tensor, g: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normed = F.rms_norm(x, (x.shape[-1],), g)
    return tuple(normed @ w for w in weights)


def _gated(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.silu(a) * b) @ w


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _weights(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return s.softmax(-1) @ v


def _normed_convolution(groups: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.GroupNorm(groups, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))


def _dequantized(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w.to(x.dtype) * scale)


LOADED: dict[str, tuple[Program, int]] = {
    "norm": ((_norm, (_of(32, 2048), _of(2048), _of(2048, 2048))), 2),
    "norm of many rows": ((_norm, (_of(512, 4096), _of(4096), _of(4096, 2048))), 2),
    "norm in f32": ((_norm, tuple(_of(*s, dtype=torch.float32) for s in ((512, 4096), (4096,), (4096, 2048)))), 2),
    "norm of three products": ((_norm, (_of(512, 2048), _of(2048), _of(2048, 2048), _of(2048, 256))), 3),
    "gated": ((_gated, (_of(32, 18944), _of(32, 18944), _of(18944, 3584))), 2),
    "group norm": (
        (
            _normed_convolution(8, 64),
            (_of(2, 64, 32, 32, dtype=torch.float32),),
        ),
        2,
    ),
}
"""Program, and how many nests it becomes: the operand, and a contraction for each use."""

ONE_NEST: dict[str, Program] = {
    "norm of one row": (_norm, (_of(1, 2048), _of(2048), _of(2048, 2048))),
    "gated, of little": (_gated, (_of(32, 64), _of(32, 64), _of(64, 64))),
    "decoding": (_attention, (_of(1, 32, 1, 128), _of(1, 32, 8192, 128), _of(1, 32, 8192, 128))),
    "attention": (_attention, (_of(1, 32, 512, 128),) * 3),
    "attention in f32": (_attention, (_of(1, 32, 512, 64, dtype=torch.float32),) * 3),
    "weights": (_weights, (_of(32, 1024, 1024), _of(32, 1024, 64))),
    "weights of one row": (_weights, (_of(32, 1, 8192), _of(32, 8192, 128))),
    "dequantized": (_dequantized, (_of(4096, 4096), torch.zeros(4096, 4096, dtype=torch.int8), _of(4096, 1))),
}
"""Programs that stay one nest: a launch costs more, or the operand takes more memory than what it is computed from."""


def _tensors(program: Program) -> ModuleOp:
    with torch.no_grad():
        module = capture(*program).module
    run_passes(make_context(), module, parse_passes("torch-to-tensor"), verify=False)
    return module


def _nests(module: ModuleOp) -> list[loop.NestOp]:
    run_passes(make_context(), module, parse_passes(PIPELINES["tensor-to-loop"]), verify=False)
    return [op for op in module.walk() if isinstance(op, loop.NestOp)]


def _loads_operands(nest: loop.NestOp) -> bool:
    """Returns true if every operand of a contraction in the nest is a load, possibly converted."""
    dependence = Dependence()
    sums = [op for op in nest.walk() if isinstance(op, loop.ReduceOp)]
    contractions = [c for op in sums if (c := find_contraction(op, dependence)) is not None]
    return all(loads_of(factor, narrow=True) for c in contractions for factor in (c.lhs, c.rhs))


@pytest.mark.parametrize("name", LOADED)
def test_operands_are_loaded(name: str) -> None:
    program, count = LOADED[name]
    nests = _nests(_tensors(program))
    assert len(nests) == count
    assert all(map(_loads_operands, nests))


@pytest.mark.parametrize("name", ONE_NEST)
def test_operands_are_computed(name: str) -> None:
    assert len(_nests(_tensors(ONE_NEST[name]))) == 1


def test_an_operand_beyond_the_memory_limit_is_computed() -> None:
    """The operand exceeds the memory limit, which includes the workspace that PyTorch reserves for matmuls."""
    module = _tensors((_norm, (_of(4096, 6144), _of(6144), _of(6144, 512))))
    function = main_function(module)
    result = sum(tensor_bytes(t) for t in function.function_type.outputs)
    assert len(_nests(module.clone())) == 2
    function.attributes[MEMORY_LIMIT] = IntegerAttr(result, 64)
    assert tensor_bytes(function.function_type.inputs.data[0]) > 32 << 20
    assert len(_nests(module)) == 1


NOT_ASKED: dict[str, Program] = {
    "product": (lambda x, w: torch.relu(x @ w), (_of(512, 512), _of(512, 512))),
    "attention": ONE_NEST["attention"],
    "decoding": ONE_NEST["decoding"],
    "norm": (lambda x: F.rms_norm(x, (2048,)), (_of(512, 2048),)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (_of(2, 3, 16, 16, dtype=torch.float32),)),
}


@pytest.mark.parametrize("name", NOT_ASKED)
def test_other_programs_do_not_ask_the_planning_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("the planning model was asked")

    module = _tensors(NOT_ASKED[name])
    monkeypatch.setattr(search, "planned_seconds", refuse)
    assert len(_nests(module)) == 1


def test_equal_layers_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def layers(count: int) -> int:
        def function(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                (x,) = _norm(x, g, w)
            return x

        asked.clear()
        module = _tensors((function, (_of(32, 2048), _of(2048), _of(2048, 2048))))
        assert len(_nests(module)) == 2 * count
        return len(asked)

    asked, planned = list[Kernel](), search.planned_seconds

    def count_calls(ctx: Context, kernel: Kernel, target: Target, precision: str) -> float:
        asked.append(kernel)
        return planned(ctx, kernel, target, precision)

    monkeypatch.setattr(search, "planned_seconds", count_calls)
    assert layers(1) == layers(4) == 3


SMALL: dict[str, Program] = {
    "norm": (_norm, (torch.randn(5, 12), torch.randn(12), torch.randn(12, 7), torch.randn(12, 3))),
    "layer norm": (lambda x, w: F.layer_norm(x, (12,)) @ w, (torch.randn(5, 12), torch.randn(12, 7))),
    "gated": (_gated, (torch.randn(5, 12), torch.randn(5, 12), torch.randn(12, 7))),
    "twice": (
        lambda x, a, b: (y := F.silu(x), F.silu(F.silu(y @ a) * 2 @ b) + y)[1],
        (torch.randn(5, 12), torch.randn(12, 7), torch.randn(7, 12)),
    ),
    "convolution": (
        _normed_convolution(2, 4),
        (torch.randn(2, 4, 5, 5),),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_kept_operands_change_no_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stay the same when a changed cost model makes the plan materialise more operands."""
    monkeypatch.setattr(search, "planned_seconds", lambda ctx, kernel, *_: kernel.value_count**2)
    function, tensors = SMALL[name]
    before = _tensors((function, tensors))
    captured = capture(function, tensors)
    inputs = [t.detach().numpy() for t in captured.bind(tensors)]
    after = before.clone()
    assert len(_nests(after)) > 1
    for got, want in zip(run(after, inputs, "exact"), run(before, inputs, "exact"), strict=True):
        np.testing.assert_array_equal(got, want)
