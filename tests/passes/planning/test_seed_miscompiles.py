"""Programs that an earlier compiler of this kind miscompiled silently, from Python to the tensor level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.aten import assert_same
from torch import nn
from xdsl.context import Context

from deplodock.backend.reference import run
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.frontend.capture.export import capture
from deplodock.passes.convert.torch_to_tensor.conversion import ConvertTorchToTensorPass
from deplodock.passes.pass_manager import verify_module

torch.manual_seed(11)
X, Y = torch.randn(4, 6), torch.randn(4, 6)
Q, K = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
MASK = torch.rand(5, 7) > 0.3
MASK[1] = False

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "permute": (lambda x: x.permute(2, 0, 1) * 2, (torch.randn(2, 3, 4),)),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=0.25), (X, Y)),
    "sub_alpha": (lambda x, y: torch.sub(x, y, alpha=3), (X, Y)),
    "maximum": (torch.maximum, (X, Y)),
    "split": (lambda x: x.split([1, 3, 2], dim=1), (X,)),
    "chunk": (lambda x: [c * 2 for c in x.chunk(4, dim=1)], (X,)),
    "slice_with_step": (lambda x: x[1::2, ::3], (X,)),
    "flip": (lambda x: x.flip(1), (X,)),
    "layer_norm_over_two": (nn.LayerNorm((3, 4), eps=0.1), (torch.randn(2, 3, 4),)),
    "sdpa_scale": (lambda q, k: F.scaled_dot_product_attention(q, k, k, scale=0.3), (Q, K.repeat(1, 2, 1, 1))),
    "sdpa_gqa": (lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), (Q, K)),
    "sdpa_bool_mask": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m, enable_gqa=True),
        (Q, K, MASK),
    ),
    "addmm_beta_alpha": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2),
        (torch.randn(3), torch.randn(4, 5), torch.randn(5, 3)),
    ),
    "gather_of_equal_rank": (lambda x, i: torch.gather(x, 0, i), (X, torch.randint(0, 4, (4, 6)))),
    "to_dtype": (lambda x: (x.to(torch.bfloat16) * 3).to(torch.float64), (X,)),
    "half": (lambda x: x.half().sum(1), (X,)),
    "one_minus": (lambda x: 1 - x, (X,)),
    "dropped_keyword": (lambda x: x.sum(0, keepdim=True, dtype=torch.float64), (X,)),
    "masked_maximum": (lambda x: x.masked_fill(x < 9, -torch.inf).amax(1), (X,)),
    "circular_pad": (lambda x: F.pad(x[None], (2, 1), mode="circular"), (X,)),
    "fill_in_place": (lambda x: _filled(x.clone()), (X,)),
}


def _filled(x: torch.Tensor) -> torch.Tensor:
    x[1].fill_(3)
    x[:, 2] += 1
    return x


@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_pytorch(name: str) -> None:
    function, args = PROGRAMS[name]
    program = capture(function, args)
    verify_module(program.module)
    ConvertTorchToTensorPass().apply(Context(), program.module)
    verify_module(program.module)
    with torch.no_grad():
        expected = program.flatten(function(*args))
    actual = run(program.module, [to_numpy(t) for t in program.bind(args)])
    assert len(actual) == len(expected) > 0
    for a, e in zip(actual, expected, strict=True):
        assert_same(to_torch(np.asarray(a)), e)
