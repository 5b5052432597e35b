"""Vectorised math functions against float64: all f16 numbers, and a million f32 numbers."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.alone import Machine
from support.cpu_samples import of_function

import deplodock
from deplodock.backend.cpu.build import build
from deplodock.backend.host.compiler import compiler

MOST_ULPS = 1.5

MOST_ULPS_OF_LIBRARY = 4.0
"""Of functions that are the C library's."""

_RANDOM = torch.Generator().manual_seed(0)
_MANY = 1 << 18
INPUTS = torch.cat(
    [
        torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).float(),
        torch.empty(_MANY).uniform_(-110, 100, generator=_RANDOM),
        torch.randn(_MANY, generator=_RANDOM),
        torch.empty(_MANY).uniform_(-87, 88, generator=_RANDOM).exp(),
        torch.randint(-(2**31), 2**31, (_MANY,), generator=_RANDOM).to(torch.int32).view(torch.float32),
    ]
)


def _check(function: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...], most: float) -> None:
    """Asserts that a function of `args` differs from its float64 result by at most `most` ulps."""
    found = deplodock.compile(function, args, target="cpu")(*args)
    wanted = function(*(x.double() for x in args))
    nearest = wanted.float()
    finite = nearest.isfinite()
    assert torch.equal(found[~finite].isnan(), nearest[~finite].isnan())
    assert torch.equal(found[~finite].nan_to_num(), nearest[~finite].nan_to_num())
    ulps = (found.double() - wanted).abs() / torch.from_numpy(np.spacing(nearest.abs().numpy())).double()
    worst = [x[finite][ulps[finite].argmax()].item() for x in args]
    assert ulps[finite].max().item() <= most, worst


@pytest.mark.parametrize("name", "exp exp2 expm1 log log2 log1p tanh erf sin cos rsqrt sqrt".split())
def test_error(name: str) -> None:
    _check(getattr(torch, name), (INPUTS,), MOST_ULPS)


@pytest.mark.parametrize("name", "acos acosh asin asinh atan atanh cosh log10 sinh tan".split())
def test_error_of_library(name: str) -> None:
    _check(getattr(torch, name), (INPUTS,), MOST_ULPS_OF_LIBRARY)


def test_error_of_library_in_f64() -> None:
    """Compares with PyTorch's f64 functions, which err by 1 ulp at most.

    Excluded are numbers near 710, where PyTorch's cosh and sinh overflow too early.
    """
    wide = torch.randint(-(2**63), 2**63 - 1, (1 << 12,), generator=_RANDOM).view(torch.float64)
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 5e-324, -1e-310, 709.0, 1e300, 1e22])
    x = torch.cat([wide, edges.double(), INPUTS[:: len(INPUTS) // 4096].double()])
    x = x[((x.abs() < 709.7) | (x.abs() > 711))]
    names = "acos acosh asin asinh atan atanh cos cosh erf exp exp2 expm1 log log10 log1p log2 sin sinh tan tanh sqrt"
    functions = [getattr(torch, name) for name in (names + " floor ceil trunc round abs rsqrt").split()]
    functions += [lambda x: x ** x.abs(), lambda x: torch.atan2(x, x * 0.3)]
    program = deplodock.compile(lambda x: [f(x) for f in functions], (x,), target="cpu")
    for function, result, wanted in zip(functions, program(x), (f(x) for f in functions), strict=True):
        torch.testing.assert_close(result, wanted, rtol=2e-15, atol=0, equal_nan=True, msg=str(function))


def test_error_of_two_arguments() -> None:
    """Powers with bases near 1, with any bases, and with whole exponents (also 0); and `atan2`."""
    x = torch.cat([torch.empty(_MANY).uniform_(0.5, 2, generator=_RANDOM), INPUTS.abs(), INPUTS, INPUTS])
    others = INPUTS[torch.randperm(len(INPUTS), generator=_RANDOM)]
    whole = torch.randint(-9, 10, INPUTS.shape, generator=_RANDOM).float()
    y = torch.cat([torch.empty(_MANY).uniform_(-99, 99, generator=_RANDOM), others, others.round(), whole])
    _check(torch.pow, (x, y), MOST_ULPS)
    _check(torch.atan2, (x, y), MOST_ULPS_OF_LIBRARY)


def test_the_library_is_called_for_whole_vectors() -> None:
    if platform.machine() != "x86_64" or "g++" not in compiler() or platform.libc_ver() < ("glibc", "2.35"):
        pytest.skip("needs g++ and glibc's libmvec")
    x = torch.rand(1000)
    functions = lambda x: (torch.atan(x) ** x, torch.erf(x.double()).log())  # noqa: E731
    program = deplodock.compile(functions, (x,), target="cpu").compilation
    called = subprocess.run(["nm", "-D", build(program.cpp)], check=True, capture_output=True, text=True).stdout
    assert re.search(r"_ZGV\w+_atanf", called)
    assert re.search(r"_ZGV\w+_powf", called)
    assert re.search(r"_ZGV\w+_erf\b", called)
    assert re.search(r"_ZGV\w+_log\b", called)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a processor of this kind")
def test_angles_without_fused_instructions() -> None:
    """Near multiples of pi / 2, up to 4096, the result depends on the low digits of pi that range reduction uses."""
    turns = torch.arange(-2600, 2600, dtype=torch.float64) * (torch.pi / 2)
    x = torch.cat([turns.float(), turns.float().nextafter(torch.tensor(9e9)), torch.empty(20000).uniform_(-4096, 4096)])
    sample = of_function("turns", lambda x: torch.stack([torch.sin(x), torch.cos(x)]), [x])
    (found,) = Machine("g++", ("-O1", "-march=x86-64")).run(sample.module, sample.args)
    wanted = torch.stack([torch.sin(x.double()), torch.cos(x.double())])
    ulps = (found.double() - wanted).abs() / torch.from_numpy(np.spacing(wanted.float().abs().numpy())).double()
    assert ulps.max().item() <= 2 * MOST_ULPS, x[ulps.amax(0).argmax()].item()
