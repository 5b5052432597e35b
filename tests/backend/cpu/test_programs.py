"""Programs on this CPU against PyTorch, also with narrower vectors and with clang."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.cpu_programs import DOTS, PROGRAMS, _bytes, _floats, _ints, _words

import deplodock
from deplodock.backend.cpu.build import build
from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cpu.runtime import CpuProgram
from deplodock.backend.host import compiler as host_compiler
from deplodock.backend.host.compiler import CLANG, find_compiler
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ExecutionError, ScheduleError, TargetError


def _close(found: Any, expected: Any) -> None:
    found, expected = (torch.utils._pytree.tree_leaves(r) for r in (found, expected))
    for r, e in zip(found, expected, strict=True):
        tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(r.dtype, 2e-6)
        size = e[e.isfinite()].double().abs().sum().item() / max(e.numel(), 1)
        torch.testing.assert_close(r, e, rtol=tolerance, atol=tolerance * max(4 * size, 1.0), equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_pytorch(name: str) -> None:
    function, args = PROGRAMS[name]
    program = deplodock.compile(function, args, target="cpu")
    assert program.executor.name == "cpu"
    with torch.no_grad():
        _close(program(*args), function(*args))


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize(
    "name",
    [
        "elementwise",
        "linear and epilogue",
        "f16",
        "products of bf16",
        "products of int8",
        "convolution and epilogue",
        "padding",
        "products of int32",
        "few of many",
        "column sums",
        "running sums",
        "near",
        "complex numbers",
        *DOTS,
    ],
)
def test_other_vectors(name: str, march: str) -> None:
    """The same C++, compiled for SSE and for AVX2."""
    function, args = PROGRAMS[name]
    compiled = deplodock.compile(function, args, target="cpu").compilation
    if march == "x86-64-v3" and "avx" not in torch.backends.cpu.get_cpu_capability().lower():
        pytest.skip("this machine has no AVX2")
    _close(CpuProgram(compiled.at("kernel"), build(compiled.cpp, march)).run(args), function(*args))


@pytest.mark.skipif(find_compiler(("clang++",), {CLANG: "-fopenmp"}) is None, reason="needs clang++ and libomp")
@pytest.mark.parametrize(
    "name",
    [
        "elementwise",
        "softmax",
        "transposes",
        "linear and epilogue",
        "f16",
        "products of bf16",
        "products of int8",
        "int8",
        "sort",
        "convolution and epilogue",
        "a normalised row of bf16",
    ],
)
def test_clang(name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The same C++, compiled by clang."""
    function, args = PROGRAMS[name]
    monkeypatch.setenv("CXX", "clang++")
    for known in (host_compiler.compiler, host_compiler.compiler_identity):
        known.cache_clear()
        request.addfinalizer(known.cache_clear)
    _close(deplodock.compile(function, args, target="cpu")(*args), function(*args))
    assert "clang" in host_compiler.compiler()


def test_bf16_is_multiplied_where_it_lies() -> None:
    function, args = PROGRAMS["linear of bf16"]
    text = deplodock.compile(function, args, target="cpu").compilation.cpp
    kernel = text[text.index("static void k0(") :]
    assert "panel_fma<" in kernel
    assert "to_f32" not in kernel


@pytest.mark.parametrize("name", DOTS)
def test_rows_of_bf16_are_read_where_they_lie(name: str) -> None:
    """Dot products of bf16 rows load directly from the tensor and widen in registers, without a copy."""
    function, args = DOTS[name]
    text = deplodock.compile(function, args, target="cpu").compilation.cpp
    kernel = text[text.index("static void k0(") :]
    size = args[-1].shape[-1]
    several = rf"first < (row \+ )?{size}; first \+= 4 \* lanes\)"
    assert re.search(several if size > 128 else rf"i < row \+ {size}; i \+= lanes\)", kernel)
    assert re.search(
        r"const auto (\w+) = load\(&\w+\[.*\);\n +const auto \w+ = to_f32\(\1\);\n +const auto prod", kernel
    )
    assert not re.search(r"alignas.* bf16 ", kernel)


def test_what_is_multiplied_is_used_elsewhere() -> None:
    """An operand of a dot product is also an operand of another reduction, a sum of absolute values."""
    x, y = _floats(21, 96).bfloat16(), _floats(21, 96).bfloat16()

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.float(), y.float()
        return (a * b).sum(-1), a.abs().sum(-1), a * b, b.exp()

    _close(deplodock.compile(function, (x, y), target="cpu")(x, y), function(x, y))


@pytest.mark.parametrize("rows", [1, 70])
def test_a_number_that_was_narrowed_meanwhile(rows: int) -> None:
    """Conversions through a narrower type must remain: in f16 1e6 becomes infinite, and in int8 integers wrap."""
    x, w = _floats(rows, 96).bfloat16() * 1e6, _floats(64, 96).bfloat16()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.half().float().clamp(-9e9, 9e9) @ w.float().t(), x.half().float() @ w.float().t()

    _close(deplodock.compile(function, (x, w), target="cpu")(x, w), function(x, w))
    i, j = _words(rows, 96), _bytes(96, 64)
    wrapped = deplodock.compile(lambda i, j: i.to(torch.int8).int() @ j.int(), (i, j), target="cpu")
    assert torch.equal(wrapped(i, j), i.to(torch.int8).int() @ j.int())


