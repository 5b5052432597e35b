"""Discrete Fourier transforms as products with matrices.

A transform of up to `DIRECT` points is one product with its matrix, whose elements are computed in float64. A longer
one of n = a * b points is transforms of a and of b points with a product element by element between (the four-step
method: Bailey, FFTs in external or hierarchical memory, 1990).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....errors import UnsupportedError
from .pairs import Pair, times

Tensor = torch.Tensor

DIRECT = 256
"""Up to so many points a transform is one product."""

LARGEST = 4096
"""The largest number of points of one product where they are a prime number, or a multiple of a large one."""

Keep = Callable[[tuple[Any, ...], Tensor], Tensor]
"""Makes a tensor a constant of the program; equal keys are one."""


def r2c(keep: Keep, self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Pair:
    """`_fft_r2c`: of a real tensor, along `dim`; of the last of these only the first half if `onesided`."""
    *others, last = dim
    pair = _transformed(keep, Pair(self, None), last, False)
    if onesided:
        pair = Pair(*(_part(v, last, 0, _points(self, last) // 2 + 1) for v in pair))
    for d in others:
        pair = _transformed(keep, pair, d, False)
    return _normalized(pair, normalization, [_points(self, d) for d in dim])


def c2c(keep: Keep, self: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    """`_fft_c2c`: of a complex tensor, along `dim`."""
    pair = self
    for d in dim:
        pair = _transformed(keep, pair, d, not forward)
    return _normalized(pair, normalization, [_points(self.re, d) for d in dim])


def c2r(keep: Keep, self: Pair, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """`_fft_c2r`: the inverse of `_fft_r2c` with `onesided`. The half that is not given mirrors the other one."""
    pair, (*others, last), n = self, dim, last_dim_size
    if not isinstance(n, int):
        raise UnsupportedError("a Fourier transform along a size that varies is not supported", argument="dim")
    sizes = [*(_points(pair.re, d) for d in others), n]
    for d in others:
        pair = _transformed(keep, pair, d, True)
    half = n // 2 + 1
    re, im = (_part(v, last, 0, half) for v in pair)
    # The imaginary parts at 0 and at half of an even number of points are taken for zero, as there they cancel.
    re_mirrored, im_mirrored = (_part(v, last, 1, n - half).flip([last]) for v in (re, im))
    whole = Pair(torch.cat([re, re_mirrored], last), torch.cat([im, -im_mirrored], last))
    found = _transformed(keep, whole, last, True)
    return _normalized(Pair(found.re, found.re), normalization, sizes).re


def _points(x: Tensor, dim: int) -> int:
    n = x.shape[dim]
    if not isinstance(n, int):
        raise UnsupportedError("a Fourier transform along a size that varies is not supported", argument="dim")
    return n


def _normalized(pair: Pair, kind: int, sizes: Sequence[int]) -> Pair:
    """Divided by nothing (0), by the root of the number of points (1), or by it (2)."""
    if kind == 0:
        return pair
    n = math.prod(sizes)
    return times(pair, 1 / math.sqrt(n) if kind == 1 else 1 / n)


def _transformed(keep: Keep, pair: Pair, dim: int, inverse: bool) -> Pair:
    """The transform along one dimension; an imaginary part of None is zero."""
    n = _points(pair.re, dim)
    return _turned(_along_last(keep, _turned(pair, dim, -1), n, inverse), dim, -1)


def _part(x: Tensor, dim: int, start: int, size: int) -> Tensor:
    return torch.ops.aten.slice.Tensor(x, dim, start, start + size)


def _turned(pair: Pair, first: int, second: int) -> Pair:
    order = list(range(pair.re.dim()))
    order[first], order[second] = order[second], order[first]
    return Pair(*(None if v is None else v.permute(order) for v in pair))


def _along_last(keep: Keep, x: Pair, n: int, inverse: bool) -> Pair:
    a = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)  # the divisor next to the root, from below
    if n <= DIRECT or a == 1:
        if n > LARGEST:
            raise UnsupportedError(
                f"a Fourier transform of {n} points is not supported: only up to {LARGEST}, or products of such numbers"
            )
        return times(x.re if x.im is None else x, _matrix(keep, x.re.dtype, n, n, n, inverse), torch.matmul)
    # Element b * t + s is at (t, s): transform over t, multiply by w^(k s), transform over s; k + a * l is at (l, k).
    b = n // a
    split = Pair(*(None if v is None else v.reshape(*v.shape[:-1], a, b) for v in x))
    first = _along_last(keep, _turned(split, -1, -2), a, inverse)
    second = _turned(times(first, _matrix(keep, x.re.dtype, b, a, n, inverse)), -1, -2)
    lines = _turned(_along_last(keep, second, b, inverse), -1, -2)
    return Pair(*(v.reshape(*v.shape[:-2], n) for v in lines))


def _matrix(keep: Keep, dtype: torch.dtype, rows: int, columns: int, n: int, inverse: bool) -> Pair:
    """The constants cos and sin of 2 pi r c / n, the sines negative unless `inverse`."""
    key = rows, columns, n, str(dtype).removeprefix("torch.")
    with torch.utils._python_dispatch._disable_current_modes():
        index = torch.arange(rows, device="cpu")[:, None] * torch.arange(columns, device="cpu") % n
        angle = index.double() * (2 * math.pi / n)
        cosine, sine = angle.cos().to(dtype), (angle.sin() if inverse else -angle.sin()).to(dtype)
    direction = "inverse" if inverse else "forward"
    return Pair(keep(("dft_cos", *key), cosine), keep(("dft_sin", direction, *key), sine))
