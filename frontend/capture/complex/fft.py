"""Discrete Fourier transforms as products with matrices.

A transform of up to `DIRECT` points is one product with its matrix, whose elements are computed in float64. A longer
one of n = a * b points is transforms of a and of b points with a product element by element between (the four-step
method: Bailey, FFTs in external or hierarchical memory, 1990).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ....errors import UnsupportedError
from .pairs import Emitter, Pair

aten = torch.ops.aten

DIRECT = 256
"""Up to so many points a transform is one product."""

LARGEST = 4096
"""The largest number of points of one product where they are a prime number, or a multiple of a large one."""


def r2c(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    """`_fft_r2c`: of a real tensor, along `dim`; of the last of these only the first half if `onesided`."""
    x, dim = given["self"], given["dim"]
    sizes = [_points(x, d) for d in dim]
    last, n = dim[-1], sizes[-1]
    pair = _transformed(e, Pair(x, None), last, n, False)
    if given["onesided"]:
        pair = Pair(*(e.call(aten.slice.Tensor, v, last, 0, n // 2 + 1) for v in pair))
    for d, size in zip(dim[:-1], sizes, strict=False):
        pair = _transformed(e, pair, d, size, False)
    return _normalized(e, pair, given["normalization"], sizes)


def c2c(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    """`_fft_c2c`: of a complex tensor, along `dim`."""
    pair, sizes = given["self"], [_points(given["self"].re, d) for d in given["dim"]]
    for d, n in zip(given["dim"], sizes, strict=True):
        pair = _transformed(e, pair, d, n, not given["forward"])
    return _normalized(e, pair, given["normalization"], sizes)


def c2r(e: Emitter, node: Node, given: dict[str, Any]) -> Node:
    """`_fft_c2r`: the inverse of `_fft_r2c` with `onesided`. The half that is not given mirrors the other one."""
    pair, dim, n = given["self"], given["dim"], given["last_dim_size"]
    if not isinstance(n, int):
        raise UnsupportedError("a Fourier transform along a size that varies is not supported", argument="dim")
    sizes = [*(_points(pair.re, d) for d in dim[:-1]), n]
    for d, size in zip(dim[:-1], sizes, strict=False):
        pair = _transformed(e, pair, d, size, True)
    last, half = dim[-1], n // 2 + 1
    pair = Pair(*(e.call(aten.slice.Tensor, v, last, 0, half) for v in pair))
    mirrored = [e.call(aten.flip.default, e.call(aten.slice.Tensor, v, last, 1, n - half + 1), [last]) for v in pair]
    # The imaginary parts at 0 and at half of an even number of points are taken for zero, as there they cancel.
    re = e.call(aten.cat.default, [pair.re, mirrored[0]], last)
    im = e.call(aten.cat.default, [pair.im, e.call(aten.neg.default, mirrored[1])], last)
    found = _transformed(e, Pair(re, im), last, n, True)
    return _normalized(e, Pair(found.re, found.re), given["normalization"], sizes).re


def _points(x: Node, dim: int) -> int:
    n = x.meta["val"].shape[dim]
    if not isinstance(n, int):
        raise UnsupportedError("a Fourier transform along a size that varies is not supported", argument="dim")
    return n


def _normalized(e: Emitter, pair: Pair, kind: int, sizes: list[int]) -> Pair:
    """Divided by nothing (0), by the root of the number of points (1), or by it (2)."""
    if kind == 0:
        return pair
    n = math.prod(sizes)
    return Pair(*(e.call(aten.mul.Tensor, v, 1 / math.sqrt(n) if kind == 1 else 1 / n) for v in pair))


def _transformed(e: Emitter, pair: Pair, dim: int, n: int, inverse: bool) -> Pair:
    """The transform along one dimension; an imaginary part of None is zero."""
    rank = pair.re.meta["val"].dim()
    moved = Pair(*(v and e.call(aten.transpose.int, v, dim % rank, rank - 1) for v in pair))
    found = _along_last(e, moved, n, inverse)
    return Pair(*(e.call(aten.transpose.int, v, dim % rank, rank - 1) for v in found))


def _along_last(e: Emitter, x: Pair, n: int, inverse: bool) -> Pair:
    factor = _factor(n)
    if n <= DIRECT or factor == 1:
        if n > LARGEST:
            raise UnsupportedError(
                f"a Fourier transform of {n} points is not supported: only up to {LARGEST}, or products of such numbers"
            )
        return _product(e, x, _matrix(e, x.re, n, n, n, inverse))
    # Element b * t + s is at (t, s): transform over t, multiply by w^(k s), transform over s; k + a * l is at (l, k).
    a, b = factor, n // factor
    split = Pair(*(v and e.call(aten.unflatten.int, v, -1, [a, b]) for v in x))
    first = _along_last(e, Pair(*(v and e.call(aten.transpose.int, v, -1, -2) for v in split)), a, inverse)
    turned = _turned(e, first, _matrix(e, x.re, b, a, n, inverse))
    second = _along_last(e, Pair(*(e.call(aten.transpose.int, v, -1, -2) for v in turned)), b, inverse)
    lines = (e.call(aten.transpose.int, v, -1, -2) for v in second)
    return Pair(*(e.call(aten.flatten.using_ints, v, -2, -1) for v in lines))


def _factor(n: int) -> int:
    """The divisor of `n` next to its root, from below."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _matrix(e: Emitter, x: Node, rows: int, columns: int, n: int, inverse: bool) -> Pair:
    """The constants cos and sin of 2 pi r c / n, the sines negative unless `inverse`."""
    dtype = x.meta["val"].dtype
    index = torch.arange(rows)[:, None] * torch.arange(columns) % n
    angle = index.double() * (2 * math.pi / n)
    sine = angle.sin() if inverse else -angle.sin()
    key = rows, columns, n, str(dtype).removeprefix("torch.")
    return Pair(
        e.constant(("dft_cos", *key), angle.cos().to(dtype)),
        e.constant(("dft_sin", "inverse" if inverse else "forward", *key), sine.to(dtype)),
    )


def _product(e: Emitter, x: Pair, matrix: Pair) -> Pair:
    def times(a: Node, b: Node) -> Node:
        return e.call(aten.matmul.default, a, b)

    if x.im is None:
        return Pair(*(times(x.re, m) for m in matrix))
    re = e.call(aten.sub.Tensor, times(x.re, matrix.re), times(x.im, matrix.im))
    return Pair(re, e.call(aten.add.Tensor, times(x.re, matrix.im), times(x.im, matrix.re)))


def _turned(e: Emitter, x: Pair, by: Pair) -> Pair:
    def times(a: Node, b: Node) -> Node:
        return e.call(aten.mul.Tensor, a, b)

    re = e.call(aten.sub.Tensor, times(x.re, by.re), times(x.im, by.im))
    return Pair(re, e.call(aten.add.Tensor, times(x.re, by.im), times(x.im, by.re)))
