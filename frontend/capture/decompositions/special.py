"""Special functions, of elementary ones. All is computed in f64, so that f32 results are right to the last digits.

A&S are Abramowitz and Stegun, "Handbook of mathematical functions" (1964).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import exp, factorial, inf, log, nan, pi, prod, sqrt
from typing import Any

import torch
from sympy import bernoulli

from ....errors import UnsupportedError

Tensor = torch.Tensor
SPECIAL: dict[Any, Callable[..., Tensor]] = {}


def _of(*operators: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Enter a function of f64 tensors as the decomposition of `operators`, whose result is a float of their type."""

    def enter(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        SPECIAL.update({f"{operator}.default": of_floats(function) for operator in operators})
        return function

    return enter


def of_floats(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a function of f64 tensors as one of tensors of any type, whose result is a float of their type."""

    @wraps(function)
    def made(*args: Any) -> Tensor:
        tensors = [v for v in args if isinstance(v, Tensor)]
        dtype = torch.result_type(tensors[0], tensors[-1])
        result = function(*(v.to(torch.float64) if isinstance(v, Tensor) else v for v in args))
        return result.to(dtype if dtype.is_floating_point else torch.get_default_dtype())

    return made


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The polynomial with these coefficients, of the highest power first."""
    total = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


_B = [bernoulli(n) for n in range(21)]
"""The Bernoulli numbers."""

_SHIFT = 10
"""Asymptotic series start at `x + _SHIFT`; the recurrence leads back."""


def _is_whole(x: Tensor) -> Tensor:
    return x.floor() == x


def _near(x: Tensor) -> Tensor:
    """pi times the distance to the nearest integer: its sine and tangent are exact for large x."""
    return (x - x.round()) * pi


@_of("lgamma")
def _lgamma(x: Tensor) -> Tensor:
    left = x < 0.5
    y = torch.where(left, 1 - x, x)  # reflected to y >= 0.5
    near = y < _SHIFT
    z = torch.where(near, y + _SHIFT, y)
    # Stirling: (z - 1/2) log z - z + log(2 pi) / 2 + sum of B(2k) / (2k (2k - 1) z^(2k - 1))
    r = 1 / z
    tail = polynomial(r * r, [float(_B[2 * k] / (2 * k * (2 * k - 1))) for k in range(8, 0, -1)]) * r
    lead = torch.where(near, prod((y + k for k in range(1, _SHIFT)), start=y), 1)
    value = (z - 0.5) * (z.log() - 1) + tail + (log(2 * pi) - 1) / 2 - lead.log()
    found = torch.where(left, log(pi) - _near(x).sin().abs().log() - value, value)
    return torch.where((x <= 0) & _is_whole(x) | (x.abs() == inf), inf, found)


@_of("digamma")
def _digamma(x: Tensor) -> Tensor:
    left = x < 0
    y = torch.where(left, 1 - x, x)
    z = y + _SHIFT
    square = 1 / (z * z)
    tail = polynomial(square, [float(_B[2 * k] / (2 * k)) for k in range(8, 0, -1)]) * square
    value = z.log() - 0.5 / z - tail - sum((1 / (y + k) for k in range(1, _SHIFT)), start=1 / y)
    found = torch.where(left, value - pi / _near(x).tan(), value)
    found = torch.where(left & _is_whole(x), nan, found)
    return torch.where(x == 0, torch.copysign(torch.full_like(x, inf), -x), found)


@_of("special_zeta")
def _zeta(s: Tensor, q: Tensor) -> Tensor:
    """The Hurwitz zeta function for s > 1, by Euler and Maclaurin; for q <= 0 sums what is defined.

    A new last dimension counts the terms that are summed as they are; enough of them to pass q >= -50.
    """
    terms = 64
    head = torch.pow(q[..., None] + torch.arange(terms, dtype=q.dtype), -s[..., None]).sum(-1)
    a = q + terms
    last = torch.pow(a, -s)
    total = head + (last * a / (s - 1) + last * 0.5)
    # + sum of B(2k) / (2k)! s (s+1) ... (s+2k-2) a^(-s-2k+1)
    factor, r = last * s / a, 1 / (a * a)
    for k in range(1, 8):
        total = total + factor * float(_B[2 * k] / factorial(2 * k))
        factor = factor * (s + (2 * k - 1)) * (s + 2 * k) * r
    total = torch.where(s == 1, inf, total)
    total = torch.where((q <= 0) & _is_whole(q), inf, total)
    undefined = (s < 1) | (q <= 0) & ~(_is_whole(s) | _is_whole(q)) | (q < -50)
    return torch.where(undefined, nan, total)


@_of("polygamma")
def _polygamma(n: int, x: Tensor) -> Tensor:
    if not 0 <= n <= 60:
        raise UnsupportedError(f"the polygamma function of order {n} is not supported, only 0 to 60", argument="n")
    if n == 0:
        return _digamma(x)
    if n > 1:
        return _zeta(torch.full_like(x, n + 1), x) * ((1.0 if n % 2 else -1.0) * factorial(n))
    left = x < 0.5  # reflected, as PyTorch does: it is defined between the poles on the left
    value = _zeta(torch.full_like(x, 2), torch.where(left, 1 - x, x))
    return torch.where(left, (pi / _near(x).sin()) ** 2 - value, value)


_ERFINV = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503)
    + (-0.00417768164, 0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613)
    + (0.00943887047, 1.00167406, 2.83297682),
)
"""Giles' approximation of erfinv(y) / y in -log(1 - y^2) - 2.5, and where that is above 5 in its root - 3."""


