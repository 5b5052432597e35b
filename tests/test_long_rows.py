"""Long rows: how often they are read, and that registers hold what is kept in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from deplodock.backend.nvrtc import compile_cubin
from deplodock.backend.simulator import simulate
from deplodock.frontend.arrays import to_numpy
from deplodock.frontend.capture import capture
from deplodock.frontend.compilation import Compilation

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "argmax": lambda x: x.argmax(-1),
    "variance": lambda x: x.var(-1),
}


def compiled(name: str, length: int, target: str = "sm_90a") -> tuple[Compilation, torch.Tensor]:
    x = torch.randn(64, length, generator=torch.Generator().manual_seed(length)) + 3
    return Compilation(capture(FUNCTIONS[name], (x,)).module, target), x


def times_read(compilation: Compilation, x: torch.Tensor) -> float:
    """How often one block reads its row."""
    found = simulate(compilation.at("kernel"), [to_numpy(x)], max_blocks=1, shadows=False)
    (counts,) = found.report.launches
    return counts.loaded[0] / x[0].nbytes


@pytest.mark.parametrize(
    ("name", "length", "times"),
    [
        ("softmax", 32768, 1),
        ("layer_norm", 20000, 1),
        ("softmax", 50000, 2),
        ("layer_norm", 50000, 2),
        ("variance", 50000, 1),
        ("argmax", 50000, 1),
    ],
)
def test_times_a_row_is_read(name: str, length: int, times: int) -> None:
    assert times_read(*compiled(name, length)) == times


@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
def test_registers_hold_the_longest_row(target: str) -> None:
    compilation, _ = compiled("softmax", 32768, target)
    (kernel,) = compile_cubin(compilation.cuda, target).kernels.values()
    assert kernel.spills == 0
