"""Special functions, from elementary ones. All is computed in f64, so that f32 results are right to the last digits."""

from __future__ import annotations

from fractions import Fraction
from math import comb, exp, factorial, log, pi, sqrt

from xdsl.dialects import math
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from ....dialects.payload import shape_of
from ....dialects.tensor.builder import Builder
from .registry import decomposes

_INF, _NAN = float("inf"), float("nan")


def _bernoulli(count: int) -> list[Fraction]:
    """The Bernoulli numbers B0 ... B(count)."""
    found = [Fraction(1)]
    for n in range(1, count + 1):
        found.append(-sum((comb(n + 1, k) * found[k] for k in range(n)), Fraction(0)) / (n + 1))
    return found


_B = _bernoulli(20)


def horner(b: Builder, x: SSAValue, coefficients: list[float]) -> SSAValue:
    """The polynomial with these coefficients, of the highest power first."""
    total = b.like(x, coefficients[0])
    for c in coefficients[1:]:
        total = b.plus(b.mul(total, x), c)
    return total


def inverse(b: Builder, x: SSAValue) -> SSAValue:
    """1 / x."""
    return b.div(b.like(x, 1), x)


def wide(b: Builder, x: SSAValue) -> SSAValue:
    """`x` in f64, in which special functions are computed."""
    return b.cast(b.working(x), f64)


def _is_whole(b: Builder, x: SSAValue) -> SSAValue:
    return b.cmp("eq", b.math(math.FloorOp, x), x)


def _sine_of_pi(b: Builder, x: SSAValue) -> SSAValue:
    """|sin(pi x)|, exact for large x: of the distance to the nearest integer."""
    near = b.sub(x, b.math(math.RoundEvenOp, x))
    return b.abs(b.math(math.SinOp, b.scaled(near, pi)))


_SHIFT = 10
"""Asymptotic series start at `x + _SHIFT`; the recurrence leads back."""


@decomposes("lgamma")
def log_gamma(b: Builder, self: SSAValue) -> SSAValue:
    x = wide(b, self)
    left = b.cmp("lt", x, 0.5)
    y = b.select(left, b.sub(b.like(x, 1), x), x)  # reflected to y >= 0.5
    product = y
    for k in range(1, _SHIFT):
        product = b.mul(product, b.plus(y, k))
    z = b.plus(y, _SHIFT)
    r = inverse(b, z)
    # Stirling: (z - 1/2) log z - z + log(2 pi) / 2 + sum of B(2k) / (2k (2k - 1) z^(2k - 1))
    tail = b.mul(horner(b, b.mul(r, r), [float(_B[2 * k] / (2 * k * (2 * k - 1))) for k in range(8, 0, -1)]), r)
    large = b.plus(b.add(b.sub(b.mul(b.plus(z, -0.5), b.log(z)), z), tail), log(2 * pi) / 2)
    value = b.sub(large, b.log(product))
    value = b.select(b.cmp("gt", y, 1e15), b.mul(y, b.plus(b.log(y), -1)), value)
    mirrored = b.sub(b.sub(b.like(x, log(pi)), b.log(_sine_of_pi(b, x))), value)
    found = b.select(left, mirrored, value)
    pole = b.both(b.cmp("le", x, 0), _is_whole(b, x))
    pole = b.either(pole, b.cmp("eq", b.abs(x), _INF))
    return b.select(pole, b.like(x, _INF), found)


@decomposes("digamma")
def digamma(b: Builder, self: SSAValue) -> SSAValue:
    x = wide(b, self)
    left = b.cmp("lt", x, 0)
    y = b.select(left, b.sub(b.like(x, 1), x), x)
    steps = inverse(b, y)
    for k in range(1, _SHIFT):
        steps = b.add(steps, inverse(b, b.plus(y, k)))
    z = b.plus(y, _SHIFT)
    r = inverse(b, z)
    square = b.mul(r, r)
    tail = b.mul(horner(b, square, [float(_B[2 * k] / (2 * k)) for k in range(8, 0, -1)]), square)
    value = b.sub(b.sub(b.sub(b.log(z), b.scaled(r, 0.5)), tail), steps)
    near = b.scaled(b.sub(x, b.math(math.RoundEvenOp, x)), pi)
    mirrored = b.sub(value, b.div(b.like(x, pi), b.math(math.TanOp, near)))
    found = b.select(left, mirrored, value)
    found = b.select(b.both(left, _is_whole(b, x)), b.like(x, _NAN), found)
    zero = b.math(math.CopySignOp, b.like(x, _INF), b.neg(x))
    return b.select(b.cmp("eq", x, 0), zero, found)


