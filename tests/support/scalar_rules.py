"""Checks operators that take a Python scalar against PyTorch, for every data type and a list of special scalars.

The expected result is PyTorch's on CUDA. It is computed by PyTorch on the CPU, except for the operators in `ON_CUDA`,
whose CUDA kernels compute something else. `docs/coverage.md` lists these differences.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from xdsl.context import Context

from deplodock.backend.reference import run
from deplodock.dialects.torch import OPS
from deplodock.errors import CompileError
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.passes.convert.torch_to_tensor.conversion import ConvertTorchToTensorPass
from support.aten import TOLERANCE, build, capture, named, overload

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

SCALARS = (0, 1, -1, 2, -3, 7, 255, 256, 300, -129, 40000, 2**31, -(2**40), True, False)
SCALARS += (0.1, 0.3, 0.7, -0.3, 2.5, -2.5, 1e-3, 1e5, -7e4, math.inf, -math.inf, math.nan)

ONE = """add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar floor_divide.Scalar remainder.Scalar fmod.Scalar
pow.Tensor_Scalar float_power.Tensor_Scalar clamp_min clamp_max eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar
ge.Scalar bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar __lshift__.Scalar __rshift__.Scalar copysign.Scalar
xlogy.Scalar_Other leaky_relu hardshrink softshrink fill.Scalar""".split()
"""Operators with a tensor and then a scalar."""

REVERSED = """pow.Scalar remainder.Scalar_Tensor xlogy.Scalar_Self float_power.Scalar bitwise_and.Scalar_Tensor
bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor bitwise_left_shift.Scalar_Tensor
bitwise_right_shift.Scalar_Tensor""".split()
"""Operators with a scalar and then a tensor."""


@dataclass(frozen=True)
class Case:
    """A call of an ATen overload."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        shown = [str(a.dtype)[6:] if isinstance(a, torch.Tensor) else repr(a) for a in self.args]
        return f"{self.name}({', '.join([*shown, *(f'{k}={v!r}' for k, v in self.kwargs.items())])})"


def values(dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of ordinary, extreme and hard-to-round values of a type."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor([0.0, -0.0, 0.1, -0.1, 0.3, 0.7, 1, -1, 2.5, -2.5, 3, 7.25, -40, 1e3, -7e4]).to(dtype)
    info = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 7, 100, info.max, info.max - 1, info.min, info.min + 1, -1, -2, -7]).to(dtype)


def cases(dtype: torch.dtype) -> Iterator[Case]:
    """Yields the calls with tensors of this type, except those in `LEFT_OUT`."""
    return (c for c in _calls(dtype) if not (c.name in LEFT_OUT and LEFT_OUT[c.name](c)))


def _calls(dtype: torch.dtype) -> Iterator[Case]:
    x = values(dtype)
    y = x.flip(0)
    low = None if dtype.is_floating_point or dtype == torch.bool else torch.iinfo(dtype).min
    dividend = (
        x if low is None else torch.where(x == low, low + 1, x)
    )  # Dividing the least integer by -1 ends PyTorch's process.
    mask = torch.arange(len(x)) % 2 == 0
    for s in SCALARS:
        yield from (Case(name, (dividend if name in _DIVIDES else x, s), {}) for name in ONE)
        yield from (Case(name, (s, x), {}) for name in REVERSED)
        yield from (Case("div.Scalar_mode", (dividend, s), {"rounding_mode": mode}) for mode in ("floor", "trunc"))
        yield from (Case(f"{name}.Tensor", (x, y), {"alpha": s}) for name in ("add", "sub", "rsub"))
        yield from (Case(name, (x, y, y), {"value": s}) for name in ("addcmul", "addcdiv"))
        yield from (
            Case(f"where.{name}", args, {})
            for name, args in (("ScalarOther", (mask, x, s)), ("ScalarSelf", (mask, s, x)))
        )
        yield Case("masked_fill.Scalar", (x, mask, s), {})
        yield Case("lerp.Scalar", (x, y, s), {})
        yield from (Case(name, (x, -3, s), {}) for name in ("clamp", "hardtanh", "threshold"))
        yield Case("elu", (x, s), {})
        if isinstance(s, int) and not isinstance(s, bool):
            zero = torch.tensor(s)  # Type promotion treats a 0-d tensor like a scalar.
            zero_divides = not dtype.is_floating_point and not zero.to(dtype)
            names = (
                "add.Tensor",
                "mul.Tensor",
                "floor_divide",
                "remainder.Tensor",
                "eq.Tensor",
                "maximum",
                "fmod.Tensor",
            )
            yield from (
                Case(name, (dividend if name in _DIVIDES else x, zero), {})
                for name in names
                if not (zero_divides and name in _DIVIDES)
            )


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float()


def _sum(sign: int) -> Callable[..., torch.Tensor]:
    def wide(self: torch.Tensor, other: Any, alpha: float = 1) -> torch.Tensor:
        y = _wide(other.to(self.dtype)) if isinstance(other, torch.Tensor) else torch.tensor(float(other))
        return _wide(self) + y * torch.tensor(float(sign * alpha))

    return wide


def _reversed_difference(self: torch.Tensor, other: Any, alpha: float = 1) -> torch.Tensor:
    return -_sum(-1)(self, other) if alpha == 1 else _sum(-1)(other, self, alpha)


