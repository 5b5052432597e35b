"""Complex numbers as pairs of real ones, and Fourier transforms as products, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import deplodock
from deplodock.errors import ShapeError, UnsupportedError
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture

seeded = torch.Generator().manual_seed(0)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded)


def number(*shape: int) -> torch.Tensor:
    return torch.complex(real(*shape), real(*shape))


def check(function: Callable[..., Any], *args: Any, executor: str = "reference") -> None:
    program = CompiledFunction(capture(function, args), "sm_90a", executor)
    with torch.no_grad():
        found, wanted = program(*args), function(*args)
    for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(a, b.resolve_conj().detach(), rtol=2e-5, atol=2e-5, equal_nan=True)


def angles(length: int, width: int) -> torch.Tensor:
    frequencies = 1 / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.polar(torch.ones(length, width // 2), torch.outer(torch.arange(float(length)), frequencies))


class Rotary(nn.Module):
    """Llama's rotary embedding as in its first implementation, by complex numbers."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("angles", angles(length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * self.angles[: x.shape[1], None]).flatten(3).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_positions(dtype: torch.dtype):
    check(Rotary(9, 8), real(2, 5, 3, 8).to(dtype))


def test_rotary_positions_of_any_length():
    module, shapes = Rotary(9, 8), {0: Dim("batch", min=1, max=50), 1: Dim("length", min=1, max=9)}
    program = CompiledFunction(capture(module, (real(2, 5, 3, 8),), dynamic_shapes=(shapes,)), "sm_90a", "reference")
    for x in (real(1, 1, 3, 8), real(3, 9, 3, 8)):
        torch.testing.assert_close(program(x), module(x))


def test_rotary_positions_as_cuda():
    check(Rotary(5, 4), real(2, 5, 2, 4), executor="emulator")


