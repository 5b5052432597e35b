"""Decompositions of orthogonal polynomials, whose order may be a tensor, and of incomplete gamma functions, in f64.

Chebyshev polynomials are cosines and sines of a multiple of arccos(x), hyperbolic outside of [-1, 1]. The other
polynomials are computed by their three-term recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi
from typing import Any

import torch

from ....errors import UnsupportedError
from .special import of_floats

Tensor = torch.Tensor
Step = Callable[[int, Any, Any, Any], Any]

MAX_ORDER = 512
"""Largest order that is a Python number. The recurrence is unrolled."""

MAX_TENSOR_ORDER = 24
"""Largest order in a tensor, for polynomials with a recurrence. A call with a larger order fails an assertion."""


def _order(n: Tensor | float, x: Tensor | float) -> tuple[Tensor, Tensor]:
    """Returns order and argument as tensors. The order is truncated; one that is not finite becomes -1."""
    like = x if isinstance(x, Tensor) else n
    assert isinstance(like, Tensor)
    n, x = (v if isinstance(v, Tensor) else torch.full_like(like, v) for v in (n, x))
    return torch.where(n.isfinite(), n.trunc(), -1.0), x


def _chebyshev(kind: str, x: Tensor | float, n: Tensor | float, shifted: bool) -> Tensor:
    n, x = _order(n, x)
    x = 2 * x - 1 if shifted else x
    size, negative = x.abs(), x < 0
    within = size < 1
    angle = torch.where(within, size.clamp(max=1).acos(), size.clamp(min=1).acosh())

    def wave(a: Tensor, sine: bool) -> Tensor:
        return torch.where(within, a.sin() if sine else a.cos(), a.sinh() if sine else a.cosh())

    def half_angle_ratio(sine: bool) -> Tensor:
        """Returns sin((n + 1/2) a) / sin(a / 2) for `sine`, else the same of cosines, with cos(a) = |x|.

        These are the Chebyshev polynomials of order n of the fourth kind (W), and of the third kind (V).
        """
        value = wave((n + 0.5) * angle, sine) / wave(angle * 0.5, sine)
        return torch.where(angle == 0, 2 * n + 1, value) if sine else value

    if kind == "t":
        value = wave(n * angle, False)
    elif kind == "u":
        value = torch.where(angle == 0, n + 1, wave((n + 1) * angle, True) / wave(angle, True))
    else:
        value = torch.where(negative == (kind == "v"), half_angle_ratio(True), half_angle_ratio(False))
    odd = n != 2 * (n * 0.5).floor()
    value = torch.where(negative & odd, -value, value)
    return torch.where(n < 0, 0.0, torch.where(n == 0, 1.0, value))


def _recurrent(first: Callable[[Any], Any], step: Step) -> Callable[..., Tensor]:
    """Returns the polynomials that start with 1 and `first(x)` and continue with `step(k, x, previous, last)`."""

    def function(x: Tensor | float, n: Tensor | float) -> Tensor:
        fixed_order = None if isinstance(n, Tensor) else int(n) if abs(n) < inf else -1
        if fixed_order is not None and fixed_order > MAX_ORDER:
            raise UnsupportedError(f"the order {fixed_order} is not supported, only up to {MAX_ORDER}", argument="n")
        before, last = (1.0, first(x)) if isinstance(x, float | int) else (torch.ones_like(x), first(x))
        n, like = _order(n, x)
        if fixed_order is None:
            why = f"special polynomial: an order in a tensor is larger than {MAX_TENSOR_ORDER}; pass it as a number"
            torch._assert_async((n <= MAX_TENSOR_ORDER).all(), why)  # pyright: ignore[reportPrivateImportUsage]
        value = torch.where(n < 1, 1.0, torch.full_like(like, last) if isinstance(last, float | int) else last)
        for k in range(1, MAX_TENSOR_ORDER if fixed_order is None else fixed_order):
            before, last = last, step(k, x, before, last)
            value = torch.where(n > k, last, value) if fixed_order is None else last
        return torch.where(n < 0, 0.0, value)

    return function


_RECURRENT = {
    "hermite_polynomial_h": _recurrent(lambda x: 2 * x, lambda k, x, p, q: 2 * (x * q - k * p)),
    "hermite_polynomial_he": _recurrent(lambda x: x, lambda k, x, p, q: x * q - k * p),
    "laguerre_polynomial_l": _recurrent(
        lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * q - k * p) * (1 / (k + 1))
    ),
    "legendre_polynomial_p": _recurrent(lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * q - k * p) * (1 / (k + 1))),
}

_NODES, _NODE_DISTANCE = 140, 0.05
"""Number of points of the tanh-sinh rule, and the distance of points before the mapping to an interval."""


def _incomplete_gamma(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """Returns the regularised incomplete gamma function, upper or lower.

    The substitution t = x exp(s u) maps the integral to u >= 0. Here s = 1 for the upper part, from x on, and s = -1
    for the lower part, up to x:

        integral of t^(a - 1) exp(-t) dt = x^a exp(-x) * integral of exp(a s u - x (exp(s u) - 1)) du

    The integrand is below exp(-40) beyond `end`. The lower part is computed for x up to max(1, a), the upper part for
    larger x; the other part is 1 minus it. If a < 1, the recurrence in a raises it by 1.
    """
    from_above = (x > 1) & (x > a)
    small = (a < 1) & ~from_above
    b, y = torch.where(small, a + 1, a).clamp(min=1e-300), x.clamp(min=1e-300)
    linear_coefficient = 40 - 2 * (b - y)
    below_end = (linear_coefficient + (linear_coefficient * linear_coefficient + 320 * b).sqrt()) / (2 * b)
    above_end = 80 / ((y - b) + ((y - b) ** 2 + 80 * y).sqrt())
    end = torch.where(from_above, above_end, below_end)[..., None]
    number = (torch.arange(_NODES, dtype=torch.float64) - (_NODES - 1) / 2) * _NODE_DISTANCE
    place, weight = pi * number.sinh(), pi * number.cosh()
    share = torch.sigmoid(place)
    step = torch.where(from_above, 1.0, -1.0)[..., None] * end * share
    terms = torch.exp(b[..., None] * step - y[..., None] * torch.expm1(step)) * (weight * share * torch.sigmoid(-place))
    integral = terms.sum(-1) * end[..., 0] * _NODE_DISTANCE
    power = y.log() * a - y
    part = integral * torch.exp(b * y.log() - y - torch.lgamma(b))
    part = torch.where(small, part + torch.exp(power - torch.lgamma(b)), part)
    value = torch.where(from_above, part, 1 - part) if upper else torch.where(from_above, 1 - part, part)
    at_zero, at_end = (1.0, 0.0) if upper else (0.0, 1.0)
    value = torch.where(x == 0, at_zero, torch.where((x == inf) | (a == 0), at_end, value))
    value = torch.where(a == inf, torch.where(x == inf, nan, at_zero), value)
    return torch.where((x < 0) | (a < 0) | (a == 0) & (x == 0) | x.isnan() | a.isnan(), nan, value)


def _overloads() -> dict[str, Callable[..., Tensor]]:
    """Returns the decomposition of every overload, by name."""
    table: dict[str, Callable[..., Tensor]] = {}
    functions: dict[str, Callable[..., Tensor]] = dict(_RECURRENT)
    for kind in "tuvw":
        for prefix in ("", "shifted_"):
            name = f"{prefix}chebyshev_polynomial_{kind}"
            functions[name] = lambda x, n, k=kind, shifted=bool(prefix): _chebyshev(k, x, n, shifted)
    for name, function in functions.items():
        decomposition = of_floats(function)
        table.update({f"special_{name}.{overload}": decomposition for overload in ("default", "x_scalar", "n_scalar")})
    for name, upper in (("igamma", False), ("igammac", True)):
        table[f"{name}.default"] = of_floats(lambda a, x, upper=upper: _incomplete_gamma(*_same(a, x), upper))
    return table


def _same(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(a.shape, x.shape)
    return a.expand(shape), x.expand(shape)


POLYNOMIALS = _overloads()
