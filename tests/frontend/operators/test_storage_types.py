"""Types of stored values (8-bit floats, small integers, f64) and conversions from them, at every level."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import deplodock
from deplodock.errors import UnsupportedError
from deplodock.frontend.capture.eager_fallback import FallbackWarning

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
EXECUTORS = ("reference", "simulator", "emulator")
INF, NAN = float("inf"), float("nan")


def codes(dtype: torch.dtype) -> torch.Tensor:
    """Returns every number of an 8-bit float type."""
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def hard(dtype: torch.dtype) -> torch.Tensor:
    """Returns numbers of the type, ties between them, their neighbours, and very small and very large numbers."""
    exact = codes(dtype).float().nan_to_num(0.0, 0.0, 0.0)
    beside = [torch.nextafter(exact, torch.tensor(to)) for to in (INF, -INF)]
    random = torch.randn(300, generator=torch.Generator().manual_seed(0)) * 10 ** torch.linspace(-7, 7, 300)
    edges = torch.tensor([464.0, 464.1, 480.0, 61439.9, 61440.0, 65536.0, 1e30, 1e-30, 2.0**-10, 1.5 * 2.0**-17])
    special = torch.tensor([INF, -INF, NAN, 0.0, -0.0])
    return torch.cat([exact, *beside, (exact[1:] + exact[:-1]) / 2, random, edges, -edges, special])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns true if bits are equal, except for those of NaN."""
    nan = a.float().isnan() & b.float().isnan()
    return a.dtype == b.dtype and bool((nan | (a.view(torch.uint8) == b.view(torch.uint8))).all())


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_eight_bit_floats_convert_exactly(dtype: torch.dtype, executor: str) -> None:
    numbers, x = codes(dtype), hard(dtype)
    widen = deplodock.compile(lambda t: t.float(), (numbers,), executor=executor)
    torch.testing.assert_close(widen(numbers), numbers.float(), rtol=0, atol=0, equal_nan=True)
    assert same(deplodock.compile(lambda t: t.to(dtype), (x,), executor=executor)(x), x.to(dtype))


@pytest.mark.parametrize("source", [torch.float64, torch.int32, torch.float8_e5m2])
def test_conversions_between_types(source: torch.dtype) -> None:
    x = hard(torch.float8_e5m2).to(source) if source.is_floating_point else torch.arange(-500, 500, dtype=source)
    for dtype in FLOAT8:
        compiled = deplodock.compile(lambda t, d=dtype: (t.to(d), t.to(d).to(torch.bfloat16)), (x,))
        found, wide = compiled(x)
        assert same(found, x.to(dtype))
        torch.testing.assert_close(wide, x.to(dtype).bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_eight_bit_floats_are_moved_and_updated(tmp_path: Path) -> None:
    x, scale = codes(torch.float8_e4m3fn)[:64].reshape(4, 16).clone(), torch.tensor(0.5)

    def step(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.cat([x.mT[1:3], x.reshape(16, 4)[:, :4][:2]])
        z = (x.float() * scale).to(x.dtype)
        x.copy_(z)
        return y, z, torch.full((2,), 300.5, dtype=torch.float8_e5m2), x

    expected_x = x.clone()
    expected = step(expected_x, scale)
    compiled = deplodock.compile(step, (x, scale), executor="simulator")
    compiled.save(tmp_path / "saved")
    for program in (compiled, deplodock.load(tmp_path / "saved")):
        given = x.clone()
        found = program(given, scale)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))
        assert same(given, expected_x)
        assert found[3] is not None
    assert "f8E4M3FN" in compiled.ir("torch")
    assert "f8E4M3FN" not in compiled.ir("tensor")


def test_products_of_eight_bit_floats_are_refused_and_not_left_to_pytorch() -> None:
    x, one = codes(torch.float8_e4m3fn).reshape(16, 16), torch.tensor(1.0)
    for fallback, reason in ((None, "not supported"), ("eager", "bytes for floats of eight bits")):
        with pytest.raises(UnsupportedError, match=reason):
            deplodock.compile(lambda t, s: torch._scaled_mm(t, t.mT, s, s), (x, one), fallback=fallback)


SMALL = (torch.int8, torch.uint8, torch.int16, torch.float64, torch.bool)


@pytest.mark.parametrize("executor", ["simulator", "emulator"])
@pytest.mark.parametrize("dtype", SMALL)
def test_loads_stores_and_conversions(dtype: torch.dtype, executor: str) -> None:
    whole = torch.arange(-300, 300, 7, dtype=torch.int64).reshape(2, 43)
    x = whole.to(dtype)

    def convert(x: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = [x.to(t) for t in (torch.float32, torch.int64, torch.int32, torch.float16)]
        narrow = [whole.to(dtype), (whole % 100).float().to(dtype), x.mT.contiguous(), x[:, ::2] == x[:, ::2]]
        return (*wide, *narrow)

    found = deplodock.compile(convert, (x, whole), executor=executor)(x, whole)
    for ours, theirs in zip(found, convert(x, whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_warning_lists_what_is_left_beside_eight_bit_floats() -> None:
    x = codes(torch.float8_e5m2)[:9].reshape(3, 3)
    with pytest.warns(FallbackWarning, match="torch.linalg.qr"):
        compiled = deplodock.compile(lambda t: torch.linalg.qr(t.float()).R.to(t.dtype), (x,), fallback="eager")
    assert same(compiled(x), torch.linalg.qr(x.float()).R.to(x.dtype))
