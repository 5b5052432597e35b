"""Integer division and shifts are defined in every lane and executor, also in lanes without an element."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deplodock
from deplodock.backend.interpreter.domains import INTEGER

KINDS = {"int8": torch.int8, "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}


def numbers(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns dividends and divisors: all pairs of some numbers, with the ends of the range and zero."""
    info = torch.iinfo(dtype)
    some = torch.tensor(
        [info.min, info.min + 1, info.max, 7, 2, 1, 0, *([-1, -2, -7] if info.min else [3])], dtype=dtype
    )
    return some.repeat_interleave(len(some)), some.repeat(len(some))


def arithmetic(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the result of every operator that divides integers."""
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


def shifted(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns a left shift, a right shift, and a left shift followed by a right shift."""
    return a << b, a >> b, (a << b) >> b


@pytest.mark.parametrize("name", KINDS)
def test_shifts_by_any_number_of_bits(name: str) -> None:
    a, _ = numbers(KINDS[name])
    width = torch.iinfo(a.dtype).bits
    count = torch.tensor([0, 1, width - 1, width, width + 1, 100] + [-1, -100] * (name != "uint8"), dtype=a.dtype)
    args = a.repeat_interleave(len(count)), count.repeat(len(a))
    for executor in ("reference", "emulator"):
        for x, y in zip(deplodock.compile(shifted, args, executor=executor)(*args), shifted(*args), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("executor", ["emulator", "simulator"])
def test_shifts_in_lanes_outside_of_the_tensor(executor: str) -> None:
    """A lane without an element loads 0, so it shifts by `0 - 1`, which is no valid number of bits."""
    a, b = torch.arange(5 * 37).reshape(5, 37), torch.randint(1, 9, (5, 37))
    compiled = deplodock.compile(lambda a, b: ((a << (b - 1)) >> (b - 1)).sum(1), (a, b), executor=executor)
    assert torch.equal(compiled(a, b), a.sum(1))


def test_shifts_of_a_payload() -> None:
    a, count = np.array([-5, 5, -5, 5], np.int32), np.array([-1, -1, 32, 40], np.int32)
    assert INTEGER["arith.shli"](a, count).tolist() == [0, 0, 0, 0]
    assert INTEGER["arith.shrsi"](a, count).tolist() == [-1, 0, -1, 0]
    assert INTEGER["arith.shrui"](a, count).tolist() == [0, 0, 0, 0]