@_of("erfinv")
def _erfinv(y: Tensor) -> Tensor:
    """Giles' approximation, then a step of Halley's method, which triples the digits."""
    size = -((1 - y) * (y + 1)).log()
    x = torch.where(size < 5, polynomial(size - 2.5, _ERFINV[0]), polynomial(size.sqrt() - 3.0, _ERFINV[1])) * y
    step = (x.erf() - y) / ((-x * x).exp() * (2 / sqrt(pi)))
    x = x - step / (1 + x * step)
    edge = torch.where(y.abs() == 1, torch.copysign(torch.full_like(y, inf), y), nan)
    return torch.where(y.abs() < 1, x, edge)


@_of("special_erfcx")
def _erfcx(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x). From 1 on, the trapezoidal rule with the residue at its pole (Matta and Reichel, "Uniform
    computation of the error function and other related functions", 1971)."""
    size = x.abs().clamp(max=1e100)
    square = size * size
    small = square.clamp(max=700).exp()
    step = 0.5
    total = sum((exp(-((n * step) ** 2)) / (square + (n * step) ** 2) for n in range(1, 13)), start=0.5 / square)
    far = size * (2 * step / pi) * total
    far = torch.where(size < pi / step, far + 2 * small / (1 - (size * (2 * pi / step)).exp()), far)
    found = torch.where(size < 1, small * (1 - size.erf()), far)
    found = torch.where(x < 0, 2 * (x * x).exp() - found, found)
    return torch.where(x.isnan(), x, found)


@_of("erfc")
def _erfc(x: Tensor) -> Tensor:
    size = x.abs()
    tail = _erfcx(size) * (-size * size).exp()
    return torch.where(size < 1, 1 - x.erf(), torch.where(x < 0, 2 - tail, tail))


@_of("special_ndtri")
def _ndtri(p: Tensor) -> Tensor:
    """The inverse of the normal distribution function: a start (A&S 26.2.23), then Newton on its logarithm, which has
    the same relative precision everywhere in the tail."""
    lower = torch.minimum(p, 1 - p)
    t = (-2 * lower.log()).sqrt()
    start = polynomial(t, (0.010328, 0.802853, 2.515517)) / polynomial(t, (0.001308, 0.189269, 1.432788, 1.0))
    x = t - start  # so far below the mean
    for _ in range(4):
        ratio = _erfcx(x * sqrt(0.5))  # tail / density, but for a factor
        x = x + ((ratio * 0.5).log() - x * x * 0.5 - lower.log()) * ratio * sqrt(pi / 2)
    x = torch.where(lower == 0, inf, x)
    x = torch.where(p < 0.5, -x, x)
    return torch.where(lower >= 0, x, nan)


def bessel_i(x: Tensor, order: int, scaled: bool) -> Tensor:
    """The modified Bessel function of order 0 or 1, times exp(-|x|) if `scaled`: its power series, or for large |x| the
    asymptotic one."""
    size = x.abs()
    half = size.clamp(max=30) * 0.5
    near = polynomial(half * half, [1.0 / (factorial(k) * factorial(k + order)) for k in range(60, -1, -1)])
    near = near * half if order else near
    terms = [((2 * i - 1) ** 2 - 4 * order * order) / (8 * i) for i in range(1, 24)]  # A&S 9.7.1
    series = [prod(terms[:k]) for k in range(23, -1, -1)]
    far = polynomial(1 / size.clamp(min=30), series) / (size * (2 * pi)).sqrt()
    if scaled:
        near = near * (-size).exp()
    else:
        root = (size * 0.5).exp()  # exp(x) alone overflows sooner than the result
        far = far * root * root
    found = torch.where(size <= 30, near, far)
    found = torch.where(x.isnan(), x, found)
    return torch.copysign(found, x) if order else found


for _operators, _function, *_rest in (
    (("i0", "special_modified_bessel_i0"), bessel_i, 0, False),
    (("special_i0e",), bessel_i, 0, True),
    (("special_i1", "special_modified_bessel_i1"), bessel_i, 1, False),
    (("special_i1e",), bessel_i, 1, True),
):
    _of(*_operators)(lambda x, function=_function, rest=_rest: function(x, *rest))


@_of("special_spherical_bessel_j0")
def _spherical_bessel_j0(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, torch.where(x.abs() == inf, 0.0, x.sin() / x))
