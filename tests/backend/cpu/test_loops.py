"""Loops over vectors on the CPU: their results, and the register arrays in their C++."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cpu.runtime import CpuProgram
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pipelines import PIPELINES


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_indices_are_compared_as_vectors() -> None:
    """The causal mask of attention compares indices in vectors, not element by element."""
    q = _floats(1, 2, 256, 64)
    causal = deplodock.compile(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (q,), target="cpu")
    kernel = causal.compilation.cpp.partition("static void k0(")[2]
    assert re.search(r"numbers<int>\(\) <= ", kernel)
    assert "each<" not in kernel


def test_attention_has_one_array_of_scores() -> None:
    """One array has the scores, the scaled scores, and then the weights. Their sum is computed along with them."""
    q = _floats(1, 2, 256, 64)
    attention = deplodock.compile(F.scaled_dot_product_attention, (q, q, q), target="cpu")
    kernel = attention.compilation.cpp.partition("static void k0(")[2]
    (scores,) = re.findall(r"panel_fma<\d+, \d+, 64, 0, true>\((\w+),", kernel)
    assert re.search(rf"store\(&{scores}\[i\], (\w+)\);\n\s*(\w+)\[0\] = \1 \+ \2\[0\];", kernel)
    assert re.search(rf"panel_fma<.*>\(\w+, {scores},", kernel)


def test_an_array_that_is_read_later_in_its_loop_is_kept() -> None:
    at = "[%block, %0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]]"
    module = parse_module(
        make_context(),
        f"""
        kernel.func @k0(%x: memref<4x32xf32>, %y: memref<4x32xf32>) grid [4] warps 1 lanes 1 {{
          %0 = payload.constant 0 : index
          %1 = payload.constant 1 : index
          %3 = payload.constant 3 : index
          %block = kernel.id block
          %x_in = kernel.load %x{at} : memref<4x32xf32> -> vector<32xf32>
          %v = scf.for %k = %0 to %3 step %1 iter_args(%a = %x_in) -> (vector<32xf32>) {{
            %more = arith.addf %a, %x_in : vector<32xf32>
            scf.yield %more : vector<32xf32>
          }}
          %square = arith.mulf %v, %v : vector<32xf32>
          %both = arith.addf %v, %square : vector<32xf32>
          %sum = scf.for %k_1 = %0 to %3 step %1 iter_args(%a_1 = %both) -> (vector<32xf32>) {{
            %more_1 = arith.addf %a_1, %square : vector<32xf32>
            scf.yield %more_1 : vector<32xf32>
          }}
          kernel.store %sum, %y{at} : memref<4x32xf32>, vector<32xf32>
        }}
        func.func @main(%x: memref<4x32xf32>, %y: memref<4x32xf32>) {{
          kernel.launch @k0(%x, %y) : memref<4x32xf32>, memref<4x32xf32>
          func.return
        }}
        """,
        "later.mlir",
    )
    x = _floats(4, 32)
    torch.testing.assert_close(CpuProgram(module, print_cpp(module)).run([x]), [4 * x + 4 * (4 * x) ** 2])


def test_rows_whose_numbers_are_kept_are_one_number_in_all_lanes() -> None:
    """Row numbers that are equal in all lanes are part of an address, so they are read from their array as scalars."""
    regs = "regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 0], [0, 0]]"
    memory = "memref<8x16xf32>"
    side_by_side = "regs [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0]]"
    spread = ", ".join(str(i // 16) for i in range(64))
    module = parse_module(
        make_context(),
        f"""
        kernel.func @k0(%x: memref<8x16xf32>, %y: memref<4x16xf32>) grid [1] warps 1 lanes 1 {{
          %0 = payload.constant 0 : index
          %two = payload.constant 2 : vector<64xindex>
          %one = payload.constant 1 : vector<64xindex>
          %rows = kernel.indices %0 steps [0, 0, 0, 0, 1, 2] : vector<64xindex>
          %low = arith.addi %rows, %two : vector<64xindex>
          %row = arith.muli %low, %one : vector<64xindex>
          %x_in = kernel.load %x[%row, %0] {regs} : {memory} -> vector<64xf32>
          %sum = kernel.reduce_registers add %x_in over [0, 1, 2, 3] : vector<64xf32> -> vector<4xf32>
          %all = kernel.shuffle_registers %sum from [{spread}] : vector<4xf32> -> vector<64xf32>
          %next = arith.addi %row, %two : vector<64xindex>
          %next_in = kernel.load %x[%next, %0] {regs} : {memory} -> vector<64xf32>
          %out = arith.mulf %next_in, %all : vector<64xf32>
          kernel.store %out, %y[%0, %0] {side_by_side} : memref<4x16xf32>, vector<64xf32>
        }}
        func.func @main(%x: memref<8x16xf32>, %y: memref<4x16xf32>) {{
          kernel.launch @k0(%x, %y) : memref<8x16xf32>, memref<4x16xf32>
          func.return
        }}
        """,
        "rows.mlir",
    )
    x = _floats(8, 16)
    torch.testing.assert_close(CpuProgram(module, print_cpp(module)).run([x]), [x[4:8] * x[2:6].sum(-1, keepdim=True)])


def test_constants_that_differ_in_some_lanes() -> None:
    """Regression: g++ 12 miscompiled a constant mask of 56 of 64 elements, and rows counted 64 elements."""
    x, chunks = _floats(2, 8, 56, 56), ",".join(["1,64,64"] * 4)
    planned = f"plan-schedules{{block=1,8,64,64 chunk={chunks} warps=1 lanes=1}},loop-remove-guards"
    passes = ",".join(PIPELINES[stage] for stage in PIPELINES["default"].split(","))
    passes = passes.replace("loop-collapse-dimensions,", "").replace("plan-schedules,loop-remove-guards", planned)
    norm = deplodock.compile(lambda x: F.layer_norm(x, (8, 56, 56)), (x,), target="cpu", pipeline=passes)
    torch.testing.assert_close(norm(x), F.layer_norm(x, (8, 56, 56)), rtol=1e-5, atol=1e-5)


def test_rows_that_are_looked_up_are_loaded_as_vectors() -> None:
    """A row that fills vectors has one index for all lanes and is loaded; a shorter row is gathered."""
    indices = torch.randint(100, (40,), generator=torch.Generator().manual_seed(0))
    for columns, vectors in ((48, True), (5, False)):
        table = _floats(100, columns)
        looked_up = deplodock.compile(lambda i, t: F.embedding(i, t) * 2.0, (indices, table), target="cpu")
        assert torch.equal(looked_up(indices, table), 2.0 * table[indices])
        kernel = looked_up.compilation.cpp.partition("static void k0(")[2]
        assert "each<float>" not in kernel
        assert ("gather(" not in kernel) == vectors


@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse"])
def test_gathers_read_what_is_inside(isa: str) -> None:
    """Gathers of 4 and 8-byte elements by indices of both widths. A lane whose index is outside reads nothing."""
    rows, i = torch.arange(3)[:, None], torch.randint(-40, 40, (3, 37), generator=torch.Generator().manual_seed(0))
    i[:, :4] = torch.tensor([0, 39, -1, -40])
    beyond = i.clone()
    beyond[:, 4:10] = torch.tensor([2**40, -(2**40), 2**31, -(2**31) - 1, 2**32, 40])
    outside = (beyond < -40) | (beyond >= 40)
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        x = (torch.randn(3, 40, generator=torch.Generator().manual_seed(1)) * 9).to(dtype)
        f = deplodock.compile(lambda x, i: x.gather(1, i % 40) + x[rows, i], (x, i), target=f"cpu{{isa={isa}}}")
        assert "gather(" in f.compilation.cpp.partition("static void k0(")[2]
        assert torch.equal(f(x, i), x[rows, i] * 2)
        wanted = x[rows, beyond % 40] + x[rows, beyond.where(~outside, 0)].where(~outside, 0)
        assert torch.equal(f(x, beyond), wanted)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse"])
def test_every_other_element_of_an_image_is_loaded(isa: str) -> None:
    """Rows of a strided window with padding at both ends end inside a vector. Fill values are 0, -infinity and 7."""
    image = torch.randint(-50, 50, (2, 3, 37, 41), generator=torch.Generator().manual_seed(0)).float()
    weight = torch.arange(-13.0, 14.0).reshape(3, 1, 3, 3)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        strided = F.conv2d(x, weight, None, 2, 1, 1, 3)
        return strided, F.max_pool2d(x, 3, 2, 1), F.pad(x, (1, 1, 0, 0), value=7.0)[..., ::2].int()

    f = deplodock.compile(function, (image,), target=f"cpu{{isa={isa}}}")
    assert "load_every<2>(" in f.compilation.cpp.partition("static void k0(")[2]
    for result, expected in zip(f(image), function(image), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse"])
def test_wide_elements_are_compared_and_selected(isa: str) -> None:
    """Comparisons of i64 at the ends of the range, and of f64 with NaN. The rows end inside a vector."""
    i = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 5] * 5)[:37]
    d = torch.tensor([0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan"), 1e-310] * 5)[:37].double()

    def function(i: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        j, e = i.flip(0), d.flip(0)
        ordered = (i < j, i >= j, i == j, d < e, d != e, d <= e)
        chosen = (torch.where(i < j, i, j), torch.where(d < e, d, e), torch.maximum(i, j), torch.minimum(i, j))
        return *ordered, *chosen, torch.maximum(d, e), torch.minimum(d, e), i.abs(), d.clamp(-1, 1), i.clamp(-3, 3)

    f = deplodock.compile(function, (i, d), target=f"cpu{{isa={isa}}}")
    for result, wanted in zip(f(i, d), function(i, d), strict=True):
        assert torch.equal(result.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_what_lies_near_is_loaded_as_vectors() -> None:
    """Vectors load rows backwards, every other element, each element twice, and rows with computed numbers."""
    x = _floats(8, 64)
    for function, steps in (
        (lambda x: x.flip(-1), "-1, -2, -4, -8"),
        (lambda x: x[:, ::2] * 2, "2, 4, 8, 16"),
        (lambda x: x.repeat_interleave(2, -1), "0, 1, 2, 4"),
        (lambda x: x.roll(3, 0), None),
    ):
        near = deplodock.compile(function, (x,), target="cpu")
        kernel = near.compilation.cpp.partition("static void k0(")[2]
        assert torch.equal(near(x), function(x))
        assert (f"load_near<{steps}>" if steps else " = load(&") in kernel
        assert "each<" not in kernel
