"""Loops over vectors are unrolled, but not so far that the C++ compiler takes long."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.cpu.build import options

Function = Callable[[torch.Tensor], torch.Tensor]


def _copies(kernel: str) -> Iterator[tuple[str, int]]:
    """Yields each line of a kernel with the number of its copies after all loops around it are unrolled."""
    factors, pending = [1], 1
    for line in map(str.strip, kernel.splitlines()):
        yield line, factors[-1]
        if pragma := re.match(r"#pragma GCC unroll (\d+)", line):
            pending *= int(pragma[1])
        elif line.startswith("}"):
            factors.pop()
        elif line.endswith("{"):
            factors.append(factors[-1] * pending)
            pending = 1


def _kernel(function: Function, x: torch.Tensor) -> str:
    text = deplodock.compile(function, (x,), target="cpu").compilation.cpp
    return text.partition("static void k0(")[2].partition("void k0_grid")[0]


LONG: dict[str, Function] = {
    "gelu": lambda x: F.gelu(x).square(),
    "erfc": torch.erfc,
    "sin": torch.sin,
    "tan": torch.tan,
    "log": torch.log,
    "lgamma": torch.lgamma,
    "exp of f64": lambda x: x.double().exp(),
    "remainder": lambda x: torch.div(7 * x.long(), 3 + x.long().abs(), rounding_mode="floor"),
}
SUMS: dict[str, Function] = {
    "columns": lambda x: x.sum((1, 2)),
    "rows": lambda x: x.sum(-1),
    "all": torch.sum,
    "maxima": lambda x: x.amax((1, 2)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_bodies_are_not_repeated(name: str) -> None:
    for reduced in SUMS.values():
        for shape in ((1, 8, 8, 32), (1, 8, 16, 16)):
            kernel = _kernel(lambda x, reduced=reduced: reduced(LONG[name](x)), torch.rand(shape))
            lines = list(_copies(kernel))
            by_lanes = sum(n * (line.count("each<") + line.count("PER_LANE")) for line, n in lines)
            functions = sum(n * len(re.findall(r"\b(?:erff|expf|sinf|tanf|logf)\(", line)) for line, n in lines)
            assert by_lanes <= 128, kernel
            assert functions <= 64, kernel


def test_short_bodies_are_repeated() -> None:
    """A short body is unrolled 64 times, so that the sums of columns stay in registers."""
    kernel = _kernel(lambda x: x.square().sum((1, 2)), torch.rand(1, 8, 8, 32))
    assert max(n for line, n in _copies(kernel) if "x_in" in line) >= 64


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_functions_of_vectors_have_no_arrays(isa: str, tmp_path: Path) -> None:
    """Vector functions have no local arrays, for which g++ needs time quadratic in the number of inlined copies."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    names = "exp exp2 expm1 log log2 log1p tanh erf sin cos sqrt rsqrt floor ceil trunc round".split()
    functions = [getattr(torch, name) for name in names]
    compiled = deplodock.compile(lambda x: sum(f(x) for f in functions), (torch.rand(256),), target=f"cpu{{isa={isa}}}")
    source = tmp_path / "text.cpp"
    source.write_text(compiled.compilation.cpp)
    march = {"avx512": "x86-64-v4", "avx2": "x86-64-v3"}[isa]
    flags = [flag for flag in options(march) if not flag.startswith("-m")]
    command = ["g++", *flags, f"-march={march}", "-E", "-P", str(source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert not re.search(r"\bfloat [rxy]\[", text)
