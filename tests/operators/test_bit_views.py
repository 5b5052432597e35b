"""Views of a tensor's bits in another type of the same size, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import deplodock
from deplodock.errors import UnsupportedError
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture

x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
hard = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-40, -1.5, 3.4e38])

VIEWS: list[tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = [
    (lambda x: x.view(torch.int32), x),
    (lambda x: x.view(torch.int32) >> 23 & 0xFF, hard),
    (lambda x: x.view(torch.float32) * 2, x.view(torch.int32)),
    (lambda x: (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32), x.abs()),
    (lambda x: x.view(torch.int64) >> 52, x.double()),
    (lambda x: (x.view(torch.int64) ^ 1).view(torch.float64), x.double()),
    (lambda x: x.view(torch.int16) & 0xFF, x.bfloat16()),
    (lambda x: (x.view(torch.int16) ^ 1).view(torch.float16), x.half()),
    (lambda x: x.view(torch.bfloat16).float(), x.bfloat16().view(torch.int16)),
    (lambda x: x.view(torch.uint8) // 2, torch.arange(-100, 100, 9, dtype=torch.int8)),
    (lambda x: (x * 2).view(torch.int32).sum(), x),
]


@pytest.mark.parametrize(("function", "argument"), VIEWS)
def test_the_same_bits(function: Callable[[torch.Tensor], torch.Tensor], argument: torch.Tensor):
    program = CompiledFunction(capture(function, (argument,)), "sm_90a", "reference")
    assert torch.equal(program(argument), function(argument))


@pytest.mark.parametrize("executor", ["simulator", "emulator"])
@pytest.mark.parametrize("number", [3, 5, 7, 8])
def test_the_same_bits_below(number: int, executor: str):
    function, argument = VIEWS[number]
    assert torch.equal(deplodock.compile(function, (argument,), executor=executor)(argument), function(argument))


@pytest.mark.parametrize("dtype", [torch.int16, torch.float64, torch.uint8])
def test_elements_of_another_size_are_refused(dtype: torch.dtype):
    program = CompiledFunction(capture(lambda x: x.view(dtype), (torch.zeros(4, 4),)), "sm_90a", "reference")
    with pytest.raises(UnsupportedError, match=r"aten\.view\.dtype: dtype: only a type of the same size is supported"):
        program(torch.zeros(4, 4))