def test_integers_are_multiplied_where_they_lie() -> None:
    """Integer matmuls use `panel_fma` on the operand as it is stored; int8 is multiplied in words."""
    for name, section in (("products of int32", "vec<T>"), ("linear of int8", "words |= convert")):
        function, args = PROGRAMS[name]
        text = deplodock.compile(function, args, target="cpu").compilation.cpp
        kernel = text[text.index("static void k0(") :]
        assert re.search(r"panel_fma<\d+, \d+, \d+.*>\(\w+, &\w+\[", kernel), name
        assert section in text


def test_convolutions_read_pixels_where_they_lie() -> None:
    """A convolution packs its weights and reads the image directly, also with strides and padding."""
    for step in (1, 2):
        args = _floats(1, 20, 97, 97), _floats(64, 20, 3, 3)
        program = deplodock.compile(lambda x, w, step=step: F.conv2d(x, w, padding=1, stride=step), args, target="cpu")
        text = program.compilation.cpp
        kernel = text[text.index("static void k1(") :]
        assert f", {step}>(acc, &x[" in kernel
        assert "&w_packed[" in kernel
        assert "x_in" not in kernel
    assert "pack" not in deplodock.compile(lambda a, b: a @ b, PROGRAMS["product"][1], target="cpu").ir("loop")


def test_sizes_of_a_call() -> None:
    x = _floats(7, 100)
    rows = torch.export.Dim("rows", min=1, max=500)
    program = deplodock.compile(F.softmax, (x,), {"dim": -1}, target="cpu", dynamic_shapes=({0: rows}, None))
    for n in (1, 7, 130):
        _close(program(_floats(n, 100), dim=-1), F.softmax(_floats(n, 100), dim=-1))


def test_rows_of_a_call_end_in_a_tile() -> None:
    """Rows of dynamic length, several in a tile: each loop ends at the length of the call."""
    columns = torch.export.Dim("columns", min=1, max=256)
    program = deplodock.compile(
        lambda x: x.exp().sum(1), (_floats(9, 100),), target="cpu", dynamic_shapes=({1: columns},), schedule="block=4"
    )
    assert "- row < " in program.ir("cuda")
    for n in (1, 17, 64, 200):
        _close(program(_floats(9, n)), _floats(9, n).exp().sum(1))


def test_rows_that_end_in_different_places() -> None:
    """Windows of a padded row: each row of a tile has another number of elements before the padding."""
    function, x = lambda x: F.pad(x, (0, 90)).unfold(0, 64, 70).sum(-1), torch.arange(2000.0)[:970]
    _close(deplodock.compile(function, (x,), target="cpu", schedule="block=16")(x), function(x))


def test_products_of_a_call() -> None:
    """A matmul with a dynamic number of rows reads these rows only; the rows after them in memory are NaN."""
    rows = torch.export.Dim("rows", min=1, max=500)
    w = _floats(33, 70)
    program = deplodock.compile(
        lambda x, w: x @ w.t(), (_floats(7, 70), w), target="cpu", dynamic_shapes=({0: rows}, None)
    )
    for n in (1, 7, 64, 130):
        x = torch.full((200, 70), torch.nan)
        x[:n] = _floats(n, 70)
        _close(program(x[:n], w), F.linear(x[:n], w))


def test_a_checked_index() -> None:
    program = deplodock.compile(lambda x, i: x[i], (_floats(9, 4), _ints(5)), target="cpu", checked=True)
    program(_floats(9, 4), _ints(5))
    with pytest.raises(ExecutionError, match="9"):
        program(_floats(9, 4), torch.tensor([0, 1, 2, 3, 9]))
    program(_floats(9, 4), _ints(5))  # and goes on


@pytest.mark.parametrize(
    ("schedule", "argument"),
    [("block=8,64 warps=4", "warps"), ("block=1024,512", "block"), ("block=8,64 atom=mma", "atom"),
     ("block=8,64 copy=tma", "copy"), ("block=8,64 cluster=2", "cluster"), ("block=8,64 stages=2", "stages")],
)  # fmt: skip
def test_schedules_of_other_targets_are_refused(schedule: str, argument: str) -> None:
    program = deplodock.compile(F.relu, (_floats(1024, 1024),), target="cpu", schedule="block=8,64")
    assert "block = [8, 64]" in program.ir("tile")
    with pytest.raises(ScheduleError, match=argument):
        deplodock.compile(F.relu, (_floats(1024, 1024),), target="cpu", schedule=schedule)


