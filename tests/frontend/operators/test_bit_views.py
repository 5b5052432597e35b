"""Views of a tensor's bits in another type, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import deplodock
from deplodock.errors import CaptureError, UnsupportedError
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
    (lambda x: (x * 2).view(torch.int64), torch.empty(0, 4)),
    (lambda x: (x * 2).view(torch.int16), x[:0]),
    (lambda x: (x * 2).view(torch.int16), torch.empty(0)),
]


@pytest.mark.parametrize(("function", "argument"), VIEWS)
def test_the_same_bits(function: Callable[[torch.Tensor], torch.Tensor], argument: torch.Tensor):
    program = CompiledFunction(capture(function, (argument,)), "sm_90a", "reference")
    assert torch.equal(program(argument), function(argument))


@pytest.mark.parametrize("executor", ["simulator", "emulator"])
@pytest.mark.parametrize("number", [3, 5, 7, 8, 13])
def test_the_same_bits_below(number: int, executor: str):
    function, argument = VIEWS[number]
    assert torch.equal(deplodock.compile(function, (argument,), executor=executor)(argument), function(argument))


TYPES = [
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]


def _bytes(dtype: torch.dtype, size: int) -> torch.Tensor:
    """Returns bytes as elements of a type, without NaN."""
    whole = torch.arange(-120, 120, dtype=torch.int8).roll(7)[: size * 8].clamp(max=63)
    return whole.reshape(size, 8).view(dtype)


def _every_view(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Returns views of each tensor in each type, and the views after arithmetic on their bits."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    views = [t.view(dtype) for t in tensors for dtype in TYPES]
    return [*views, *(v.view(bits[v.element_size()]) ^ 1 for v in views)]


@pytest.mark.parametrize("shape", [(2, 3), (2, 0)])
def test_every_pair_of_types(shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    tensors = [_bytes(dtype, count).reshape(*shape, -1 if count else 8 // dtype.itemsize) for dtype in TYPES]
    compiled = deplodock.compile(_every_view, tuple(tensors), target="sm_90a", executor="reference")
    for ours, eager in zip(compiled(*tensors), _every_view(*tensors), strict=True):
        assert ours.dtype == eager.dtype
        assert torch.equal(ours.nan_to_num(), eager.nan_to_num())


def test_sizes_that_do_not_fit_are_pytorchs_error() -> None:
    with pytest.raises(CaptureError, match="must be divisible by 2"):
        deplodock.compile(lambda x: x.view(torch.float64) + 1, (torch.zeros(4, 3),))


@pytest.mark.parametrize("executor", ["simulator", "emulator", "cpu"])
@pytest.mark.parametrize("dtype", [torch.int16, torch.float64])
def test_other_sizes_below(executor: str, dtype: torch.dtype) -> None:
    x = torch.arange(8.0).reshape(2, 4)
    compiled = deplodock.compile(lambda x: x.view(dtype) * 2, (x,), executor=executor)
    assert torch.equal(compiled(x), x.view(dtype) * 2)


def test_bits_of_complex_numbers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="complex numbers are not supported"):
        deplodock.compile(lambda x: x.view(torch.int64) + 1, (torch.zeros(3, dtype=torch.complex64),))