def _shrunk(self: torch.Tensor, lambd: float) -> torch.Tensor:
    return torch.nn.functional.softshrink(_wide(self), float(torch.tensor(lambd, dtype=self.dtype)))


ON_CUDA: dict[str, Callable[..., torch.Tensor]] = {
    "add.Scalar": _sum(1),
    "add.Tensor": _sum(1),
    "sub.Scalar": _sum(-1),
    "sub.Tensor": _sum(-1),
    "rsub.Scalar": _reversed_difference,
    "rsub.Tensor": _reversed_difference,
    "clamp": lambda self, min, max: torch.clamp(_wide(self), min, max),
    "clamp_min": lambda self, min: torch.clamp(_wide(self), min),
    "clamp_max": lambda self, max: torch.clamp(_wide(self), None, max),
    "hardtanh": lambda self, low, high: torch.clamp(_wide(self), low, high),
    "mul.Tensor": lambda self, other: _wide(self) * _wide(other.to(self.dtype)),
    "softshrink": _shrunk,
}
"""Overload -> computation of its CUDA kernel for f16 and bf16, where the CPU kernel rounds or checks differently."""

LEFT_OUT = {
    # 0 * infinity is NaN on CUDA and 0 on the CPU.
    "elu": lambda case: not math.isfinite(case.args[1]),
    # PyTorch gives the result of two bools the type i64 or bool.
    "pow.Tensor_Scalar": lambda case: case.args[0].dtype == torch.bool and isinstance(case.args[1], bool),
    # The tensor is the divisor and has zeros; dividing an integer by zero has no result.
    "remainder.Scalar_Tensor": lambda case: not case.args[1].is_floating_point(),
}
"""Overload -> predicate of the calls that have no single right answer."""


def expected(case: Case) -> torch.Tensor | None:
    """Returns PyTorch's result on CUDA, or None if PyTorch refuses the call."""
    low = case.args[0].dtype if isinstance(case.args[0], torch.Tensor) else None
    try:
        if low in (torch.float16, torch.bfloat16) and case.name in ON_CUDA:
            empty_args = [a[:0].float() if isinstance(a, torch.Tensor) and a.ndim else a for a in case.args]
            overload(case.name)(*empty_args, **case.kwargs)  # Raises if PyTorch refuses the call.
            return ON_CUDA[case.name](*case.args, **case.kwargs).to(low)
        return overload(case.name)(*case.args, **case.kwargs)
    except Exception:  # PyTorch raises many kinds of errors.
        return None


_DIVIDES = ("floor_divide", "remainder.Tensor", "fmod.Tensor")
_DIVIDES += ("floor_divide.Scalar", "remainder.Scalar", "fmod.Scalar")


def captured(case: Case) -> torch.Tensor | None:
    """Returns a fake tensor with the type and shape that capture sees, or None if PyTorch refuses the call there."""
    mode = FakeTensorMode()
    logging.disable(logging.CRITICAL)
    args = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in case.args]
    try:
        with mode:
            return overload(case.name)(*args, **case.kwargs)
    except Exception:  # PyTorch raises many kinds of errors.
        return None
    finally:
        logging.disable(logging.NOTSET)


def ours(case: Case, result: Any) -> torch.Tensor:
    """Returns deplodock's result, with the type and shape of `result`. Raises CompileError."""
    module, tensors = (build if case.name in OPS else capture)(
        case.name, named(case.name, case.args, case.kwargs), [torch.empty(result.shape, dtype=result.dtype)]
    )
    ConvertTorchToTensorPass().apply(Context(), module)
    (result,) = run(module, [to_numpy(t) for t in tensors])
    return to_torch(result)


def problem(case: Case) -> str:
    """Returns a message on the error of deplodock's result; empty if it is right or PyTorch cannot capture the call."""
    result = captured(case)
    if result is None:
        return ""
    reference = expected(case)
    try:
        answer = ours(case, result)
    except CompileError as error:
        return "" if reference is None else f"{case} is refused: {error}"
    if reference is None:
        return f"{case} gives {answer.tolist()[:4]} where PyTorch refuses it"
    differences = [
        i for i in range(reference.numel()) if not _same(answer.view(-1)[i], reference.view(-1)[i], case.name)
    ]
    shown = "; ".join(f"{answer.view(-1)[i].item()} for {reference.view(-1)[i].item()}" for i in differences[:3])
    return f"{case}: {shown}" if differences or answer.dtype != reference.dtype else ""


def _same(x: torch.Tensor, y: torch.Tensor, name: str) -> bool:
    """Returns true if two elements are equal, or within some ulp for operators that call math libraries."""
    if torch.equal(x, y) or bool(x != x and y != y):
        return True
    if not y.is_floating_point():
        return False
    exact = y.dtype in (torch.float16, torch.bfloat16) and not name.startswith(("xlogy", "pow", "float_power", "elu"))
    units = 0.6 if exact else 4 if y.dtype in TOLERANCE else 0
    step = torch.finfo(y.dtype).eps
    return bool((x.double() - y.double()).abs() <= units * step * y.double().abs().clamp(min=1e-6 if exact else 1.0))
