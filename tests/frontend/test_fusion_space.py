"""Plans of fusion with one value more or one less in memory."""

from __future__ import annotations

import torch
from torch import nn

from deplodock.dialects.loop import NestOp
from deplodock.dialects.target import CPU
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning.fusion_space import Fusion, fusions
from deplodock.passes.records import plan_key


class Chain(nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.exp(x) @ w)


def nests(fusion: Fusion) -> list[NestOp]:
    return [op for op in fusion.module.walk() if isinstance(op, NestOp)]


def test_one_more_and_one_less() -> None:
    """The factor computed before the product or in it; the planner's own plan is the first."""
    compilation = compile_captured(capture(Chain(), (torch.randn(64, 32), torch.randn(32, 48))), "cpu")
    tensors = compilation.at("tensor")
    before = str(tensors)
    found = list(fusions(tensors, CPU))
    assert str(tensors) == before
    own, *others = found
    planned = [op for op in compilation.at("loop").walk() if isinstance(op, NestOp)]
    assert own.change == ""
    assert [*map(plan_key, nests(own))] == [*map(plan_key, planned)]
    assert others
    assert {len(nests(f)) for f in others} != {len(nests(own))}
    for fusion in others:
        assert fusion.kept != own.kept
        assert fusion.seconds > 0
        assert fusion.change.endswith(("is kept in memory", "is computed where it is used"))


def test_what_was_measured_counts() -> None:
    """A plan wins whose nests were measured to be fast."""
    tensors = compile_captured(capture(Chain(), (torch.randn(64, 32), torch.randn(32, 48))), "cpu").at("tensor")
    own, *others = fusions(tensors, CPU)
    fast = {plan_key(nest) for nest in nests(others[-1])}
    again = list(fusions(tensors, CPU, known=lambda key: 1e-9 if key in fast else 1.0))
    assert min(again, key=lambda f: f.seconds).change == others[-1].change
