"""Window functions of signals (`torch.hamming_window`, ...), which PyTorch computes at once, made of ATen operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _cosines(*factors: float) -> Callable[[Tensor, int, float], Tensor]:
    """A sum of cosines of 0, 1, 2, ... periods in the window."""

    def window(n: Tensor, steps: int, beta: float) -> Tensor:
        total = torch.full_like(n, factors[0])
        for k, factor in enumerate(factors[1:], 1):
            total = total + torch.cos(n * (2 * math.pi * k / steps)) * factor
        return total

    return window


def _bartlett(n: Tensor, steps: int, beta: float) -> Tensor:
    return 1 - (n * (2 / steps) - 1).abs()


def _kaiser(n: Tensor, steps: int, beta: float) -> Tensor:
    """The argument of the Bessel function is at most rounded below 0, where the window ends."""
    place = n * (2 / steps) - 1
    return torch.i0(beta * torch.sqrt((1 - place * place).clamp(min=0))) / torch.i0(torch.full_like(n, beta))


def _window(length: int, periodic: bool, dtype: torch.dtype | None, shape: Any, beta: float = 0.0) -> Tensor:
    """`length` values of `shape`, whose last is that at the end, or for a periodic window one step before it."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if length < 2:
        return torch.ones(length, dtype=dtype)
    steps = length if periodic else length - 1
    return shape(torch.arange(length, dtype=torch.promote_types(dtype, torch.float32)), steps, beta).to(dtype)


def _hamming(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    return _window(window_length, periodic, dtype, _cosines(alpha, -beta))


def _blackman(window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _window(window_length, periodic, dtype, _cosines(0.42, -0.5, 0.08))


def _bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return _window(window_length, periodic, dtype, _bartlett)


def _kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return _window(window_length, periodic, dtype, _kaiser, beta)


WINDOWS: dict[Any, Callable[..., Tensor]] = {
    getattr(operator, overload): made
    for operator, made in (
        (aten.hamming_window, _hamming),
        (aten.blackman_window, _blackman),
        (aten.bartlett_window, _bartlett_window),
        (aten.kaiser_window, _kaiser_window),
    )
    for overload in operator.overloads()
    if not overload.endswith("out")
}
