"""Integer division has a result in every lane and in every executor, also in lanes that hold no element of a tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deplodock
from deplodock.backend.interpreter.domains import INTEGER

KINDS = {"int8": torch.int8, "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}


def numbers(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Dividends and divisors: all pairs of some, the least and the greatest among them, and zero."""
    info = torch.iinfo(dtype)
    some = torch.tensor(
        [info.min, info.min + 1, info.max, 7, 2, 1, 0, *([-1, -2, -7] if info.min else [3])], dtype=dtype
    )
    return some.repeat_interleave(len(some)), some.repeat(len(some))


def arithmetic(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Every operator that divides integers."""
    return (
        a // b,
        torch.div(a, b, rounding_mode="trunc"),
        torch.remainder(a, b),
        torch.fmod(a, b),
        torch.remainder(7, b),
    )


@pytest.mark.parametrize("name", KINDS)
def test_executors_agree_where_the_divisor_is_zero(name: str) -> None:
    a, b = numbers(KINDS[name])
    reference, emulated = (
        deplodock.compile(arithmetic, (a, b), executor=executor)(a, b) for executor in ("reference", "emulator")
    )
    for x, y in zip(reference, emulated, strict=True):
        assert torch.equal(x, y)
    least = torch.iinfo(a.dtype).min
    defined = (b != 0) & ((a != least) | (b != -1))  # PyTorch dies of the others, on a CPU
    for x, y in zip(reference, arithmetic(a[defined], b[defined]), strict=True):
        assert torch.equal(x[defined], y)
    ones = torch.tensor(255 if name == "uint8" else -1, dtype=KINDS[name])
    for result in reference[1:4]:
        assert bool((result[b == 0] == ones).all())


DIVIDING = {
    "remainder": lambda a, b, w: torch.remainder(7, b),
    "rows": lambda a, b, w: torch.remainder(a, b).sum(1),
    "product": lambda a, b, w: (a // b).float() @ w,
    "division": lambda a, b, w: torch.div(a, b, rounding_mode="trunc").amax(0),
}


@pytest.mark.parametrize("executor", ["emulator", "simulator"])
@pytest.mark.parametrize("name", DIVIDING)
def test_lanes_outside_of_the_tensor(name: str, executor: str) -> None:
    torch.manual_seed(0)
    a, b = torch.randint(-99, 99, (5, 37)), torch.randint(1, 9, (5, 37))
    args = a, b, torch.randn(37, 3)
    compiled = deplodock.compile(DIVIDING[name], args, executor=executor)
    torch.testing.assert_close(compiled(*args), DIVIDING[name](*args), rtol=1e-5, atol=1e-5)


def test_quotients_by_zero() -> None:
    a, zero = np.array([-5, 0, 5], np.int32), np.zeros(3, np.int32)
    for name in ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui"):
        assert INTEGER[name](a, zero).tolist() == [-1, -1, -1]
    assert INTEGER["arith.floordivsi"](a, zero).tolist() == [-2, -1, -1]
    assert INTEGER["arith.ceildivsi"](a, zero).tolist() == [-1, 0, 0]
