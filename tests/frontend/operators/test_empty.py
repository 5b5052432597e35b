"""Reductions and layers of tensors without elements: the results or errors of eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conformance import opdb
from conformance.tracing import Tracer, tracer
from torch.utils import _pytree as pytree

from deplodock.errors import CompileError

REDUCTIONS = """sum mean prod std var amax amin max min argmax median nanmedian mode any all nansum count_nonzero
cumsum cummax logcumsumexp softmax sort std_mean aminmax diff""".split()

TENSORS = [torch.zeros(0), torch.zeros(0, 3), torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.int64)]


def _attention(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, key)


LAYERS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "attention without keys": (_attention, (torch.ones(1, 4, 8), torch.ones(1, 0, 8))),
    "attention without queries": (_attention, (torch.ones(1, 0, 8), torch.ones(1, 3, 8))),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (torch.zeros(0, 3, 4),)),
    "layer norm": (lambda x: F.layer_norm(x, (0,)), (torch.zeros(3, 0),)),
    "cross entropy": (F.cross_entropy, (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))),
    "linear": (F.linear, (torch.zeros(3, 0), torch.ones(4, 0))),
    "the middle of nothing": (lambda x: x[x.shape[0] // 2], (torch.zeros(0, 3),)),
}


@pytest.fixture(scope="module")
def traced() -> Iterator[Tracer]:
    with tracer() as t:
        yield t


def _check(traced: Tracer, call: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> None:
    def flat(*tensors: torch.Tensor) -> list[Any]:
        return pytree.tree_flatten(call(*tensors))[0]

    try:
        flat(*tensors)
    except (RuntimeError, IndexError):
        with pytest.raises(CompileError):
            opdb.lower(traced.trace(flat, tensors).module)
        return
    kind, reason = opdb.judge_call(traced, flat, tensors)
    assert kind == "right", reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(traced: Tracer, name: str) -> None:
    for x in TENSORS:
        if name in ("median", "nanmedian") and not x.is_floating_point():
            continue  # whatever an integer makes of NaN
        if name not in ("amax", "amin", "cumsum", "cummax", "logcumsumexp", "softmax"):
            _check(traced, getattr(torch, name), (x,))
        if name in ("logcumsumexp", "softmax") and not x.is_floating_point():
            continue  # PyTorch finds out that it has no kernel where there is something to compute
        for dim in range(x.ndim):
            _check(traced, lambda x, dim=dim: getattr(torch, name)(x, dim=dim), (x,))


@pytest.mark.parametrize("name", LAYERS)
def test_layers(traced: Tracer, name: str) -> None:
    _check(traced, *LAYERS[name])
