"""Random programs of sizes that vary: one program, right at all sizes that are tried."""

from __future__ import annotations

import pytest
import torch
from fuzz.sized import WIDTH, Sized
from torch.export import Dim

from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture

SHAPES = ({0: Dim("n", min=1, max=500)}, {0: Dim("m", min=1, max=500)})


def inputs(n: int, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n * 1000 + m)
    return torch.randn(n, WIDTH, generator=generator), torch.randn(m, WIDTH, generator=generator)


def check(seed: int, executor: str, sizes: list[tuple[int, int]]) -> None:
    function = Sized(seed)
    captured = capture(function, inputs(5, 4), dynamic_shapes=SHAPES)
    program = CompiledFunction(captured, "sm_90a", executor)
    for n, m in sizes:
        torch.testing.assert_close(
            program(*inputs(n, m)), function(*inputs(n, m)), rtol=1e-3, atol=1e-4, msg=lambda s: f"{function}\n{s}"
        )


@pytest.mark.parametrize("seed", range(6))
def test_at_the_tensor_level(seed: int) -> None:
    check(seed, "reference", [(1, 1), (1, 7), (2, 1), (7, 3), (65, 130)])


@pytest.mark.parametrize("seed", range(100, 103))
def test_as_printed_cuda(seed: int) -> None:
    check(seed, "emulator", [(1, 1), (1, 7), (7, 2), (33, 17)])