def _zeta(b: Builder, s: SSAValue, q: SSAValue) -> SSAValue:
    """The Hurwitz zeta function for s > 1, by Euler and Maclaurin; for q <= 0 sums what is defined.

    A new last dimension counts the terms that are summed as they are; enough of them to pass q >= -50.
    """
    shape, rank, terms = shape_of(q.type), len(shape_of(q.type)), 64
    space = [*shape, terms]
    spread = range(rank)
    base = b.add(b.place(q, spread, space), b.cast(b.iota(rank, space), f64))
    power = b.math(math.PowFOp, base, b.neg(b.place(s, spread, space)))
    head = b.reduce("add", power, [rank])
    a = b.plus(q, terms)
    last = b.math(math.PowFOp, a, b.neg(s))
    total = b.add(head, b.add(b.div(b.mul(last, a), b.plus(s, -1)), b.scaled(last, 0.5)))
    # + sum of B(2k) / (2k)! s (s+1) ... (s+2k-2) a^(-s-2k+1)
    factor, r = b.div(b.mul(last, s), a), inverse(b, b.mul(a, a))
    for k in range(1, 8):
        total = b.add(total, b.scaled(factor, float(_B[2 * k] / factorial(2 * k))))
        factor = b.mul(b.mul(b.mul(factor, b.plus(s, 2 * k - 1)), b.plus(s, 2 * k)), r)
    total = b.select(b.cmp("eq", s, 1), b.like(s, _INF), total)
    total = b.select(b.both(b.cmp("le", q, 0), _is_whole(b, q)), b.like(q, _INF), total)
    bad = b.either(b.cmp("lt", s, 1), b.both(b.cmp("le", q, 0), b.negated(b.either(_is_whole(b, s), _is_whole(b, q)))))
    bad = b.either(bad, b.cmp("lt", q, -50))
    return b.select(bad, b.like(s, _NAN), total)


@decomposes("special_zeta")
def zeta(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    s, q = b.unify(self, other, element=f64)
    return _zeta(b, s, q)


@decomposes("polygamma")
def polygamma(b: Builder, n: int, self: SSAValue) -> SSAValue:
    if n < 0:
        raise b.unsupported("n", f"the polygamma function of order {n} is not defined")
    if n == 0:
        return digamma(b, self)
    x = wide(b, self)
    if n == 1:  # reflected, as PyTorch does: it is defined between the poles on the left
        left = b.cmp("lt", x, 0.5)
        y = b.select(left, b.sub(b.like(x, 1), x), x)
        value = _zeta(b, b.like(y, 2), y)
        sine = _sine_of_pi(b, x)
        mirrored = b.sub(b.div(b.like(x, pi * pi), b.mul(sine, sine)), value)
        return b.select(left, mirrored, value)
    if n > 60:
        raise b.unsupported("n", "orders above 60 are not supported")
    sign = 1.0 if n % 2 else -1.0
    return b.scaled(_zeta(b, b.like(x, n + 1), x), sign * factorial(n))


@decomposes("erfinv")
def erfinv(b: Builder, self: SSAValue) -> SSAValue:
    """Giles' approximation, then two steps of Newton's method."""
    y = wide(b, self)
    size = b.neg(b.log(b.mul(b.sub(b.like(y, 1), y), b.plus(y, 1))))
    middle = [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503]
    middle += [-0.00417768164, 0.246640727, 1.50140941]
    outer = [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613]
    outer += [0.00943887047, 1.00167406, 2.83297682]
    near = horner(b, b.plus(size, -2.5), middle)
    far = horner(b, b.plus(b.sqrt(size), -3.0), outer)
    x = b.mul(b.select(b.cmp("lt", size, 5), near, far), y)
    for _ in range(2):
        error = b.sub(b.math(math.ErfOp, x), y)
        slope = b.scaled(b.exp(b.neg(b.mul(x, x))), 2 / sqrt(pi))
        step = b.div(error, slope)
        x = b.select(b.cmp("lt", b.abs(y), 1), b.sub(x, step), x)
    edge = b.select(b.cmp("eq", b.abs(y), 1), b.math(math.CopySignOp, b.like(y, _INF), y), b.like(y, _NAN))
    return b.select(b.cmp("lt", b.abs(y), 1), x, edge)


def bessel_i(b: Builder, self: SSAValue, order: int, scaled: bool) -> SSAValue:
    """The modified Bessel function of order 0 or 1, times exp(-|x|) if `scaled`: its power series, or for large |x| the
    asymptotic one."""
    x = wide(b, self)
    size = b.abs(x)
    small = b.minimum(size, b.like(size, 30))
    half = b.scaled(small, 0.5)
    terms = [1.0 / (factorial(k) * factorial(k + order)) for k in range(60, -1, -1)]
    near = horner(b, b.mul(half, half), terms)
    near = b.mul(near, half) if order else near
    r = inverse(b, b.maximum(size, b.like(size, 30)))
    c, series = 1.0, [1.0]
    for k in range(1, 24):
        c *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k)
        series.append(c)
    far = b.div(horner(b, r, series[::-1]), b.sqrt(b.scaled(size, 2 * pi)))
    if scaled:
        near = b.mul(near, b.exp(b.neg(size)))
    else:
        root = b.exp(b.scaled(size, 0.5))  # exp(x) alone overflows sooner than the result
        far = b.mul(b.mul(far, root), root)
    found = b.select(b.cmp("le", size, 30), near, far)
    found = b.select(b.isnan(x), x, found)
    return b.math(math.CopySignOp, found, x) if order else found


