"""Decompositions of elementwise operators against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.aten import check, evaluate

from deplodock.errors import CompileError

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.25, -100.0, 1e4, math.inf, -math.inf, math.nan]


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(SPECIAL, dtype=dtype)


def pairs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns operands for all pairs of special values."""
    x = special(dtype)
    return x[:, None].contiguous(), x[None, :].contiguous()


def ints(dtype: torch.dtype = torch.int64, *shape: int) -> torch.Tensor:
    low = 0 if dtype == torch.uint8 else -20
    return torch.randint(low, 21, shape or (5, 7), generator=torch.Generator().manual_seed(3)).to(dtype)


UNARY = """abs neg sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan asin acos atan
sinh cosh tanh asinh acosh atanh erf erfc ceil floor round trunc frac sinc signbit deg2rad rad2deg logit sigmoid
log_sigmoid relu relu6 gelu silu mish leaky_relu elu selu celu softplus hardtanh hardsigmoid hardswish hardshrink
softshrink isnan isinf isfinite isposinf isneginf nan_to_num logical_not positive""".split()

LEFT_OUT = {
    **dict.fromkeys(("sin", "cos", "tan", "sinc"), 1e4),  # the argument's own rounding shows
    "gelu": math.inf,  # NaN on the CPU, infinity on the GPU
}
"""Values whose image PyTorch itself does not agree on."""


