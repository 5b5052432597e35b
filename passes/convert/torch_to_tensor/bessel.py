"""Bessel functions and relatives, in f64.

Up to some argument they are integrals over a period, or over the whole line, where the trapezoidal rule converges
faster than any power (Trefethen and Weideman, "The exponentially convergent trapezoidal rule", 2014); beyond it the
asymptotic expansions of Abramowitz and Stegun (chapters 9 and 10) are exact to the last digits. No table of fitted
coefficients is needed.
"""

from __future__ import annotations

from math import cos, factorial, gamma, pi, sin, sqrt

from xdsl.dialects import math
from xdsl.ir import SSAValue

from ....dialects.tensor.builder import Builder
from .registry import decomposes
from .special import bessel_i, horner, inverse, wide

_INF, _NAN = float("inf"), float("nan")
_EULER = 0.5772156649015329

_NEAR = 25.0
"""From here on the asymptotic expansion of J and Y is used."""

_POINTS = 32
"""Points in a quarter of the period: enough for all orders up to twice as many at arguments up to `_NEAR`."""

_ORDERS = 30
"""Terms of Neumann's series for Y: J of order 60 is below 1e-17 there."""


def _quarter(b: Builder, x: SSAValue, order: int, weights: list[float]) -> SSAValue:
    """The mean over the period of cos(x sin t) (sin for the odd `order`), weighted; by symmetry over a quarter."""
    total: SSAValue | None = None
    for j, weight in enumerate(weights):
        angle = b.scaled(x, sin(_angle(j)))
        value = b.scaled(b.math(math.SinOp if order else math.CosOp, angle), weight / _POINTS)
        total = value if total is None else b.add(total, value)
    assert total is not None
    return total


def _angle(j: int) -> float:
    return (j + 0.5) * pi / (2 * _POINTS)


def _bessel_j_near(b: Builder, x: SSAValue, order: int) -> SSAValue:
    return _quarter(b, x, order, [sin(_angle(j)) if order else 1.0 for j in range(_POINTS)])


def _bessel_y_near(b: Builder, x: SSAValue, order: int) -> SSAValue:
    """Neumann's series (A&S 9.1.88, 9.1.89): its Bessel functions share their integrand, so it is one more integral."""
    weights = [0.0] * _POINTS
    for j in range(_POINTS):
        for k in range(1, _ORDERS + 1):
            factor = (-1.0) ** k * (order + 2 * k) / (k * (order + k))
            t = _angle(j)
            weights[j] += factor * (cos(2 * k * t) if order == 0 else sin((2 * k + 1) * t))
    series = b.scaled(_quarter(b, x, order, weights), -2 / pi)
    logarithm = b.plus(b.log(b.scaled(x, 0.5)), _EULER - order)
    found = b.add(b.scaled(b.mul(logarithm, _bessel_j_near(b, x, order)), 2 / pi), series)
    if order == 0:
        return found
    pole = b.div(_bessel_j_near(b, x, 0), x)
    return b.sub(found, b.scaled(pole, 2 / pi))


