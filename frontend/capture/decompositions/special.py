"""Decompositions of special functions into elementary functions, in f64 so that f32 results are right to the last
digits.

A&S is Abramowitz and Stegun, "Handbook of mathematical functions" (1964).

Airy and Bessel functions use the approximations of Cephes, like PyTorch's kernels. Some of their denominators omit a
leading coefficient of 1, so for arguments of at least 5 the error is about 1e-6 of the amplitude.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from math import exp, factorial, gamma, inf, log, nan, pi, prod, sqrt
from typing import Any

import torch
from sympy import bernoulli

from ....errors import UnsupportedError

Tensor = torch.Tensor
SPECIAL: dict[Any, Callable[..., Tensor]] = {}


def _of(*operators: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Registers a function of f64 tensors as the decomposition of `operators`. The result has the operands' float
    type."""

    def enter(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        SPECIAL.update({f"{operator}.default": of_floats(function) for operator in operators})
        return function

    return enter


def of_floats(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps a function of f64 tensors for tensors of any type. The result has their float type."""

    @wraps(function)
    def on_floats(*args: Any) -> Tensor:
        tensors = [v for v in args if isinstance(v, Tensor)]
        dtype = torch.result_type(tensors[0], tensors[-1])
        result = function(*(v.to(torch.float64) if isinstance(v, Tensor) else v for v in args))
        return result.to(dtype if dtype.is_floating_point else torch.get_default_dtype())

    return on_floats


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Returns the polynomial with these coefficients, the highest power first."""
    total = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


_B = [bernoulli(n) for n in range(21)]
"""Bernoulli numbers B0 to B20."""

_SHIFT = 10
"""Asymptotic series are evaluated at `x + _SHIFT`, and the recurrence leads back to `x`."""


def _is_whole(x: Tensor) -> Tensor:
    return x.floor() == x


def _near(x: Tensor) -> Tensor:
    """Returns pi times the distance to the nearest integer, so that sine and tangent are exact for large x."""
    return (x - x.round()) * pi


@_of("lgamma")
def _lgamma(x: Tensor) -> Tensor:
    reflected = x < 0.5
    y = torch.where(reflected, 1 - x, x)
    near = y < _SHIFT
    z = torch.where(near, y + _SHIFT, y)
    # Stirling: (z - 1/2) log z - z + log(2 pi) / 2 + sum of B(2k) / (2k (2k - 1) z^(2k - 1))
    r = 1 / z
    tail = polynomial(r * r, [float(_B[2 * k] / (2 * k * (2 * k - 1))) for k in range(8, 0, -1)]) * r
    lead = torch.where(near, prod((y + k for k in range(1, _SHIFT)), start=y), 1)
    value = (z - 0.5) * (z.log() - 1) + tail + (log(2 * pi) - 1) / 2 - lead.log()
    combined = torch.where(reflected, log(pi) - _near(x).sin().abs().log() - value, value)
    return torch.where((x <= 0) & _is_whole(x) | (x.abs() == inf), inf, combined)


@_of("digamma")
def _digamma(x: Tensor) -> Tensor:
    reflected = x < 0
    y = torch.where(reflected, 1 - x, x)
    z = y + _SHIFT
    square = 1 / (z * z)
    tail = polynomial(square, [float(_B[2 * k] / (2 * k)) for k in range(8, 0, -1)]) * square
    value = z.log() - 0.5 / z - tail - sum((1 / (y + k) for k in range(1, _SHIFT)), start=1 / y)
    combined = torch.where(reflected, value - pi / _near(x).tan(), value)
    combined = torch.where(reflected & _is_whole(x), nan, combined)
    return torch.where(x == 0, torch.copysign(torch.full_like(x, inf), -x), combined)


@_of("special_zeta")
def _zeta(s: Tensor, q: Tensor) -> Tensor:
    """Returns the Hurwitz zeta function for s > 1, by the Euler-Maclaurin formula.

    The first 64 terms are summed one by one, along a new last dimension. This suffices for q >= -50; smaller q give
    NaN.
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
    # As in PyTorch, the reflection defines the function between the poles of negative x.
    reflected = x < 0.5
    value = _zeta(torch.full_like(x, 2), torch.where(reflected, 1 - x, x))
    return torch.where(reflected, (pi / _near(x).sin()) ** 2 - value, value)


_ERFINV = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503)
    + (-0.00417768164, 0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613)
    + (0.00943887047, 1.00167406, 2.83297682),
)
"""Coefficients of Giles' approximations of erfinv(y) / y, with w = -log(1 - y^2).

The first is a polynomial in w - 2.5, for w < 5. The second is a polynomial in sqrt(w) - 3.
"""


@_of("erfinv")
def _erfinv(y: Tensor) -> Tensor:
    """Returns Giles' approximation, improved by one step of Halley's method, which triples the correct digits."""
    size = -((1 - y) * (y + 1)).log()
    x = torch.where(size < 5, polynomial(size - 2.5, _ERFINV[0]), polynomial(size.sqrt() - 3.0, _ERFINV[1])) * y
    step = (x.erf() - y) / ((-x * x).exp() * (2 / sqrt(pi)))
    x = x - step / (1 + x * step)
    edge = torch.where(y.abs() == 1, torch.copysign(torch.full_like(y, inf), y), nan)
    return torch.where(y.abs() < 1, x, edge)


@_of("special_erfcx")
def _erfcx(x: Tensor) -> Tensor:
    """Returns exp(x^2) erfc(x).

    For x of at least 1, by the trapezoidal rule with the residue at its pole (Matta and Reichel, "Uniform computation
    of the error function and other related functions", 1971).
    """
    size = x.abs().clamp(max=1e100)
    square = size * size
    small = square.clamp(max=700).exp()
    step = 0.5
    total = sum((exp(-((n * step) ** 2)) / (square + (n * step) ** 2) for n in range(1, 13)), start=0.5 / square)
    far = size * (2 * step / pi) * total
    far = torch.where(size < pi / step, far + 2 * small / (1 - (size * (2 * pi / step)).exp()), far)
    combined = torch.where(size < 1, small * (1 - size.erf()), far)
    combined = torch.where(x < 0, 2 * (x * x).exp() - combined, combined)
    return torch.where(x.isnan(), x, combined)


@_of("erfc")
def _erfc(x: Tensor) -> Tensor:
    size = x.abs()
    tail = _erfcx(size) * (-size * size).exp()
    return torch.where(size < 1, 1 - x.erf(), torch.where(x < 0, 2 - tail, tail))


@_of("special_ndtri")
def _ndtri(p: Tensor) -> Tensor:
    """Returns the inverse of the normal distribution function.

    The start (A&S 26.2.23) is improved by Newton's method on the logarithm, for a uniform relative precision in the
    tails.
    """
    lower = torch.minimum(p, 1 - p)
    t = (-2 * lower.log()).sqrt()
    start = polynomial(t, (0.010328, 0.802853, 2.515517)) / polynomial(t, (0.001308, 0.189269, 1.432788, 1.0))
    # distance from the mean, in standard deviations
    x = t - start
    for _ in range(4):
        ratio = _erfcx(x * sqrt(0.5))  # proportional to tail / density
        x = x + ((ratio * 0.5).log() - x * x * 0.5 - lower.log()) * ratio * sqrt(pi / 2)
    x = torch.where(lower == 0, inf, x)
    x = torch.where(p < 0.5, -x, x)
    return torch.where(lower >= 0, x, nan)


def _bessel_i(x: Tensor, order: int, scaled: bool) -> Tensor:
    """Returns the modified Bessel function I of order 0 or 1, times exp(-|x|) if `scaled`.

    It sums the power series, or the asymptotic series for large |x|.
    """
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
    combined = torch.where(size <= 30, near, far)
    combined = torch.where(x.isnan(), x, combined)
    return torch.copysign(combined, x) if order else combined


for _operators, _function, *_arguments in (
    (("i0", "special_modified_bessel_i0"), _bessel_i, 0, False),
    (("special_i0e",), _bessel_i, 0, True),
    (("special_i1", "special_modified_bessel_i1"), _bessel_i, 1, False),
    (("special_i1e",), _bessel_i, 1, True),
):
    _of(*_operators)(lambda x, function=_function, arguments=_arguments: function(x, *arguments))


@_of("special_spherical_bessel_j0")
def _spherical_bessel_j0(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, torch.where(x.abs() == inf, 0.0, x.sin() / x))


def _rows(text: str) -> list[list[float]]:
    """Returns rows of coefficients, the highest power first. `;` separates rows in the text."""
    return [[float(number) for number in row.split()] for row in text.split(";")]


_J0_NEAR = _rows("""
    -4794432209.782018 1956174919465.5657 -249248344360967.72 9708622510473064.0;
    499.563147152651 173785.4016763747 48440965.83399621 11185553704.535683 2112775201154.892 310518229857422.56
        3.1812195594320496e+16 1.7108629408104315e+18
""")
"""Numerator and denominator of J0 up to 5, without the factors of its first two zeros, in x^2."""

_Y0_NEAR = _rows("""
    15592.436785523574 -14663929.59039716 5435264770.518765 -982136065717.9115 87590639439536.7 -3466283033847297.0
        4.4273326857256984e+16 -1.8495080043698668e+16;
    1041.2835366425984 626107.330137135 268919633.39381415 86400248710.3935 20297961275010.555 3171577528429750.5
        2.5059625617265306e+17
""")
"""Numerator and denominator of Y0 - 2 / pi log(x) J0 up to 5, in x^2."""

_FAR0 = _rows("""
    0.0007969367292973471 0.08283523921074408 1.239533716464143 5.447250030587687 8.74716500199817 5.303240382353949
        1.0;
    0.0009244088105588637 0.08562884743544745 1.2535274390105895 5.470977403304171 8.761908832370695 5.306052882353947
        1.0;
    -0.011366383889846916 -1.2825271867050931 -19.553954425773597 -93.20601521237683 -177.68116798048806
        -147.07750515495118 -51.41053267665993 -6.050143506007285;
    64.3178256118178 856.4300259769806 3882.4018360540163 7240.467741956525 5930.727011873169 2062.0933166032783
        242.0057402402914
""")
"""Numerators and denominators of the amplitudes of cosine and sine in J0 and Y0 from 5 on, in (5 / x)^2."""

_J1_NEAR = _rows("""
    -899971225.7055594 452228297998.19403 -72749424522181.83 3682957328638529.0;
    620.8364781180543 256987.25675774884 83514679.14319493 22151159547.97925 4749141220799.914 784369607876235.9
        8.952223361846274e+16 5.322786203326801e+18
""")
"""Numerator and denominator of J1 / x up to 5, without the factors of its first two zeros, in x^2."""

_Y1_NEAR = _rows("""
    1263204747.9017804 -647355876379.1603 114509511541823.73 -8127702555013251.0 2.024394757135949e+17
        -7.788771962659501e+17;
    594.3015923461282 235564.09294306856 73481194.44597217 18760131610.870617 3882312774962.3857 620557727146953.8
        6.871410873553005e+16 3.9727060811656064e+18
""")
"""Numerator and denominator of the part of Y1 / x without logarithm and pole."""

_FAR1 = _rows("""
    0.0007621256162081731 0.07313970569409176 1.1271960812968493 5.112079511468076 8.424045901417724 5.214515986823615
        1.0;
    0.0005713231280725487 0.06884559087544954 1.105142326340617 5.073863861286015 8.399855543276042 5.209828486823619
        1.0;
    0.05108625947501766 4.982138729512334 75.82382841325453 366.7796093601508 710.8563049989261 597.4896124006136
        211.68875710057213 25.207020585802372;
    74.23732770356752 1056.4488603826283 4986.410583376536 9562.318924047562 7997.041604473507 2826.1927851763908
        336.0936078106983
""")
"""Numerators and denominators of the amplitudes of cosine and sine in J1 and Y1 from 5 on, in (5 / x)^2."""

_K0 = _rows("""
    1.374465435613523e-16 4.25981614279661e-14 1.0349695257633842e-11 1.904516377220209e-09 2.5347910790261494e-07
        2.286212103119452e-05 0.001264615411446926 0.0359799365153615 0.3442898999246285 -0.5353273932339028;
    5.300433772686263e-18 -1.6475804301524212e-17 5.2103915050390274e-17 -1.678231096805412e-16 5.512055978524319e-16
        -1.848593377343779e-15 6.3400764774050706e-15 -2.2275133269916698e-14 8.032890775363575e-14
        -2.9800969231727303e-13 1.140340588208475e-12 -4.514597883373944e-12 1.8559491149547177e-11
        -7.957489244477107e-11 3.577397281400301e-10 -1.69753450938906e-09 8.574034017414225e-09 -4.660489897687948e-08
        2.766813639445015e-07 -1.8317555227191195e-06 1.39498137188765e-05 -0.00012849549581627802
        0.0015698838857300533 -0.0314481013119645 2.4403030820659555
""")
"""Two rows of coefficients for `_chebyshev`, the highest order first.

- x up to 2: K0 + log(x / 2) I0, as a function of x^2 - 2.
- x from 2 on: sqrt(x) exp(x) K0, as a function of 8 / x - 2.
"""

_K1 = _rows("""
    -7.023863479386288e-18 -2.427449850519366e-15 -6.666901694199329e-13 -1.4114883926335278e-10 -2.213387630734726e-08
        -2.4334061415659684e-06 -0.0001730288957513052 -0.006975723859639864 -0.12261118082265715 -0.3531559607765449
        1.5253002273389478;
    -5.756744483665017e-18 1.7940508731475592e-17 -5.689462558442859e-17 1.838093544366639e-16 -6.057047248373319e-16
        2.038703165624334e-15 -7.019837090418314e-15 2.4771544244813043e-14 -8.976705182324994e-14
        3.3484196660784293e-13 -1.2891739609510289e-12 5.13963967348173e-12 -2.1299678384275683e-11
        9.218315187605006e-11 -4.1903547593418965e-10 2.015049755197033e-09 -1.0345762465678097e-08
        5.7410841254500495e-08 -3.5019606030878126e-07 2.406484947837217e-06 -1.936197974166083e-05
        0.00019521551847135162 -0.002857816859622779 0.10392373657681724 2.7206261904844427
""")
"""Two rows of coefficients for `_chebyshev`, the highest order first.

- x up to 2: x (K1 - log(x / 2) I1), as a function of x^2 - 2.
- x from 2 on: sqrt(x) exp(x) K1, as a function of 8 / x - 2.
"""

_AIRY = _rows("""
    -0.1316963234183318 -0.6264565444319123 -0.6931580360369335 -0.2797799815451191 -0.04919001326095003
        -0.004062659235948854 -0.0001592764962392621 -2.776491081552329e-06 -1.6778769848911465e-08;
    13.356042070655324 32.682503279522464 26.736704094149957 9.187074029072596 1.4752914677166642 0.11568717379518804
        0.004402916416152112 7.547203482874142e-05 4.5185009297058035e-07;
    0.01973399320916857 0.39110302961568827 1.0657989759959559 0.9391692298166502 0.35146565610554764
        0.06338889196289255 0.005858041130483885 0.000282851600836737 6.98793669997261e-06 8.117892395543892e-08
        3.415517847659236e-10;
    9.30892908077442 19.835292871831214 15.564662893286462 5.476860694229755 0.9542936116189619 0.08645808263523921
        0.004126565238242226 0.00010125908511650914 1.1716673321441352e-06 4.9183457006293e-09;
    0.346538101525629 12.007595273964581 76.27960536152345 168.08922493463058 159.75639135016442 70.53609068404442
        14.026469116338967 1.0;
    0.5675945326387702 14.75625625848472 84.51389701414746 177.31808814540045 164.2346928715297 71.47784008255756
        14.095913560783403 1.0
""")
"""Numerators and denominators for Ai.

Below -2.09 there are two of each, polynomials in 1 / zeta^2. From 2.09 on there is one of each, in 1 / zeta.
"""


def _ratio(x: Tensor, numerator: Sequence[float], denominator: Sequence[float]) -> Tensor:
    return polynomial(x, numerator) / polynomial(x, denominator)


def _chebyshev(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Returns a sum of Chebyshev polynomials of `x / 2`, with half of the last coefficient (Clenshaw's recurrence)."""
    before, last, total = torch.zeros_like(x), torch.zeros_like(x), torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        before, last, total = last, total, x * total - last + c
    return 0.5 * (total - before)


def _waves(x: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Returns J and Y of the order 0 or 1 for x of at least 5, as a cosine and a sine with amplitudes."""
    square = 25 / (x * x)
    p, p_below, q, q_below = _FAR1 if order else _FAR0
    first, second = _ratio(square, p, p_below), 5 / x * _ratio(square, q, q_below)
    cosine, sine = (x - (0.75 if order else 0.25) * pi).cos(), (x - (0.75 if order else 0.25) * pi).sin()
    scale = sqrt(2 / pi) / x.sqrt()
    return (first * cosine - second * sine) * scale, (first * sine + second * cosine) * scale


_ZEROS = (5.78318596294678452118, 30.4712623436620863991), (14.6819706421238932572, 49.2184563216946036703)
"""Squares of the first two positive zeros of J0 and of J1."""


def _bessel_near(x: Tensor, order: int) -> Tensor:
    square, (first, second) = x * x, _ZEROS[order]
    value = _ratio(square, *(_J1_NEAR if order else _J0_NEAR)) * (square - first) * (square - second)
    return value * x if order else value


def _bessel_j(x: Tensor, order: int) -> Tensor:
    size = x.abs()
    value = torch.where(size <= 5, _bessel_near(size.clamp(max=5), order), _waves(size.clamp(min=5), order)[0])
    value = torch.where(x.isnan(), x, value)
    return torch.where(x < 0, -value, value) if order else value


def _bessel_y(x: Tensor, order: int) -> Tensor:
    small = x.clamp(max=5)
    logarithm = _bessel_near(small, order) * small.log()
    near = _ratio(small * small, *(_Y1_NEAR if order else _Y0_NEAR))
    near = near * small + 2 / pi * (logarithm - 1 / small) if order else near + 2 / pi * logarithm
    value = torch.where(x <= 5, near, _waves(x.clamp(min=5), order)[1])
    return torch.where(x == 0, -inf, torch.where(x < 0, nan, value))


def _bessel_k(x: Tensor, order: int, scaled: bool) -> Tensor:
    """Returns the modified Bessel function of the second kind, times exp(x) if `scaled`."""
    near, far = _K1 if order else _K0
    small, large = x.clamp(max=2), x.clamp(min=2)
    logarithm = (0.5 * small).log() * _bessel_i(small, order, False)
    low = _chebyshev(small * small - 2, near)
    low = low / small + logarithm if order else low - logarithm
    high = _chebyshev(8 / large - 2, far) / large.sqrt()
    value = torch.where(x <= 2, low * small.exp() if scaled else low, high if scaled else high * (-large).exp())
    return torch.where(x == 0, inf, torch.where(x < 0, nan, value))


def _airy(x: Tensor) -> Tensor:
    """Returns the Airy function Ai; NaN for infinities and 0 above 103.892, as in PyTorch."""
    sine, sine_below, cosine, cosine_below, decay, decay_below = _AIRY
    size = x.abs().clamp(min=2.09, max=1e100)
    root = size.sqrt()
    zeta = 2 / 3 * size * root
    inverse, angle = 1 / zeta, zeta + 0.25 * pi
    square = inverse * inverse
    waves = (1 + square * _ratio(square, sine, sine_below)) * angle.sin()
    waves = waves - inverse * _ratio(square, cosine, cosine_below) * angle.cos()
    tail = _ratio(inverse, decay, decay_below) * 0.5 * (-zeta).exp()
    far = torch.where(x < 0, waves, tail) / (sqrt(pi) * root.sqrt())
    near = x.clamp(-2.09, 2.09)
    cube = near * near * near
    first, second = _SERIES
    series = polynomial(cube, first) - near * polynomial(cube, second)
    value = torch.where(x.abs() < 2.09, series, torch.where(x > 103.892, 0.0, far))
    return torch.where(x.isnan() | x.isinf(), nan, value)


def _series(offset: int, scale: float) -> list[float]:
    """Returns the coefficients of a polynomial in x^3, the highest power first, for one of the power series of Ai.

    A series begins with `scale` * x^`offset`. The polynomial is the series divided by x^`offset`.
    """
    terms = [scale]
    for k in range(3, 39, 3):
        terms.append(terms[-1] / ((k + offset) * (k + offset - 1)))
    return terms[::-1]


_SERIES = _series(0, 3 ** (-2 / 3) / gamma(2 / 3)), _series(1, 3 ** (-1 / 3) / gamma(1 / 3))

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "special_airy_ai": _airy,
    **{f"special_bessel_j{order}": partial(_bessel_j, order=order) for order in (0, 1)},
    **{f"special_bessel_y{order}": partial(_bessel_y, order=order) for order in (0, 1)},
    **{f"special_modified_bessel_k{order}": partial(_bessel_k, order=order, scaled=False) for order in (0, 1)},
    **{f"special_scaled_modified_bessel_k{order}": partial(_bessel_k, order=order, scaled=True) for order in (0, 1)},
}

SPECIAL.update({f"{name}.default": of_floats(function) for name, function in _FUNCTIONS.items()})
