"""uint16, uint32 and uint64: operators that PyTorch has for them, and refusals of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import deplodock

TYPES = (torch.uint16, torch.uint32, torch.uint64)
EDGES = [0, 1, 5, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), -1, 40000, 3]
VALUES = torch.cat([torch.tensor(EDGES), torch.randint(-(2**63), 2**63 - 1, (31,), generator=torch.Generator())])


def numbers(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return VALUES.to(dtype), VALUES.flip(0).to(dtype)


def conversions(a: Tensor, b: Tensor) -> list[Tensor]:
    others = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool, *TYPES)
    return [a.to(t) for t in others]


def arithmetic(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a * b, a & b, a | b, a ^ b, a == b, a != b, torch.where(a == b, a, b), a * 3, a / 3]


def floats(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a + b.to(torch.float32), a * 1.5, a.sqrt(), a.isnan()]


def sums(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a.sum(), a.prod(), a.cumsum(0), a.any(), a.all()]


def moves(a: Tensor, b: Tensor) -> list[Tensor]:
    c = a.clone()
    c[1:3] = 9
    bits = a.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize])
    index = torch.tensor([3, 1, 1])
    parts = [torch.cat([a, b]), a.roll(1), a[index], F.pad(a, (1, 2)), a.unfold(0, 3, 2), a.repeat(2)]
    return [*parts, c, bits, a.view(torch.uint8), torch.zeros_like(a), torch.full((3,), 7, dtype=a.dtype)]


def ordered(a: Tensor, b: Tensor) -> list[Tensor]:
    return list(a.sort(stable=True))


PROGRAMS = (conversions, arithmetic, floats, sums, moves)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_what_pytorch_computes(dtype: torch.dtype, target: str) -> None:
    a, b = numbers(dtype)
    programs = PROGRAMS if dtype == torch.uint64 else (*PROGRAMS, ordered)

    def program(a: Tensor, b: Tensor) -> list[Tensor]:
        return [t for p in programs for t in p(a, b)]

    executor = "reference" if target == "sm_90a" else "auto"
    results = deplodock.compile(program, (a, b), target=target, executor=executor)(a, b)
    for result, expected in zip(results, program(a, b), strict=True):
        assert result.dtype == expected.dtype
        if expected.is_floating_point():
            torch.testing.assert_close(result, expected)
        else:
            assert torch.equal(result, expected)


@pytest.mark.parametrize("function", [lambda a: a.sort().values, torch.amax, lambda a: a // 3, lambda a: a > 5])
def test_what_depends_on_the_sign_of_a_uint64_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(deplodock.CompileError, match=r"uint64 is not supported by this operator; convert it first"):
        deplodock.compile(function, (VALUES.to(torch.uint64),))