def _far(b: Builder, x: SSAValue, order: int) -> tuple[SSAValue, SSAValue]:
    """J and Y for large arguments (A&S 9.2.5, 9.2.6)."""
    r = inverse(b, b.maximum(x, b.like(x, _NEAR)))
    coefficients, c = [1.0], 1.0
    for k in range(1, 20):
        c *= (4 * order * order - (2 * k - 1) ** 2) / (8 * k)
        coefficients.append(c)
    square = b.mul(r, r)
    p = horner(b, square, [(-1) ** (k // 2) * coefficients[k] for k in range(18, -1, -2)])
    q = b.mul(r, horner(b, square, [(-1) ** (k // 2) * coefficients[k] for k in range(19, 0, -2)]))
    phase = b.plus(x, -(2 * order + 1) * pi / 4)
    size = b.sqrt(b.scaled(r, 2 / pi))
    s, c_ = b.math(math.SinOp, phase), b.math(math.CosOp, phase)
    j = b.mul(size, b.sub(b.mul(p, c_), b.mul(q, s)))
    y = b.mul(size, b.add(b.mul(p, s), b.mul(q, c_)))
    return j, y


def _bessel_j(b: Builder, self: SSAValue, order: int) -> SSAValue:
    x = wide(b, self)
    size = b.abs(x)
    near = _bessel_j_near(b, b.minimum(size, b.like(size, _NEAR)), order)
    found = b.select(b.cmp("le", size, _NEAR), near, _far(b, size, order)[0])
    found = b.select(b.isnan(x), x, found)
    return b.select(b.cmp("lt", x, 0), b.neg(found), found) if order else found


def _bessel_y(b: Builder, self: SSAValue, order: int) -> SSAValue:
    x = wide(b, self)
    near = _bessel_y_near(b, b.minimum(x, b.like(x, _NEAR)), order)
    found = b.select(b.cmp("le", x, _NEAR), near, _far(b, x, order)[1])
    found = b.select(b.cmp("eq", x, 0), b.like(x, -_INF), found)
    return b.select(b.cmp("ge", x, 0), found, b.like(x, _NAN))


@decomposes("special_bessel_j0")
def bessel_j0(b: Builder, self: SSAValue) -> SSAValue:
    return _bessel_j(b, self, 0)


@decomposes("special_bessel_j1")
def bessel_j1(b: Builder, self: SSAValue) -> SSAValue:
    return _bessel_j(b, self, 1)


@decomposes("special_bessel_y0")
def bessel_y0(b: Builder, self: SSAValue) -> SSAValue:
    return _bessel_y(b, self, 0)


@decomposes("special_bessel_y1")
def bessel_y1(b: Builder, self: SSAValue) -> SSAValue:
    return _bessel_y(b, self, 1)


def _bessel_k(b: Builder, self: SSAValue, order: int, scaled: bool) -> SSAValue:
    """K, times exp(x) if `scaled`: the power series up to 2 (A&S 9.6.11), then the integral of exp(-x cosh t) cosh(nt)
    (A&S 9.6.24)."""
    x = wide(b, self)
    small = b.minimum(x, b.like(x, 2))
    half = b.scaled(small, 0.5)
    harmonic = [sum(1 / i for i in range(1, k + 1)) for k in range(24)]
    if order == 0:
        terms = [harmonic[k] / factorial(k) ** 2 for k in range(21, -1, -1)]
        near = horner(b, b.mul(half, half), terms)
        near = b.sub(near, b.mul(b.plus(b.log(half), _EULER), bessel_i(b, small, 0, False)))
    else:
        psi = [harmonic[k] + harmonic[k + 1] - 2 * _EULER for k in range(22)]
        terms = [-psi[k] / (2 * factorial(k) * factorial(k + 1)) for k in range(21, -1, -1)]
        near = b.mul(half, horner(b, b.mul(half, half), terms))
        near = b.add(near, b.mul(b.log(half), bessel_i(b, small, 1, False)))
        near = b.add(near, inverse(b, small))
    near = b.mul(near, b.exp(small)) if scaled else near
    large = b.maximum(x, b.like(x, 2))
    far = _integral_k(b, large, order)
    far = far if scaled else b.mul(far, b.exp(b.neg(large)))
    found = b.select(b.cmp("le", x, 2), near, far)
    found = b.select(b.cmp("eq", x, 0), b.like(x, _INF), found)
    return b.select(b.cmp("ge", x, 0), found, b.like(x, _NAN))


def _integral_k(b: Builder, x: SSAValue, order: int) -> SSAValue:
    """The integral of exp(-x (cosh t - 1)) cosh(nt): with t = u / sqrt(x), so that its width does not depend on x."""
    root = inverse(b, b.sqrt(x))
    step, total = 0.25, b.like(x, 0.5)
    for j in range(1, 37):
        t = b.scaled(root, j * step)
        half = b.math(math.SinhOp, b.scaled(t, 0.5))
        value = b.exp(b.neg(b.scaled(b.mul(x, b.mul(half, half)), 2)))
        total = b.add(total, b.mul(value, b.math(math.CoshOp, t)) if order else value)
    found = b.mul(b.scaled(total, step), root)
    return b.select(b.cmp("eq", x, _INF), b.like(x, 0), found)


@decomposes("special_modified_bessel_k0")
def bessel_k0(b: Builder, self: SSAValue) -> SSAValue:
    return _bessel_k(b, self, 0, False)


@decomposes("special_modified_bessel_k1")
def bessel_k1(b: Builder, self: SSAValue) -> SSAValue:
    return _bessel_k(b, self, 1, False)


@decomposes("special_scaled_modified_bessel_k0")
def scaled_bessel_k0(b: Builder, x: SSAValue) -> SSAValue:
    return _bessel_k(b, x, 0, True)


@decomposes("special_scaled_modified_bessel_k1")
def scaled_bessel_k1(b: Builder, x: SSAValue) -> SSAValue:
    return _bessel_k(b, x, 1, True)


@decomposes("special_spherical_bessel_j0")
def spherical_bessel_j0(b: Builder, x: SSAValue) -> SSAValue:
    """sin(x) / x."""
    y = wide(b, x)
    found = b.div(b.math(math.SinOp, y), y)
    found = b.select(b.cmp("eq", y, 0), b.like(y, 1), found)
    return b.select(b.cmp("eq", b.abs(y), _INF), b.like(y, 0), found)


_AIRY = 6.0
"""Up to here the power series of Ai loses no more than f32 can spare."""


@decomposes("special_airy_ai")
def airy_ai(b: Builder, x: SSAValue) -> SSAValue:
    """The power series (A&S 10.4.2), beyond it the asymptotic ones (10.4.59, 10.4.60)."""
    y = wide(b, x)
    size = b.abs(y)
    near = b.maximum(b.minimum(y, b.like(y, _AIRY)), b.like(y, -_AIRY))
    cube = b.mul(near, b.mul(near, near))
    f, g = [1.0], [1.0]
    for k in range(1, 40):
        f.append(f[-1] / ((3 * k - 1) * (3 * k)))
        g.append(g[-1] / (3 * k * (3 * k + 1)))
    first, second = 3 ** (-2 / 3) / gamma(2 / 3), 3 ** (-1 / 3) / gamma(1 / 3)
    series = b.sub(b.scaled(horner(b, cube, f[::-1]), first), b.scaled(b.mul(near, horner(b, cube, g[::-1])), second))
    far = b.maximum(size, b.like(y, _AIRY))
    zeta = b.scaled(b.mul(far, b.sqrt(far)), 2 / 3)
    r = inverse(b, zeta)
    c = [1.0]
    for k in range(1, 16):
        c.append(c[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    fourth = b.scaled(b.sqrt(b.sqrt(far)), sqrt(pi))
    decaying = horner(b, r, [(-1) ** k * c[k] for k in range(15, -1, -1)])
    right = b.div(b.mul(b.exp(b.neg(zeta)), decaying), b.scaled(fourth, 2))
    square = b.mul(r, r)
    even = horner(b, square, [(-1) ** (k // 2) * c[k] for k in range(14, -1, -2)])
    odd = b.mul(r, horner(b, square, [(-1) ** (k // 2) * c[k] for k in range(15, 0, -2)]))
    phase = b.plus(zeta, pi / 4)
    wave = b.sub(b.mul(b.math(math.SinOp, phase), even), b.mul(b.math(math.CosOp, phase), odd))
    left = b.div(wave, fourth)
    found = b.select(b.cmp("gt", y, 0), right, left)
    found = b.select(b.cmp("le", size, _AIRY), series, found)
    return b.select(b.cmp("lt", size, _INF), found, b.like(y, _NAN))  # as PyTorch has it
