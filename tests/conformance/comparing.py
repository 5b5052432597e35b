"""Compares results with PyTorch's, with the result in float64 as the judge of differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-11}


def compare(
    results: Sequence[Any], expected: Sequence[Any], truth: Callable[[], list[Any] | None], *, undefined: bool = False
) -> str:
    """Returns a message on wrong results, or an empty text.

    Integers and truth values must be equal. A float, and each part of a complex number, must be close to PyTorch's,
    or at least as close to the result in float64 as PyTorch's is.
    """
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    exact: list[Any] | None = None
    for i, (x, y) in enumerate(zip(results, expected, strict=True)):
        if not isinstance(y, torch.Tensor):
            if x != y and not (x != x and y != y):
                return f"result {i} is {x!r} instead of {y!r}"
            continue
        y = y.detach()
        if not isinstance(x, torch.Tensor) or x.dtype != y.dtype or x.shape != y.shape:
            return f"result {i} is {_describe(x)} instead of {_describe(y)}"
        x, y = _parts(x), _parts(y)
        if undefined or _near(x, y):
            continue
        exact = truth() if exact is None else exact
        if y.dtype in TOLERANCE and exact is not None and i < len(exact) and _nearer(x, y, _parts(exact[i])):
            continue
        return f"result {i}: {_difference(x, y)}"
    return ""


def _parts(x: Any) -> Any:
    """Returns a complex tensor as a real tensor of real and imaginary parts."""
    return torch.view_as_real(x.resolve_conj()) if isinstance(x, torch.Tensor) and x.is_complex() else x


def _near(x: torch.Tensor, y: torch.Tensor) -> bool:
    if y.dtype not in TOLERANCE:
        return bool(torch.equal(x, y))
    tolerance = TOLERANCE[y.dtype]
    return bool(torch.allclose(x.double(), y.double(), rtol=tolerance, atol=tolerance * 1e-1, equal_nan=True))


def _nearer(x: torch.Tensor, y: torch.Tensor, exact: Any) -> bool:
    """Returns true if each element of `x` is about as close to the exact result as `y`, or as rounding allows."""
    if not isinstance(exact, torch.Tensor) or exact.shape != y.shape or exact.is_complex():
        return False
    dtype = y.dtype
    x, y, t = x.double(), y.double(), exact.double()
    same = (x == y) | (x.isnan() & y.isnan()) | (x == t)
    finite = t.isfinite() & x.isfinite()
    scale = t[t.isfinite()].abs().max() if bool(t.isfinite().any()) else torch.tensor(0.0)
    tolerance = TOLERANCE[dtype]
    slack = (
        4 * (y - t).abs().nan_to_num(0.0, 0.0, 0.0) + tolerance * t.abs() + tolerance * 0.1 * scale.clamp(max=1000.0)
    )
    return bool((same | (finite & ((x - t).abs() <= slack))).all())


def _describe(x: Any) -> str:
    return f"{str(x.dtype)[6:]}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)


def _difference(x: torch.Tensor, y: torch.Tensor) -> str:
    bad = ~((x == y) | ((x != x) & (y != y)))
    if y.is_floating_point():
        bad &= ~torch.isclose(x.double(), y.double(), rtol=TOLERANCE.get(y.dtype, 0.0), atol=0.0, equal_nan=True)
    at = bad.nonzero()
    if not len(at):
        return "differs"
    first = tuple(int(i) for i in at[0])
    return f"{len(at)} of {y.numel()} elements differ, at {list(first)} {x[first].item()} instead of {y[first].item()}"