@pytest.mark.parametrize("name", UNARY)
def test_unary_of_special_values(name: str) -> None:
    x = special()
    check(name, x[x != LEFT_OUT.get(name)] if name in LEFT_OUT else x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary_in_other_precisions(name: str, dtype: torch.dtype) -> None:
    x = (torch.rand(3, 5, generator=torch.Generator().manual_seed(1)) * 1.8 - 0.9).to(dtype)
    check(name, x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize(
    "name",
    "abs neg sign exp log sqrt reciprocal square sin atan tanh erf ceil floor round trunc sigmoid logical_not "
    "bitwise_not isnan isinf isfinite rsqrt nan_to_num signbit".split(),
)
def test_unary_of_integers(name: str, dtype: torch.dtype) -> None:
    x = ints(dtype)
    if dtype == torch.bool and name in ("abs", "neg", "ceil", "floor", "round", "trunc"):
        pytest.skip("PyTorch refuses it")
    check(name, x.abs() if name in ("log", "sqrt", "rsqrt") and dtype == torch.int32 else x)


BINARY = """add.Tensor sub.Tensor rsub.Tensor mul.Tensor div.Tensor remainder.Tensor fmod.Tensor floor_divide atan2
maximum minimum fmax fmin hypot logaddexp logaddexp2 xlogy.Tensor copysign.Tensor heaviside pow.Tensor_Tensor eq.Tensor
ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor logical_and logical_or logical_xor""".split()


@pytest.mark.parametrize("name", BINARY)
def test_binary_of_special_values(name: str) -> None:
    check(name, *pairs())


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_of_special_values(mode: str | None) -> None:
    check("div.Tensor_mode", *pairs(), rounding_mode=mode)


@pytest.mark.parametrize(
    "dtypes", [(torch.bfloat16,) * 2, (torch.float16, torch.float32), (torch.int32, torch.float16)]
)
@pytest.mark.parametrize("name", BINARY)
def test_binary_of_mixed_types(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    generator = torch.Generator().manual_seed(7)
    x = (torch.rand(4, 1, 3, generator=generator) * 6 - 2).to(dtypes[0])
    y = (torch.rand(5, 1, generator=generator) * 2 + 1.25).to(dtypes[1])
    if (
        name in ("fmax", "fmin", "heaviside", "logaddexp", "logaddexp2", "rsub.Tensor", "hypot")
        and dtypes[0] != dtypes[1]
    ):
        y = y.to(torch.float32)
        x = x.to(torch.float32)
    check(name, x, y)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "name",
    """add.Tensor sub.Tensor mul.Tensor div.Tensor remainder.Tensor fmod.Tensor floor_divide maximum minimum fmax
    fmin eq.Tensor lt.Tensor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor logical_and""".split(),
)
def test_binary_of_integers(name: str, dtype: torch.dtype) -> None:
    y = ints(dtype, 7)
    check(name, ints(dtype), torch.where(y == 0, 3, y).to(dtype))


@pytest.mark.parametrize(
    "name", ["add.Tensor", "mul.Tensor", "maximum", "minimum", "eq.Tensor", "lt.Tensor", "bitwise_xor.Tensor"]
)
def test_binary_of_booleans(name: str) -> None:
    x = torch.tensor([False, True])
    check(name, x[:, None], x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integer_powers_and_shifts(dtype: torch.dtype) -> None:
    x, e = ints(dtype, 9, 1), torch.tensor([0, 1, 2, 3, 5, 7], dtype=dtype)
    check("pow.Tensor_Tensor", x, e)
    check("pow.Tensor_Scalar", x, 5)
    check("pow.Scalar", 3, e)
    if dtype != torch.uint8:
        check("pow.Tensor_Tensor", x, -e)
    counts = torch.tensor([0, 1, 4, 7], dtype=dtype)
    check("bitwise_left_shift.Tensor", x, counts)
    check("bitwise_right_shift.Tensor", x, counts)
    check("__lshift__.Scalar", x, 3)
    check("__rshift__.Scalar", x, 70)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.5, -3, math.inf])
def test_float_powers(exponent: float) -> None:
    check("pow.Tensor_Scalar", special(), exponent)
    check("pow.Scalar", 2.0, special())
    check("float_power.Tensor_Scalar", special(), exponent)


X = torch.linspace(-3, 3, 12).reshape(3, 4)
Y = torch.linspace(2, -1, 4)
B = torch.tensor([[True], [False], [True]])
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("add.Tensor", (X, Y), {"alpha": 2.5}),
    ("add.Tensor", (X, Y), {"alpha": -1}),
    ("add.Scalar", (X, 2), {"alpha": 3}),
    ("add.Scalar", (ints(), 2.5), {}),
    ("sub.Tensor", (X, Y), {"alpha": 3}),
    ("rsub.Scalar", (X, 1), {"alpha": 2}),
    ("mul.Scalar", (X.bfloat16(), 0.1), {}),
    ("mul.Scalar", (ints(), 0.5), {}),
    ("div.Scalar", (ints(), 4), {}),
    ("div.Scalar_mode", (X, 0.7), {"rounding_mode": "floor"}),
    ("div.Scalar_mode", (ints(), -4), {"rounding_mode": "trunc"}),
    ("remainder.Scalar_Tensor", (7, Y), {}),
    ("fmod.Scalar", (X, 0.7), {}),
    ("xlogy.Scalar_Other", (X, 2.0), {}),
    ("clamp", (X, -1, 1.5), {}),
    ("clamp", (X, None, 0.5), {}),
    ("clamp", (special(), -1.0, math.inf), {}),
    ("clamp", (X, 2, -2), {}),
    ("clamp", (ints(), -3, 4), {}),
    ("clamp", (ints(), -2.5), {}),
    ("clamp", (X, math.nan, 1.0), {}),
    ("clamp.Tensor", (X, Y, None), {}),
    ("clamp.Tensor", (X, Y - 1, Y + 1), {}),
    ("clamp_min", (X, 0.25), {}),
    ("clamp_max.Tensor", (X, Y), {}),
    ("lerp.Scalar", (X, Y.expand(3, 4), 0.75), {}),
    ("lerp.Tensor", (X, Y.expand(3, 4), X * 0.3), {}),
    ("addcmul", (X, Y, X), {"value": 0.5}),
    ("addcmul", (ints(), ints(), ints()), {"value": 2}),
    ("addcdiv", (X, Y, X + 10), {"value": -2}),
    ("round.decimals", (X,), {"decimals": 1}),
    ("round.decimals", (X * 100,), {"decimals": -1}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("leaky_relu", (special(), 0.2), {}),
    ("elu", (X, 0.5, 2.0, 1.5), {}),
    ("celu", (X, 0.5), {}),
    ("softplus", (X * 10, 2, 3), {}),
    ("hardtanh", (X, -2, 0.5), {}),
    ("threshold", (special(), 0.5, -7.0), {}),
    ("hardshrink", (X, 1.5), {}),
    ("logit", (X, 0.1), {}),
    ("nan_to_num", (special(torch.float16), 1.0, None, -3.0), {}),
    ("nan_to_num", (special(torch.bfloat16),), {}),
    ("nan_to_num", (special(torch.float64),), {}),
    ("prelu", (X, torch.tensor([0.25])), {}),
    ("prelu", (torch.randn(2, 3, 4), torch.tensor([0.1, 0.2, 0.3])), {}),
    ("glu", (X, 1), {}),
    ("glu", (torch.randn(4, 3), 0), {}),
    ("where.self", (B, X, Y), {}),
    ("where.self", (B, ints(torch.int32, 3, 4), X.half()), {}),
    ("where.ScalarOther", (B, X, 2), {}),
    ("where.ScalarSelf", (B, -math.inf, X), {}),
    ("where.Scalar", (B, 1.0, 0.0), {}),
    ("masked_fill.Scalar", (X, B, -math.inf), {}),
    ("masked_fill.Scalar", (ints(torch.int32, 3, 4), B, 7), {}),
    ("masked_fill.Tensor", (X, B, torch.tensor(3.0)), {}),
    ("eq.Scalar", (torch.tensor([0.1, 0.5]).bfloat16(), 0.1), {}),
    ("lt.Scalar", (ints(), 2.5), {}),
    ("gt.Tensor", (ints(torch.uint8), ints(torch.int8)), {}),
    ("ge.Tensor", (X.half(), torch.tensor(0.1, dtype=torch.float64)), {}),
    ("isclose", (X, X + 1e-6), {}),
    ("isclose", (ints(), ints()), {}),
    ("isclose", pairs(), {"equal_nan": True}),
    ("bitwise_and.Scalar", (ints(), 6), {}),
    ("__or__.Tensor", (ints(), ints()), {}),
    ("_to_copy", (special(),), {"dtype": torch.bfloat16}),
    ("_to_copy", (X * 50,), {"dtype": torch.int32}),
    ("_to_copy", (X * 20,), {"dtype": torch.int8}),
    ("_to_copy", (ints(torch.int64) * 999,), {"dtype": torch.int16}),
    ("_to_copy", (ints(),), {"dtype": torch.uint8}),
    ("_to_copy", (ints(torch.uint8) * 12,), {"dtype": torch.int8}),
    ("_to_copy", (ints(torch.uint8),), {"dtype": torch.float16}),
    ("_to_copy", (special(),), {"dtype": torch.bool}),
    ("_to_copy", (torch.tensor([True, False]),), {"dtype": torch.float32}),
    ("to.dtype", (X, torch.float16), {}),
    ("type_as", (X, ints()), {}),
    ("clone", (X,), {}),
    ("dropout", (X, 0.5, False), {}),
    ("dropout", (X, 0.0, True), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS, ids=[f"{i}-{c[0]}" for i, c in enumerate(CALLS)])
def test_calls(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check(name, *args, **kwargs)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1), (7, 5, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check("add.Tensor", x, torch.randn(1), alpha=2)
    check("gelu", x)
    check("where.self", x > 0, x, torch.tensor(0.0))


def test_strided_inputs() -> None:
    x = torch.randn(6, 8)
    check("add.Tensor", x.t()[::2], x[:, :4].flip(1).t()[:, :6])
    check("relu", x[1::2, ::3])


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("dropout", (X, 0.5, True), {}, r"aten\.dropout: generator: expected a generator"),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "message"), REFUSED)
def test_refused(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        evaluate(name, *args, **kwargs)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.int64])
@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_common_divisors_and_multiples(name: str, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    fibonacci = [0, 1]
    while fibonacci[-1] + fibonacci[-2] <= info.max:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    x = torch.tensor([0, 0, 12, 100, -12 % info.max, info.max, fibonacci[-1]], dtype=dtype)
    y = torch.tensor([0, 5, 18, 75, 8, info.max - 1, fibonacci[-2]], dtype=dtype)
    check(name, x, y)
    if dtype != torch.uint8:
        check(name, -x, y)