def test_other_targets_blocks_are_refused() -> None:
    compiled = deplodock.compile(lambda x: x + 1, (_floats(64),)).compilation
    with pytest.raises(deplodock.CompileError, match="blocks of"):
        _ = compiled.cpp
    with pytest.raises(TargetError, match="cpu"):
        deplodock.compile(lambda x: x + 1, (_floats(64),), target="cpo")


def test_what_is_loaded_again_is_read_in_another_order_as_well() -> None:
    """A second loop needs `x` and its transpose, so it reads the array in which the first loop stored `x`."""
    transposed = ", ".join(str(j * 8 + i) for i in range(8) for j in range(8))
    module = parse_module(
        make_context(),
        f"""
        kernel.func @k0(%x: memref<8x8xf32>, %y: memref<8x8xf32>) grid [1] warps 1 lanes 1 {{
          %0 = payload.constant 0 : index
          %two = payload.constant 2.0 : vector<64xf32>
          %x_in = kernel.load %x[%0, %0] regs [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
            : memref<8x8xf32> -> vector<64xf32>
          %twice = arith.mulf %x_in, %two : vector<64xf32>
          %t = kernel.shuffle_registers %x_in from [{transposed}] : vector<64xf32> -> vector<64xf32>
          %more = arith.addf %t, %two : vector<64xf32>
          %both = arith.addf %x_in, %more : vector<64xf32>
          %all = arith.addf %both, %twice : vector<64xf32>
          kernel.store %all, %y[%0, %0] regs [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
            : memref<8x8xf32>, vector<64xf32>
        }}
        func.func @main(%x: memref<8x8xf32>, %y: memref<8x8xf32>) {{
          kernel.launch @k0(%x, %y) : memref<8x8xf32>, memref<8x8xf32>
          func.return
        }}
        """,
        "again.mlir",
    )
    x = _floats(8, 8)
    _close(CpuProgram(module, print_cpp(module)).run([x]), [x + x.t() + 2 + 2 * x])


def test_what_is_the_same_for_all_blocks_is_not_changed_by_one() -> None:
    """The initial value of a loop is computed once for all blocks. A block's loop must not update it in place."""
    at = "[%block, %0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]]"
    module = parse_module(
        make_context(),
        f"""
        kernel.func @k0(%w: memref<32xf32>, %x: memref<4x32xf32>, %y: memref<4x32xf32>) grid [4] warps 1 lanes 1 {{
          %0 = payload.constant 0 : index
          %1 = payload.constant 1 : index
          %3 = payload.constant 3 : index
          %block = kernel.id block
          %w_in = kernel.load %w[%0] regs [[1], [2], [4], [8], [16]] : memref<32xf32> -> vector<32xf32>
          %twice = arith.addf %w_in, %w_in : vector<32xf32>
          %sum = scf.for %k = %0 to %3 step %1 iter_args(%a = %twice) -> (vector<32xf32>) {{
            %x_in = kernel.load %x{at} : memref<4x32xf32> -> vector<32xf32>
            %more = arith.addf %a, %x_in : vector<32xf32>
            scf.yield %more : vector<32xf32>
          }}
          kernel.store %sum, %y{at} : memref<4x32xf32>, vector<32xf32>
        }}
        func.func @main(%w: memref<32xf32>, %x: memref<4x32xf32>, %y: memref<4x32xf32>) {{
          kernel.launch @k0(%w, %x, %y) : memref<32xf32>, memref<4x32xf32>, memref<4x32xf32>
          func.return
        }}
        """,
        "common.mlir",
    )
    w, x, text = _floats(32), _floats(4, 32), print_cpp(module)
    before, _, loop = text.partition("static void k0(")[2].partition("for (int block = begin; block < end; ++block)")
    assert "load(&w[i])" in before
    assert "&w[" not in loop
    _close(CpuProgram(module, text).run([w, x]), [2 * w + 3 * x])


@pytest.mark.parametrize("rows", [1, 4])
def test_the_next_rows_are_asked_for(rows: int) -> None:
    """A block prefetches the rows of the next block, also if a block has only one row."""
    softmax = deplodock.compile(
        lambda x: x.softmax(-1), (_floats(64, 512),), target="cpu", schedule=f"block={rows},512"
    )
    kernel = softmax.compilation.cpp.partition("static void k0(")[2]
    assert re.search(r"__builtin_prefetch\(&x\[.*\] \+ 2048, 0, locality\);", kernel)


def test_values_have_no_names_of_the_text() -> None:
    def function(
        lanes: torch.Tensor, load: torch.Tensor, mask: torch.Tensor, n: torch.Tensor, locality: torch.Tensor
    ) -> torch.Tensor:
        first = torch.index_select(lanes, 0, n)[0]
        return (F.rms_norm(first, (300,)) * load).sum(-1) + mask + locality

    args = (_floats(5, 300), _floats(40, 300), _floats(40), torch.tensor([3]), _floats(40))
    _close(deplodock.compile(function, args, target="cpu")(*args), function(*args))
