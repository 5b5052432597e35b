"""Scans over long dimensions: right, and their work grows with the number of elements, not with its square."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import deplodock
from deplodock.dialects.loop.work import count_work

Scan = Callable[[torch.Tensor], object]

SCANS: dict[str, Scan] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: (1 + x / 100).cumprod(1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}


def _row(length: int) -> torch.Tensor:
    """Two rows with ties, a NaN and infinities on both sides of the borders between chunks."""
    x = torch.randn(2, length, generator=torch.Generator().manual_seed(length)).round(decimals=1)
    x[1, length // 2] = torch.nan
    x[1, 15] = -torch.inf
    return x


@pytest.mark.parametrize("length", [16, 17, 32, 33, 97, 2100])
@pytest.mark.parametrize("name", SCANS)
def test_values(name: str, length: int) -> None:
    x = _row(length)
    got = deplodock.compile(SCANS[name], (x,), executor="reference")(x)
    torch.testing.assert_close(got, SCANS[name](x), equal_nan=True, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["cumsum", "cummax"])
def test_the_printed_text(name: str) -> None:
    x = _row(97)
    got = deplodock.compile(SCANS[name], (x,), executor="emulator")(x)
    torch.testing.assert_close(got, SCANS[name](x), equal_nan=True)


@pytest.mark.parametrize("length", [32, 33, 512])
@pytest.mark.parametrize("name", SCANS)
def test_on_cores(name: str, length: int) -> None:
    x = _row(length)
    got = deplodock.compile(SCANS[name], (x,), target="cpu")(x)
    torch.testing.assert_close(got, SCANS[name](x), equal_nan=True, rtol=2e-5, atol=2e-5)


def test_along_the_first_dimension() -> None:
    x = torch.randint(-9, 9, (130, 3))
    assert torch.equal(deplodock.compile(lambda x: x.cumsum(0), (x,), executor="reference")(x), x.cumsum(0))


@pytest.mark.parametrize(("name", "most"), [("cumsum", 48), ("cummax", 48), ("logcumsumexp", 240)])
def test_work_is_linear(name: str, most: int) -> None:
    """Float operations an element, of all kernels together."""
    for shape in ((256, 4096), (16, 100_000)):
        x = torch.zeros(shape)
        compiled = deplodock.compile(SCANS[name], (x,))
        work = count_work(compiled.compilation.scheduled())
        assert sum(w.flops for w in work) <= most * x.numel()
