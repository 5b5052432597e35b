"""PyTorch programs with dynamic sizes, compiled once and run as kernels at every size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.dynamic_programs import BATCH, SIZES, Mlp, compiled, creation, derived, reductions, rows, views
from torch import nn
from torch.export import Dim

from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.executors import make_executor

LENGTH = Dim("length", min=1, max=1024)


class Attention(nn.Module):
    """A decoder layer: a norm, causal attention with two heads, and a residual."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.mixed, self.out = nn.RMSNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mixed(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return x + self.out(found.transpose(1, 2).reshape(batch, length, width))


def sequences(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(batch * 1000 + length))


def assert_right(
    program: CompiledFunction, executor: str, function: Callable[..., Any], calls: Sequence[Sequence[Any]]
) -> None:
    run = make_executor(executor, program.compilation).run
    for args in calls:
        tensors = program.captured.bind(args, {})
        with torch.no_grad():
            found = program.captured.restore(run(tensors), tensors)
            torch.testing.assert_close(found, function(*args), rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize("executor", ["simulator", "emulator"])
def test_every_batch(executor: str) -> None:
    torch.manual_seed(0)
    function = Mlp()
    program = compiled(function, (rows(5, 8),), ({0: BATCH},))
    assert_right(program, executor, function, [(rows(n, 8),) for n in (SIZES if executor == "emulator" else (7, 128))])


@pytest.mark.parametrize("function", [reductions, views, creation], ids=lambda f: f.__name__)
def test_kinds_of_programs(function: Callable[..., Any]) -> None:
    program = compiled(function, (rows(5, 8),), ({0: BATCH},))
    assert_right(program, "emulator", function, [(rows(n, 8),) for n in (1, 7, 130)])


def test_sizes_that_follow_from_others() -> None:
    program = compiled(derived, (rows(5, 8), rows(3, 8)), ({0: BATCH}, {0: Dim("more", min=1, max=1000)}))
    assert_right(program, "emulator", derived, [(rows(n, 8), rows(m, 8)) for n, m in ((1, 1), (2, 1), (7, 100))])


def test_every_batch_and_length() -> None:
    """One CUDA text for every batch and length. Sizes of 1000 run in the reference, as the emulator takes minutes."""
    torch.manual_seed(0)
    function = Attention()
    program = compiled(function, (sequences(2, 5),), ({0: BATCH, 1: LENGTH},))
    for arch in ("sm_80", "sm_90a"):
        assert not any(k.spills for k in compile_cubin(program.compilation.cuda, arch).kernels.values())
    calls = [(1, 1), (2, 7), (7, 2), (17, 1), (1, 128), (1, 300)]
    assert_right(program, "emulator", function, [(sequences(*c),) for c in calls])
    assert_right(program, "reference", function, [(sequences(*c),) for c in ((1, 1000), (1000, 1), (7, 128))])