@decomposes("i0", "special_modified_bessel_i0")
def i0(b: Builder, self: SSAValue) -> SSAValue:
    return bessel_i(b, self, 0, False)


@decomposes("special_i0e")
def i0e(b: Builder, self: SSAValue) -> SSAValue:
    return bessel_i(b, self, 0, True)


@decomposes("special_i1", "special_modified_bessel_i1")
def i1(b: Builder, self: SSAValue) -> SSAValue:
    return bessel_i(b, self, 1, False)


@decomposes("special_i1e")
def i1e(b: Builder, self: SSAValue) -> SSAValue:
    return bessel_i(b, self, 1, True)


@decomposes("special_erfcx")
def erfcx(b: Builder, self: SSAValue) -> SSAValue:
    """exp(x^2) erfc(x)."""
    return scaled_erfc(b, wide(b, self))


def scaled_erfc(b: Builder, x: SSAValue) -> SSAValue:
    """`erfcx` in f64: from 1 on, the trapezoidal rule with the residue at its pole (Matta and Reichel, "Uniform
    computation of the error function and other related functions", 1971)."""
    size = b.minimum(b.abs(x), b.like(x, 1e100))
    square = b.mul(size, size)
    small = b.minimum(square, b.like(x, 700))
    near = b.mul(b.exp(small), b.sub(b.like(x, 1), b.math(math.ErfOp, size)))
    step = 0.5
    total = b.scaled(inverse(b, square), 0.5)
    for n in range(1, 13):
        place = (n * step) ** 2
        total = b.add(total, b.scaled(inverse(b, b.plus(square, place)), exp(-place)))
    residue = b.div(b.scaled(b.exp(small), 2), b.sub(b.like(x, 1), b.exp(b.scaled(size, 2 * pi / step))))
    far = b.mul(b.scaled(size, 2 * step / pi), total)
    far = b.select(b.cmp("lt", size, pi / step), b.add(far, residue), far)
    found = b.select(b.cmp("lt", size, 1), near, far)
    found = b.select(b.cmp("lt", x, 0), b.sub(b.scaled(b.exp(b.mul(x, x)), 2), found), found)
    return b.select(b.isnan(x), x, found)


@decomposes("special_ndtri")
def ndtri(b: Builder, self: SSAValue) -> SSAValue:
    """The inverse of the normal distribution function: a start (A&S 26.2.23), then Newton on its logarithm, which has
    the same relative precision everywhere in the tail."""
    p = wide(b, self)
    lower = b.minimum(p, b.sub(b.like(p, 1), p))
    logarithm = b.log(lower)
    t = b.sqrt(b.scaled(logarithm, -2))
    start = b.div(horner(b, t, [0.010328, 0.802853, 2.515517]), horner(b, t, [0.001308, 0.189269, 1.432788, 1.0]))
    x = b.sub(t, start)  # so far below the mean
    for _ in range(4):
        ratio = scaled_erfc(b, b.scaled(x, sqrt(0.5)))  # tail / density, but for a factor
        error = b.sub(b.sub(b.log(b.scaled(ratio, 0.5)), b.scaled(b.mul(x, x), 0.5)), logarithm)
        x = b.add(x, b.mul(error, b.scaled(ratio, sqrt(pi / 2))))
    x = b.select(b.cmp("eq", lower, 0), b.like(x, _INF), x)
    x = b.select(b.cmp("lt", p, 0.5), b.neg(x), x)
    return b.select(b.cmp("ge", lower, 0), x, b.like(x, _NAN))
