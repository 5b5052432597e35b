"""Rounding of emulated tensor cores, against published probes and against errors measured on an H200."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import build, run_cuda_on_cpu
from deplodock.backend.emulator.build import runtime_library
from deplodock.backend.host.compiler import compiler
from deplodock.backend.host.launch_plan import make_plan
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

PROGRAM = """
func.func @main(%x: tensor<64xKxf32>, %w: tensor<Kx16xf32>) -> tensor<64x16xf32> {
  %y = loop.nest (%i, %j) in [64, 16] -> tensor<64x16xf32> attributes {schedule = #tile.schedule<SCHEDULE>} {
    %s = loop.reduce add (%k) in [K] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<64xKxf32>
      %b = loop.load %w[%k, %j] : tensor<Kx16xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<64x16xf32>
}
"""

MMA = "block = [16, 16], chunk = [64], warps = 1, atom = mma, f32_matmul_precision = bf16x3"
WGMMA = "block = [64, 16], chunk = [64], warps = 4, atom = wgmma, f32_matmul_precision = bf16x3"


PROBES = [
    (1.0, [(2.0**-12, 2.0**-12)] * 2, 1 + 2.0**-23),  # one extra bit: two halves of the last bit count
    (1.0, [(2.0**-12, 2.0**-12)], 1.0),
    (1.0, [(2.0**-12, 2.0**-13)] * 8, 1.0),  # below it nothing does
    (-1.0, [(-(2.0**-12), 2.0**-12)] * 3, -1 - 2.0**-23),  # cut towards zero, not down, and not to the nearest
    (1.0, [(-(2.0**-12), 2.0**-13)] * 2, 1.0),
    (2.0**24 - 8, [(1.0, 1.0)] * 7, 2.0**24 - 1),  # integers of 24 bits are exact
    (0.0, [(3.0, 2.0**-70), (1.0, 2.0**-70)], 2.0**-68),
    (np.inf, [(1.0, 1.0)], np.inf),
    (3e38, [(1e38, 3.0)], np.inf),
    (0.0, [(0.0, 0.0)], 0.0),
]
"""What a sum starts as, pairs of factors, and the sum of a tensor core of Ampere, of which each probe shows a bit."""

MUTANTS = {
    "rounded to the nearest": ("std::nextafter(nearest, 0.0f)", "nearest"),
    "cut away from zero": ("std::nextafter(nearest, 0.0f)", "std::nextafter(nearest, x < 0 ? -INFINITY : INFINITY)"),
    "cut down": ("> std::fabs(x)", "!= std::fabs(x)"),
    "no extra bit": ("fraction + extra", "fraction"),
    "a bit too many": ("fraction + extra", "fraction + extra + 1"),
    "aligned to products only": ("sum == 0 ? none : exponent_of(sum)", "none"),
    "aligned to the first factors": ("exponent_of(a[i]) + exponent_of(b[i])", "exponent_of(a[i])"),
    "addends rounded": ("double(a[i]) * double(b[i]) * scale", "std::round(double(a[i]) * double(b[i]) * scale)"),
    "the last product left out": ("for (int i = 0; i < terms; ++i) total", "for (int i = 1; i < terms; ++i) total"),
    "the sum left out": ("static_cast<long long>(double(sum) * scale)", "0"),
}
"""Bugs of `add_products`, by what is wrong: a part of its text and what stands there instead."""


def add_products(function: Any, start: float, pairs: list[tuple[float, float]]) -> float:
    """Returns `start` plus the products of `pairs`, computed by a C function."""
    row = ctypes.c_float * len(pairs)
    a, b = (row(*(p[i] for p in pairs)) for i in range(2))
    function.restype = ctypes.c_float
    return function(ctypes.c_float(start), a, b, len(pairs))


@pytest.mark.parametrize(("start", "pairs", "total"), PROBES)
def test_addends_are_cut(start: float, pairs: list[tuple[float, float]], total: float) -> None:
    assert add_products(ctypes.CDLL(str(runtime_library())).emu_add_products, start, pairs) == total


def test_planted_bugs_are_caught(tmp_path: Path) -> None:
    header = (Path(build.__file__).parent / "tensor_core.h").read_text().replace("#pragma once", "")
    text = "#include <algorithm>\n#include <cmath>\n#include <cstring>\nusing u32 = unsigned;\n"
    for n, (old, new) in enumerate([("", ""), *MUTANTS.values()]):
        assert old in header, old
        text += f"namespace mutant{n} {{ {header.replace(old, new) if old else header} }}\n"
        text += f'extern "C" float sum{n}(float c, const float* a, const float* b, int terms) {{'
        text += f" return mutant{n}::add_products(c, a, b, terms, mutant{n}::ampere_extra); }}\n"
    (tmp_path / "mutants.cpp").write_text(text)
    command = [compiler(emulator=True), "-std=c++17", "-shared", "-fPIC", "-o", "mutants.so", "mutants.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "mutants.so"))
    caught = [
        any(add_products(library[f"sum{n}"], start, pairs) != total for start, pairs, total in PROBES)
        for n in range(len(MUTANTS) + 1)
    ]
    assert caught == [False] + [True] * len(MUTANTS), dict(zip(["none", *MUTANTS], caught, strict=True))


def relative_error(schedule: str, k: int) -> float:
    """Returns the error of an emulated matmul with `k` terms, relative to the result in the Frobenius norm."""
    rng = np.random.default_rng(k)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, k), (k, 16)))
    text = PROGRAM.replace("K", str(k)).replace("SCHEDULE", schedule)
    module = parse_module(make_context(), text, "sums.mlir")
    run_passes(make_context(), module, parse_passes("loop-to-tile,tile-to-kernel"))
    (y,), reports = run_cuda_on_cpu(print_cuda(module), make_plan(module), [x, w], seeds=(0,))
    assert not reports, str(reports[0])
    exact = x.astype(np.float64) @ w.astype(np.float64)
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("schedule", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_errors_double_with_the_length_of_sums(schedule: str) -> None:
    """The error is proportional to the number of terms: 6.7e-6, 1.37e-5, 2.75e-5 on an H200 for 1024, 2048 and 4096."""
    errors = [relative_error(schedule, k) for k in (512, 1024, 2048)]
    assert 3e-6 < errors[1] < 1.5e-5
    assert all(1.6 < b / a < 2.4 for a, b in zip(errors, errors[1:], strict=False))


FACTORS = """#include "emulator.h"
extern "C" void factors(float* out, int format) {
  for (unsigned x = 0; x < 65536; ++x) out[x] = emu_factor(format == emu_tf32 ? x << 16 | x : x, format);
}
"""


def test_factors_are_what_their_bits_say(tmp_path: Path) -> None:
    """All bf16 and f16 numbers convert to f32 exactly, and f32 operands of tf32 lose their last 13 bits."""
    (tmp_path / "factors.cpp").write_text(FACTORS)
    include = f"-I{Path(build.__file__).parent}"
    command = [compiler(emulator=True), include, "-shared", "-fPIC", "-o", "factors.so", "factors.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library, codes = ctypes.CDLL(str(tmp_path / "factors.so")), np.arange(65536, dtype=np.uint32)
    f16, bf16 = codes.astype(np.uint16).view(np.float16).astype(np.float32), (codes << 16).view(np.float32)
    tf32 = ((codes << 16 | codes) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    for number, expected in enumerate((bf16, f16, tf32)):
        found = np.empty(65536, np.float32)
        library.factors(found.ctypes.data_as(ctypes.c_void_p), number)
        np.testing.assert_array_equal(found, expected)
