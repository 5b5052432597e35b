"""Decompositions of operators that draw random numbers, into uniform and normal numbers.

For one seed, the numbers differ from PyTorch's, but they have the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import torch

from ....errors import ShapeError

Tensor = torch.Tensor


def _computed(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.float32


def _bernoulli(self: Tensor, p: Tensor | float | None = None, *, generator: Any = None) -> Tensor:
    p = self if p is None else p
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise ShapeError(f"expected a probability from 0 to 1, but got {p}", argument="p")
    dtype = _computed(p) if isinstance(p, Tensor) else torch.float32
    return (torch.rand(self.shape, dtype=dtype) < p).to(self.dtype)


def _uniform(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    drawn = torch.rand_like(self)
    return drawn if (low, high) == (0, 1) else drawn * (high - low) + low


def _normal(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return (torch.randn(self.shape, dtype=_computed(self)) * std + mean).to(self.dtype)


def _normal_of_tensors(mean: Tensor | float, std: Tensor | float, *, generator: Any = None) -> Tensor:
    like: Any = mean + std
    typed: Any = mean if isinstance(mean, Tensor) else std
    return (torch.randn(like.shape, dtype=_computed(like)) * std + mean).to(typed.dtype)


def _normal_of_numbers(
    mean: float, std: float, size: Sequence[int], *, generator: Any = None, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return _normal(torch.empty(size, dtype=dtype), mean, std)


def _geometric(self: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Returns the number of trials up to the first success."""
    if not 0 < p < 1:
        raise ShapeError(f"expected a probability between 0 and 1, but got {p}", argument="p")
    drawn = 1 - torch.rand(self.shape, dtype=_computed(self))
    return (drawn.log() * (1 / log(1 - p))).ceil().clamp(min=1).to(self.dtype)


_MOST_CATEGORIES = 1 << 24
"""Largest number of categories, as in PyTorch: f32 represents no larger consecutive integers."""


def _multinomial(self: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Returns indices in the last dimension, with probabilities proportional to `self`.

    With replacement, it inverts the running sums of probabilities. Without, it selects the indices with the largest p /
    e for exponentially distributed e (Efraimidis, Spirakis: Weighted random sampling with a reservoir, 2006).
    """
    if self.dim() not in (1, 2) or not self.is_floating_point() or self.shape[-1] > _MOST_CATEGORIES:
        raise ShapeError("expected floats with one or two dimensions, and at most 2^24 categories", argument="self")
    count = self.shape[-1]
    if num_samples <= 0 or not replacement and num_samples > count:
        raise ShapeError(
            f"expected 1 to {count} samples without replacement, but got {num_samples}", argument="num_samples"
        )
    weights = self.to(_computed(self))
    if not replacement:
        rate = -(1 - torch.rand_like(weights)).log()
        return (weights / rate).topk(num_samples).indices
    sums = weights.cumsum(-1)
    drawn = torch.rand((*self.shape[:-1], num_samples), dtype=weights.dtype) * sums[..., -1:]
    return torch.searchsorted(sums, drawn, right=True).clamp(max=count - 1)


def _rrelu(
    self: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    if not training:
        return torch.where(self <= 0, self * ((lower + upper) / 2), self), noise
    slope = torch.where(self <= 0, _uniform(self, lower, upper), 1.0)
    return self * slope, slope


DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "bernoulli.default": _bernoulli,
    "bernoulli.Tensor": _bernoulli,
    "bernoulli.p": _bernoulli,
    "geometric.default": _geometric,
    "multinomial.default": _multinomial,
    "normal.Tensor_Tensor": _normal_of_tensors,
    "normal.Tensor_float": _normal_of_tensors,
    "normal.float_Tensor": _normal_of_tensors,
    "normal.float_float": _normal_of_numbers,
    "normal_functional.default": _normal,
    "rrelu_with_noise_functional.default": _rrelu,
    "uniform.default": _uniform,
}