def arithmetic(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [a + b, a - b, a * b, a / b, -a, a * x, x - a, a / x, x / a, (2 + 1j) * a + 3, a / (1 - 2j), 1j * x, 1 - a]


def functions(z: torch.Tensor) -> list[torch.Tensor]:
    waves = [z.sin(), z.cos(), z.sinh(), z.cosh()]
    return [z.exp(), z.log(), z.sqrt(), z.reciprocal(), z**2, z**0.5, z.abs(), z.angle(), z.sgn(), z.square(), *waves]


def parts(z: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    made = [torch.complex(x, x + 1), torch.polar(x, x), x.to(torch.complex64), torch.zeros(3, dtype=torch.cfloat) + 1]
    return [z.real, z.imag, z.conj() * z, torch.view_as_real(z), z == z.conj(), z != z, z.isnan(), *made]


def moved(z: torch.Tensor) -> list[torch.Tensor]:
    pieces = [*z.split(2, 1), *z.chunk(2, 0), *z.unbind(0)]
    return [z.mT.reshape(-1), z[0], z.flip(0), z.roll(1, 1), torch.cat([z, z]), torch.stack([z, -z]), z.mH, *pieces]


def reduced(z: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    return [z.sum(-1), z.mean(), z.cumsum(0), z @ w, torch.einsum("bi,io->bo", z, w), z[None] @ w[None]]


def chosen(z: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    written = torch.zeros(3, 8, dtype=torch.complex64)
    written[:, :4] = z[:, :4] * 2
    return [torch.where(x > 0, z, x), z.masked_fill(x > 0, 1j), written, z[:, torch.tensor([2, 0])], z.tril()]


CASES: dict[Callable[..., Any], tuple[torch.Tensor, ...]] = {
    arithmetic: (number(3, 5), number(5), real(3, 5)),
    functions: (number(3, 5),),
    parts: (number(3, 5), real(4)),
    moved: (number(4, 5),),
    reduced: (number(4, 5), number(5, 3)),
    chosen: (number(3, 5), real(3, 5)),
}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_complex_numbers(function: Callable[..., Any]):
    check(function, *CASES[function])


def test_extreme_values():
    """Quotients and absolute values do not overflow in intermediate results; square roots on the axes."""
    large = torch.tensor([1e30 + 1e30j, 1e-30 - 1e-30j, 2 + 0j])
    check(lambda a, b: [a / b, a.abs()], large, torch.tensor([2e30 + 0j, 1e-30 + 3e-30j, 1j]))
    check(lambda z: z.sqrt(), torch.tensor([0j, 1 + 0j, -1 + 0j, 2j, -2j, 1e-20 + 1j, -4 + 1e-6j]))


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(number(4, 3))
        self.register_buffer("count", torch.zeros(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1j
        return x @ self.weight + self.count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_without_elements(dtype: torch.dtype):
    """Empty results have the strides of eager PyTorch, which differ from NumPy's."""
    x = torch.zeros(0, 3, dtype=dtype)
    compiled = deplodock.compile(lambda x: (x + 1, torch.complex(x.float(), x.float())), (x,), executor="reference")
    for found, wanted in zip(compiled(x), (x + 1, torch.complex(x.float(), x.float())), strict=True):
        assert (found.dtype, found.shape, found.stride()) == (wanted.dtype, wanted.shape, wanted.stride())


def test_complex_state_and_results(tmp_path: Path):
    module, x = Weighted(), number(2, 4)
    compiled = deplodock.compile(module, (x,), executor="reference")
    torch.testing.assert_close(compiled(x), (x @ module.weight + 1j).detach())
    torch.testing.assert_close(module.count, torch.full((3,), 1j))
    compiled.save(tmp_path / "saved")
    torch.testing.assert_close(deplodock.load(tmp_path / "saved")(x), (x @ module.weight + 2j).detach())
    with pytest.raises(ShapeError, match="complex128"):
        compiled(x.to(torch.complex128))


def test_what_has_no_rule_is_refused():
    with pytest.raises(UnsupportedError, match=r":\d+: z\.cumprod\(0\): complex numbers are not supported"):
        capture(lambda z: z.cumprod(0), (number(3),))


def transforms(x: torch.Tensor) -> list[torch.Tensor]:
    half, whole = torch.fft.rfft(x), torch.fft.fft(x)
    back = [
        torch.fft.irfft(half),
        torch.fft.irfft(half, n=x.shape[-1]),
        torch.fft.ifft(whole * 1j),
        torch.fft.hfft(half),
    ]
    norms = [torch.fft.rfft(x, norm="ortho"), torch.fft.ifft(x, norm="forward"), torch.fft.rfft(x, n=20), whole.real]
    return [half, whole, *back, *norms, torch.fft.rfft2(x), torch.fft.irfft2(torch.fft.rfft2(x)), torch.fft.fftn(x)]


@pytest.mark.parametrize("points", [1, 2, 7, 16])
def test_fourier_transforms(points: int):
    check(transforms, real(2, 3, points) if points > 1 else real(2, 4, 2))


@pytest.mark.parametrize("points", [257, 600, 4096])
def test_long_fourier_transforms(points: int):
    """A transform of a prime number of points is one matmul; others are nested transforms."""
    x, z = real(2, points), number(points)
    program = CompiledFunction(
        capture(lambda x, z: [torch.fft.rfft(x), torch.fft.ifft(z)], (x, z)), "sm_90a", "reference"
    )
    for found, wanted in zip(program(x, z), [torch.fft.rfft(x.double()), torch.fft.ifft(z.cdouble())], strict=True):
        assert (found - wanted).abs().max() < 2e-6 * wanted.abs().max() * points**0.5


def test_a_fourier_transform_of_too_many_points_is_refused():
    with pytest.raises(UnsupportedError, match=r"torch\.fft\.rfft: a Fourier transform of 4099 points is not supp"):
        capture(torch.fft.rfft, (real(4099),))


def test_spectrograms():
    window = torch.hann_window(16)

    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 16, 4, window=window, return_complex=True)

    check(lambda x: spectrum(x).abs().pow(2), real(2, 64))
    check(lambda x: torch.istft(spectrum(x), 16, 4, window=window), real(2, 64))


def test_a_convolution_by_transforms_as_cuda():
    def convolved(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x, n=32) * torch.fft.rfft(k, n=32), n=32)[..., :16]

    check(convolved, real(3, 16), real(16), executor="emulator")
