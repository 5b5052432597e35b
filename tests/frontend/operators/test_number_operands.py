"""Python numbers as the first operand, or as all operands, of an operator of tensors, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.tensor_level import check

aten: Any = torch.ops.aten
WHOLE, REAL = torch.tensor([1, 2, 3, 5]), torch.tensor([0.5, 1.5, 2.5, 3.5])

REVERSED = """bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor
bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor bucketize.Scalar float_power.Scalar
isin.Scalar_Tensor pow.Scalar remainder.Scalar_Tensor special_xlogy.self_scalar xlogy.Scalar_Self""".split()
OTHERS = ("linspace", "logspace", "result_type", "_functional_assert_scalar")
SPECIAL = ("chebyshev", "hermite", "laguerre", "legendre", "zeta", "special_xlog1py")


def _overloads_of_a_number_and_a_tensor() -> set[str]:
    names = set[str]()
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        kinds = [str(a.type) for a in schema.arguments]
        if namespace != "aten" or len(kinds) < 2 or schema.is_mutable:
            continue
        if kinds[:2] == ["number", "Tensor"] and not any(word in name for word in (*OTHERS, *SPECIAL)):
            names.add(f"{name}.{schema.overload_name}")
    return names


def test_all_overloads_are_listed() -> None:
    assert _overloads_of_a_number_and_a_tensor() == {*REVERSED}


@pytest.mark.parametrize("name", REVERSED)
def test_number_first(name: str) -> None:
    packet, overload = name.split(".")
    operator = getattr(getattr(aten, packet), overload)
    for tensor in (WHOLE, WHOLE.to(torch.uint8)) if "bitwise" in name else (WHOLE, REAL):
        check(lambda t: operator(3, t), tensor)


def test_operators_of_python() -> None:
    check(lambda x: (1 << x, 256 >> x, 3 & x, 5 | x, 6 ^ x, 7 % x, 7 // x, 2**x, 7 - x, 7 / x, 5 < x, 5 == x), WHOLE)


TWO_NUMBERS: list[Callable[[], torch.Tensor]] = [
    lambda: aten.div(1024, 100),
    lambda: aten.div(1024, 100, rounding_mode="floor"),
    lambda: aten.div(-7, 2, rounding_mode="trunc"),
    lambda: aten.add(4, 3.5),
    lambda: aten.add(True, 2),
    lambda: aten.sub(4, 3, alpha=2),
    lambda: aten.mul(2.5, 3),
    lambda: aten.remainder(-7, 3),
    lambda: aten.fmod(-7.5, 3),
    lambda: aten.floor_divide(7, 2),
    lambda: aten.maximum(7, 2),
    lambda: aten.pow(2, 5),
    lambda: aten.lt(3, 3.5),
    lambda: aten.eq(2**40 + 1, 2**40),
    lambda: aten.logical_and(3, 0),
    lambda: aten.bitwise_and(6, 3),
    lambda: aten.where(WHOLE > 2, 5, 1.5),
]


@pytest.mark.parametrize("number", range(len(TWO_NUMBERS)))
def test_two_numbers(number: int) -> None:
    function = TWO_NUMBERS[number]
    try:
        function()
    except (RuntimeError, TypeError):
        pytest.skip("eager PyTorch has no such call")
    check(lambda x: (function() + x, function()), WHOLE)


INDICES = torch.tensor([3, 70, -2, -8, -99]), torch.tensor([-1, 2, 0, -3, 55], dtype=torch.int32)
MASK = torch.tensor([True, False, True, True, False])


def test_masked_indices() -> None:
    """Where the mask is true a negative index counts from the end; where it is not, an index may be anything."""
    table, (i, j) = torch.randn(8, 3), INDICES
    for x, mask, indices in (
        (table[:, 0], MASK, [i]),
        (table, MASK, [i, j]),
        (table, MASK.expand(8, 5), [None, j]),
        (torch.arange(8), MASK, [i]),
        (torch.zeros(0), MASK & False, [i]),
    ):
        places = [p for p in indices if p is not None]

        def full(given: tuple[torch.Tensor, ...], wanted: list[Any] = indices) -> list[Any]:
            rest = iter(given)
            return [None if p is None else next(rest) for p in wanted]

        check(lambda x, m, *given: aten._unsafe_masked_index(x, m, full(given), 7), x, mask, *places)
        values = torch.ones(mask.shape, dtype=x.dtype)
        put = aten._unsafe_masked_index_put_accumulate
        check(lambda x, m, v, *given: put(x, m, full(given), v), x, mask, values, *places)
