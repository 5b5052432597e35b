"""Fusion from tensors to nests: the number of nests of a program, and equal results, exactly and in floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.reference import run
from deplodock.dialects import loop, make_context
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

LOWER = "convert-tensor-to-loop,loop-split-dimensions,loop-hoist-reduction-factors,loop-fuse-reductions,cse,dce"


def _rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(1, 16, 4, 8).transpose(1, 2)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, **options)


_Q, _K, _V = _rand(2, 4, 19, 8), _rand(2, 2, 19, 8), _rand(2, 2, 19, 8)
_MASK = torch.rand(19, 19, generator=torch.Generator().manual_seed(1)) > 0.3

ONE_NEST: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "relu_matmul": (lambda x, b, w: torch.relu(torch.matmul(x + b, w)), (_rand(16, 64), _rand(64), _rand(64, 16))),
    "rms_norm": (nn.RMSNorm(37), (_rand(3, 37),)),
    "softmax": (nn.Softmax(-1), (_rand(3, 5, 37),)),
    "softmax_of_columns": (nn.Softmax(0), (_rand(37, 5),)),
    "layer_norm": (nn.LayerNorm(37), (_rand(3, 37),)),
    "log_softmax": (nn.LogSoftmax(-1), (_rand(3, 37),)),
    "cross_entropy": (lambda x, t: torch.logsumexp(x, -1) - (x * t).sum(-1), (_rand(5, 37), _rand(5, 37).softmax(-1))),
    "soft_targets": (lambda x, t: -(t * F.log_softmax(x, -1)).sum(-1), (_rand(5, 37), _rand(5, 37).softmax(-1))),
    "entropy": (lambda x: -(x.softmax(-1) * F.log_softmax(x, -1)).sum(-1), (_rand(5, 37),)),
    "attention": (_attention, (_Q, _Q * 0.5, _Q * 2)),
    "attention_causal_gqa": (lambda q, k, v: _attention(q, k, v, is_causal=True, enable_gqa=True), (_Q, _K, _V)),
    "attention_masked": (lambda q, k, v, m: _attention(q, k, v, attn_mask=m), (_Q, _Q, _Q, _MASK)),
    "attention_of_heads": (
        lambda q, k, v: _attention(_heads(q), _heads(k), _heads(v)).transpose(1, 2).reshape(1, 16, 32),
        (_rand(1, 16, 32), _rand(1, 16, 32) * 0.5, _rand(1, 16, 32) * 2),
    ),
    "swiglu": (lambda g, u: F.silu(g) * u, (_rand(5, 12), _rand(5, 12))),
    "swiglu_matmul": (lambda g, u, w: (F.silu(g) * u) @ w, (_rand(5, 12), _rand(5, 12), _rand(12, 7))),
    "matmul_residual": (lambda x, w, y: x @ w + y, (_rand(5, 12), _rand(12, 7), _rand(5, 7))),
    "gate_and_up": (lambda x, a, b: F.silu(x @ a) * (x @ b), (_rand(5, 12), _rand(12, 7), _rand(12, 7) * 2)),
    "rms_norm_matmul": (lambda x, w: F.rms_norm(x, (12,)) @ w, (_rand(5, 12), _rand(12, 7))),
    "layer_norm_matmul": (lambda x, w: F.layer_norm(x, (12,)) @ w, (_rand(5, 12), _rand(12, 7))),
    "vector_matrix": (lambda x, w: torch.relu(x @ w), (_rand(1, 64), _rand(64, 16))),
    "embedding": (lambda t, i: t[i] * 2, (_rand(10, 8), torch.tensor([[1, 9, -1], [0, 3, -10]]))),
    "argmax": (lambda x: x.argmax(-1), (_rand(5, 37),)),
    "cat": (lambda a, b: torch.cat([a, b], 1).sum(1), (_rand(5, 10), _rand(5, 12))),
    "roll_and_flip": (lambda a: torch.roll(a, 3, 1) + torch.flip(a, [0]), (_rand(5, 10),)),
    "tril_matmul": (lambda a: torch.tril(a) @ a, (_rand(9, 9),)),
    "convolution": (nn.Conv2d(3, 4, 3, padding=1, stride=2), (_rand(2, 3, 9, 9),)),
    "nothing": (lambda x: x.sum(1), (_rand(0, 3),)),
    "empty_sum": (lambda x: x.sum(1), (_rand(3, 0),)),
    "scalar": (lambda x: x.exp(), (_rand(),)),
}

SEVERAL = {
    "two_matmuls": (lambda x, a, b: torch.relu(x @ a) @ b, (_rand(9, 8), _rand(8, 8), _rand(8, 8) * 2)),
    "normalised_by_everything": (lambda x: x / x.sum(), (_rand(512, 512),)),
}


def _tensor_level(function: Any, args: tuple[torch.Tensor, ...]) -> tuple[ModuleOp, list[np.ndarray]]:
    captured = capture(function, args)
    run_passes(make_context(), captured.module, parse_passes("torch-to-tensor"))
    return captured.module, [to_numpy(t.detach()) for t in captured.bind(args)]


def _count(module: ModuleOp, kind: type) -> int:
    return sum(isinstance(op, kind) for op in module.walk())


def _check_equal(before: ModuleOp, after: ModuleOp, args: list[np.ndarray]) -> None:
    for domain in ("exact", "typed"):
        expected = run(before, args, domain)
        for chunk in (None, 5):
            for a, e in zip(run(after, args, domain, chunk=chunk), expected, strict=True):
                if domain == "exact" or a.dtype.kind in "biu":
                    np.testing.assert_array_equal(a, e)
                else:
                    np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-6 * max(1.0, np.abs(e).max(initial=0)))


@pytest.mark.parametrize("name", ONE_NEST)
def test_becomes_one_nest(name: str) -> None:
    before, args = _tensor_level(*ONE_NEST[name])
    after = before.clone()
    run_passes(make_context(), after, parse_passes(f"tensor-plan-fusion,{LOWER}"))
    assert _count(after, loop.NestOp) == 1
    _check_equal(before, after, args)


@pytest.mark.parametrize("name", SEVERAL)
def test_stays_several_nests(name: str) -> None:
    before, args = _tensor_level(*SEVERAL[name])
    after = before.clone()
    run_passes(make_context(), after, parse_passes(f"tensor-plan-fusion,{LOWER}"))
    assert _count(after, loop.NestOp) == 2
    _check_equal(before, after, args)


def test_attention_of_one_row_is_not_computed_for_each_output_of_its_projection() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(_attention(q, k, k).transpose(1, 2).reshape(1, 1024), w)

    module, _ = _tensor_level(function, (_rand(1, 16, 1, 64), _rand(1, 16, 130, 64), _rand(1024, 1024)))
    run_passes(make_context(), module, parse_passes(f"tensor-plan-fusion,{LOWER}"))
    *_, last = (op for op in module.walk() if isinstance(op, loop.NestOp))
    assert _count(module, loop.NestOp) > 1
    assert sum(isinstance(op, loop.ReduceOp | loop.StagedReduceOp) for op in last.walk()) == 1


@pytest.mark.parametrize("strategy", ["none", "all"])
@pytest.mark.parametrize("name", ["attention_of_heads", "entropy", "two_matmuls", "convolution", "cat"])
def test_any_plan_computes_the_same(name: str, strategy: str) -> None:
    before, args = _tensor_level(*{**ONE_NEST, **SEVERAL}[name])
    after = before.clone()
    run_passes(make_context(), after, parse_passes(f"tensor-plan-fusion{{strategy={strategy}}},{LOWER}"))
    assert (_count(after, loop.NestOp) == 1) == (strategy == "all")
    _check_equal(before, after, args)


@pytest.mark.parametrize("name", ["softmax", "attention_causal_gqa", "entropy", "soft_targets", "cross_entropy"])
def test_dependent_reductions_become_one_group(name: str) -> None:
    module, _ = _tensor_level(*ONE_NEST[name])
    run_passes(make_context(), module, parse_passes(f"tensor-plan-fusion,{LOWER}"))
    assert _count(module, loop.StagedReduceOp) == 1
    nest = next(op for op in module.walk() if isinstance(op, loop.NestOp))
    assert not any(isinstance(op, loop.ReduceOp) for op in nest.body.block.ops)


def _layer(dtype: torch.dtype) -> ModuleOp:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_attention_heads=32,
        num_key_value_heads=4,
        num_hidden_layers=1,
        attn_implementation="sdpa",
    )
    layer, rotary = LlamaDecoderLayer(config, 0).to(dtype).eval(), LlamaRotaryEmbedding(config)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            places = torch.arange(512)[None]
            out = self.layer(x, position_embeddings=rotary(x, places), attention_mask=None)
            return out[0] if isinstance(out, tuple) else out

    return _tensor_level(Layer(), (_rand(1, 512, 2048, dtype=dtype),))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoder_layer(dtype: torch.dtype) -> None:
    """A decoder layer has at most ten nests. One is the whole attention; both norms are nests of their own."""
    module = _layer(dtype)
    run_passes(make_context(), module, parse_passes(f"tensor-plan-fusion,{LOWER}"))
    assert _count(module, loop.NestOp) <= 10
    groups = [op for op in module.walk() if isinstance(op, loop.StagedReduceOp)]
    attention = [g for g in groups if [r.kind.data.value for r in g.stage_ops] == ["max", "add", "add"]]
    assert len(attention) == 1
    nested = [op for stage in attention[0].stage_ops for op in stage.body.walk() if isinstance(op, loop.ReduceOp)]
    assert len(nested) == 3  # the scores, in each stage


def test_two_products_of_one_product_are_no_chain() -> None:
    """Two reductions over one index that do not depend on each other do not fuse the matmul that they read."""

    def gated(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(x @ a)
        return F.silu(hidden @ b) * (hidden @ c)

    before, args = _tensor_level(gated, (_rand(9, 8), _rand(8, 8), _rand(8, 8) * 2, _rand(8, 8) * 3))
    after = before.clone()
    run_passes(make_context(), after, parse_passes(f"tensor-plan-fusion,{LOWER}"))
    for nest in (op for op in after.walk() if isinstance(op, loop.NestOp)):
        outer = [op for op in nest.walk() if isinstance(op, loop.ReduceOp)]
        assert not any(isinstance(inner, loop.ReduceOp) for op in outer for inner in op.body.walk())
    _check_equal(before, after, args)


def test_views_that_multiply_are_cut() -> None:
    """In fourteen additions of a rolled copy an element would need 16,384 inputs, so some values are materialised."""

    def rolls(x: torch.Tensor) -> torch.Tensor:
        for i in range(14):
            x = x + torch.roll(x, 1 << i, 0)
        return x

    before, args = _tensor_level(rolls, (_rand(1 << 14),))
    after = before.clone()
    run_passes(make_context(), after, parse_passes(f"tensor-plan-fusion,{LOWER}"))
    assert 1 < _count(after, loop.NestOp) < 14
    assert max(sum(1 for _ in op.walk()) for op in after.walk() if isinstance(op, loop.NestOp)) < 20_000
    (expected,) = run(before, args)
    np.testing.assert_allclose(run(after, args)[0], expected, rtol=1e-3, atol=1e-2)
