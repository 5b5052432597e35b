"""Machine code of the 84 shapes and the classes: no spills, no ptxas warnings (C75xx), no slow conversions to 16 bits.

By default three of the classes, and the slice of `test_static_gates.py`; `--gates all` takes all of them.
"""

from __future__ import annotations

import random

import pytest
import torch
from machine_code import CASES, TARGET, code_of, code_of_text
from programs.people import PROGRAMS

from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation

SPLIT = "classes: f32 product: 2048x2048x2048 f32"
KNOWN = {"classes: few rows times a matrix: linear 1x4096x4096 bf16": "ptxas 13.5 spills 8 bytes of 62 registers"}
"""A minimum of one block takes 89 registers: a multiprocessor runs 5 blocks in place of 8, so the grid takes two waves.
Kernels that do not spill lose more by it: matmuls of 32 rows take 149 registers for 127, one block in place of two."""

TWO_ROUNDINGS = """// --- helpers
struct bf16 { unsigned short bits; };
static __device__ float to_f32(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
static __device__ bf16 to_bf16(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); return r; }

// --- kernels
extern "C" __global__ void __launch_bounds__(32) k0(const float* x, float* y) {
  y[threadIdx.x] = to_f32(to_bf16(x[threadIdx.x])) * 3.0f;
}
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "key" in metafunc.fixturenames:
        amount, classes = str(metafunc.config.getoption("--gates")), [k for k in CASES if k.startswith("classes")]
        keys = CASES if amount == "all" else [SPLIT, *random.Random(int(amount)).sample(classes, 2)]
        metafunc.parametrize("key", keys)


def test_machine_code(key: str) -> None:
    if key in KNOWN:
        pytest.xfail(KNOWN[key])
    assert not any(code_of(CASES[key]).values())


def test_a_product_for_each_expert_does_not_spill() -> None:
    """Regression: a batched matmul of four experts spilled 128 bytes.

    A `tile.dot` has no batch dimension, so a tile with four experts was lowered to row sums with 1,024 products per
    thread.
    """
    torch.manual_seed(0)
    function, args = PROGRAMS["experts_as_batched_matmul"]()
    text = Compilation(capture(function, args).module, TARGET).cuda
    assert not any(code_of_text(text).values())


def test_a_conversion_of_one_number_is_seen() -> None:
    (faults,) = code_of_text(TWO_ROUNDINGS).values()
    assert not any(code_of_text(TWO_ROUNDINGS, splits=True).values())
    assert faults == ["1 conversions from f32 to 16 bits of one number (F2F)"]
