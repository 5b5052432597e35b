"""Bessel's and Airy's functions, orthogonal polynomials and incomplete gamma functions, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.tensor_level import check

import deplodock
from deplodock.errors import ExecutionError, UnsupportedError

NAN, INF = float("nan"), float("inf")

POINTS = torch.tensor([0.0, -0.0, 1e-6, 0.5, 1.9999, 2.0, 2.09, 3.0, 4.999, 5.0, 8.33, 30.0, 100.0, 104.0, INF, NAN])
ORDERS = torch.tensor([-3.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 9.0, 20.0, 2.7, -0.5, NAN, INF])
WITHIN = torch.tensor([-3.0, -1.0, -0.99, -0.3, 0.0, 0.5, 1.0, 1.2, 4.0])[:, None]

BESSEL = "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_k0 modified_bessel_k1".split()
BESSEL += ["scaled_modified_bessel_k0", "scaled_modified_bessel_k1"]
CHEBYSHEV = [f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"]
RECURRENT = ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]


@pytest.mark.parametrize("name", BESSEL)
def test_functions_of_one_argument(name: str) -> None:
    points = torch.cat([POINTS, -POINTS]).double()
    check(getattr(torch.special, name), points, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", [*CHEBYSHEV, *RECURRENT])
def test_polynomials(name: str) -> None:
    function = getattr(torch.special, name)
    check(function, WITHIN.double(), ORDERS.double(), rtol=1e-8, atol=1e-8)
    check(lambda x: function(x, 5), WITHIN, rtol=1e-5, atol=1e-5)
    check(lambda n: function(0.3, n), ORDERS.double(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", RECURRENT)
def test_orders_beyond_the_recurrence(name: str) -> None:
    """An order beyond the computed ones raises an error, and never gives a wrong number."""
    polynomial, order = getattr(torch.special, name), torch.tensor([24.0, 2.0, INF])
    function = deplodock.compile(polynomial, (order * 0 + 0.3, order), executor="reference")
    x = torch.full_like(order, 0.3)
    torch.testing.assert_close(function(x, order), polynomial(x, order), rtol=1e-4, atol=1e-4)
    with pytest.raises(ExecutionError, match="an order in a tensor is larger than 24"):
        function(x, order + 1)


def test_an_order_beyond_those_written_out() -> None:
    order = torch.tensor([24.0, 25.0])
    with pytest.raises(UnsupportedError, match="the order 600 is not supported"):
        deplodock.compile(lambda x: torch.special.legendre_polynomial_p(x, 600), (order,), executor="reference")


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions(name: str) -> None:
    a = torch.tensor([0.0, 1e-3, 0.5, 1.0, 2.0, 30.0, 1e3, -1.0, INF])[:, None].double()
    x = torch.tensor([0.0, 1e-5, 0.5, 1.0, 1.01, 2.0, 29.0, 31.0, 990.0, 1010.0, -1.0, INF]).double()
    check(getattr(torch.special, name), a, x, rtol=2e-9, atol=1e-13)
