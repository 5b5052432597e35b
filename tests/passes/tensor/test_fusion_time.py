"""Fused programs are not slower than their parts, by the planner's predictions.

Each program is compared with the same program with one more materialised value, for each candidate, and with everything
materialised. `PYTHONPATH=tests python tests/passes/tensor/test_fusion_time.py` also runs the large programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation

from deplodock.dialects import loop, make_context
from deplodock.dialects.payload import tensor_bytes
from deplodock.dialects.tensor import ROOT
from deplodock.frontend.capture.export import capture
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import PIPELINES, parse_passes
from deplodock.passes.planning.choose import rank
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.passes.records import plan_key
from deplodock.passes.tensor.fusion.candidates import candidates, materialized
from deplodock.target.architectures import TARGETS

TARGET = TARGETS["sm_90a"]
TOLERANCE = 1.2
"""What fusion knows of a kernel is less than what the planner knows of its nest: so much slower it may come out."""

LOWER = PIPELINES["tensor-to-loop"].removeprefix("tensor-plan-fusion,")
BF16 = torch.bfloat16
KNOWN: dict[str, float] = {}
"""Predicted seconds by what a nest computes."""


def _of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype)


def _places(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def _rms_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), g) @ w


def _contrastive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() / 0.07
    return F.cross_entropy(scores, torch.arange(a.shape[0]))


def _kl(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean")


def _entropy(x: torch.Tensor) -> torch.Tensor:
    return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean()


QUICK: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "cross_entropy": (F.cross_entropy, (_of(8192, 32000), _places(8192))),
    "cross_entropy_of_few": (F.cross_entropy, (_of(128, 1000), _places(128))),
    "cosine_similarity": (lambda x, y: (1 - F.cosine_similarity(x, y)).mean(), (_of(8192, 4096), _of(8192, 4096))),
    "triplet": (F.triplet_margin_loss, (_of(8192, 1024), _of(8192, 1024), _of(8192, 1024))),
    "squares": (F.mse_loss, (_of(4096, 4096), _of(4096, 4096))),
    "kl": (_kl, (_of(4096, 8192), _of(4096, 8192))),
    "entropy": (_entropy, (_of(4096, 32000),)),
    "softmax_of_rows_summed_by_columns": (lambda x: F.softmax(x, -1).sum(0), (_of(8192, 4096),)),
    "maximum_of_softmax": (lambda x: F.softmax(x, -1).amax(-1).mean(), (_of(8192, 4096),)),
    "norms_of_rows": (lambda x: x.pow(2).sum(-1).sqrt().sum(), (_of(8192, 8192),)),
    "layer_norm_summed": (lambda x: F.layer_norm(x, (1024,)).sum(0), (_of(8192, 1024),)),
    "divided_by_its_norm": (lambda x: x / x.norm(), (_of(4096, 4096),)),
    "variance_of_means": (lambda x: x.mean(-1).var(), (_of(8192, 8192),)),
    "product_squared": (lambda x, w: (x @ w).pow(2).mean(), (_of(1024, 1024), _of(1024, 1024))),
    "rms_norm_linear": (_rms_linear, tuple(_of(*s, dtype=BF16) for s in ((32, 2048), (2048,), (2048, 2048)))),
    "attention_in_f32": (F.scaled_dot_product_attention, (_of(1, 32, 512, 64),) * 3),
    "mlp": (nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), (_of(32, 64),)),
}

LARGE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "rms_norm_linear_of_many": (_rms_linear, tuple(_of(*s, dtype=BF16) for s in ((4096, 4096), (4096,), (4096, 4096)))),
    "contrastive": (_contrastive, (_of(512, 256), _of(512, 256))),
    "linear_cross_entropy": (
        lambda x, w, t: F.cross_entropy(x @ w, t),
        (_of(1024, 512, dtype=BF16), _of(512, 32000, dtype=BF16), _places(1024)),
    ),
    "distances": (lambda a, b: torch.cdist(a, b).min(1).values.mean(), (_of(1024, 64), _of(1024, 64))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_of(1, 32, 2048, 128, dtype=BF16),) * 3,
    ),
    "convolutions": (
        nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1)),
        (_of(2, 32, 32, 32),),
    ),
    "cells": (nn.LSTMCell(64, 64), (_of(8, 64),)),
}


def seconds(module: ModuleOp) -> float:
    """Returns the predicted time of a module with its present fusion roots."""
    module = module.clone()
    run_passes(make_context(), module, parse_passes(LOWER), verify=False)
    total = 0.0
    for nest in (op for op in module.walk() if isinstance(op, loop.NestOp)):
        key = plan_key(nest)
        if key not in KNOWN:
            prediction = rank(NestInfo(nest), TARGET)[0].prediction
            KNOWN[key] = float("inf") if prediction is None else prediction.seconds
        total += KNOWN[key]
    return total


def alternatives(module: ModuleOp) -> Iterator[tuple[str, float]]:
    """Yields each alternative plan: the additionally materialised value, and the predicted seconds.

    Values larger than arguments and results together are excluded: saving them, like scores of attention, is the aim of
    fusion.
    """
    for function in (f for f in module.body.block.ops if isinstance(f, func.FuncOp)):
        kept = materialized(function)
        room = sum(tensor_bytes(t) for t in (*function.function_type.inputs, *function.function_type.outputs))
        for value in candidates(function):
            if value not in kept and isinstance(value.owner, Operation) and tensor_bytes(value.type) <= room:
                value.owner.attributes[ROOT] = UnitAttr()
                yield f"{value.owner.name} {value.type}", seconds(module)
                del value.owner.attributes[ROOT]
    run_passes(make_context(), module, parse_passes("tensor-plan-fusion{strategy=none}"), verify=False)
    yield "everything", seconds(module)


def compared(program: tuple[Callable[..., Any], tuple[torch.Tensor, ...]]) -> tuple[float, list[tuple[str, float]]]:
    """Returns the predicted seconds of the fused program, and the alternatives that are faster beyond the tolerance."""
    with torch.no_grad():
        module = capture(*program).module
    run_passes(make_context(), module, parse_passes("torch-to-tensor,tensor-plan-fusion"), verify=False)
    own = seconds(module)
    return own, [(what, other) for what, other in alternatives(module) if own > TOLERANCE * other]


@pytest.mark.parametrize("name", QUICK)
def test_no_part_kept_would_be_faster(name: str) -> None:
    own, faster = compared(QUICK[name])
    assert not faster, f"{own * 1e6:.1f} us as fused; with {faster[0][0]} kept {faster[0][1] * 1e6:.1f} us"


if __name__ == "__main__":
    for name, program in {**QUICK, **LARGE}.items():
        own, faster = compared(program)
        print(f"{name:36} {own * 1e6:10.2f} us", *(f"{s * 1e6:.2f} us with {what}" for what, s in faster), sep="  ")
        sys.stdout.flush()
