"""Kernels that share a launch compute the same as apart, also with barriers, asynchronous copies and tensor cores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import deplodock
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin


class Projections(nn.Module):
    """Two matmuls of one tensor with different widths, which cannot be one nest."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 160), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.wide(x), self.narrow(x).relu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("executor", ["simulator", "emulator"])
def test_two_products_in_one_launch(dtype: torch.dtype, executor: str) -> None:
    torch.manual_seed(0)
    model, x = Projections().to(dtype), torch.randn(48, 64, dtype=dtype)
    compiled = deplodock.compile(model, (x,), executor=executor)
    text = compiled.ir("kernel")
    assert text.count("kernel.launch") == 1
    assert "kernel.barrier" in text[text.index("scf.if") :]
    with torch.no_grad():
        expected = model(x)
    for actual, wanted in zip(compiled(x), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert not compile_cubin(compiled.ir("cuda"), "sm_90a").warnings
