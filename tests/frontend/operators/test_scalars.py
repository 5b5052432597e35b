"""Python scalars, and tensors without dimensions, against every type: PyTorch's rule for each operator."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
import torch
from support.aten import check, evaluate
from support.scalar_rules import DTYPES, cases, problem

from deplodock.errors import CompileError

SLICE = 60
"""Calls of each type that are tried; `PYTHONPATH=tests python tests/frontend/operators/test_scalars.py` takes all."""


def _name(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
def test_scalars_meet_tensors_as_in_pytorch(dtype: torch.dtype) -> None:
    drawn = random.Random(f"scalars {dtype}").sample(list(cases(dtype)), SLICE)
    assert not [text for case in drawn if (text := problem(case))]


BYTES = torch.tensor([0, 1, 3, 9, 200, 255], dtype=torch.uint8)
HALVES = torch.tensor([0.1, 0.3, 0.7, 1.0, -0.3, 5.0]).bfloat16()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("floor_divide.Scalar", (BYTES, -3)),
        ("remainder.Scalar", (BYTES, -4)),
        ("clamp", (BYTES, -2, 9)),
        ("clamp_max", (BYTES, -1)),
        ("remainder.Tensor", (BYTES, torch.tensor(-4))),
        ("maximum", (BYTES, torch.tensor(-1))),
        ("eq.Tensor", (BYTES, torch.tensor(256))),
        ("__lshift__.Scalar", (BYTES, 256)),
        ("remainder.Scalar", (HALVES, 0.3)),
        ("fmod.Scalar", (HALVES, 0.1)),
        ("pow.Tensor_Scalar", (HALVES.abs(), 0.7)),
        ("hardshrink", (HALVES, 0.3)),
        ("add.Tensor", (HALVES, torch.tensor(1.001))),
    ],
)
def test_samples(name: str, args: tuple[Any, ...]) -> None:
    check(name, *args)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "result", "message"),
    [
        ("clamp", (BYTES.to(torch.int8), -3, 300), {}, torch.int8, "clamp: max: 300 cannot be converted to i8"),
        ("pow.Tensor_Scalar", (BYTES, -1), {}, torch.uint8, "pow.Tensor_Scalar: exponent: expected an exponent"),
        ("remainder.Scalar", (BYTES, 256), {}, torch.uint8, "remainder.Scalar: other: integer division by zero"),
        ("sub.Scalar", (HALVES, True), {}, torch.bfloat16, "sub.Scalar: other: expected a number, but got a bool"),
        ("fill.Scalar", (BYTES, float("nan")), {}, torch.uint8, "fill.Scalar: value: nan cannot be converted"),
    ],
)
def test_refused(
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: torch.dtype,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from support import aten

    real = aten.overload
    like = torch.empty(6, dtype=result)
    with pytest.raises(RuntimeError):
        real(name)(*args, **kwargs)
    monkeypatch.setattr(aten, "overload", lambda n: _Answer(real(n), like))
    with pytest.raises(CompileError, match=message):
        evaluate(name, *args, **kwargs)


class _Answer:
    """An overload that returns a fixed result, for calls that capture accepts and eager PyTorch refuses."""

    def __init__(self, overload: Any, result: torch.Tensor) -> None:
        self._schema = overload._schema
        self._result = result

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._result


def main() -> int:
    """Tries every call for every type, and prints wrong results."""
    found = [text for dtype in DTYPES for case in cases(dtype) if (text := problem(case))]
    print("\n".join(found), f"{len(found)} wrong", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
