"""Programs on the cores of this machine, against PyTorch; and the same text for processors with other vectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.cpu.build import build
from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cpu.runtime import CpuProgram
from deplodock.backend.host import compiler as host_compiler
from deplodock.backend.host.compiler import CLANG, find_compiler
from deplodock.dialects.support.parsing import make_context, parse_module
from deplodock.errors import ExecutionError, ScheduleError, TargetError


def _ints(*shape: int, high: int = 9) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(len(shape)))


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _bytes(*shape: int) -> torch.Tensor:
    return (_ints(*shape, high=256) - 128).to(torch.int8)


def _words(*shape: int) -> torch.Tensor:
    return (_ints(*shape, high=2**32) - 2**31).to(torch.int32)


def _put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, i, v)


def _normalised(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.linear(F.rms_norm(x, x.shape[-1:]), w), x * 2


def _heads(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear((x / s.unsqueeze(-1)).bfloat16().reshape(1, -1), w)


DOTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a row of bf16": (F.linear, (_floats(1, 160).bfloat16(), _floats(77, 160).bfloat16())),
    "a long row of bf16": (F.linear, (_floats(1, 8352).bfloat16(), _floats(16, 8352).bfloat16())),
    "a normalised row of bf16": (_normalised, (_floats(1, 96).bfloat16(), _floats(64, 96).bfloat16())),
    "heads of bf16": (_heads, (_floats(7, 32), _floats(7).exp(), _floats(128, 224).bfloat16())),
    "gates of bf16": (
        lambda x, v, w: F.silu(F.linear(x, v)) * F.linear(x, w),
        (_floats(1, 64).bfloat16(), _floats(130, 64).bfloat16(), _floats(130, 64).bfloat16()),
    ),
    "rows times rows of bf16": (
        lambda x, y: (x.float() * y.float()).sum(-1),
        (_floats(21, 96).bfloat16(), _floats(21, 96).bfloat16()),
    ),
}
"""Sums of products of bf16 that are no products of matrices."""

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "elementwise": (lambda x, y: F.gelu(x) * y + x.sin(), (_floats(37, 300), _floats(300))),
    "one element": (lambda x: x * 2, (_floats(1),)),
    "nothing": (lambda x: x * 2, (_floats(0, 3),)),
    "sums of no columns": (lambda x: x.sum(0), (_floats(500, 0),)),
    "softmax": (lambda x: torch.softmax(x, -1), (_floats(33, 300),)),
    "softmax of rows of -inf": (lambda x: torch.softmax(x.masked_fill(x < 9, -torch.inf), -1), (_floats(5, 40),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (257,), w, b), (_floats(20, 257), _floats(257), _floats(257))),
    "column sums": (lambda x: x.sum(0), (_floats(500, 130),)),
    "mean and variance over dimensions apart": (lambda x: torch.var_mean(x, (0, 2)), (_floats(5, 6, 70),)),
    "largest, with NaN": (lambda x: (x / (x > -2)).log().amax(1), (_floats(50, 100),)),
    "counts": (lambda x: (x > 0).sum(-1), (_floats(50, 100),)),
    "all and any": (lambda x: torch.stack([(x > -3).all(1), (x > 2).any(1)]), (_floats(50, 100),)),
    "transpose": (lambda x: x.t().contiguous() + 1, (_floats(130, 70),)),
    "transposes": (lambda x, y: (x.t() * y.t() + x.t(), y.t().half()), (_floats(128, 192), _floats(128, 192))),
    "product": (lambda a, b: a @ b, (_floats(70, 50), _floats(50, 90))),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, padding=1),
        (_floats(2, 3, 9, 20), _floats(3, 4, 3, 3)),
    ),
    "transposed convolution with steps": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, dilation=3),
        (_floats(2, 20, 7, 9), _floats(20, 17, 3, 4)),
    ),
    "products of transposed matrices": (lambda a, b: a.t() @ b.t(), (_floats(300, 70), _floats(90, 300))),
    "products of blocks that end": (lambda a, b: a @ b.t(), (_floats(259, 301), _floats(77, 301))),
    "products of few columns": (lambda a, b: a @ b, (_floats(40, 70), _floats(70, 5))),
    "product of a long sum": (lambda a, b: a @ b, (_floats(33, 1000), _floats(1000, 65))),
    "linear and epilogue": (lambda x, w, b: F.silu(F.linear(x, w, b)), (_floats(65, 96), _floats(80, 96), _floats(80))),
    "a row times a matrix": (lambda a, b: a @ b, (_floats(1, 333), _floats(333, 129))),
    "a norm and a row times a matrix": (
        lambda x, w, v: F.silu(F.linear(F.rms_norm(x, x.shape[-1:]), w)) * F.linear(F.rms_norm(x, x.shape[-1:]), v),
        (_floats(1, 304), _floats(700, 304), _floats(699, 304)[:1].expand(700, 304)),
    ),
    "rows that end in a vector": (
        lambda x, w: F.linear(F.rms_norm(x, (301,)), w),
        (_floats(1, 301), _floats(700, 301)),
    ),
    "a row that is chosen": (
        lambda x, i, w: F.linear(x[i].exp(), w),
        (_floats(4, 96), _ints(1, high=4), _floats(90, 96)),
    ),
    "products of rows a page apart": (lambda a, b: a @ b, (_floats(45, 1024), _floats(1024, 40))),
    "products of int64": (lambda a, b: a @ b, (_ints(20, 30), _ints(30, 40))),
    "products of int32": (lambda a, b: a @ b, (_words(37, 213), _words(213, 77))),
    "products of int8": (torch._int_mm, (_bytes(37, 216), _bytes(216, 72))),
    "linear of int8": (lambda x, w: torch._int_mm(x, w.t()), (_bytes(65, 304), _bytes(80, 304))),
    "products of transposed int8": (lambda a, b: torch._int_mm(a.t(), b), (_bytes(40, 88), _bytes(40, 80))),
    "products of int8 of odd depth": (lambda a, b: torch._int_mm(a, b), (_bytes(33, 43), _bytes(43, 24))),
    "products of int8 that wrap": (lambda a, b: a @ b, (_bytes(37, 50), _bytes(50, 77))),
    "products of f64": (lambda a, b: a @ b, (_floats(40, 30).double(), _floats(30, 70).double())),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_floats(2, 65, 32), _floats(2, 66, 32)[:, :65], _floats(2, 67, 32)[:, :65]),
    ),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), (_floats(2, 5, 19, 20), _floats(9, 5, 3, 3))),
    "convolution and epilogue": (
        lambda x, w, b, y: F.relu(F.conv2d(x, w, b, padding=1) + y),
        (_floats(2, 20, 15, 21), _floats(64, 20, 3, 3), _floats(64), _floats(2, 64, 15, 21)),
    ),
    "convolution with steps": (
        lambda x, w: F.conv2d(x, w, padding=2, stride=2, dilation=2),
        (_floats(1, 7, 30, 33), _floats(40, 7, 3, 3)),
    ),
    "convolution by groups": (
        lambda x, w: F.conv2d(x, w, padding=1, groups=2),
        (_floats(2, 12, 9, 70), _floats(64, 6, 3, 3)),
    ),
    "convolution of channels side by side": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (
            _floats(1, 20, 15, 15).to(memory_format=torch.channels_last),
            _floats(48, 20, 3, 3).to(memory_format=torch.channels_last),
        ),
    ),
    "convolution of bf16": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (_floats(1, 20, 15, 15).bfloat16(), _floats(48, 20, 3, 3).bfloat16()),
    ),
    "convolution of few channels": (
        lambda x, w: F.conv2d(x, w, padding=3, stride=2),
        (_floats(1, 3, 40, 40), _floats(32, 3, 7, 7)),
    ),
    "convolution of each channel": (
        lambda x, w: F.conv2d(x, w, padding=2, groups=12),
        (_floats(2, 12, 19, 37), _floats(12, 1, 5, 5)),
    ),
    "padding": (
        lambda x, y, z, i: tuple(F.pad(t, (19, 3, 1, 2), value=5) + t[0, 0] for t in (x, y, z, i)),
        (_floats(7, 50), _floats(7, 70).bfloat16(), _floats(7, 35).double(), _ints(7, 40)),
    ),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), (_floats(2, 4, 19, 20),)),
    "near": (
        lambda *xs: [
            (x.flip(-1), x[..., 1::2] * 2, x[..., ::3] + 1, x.repeat_interleave(2, -1), x.roll(3, 0)) for x in xs
        ],
        (_floats(6, 64), _floats(8, 32).double(), _floats(4, 64).half(), _ints(5, 64), _ints(4, 128).to(torch.int8)),
    ),
    "complex numbers": (
        lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)),
        (_floats(5, 48, 2), _floats(5, 48, 2)),
    ),
    "gather": (lambda x, i: x[i] * 2, (_floats(9, 70), _ints(50))),
    "scatter": (_put, (_floats(9, 70), _ints(50), _floats(50, 70))),
    "running sums": (lambda x: torch.cumsum(x, -1), (_floats(20, 100),)),
    "sort": (lambda x: torch.sort(x, -1).values, (_floats(6, 40),)),
    "few of many": (lambda x: x.topk(3), (_floats(6, 140),)),
    "softmax of columns that end in a tile": (lambda x: x.softmax(0), (_floats(10, 5).bfloat16(),)),
    "bf16": (lambda x: (x * 3).softmax(-1), (_floats(20, 100).bfloat16(),)),
    "products of bf16": (lambda a, b: a @ b, (_floats(37, 213).bfloat16(), _floats(213, 77).bfloat16())),
    "linear of bf16": (F.linear, (_floats(65, 300).bfloat16(), _floats(77, 300).bfloat16())),
    "products of rows of bf16 a page apart": (
        lambda a, b: a @ b.t(),
        (_floats(45, 2048).bfloat16(), _floats(40, 2048).bfloat16()),
    ),
    "products of transposed bf16": (lambda a, b: a.t() @ b, (_floats(38, 90).bfloat16(), _floats(38, 77).bfloat16())),
    "f16": (lambda x, w: F.linear(x, w), (_floats(20, 100).half(), _floats(40, 100).half())),
    "int8": (lambda x: (x * 2 + 1).clamp(-5, 7), (_ints(1000).to(torch.int8),)),
    "integers": (lambda x, y: (x // y, x % y, x << 2, x ^ y), (_ints(300, high=99), _ints(300, high=8) + 1)),
    "f64": (lambda x: x.exp().sum(-1), (_floats(20, 100).double(),)),
    "order of truth values": (
        lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y, x.sort(stable=True)[1], x > y[:1], x == y[:1]),
        (_ints(1000, high=2).bool(), _ints(1000, high=2).bool().flip(0)),
    ),
    "several kernels": (lambda x, w: F.relu(x @ w) @ w.t() + x, (_floats(40, 60), _floats(60, 50))),
    "recurrence": (torch.nn.LSTM(12, 20, batch_first=True).eval(), (_floats(2, 5, 12),)),
    **DOTS,
}


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
    """The same text with the vectors of SSE and of AVX2."""
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
    """The same text as another compiler understands it."""
    function, args = PROGRAMS[name]
    monkeypatch.setenv("CXX", "clang++")
    for known in (host_compiler.compiler, host_compiler.known):
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
    """They are widened in registers, and read only as far as they go."""
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
    """The same f32 is a factor of a sum that is no dot product: of absolute values."""
    x, y = _floats(21, 96).bfloat16(), _floats(21, 96).bfloat16()

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.float(), y.float()
        return (a * b).sum(-1), a.abs().sum(-1), a * b, b.exp()

    _close(deplodock.compile(function, (x, y), target="cpu")(x, y), function(x, y))


@pytest.mark.parametrize("rows", [1, 70])
def test_a_number_that_was_narrowed_meanwhile(rows: int) -> None:
    """bf16 -> f16 -> f32 is not bf16 -> f32: 1e6 is infinite in f16; and int32 -> int8 -> int32 wraps."""
    x, w = _floats(rows, 96).bfloat16() * 1e6, _floats(64, 96).bfloat16()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.half().float().clamp(-9e9, 9e9) @ w.float().t(), x.half().float() @ w.float().t()

    _close(deplodock.compile(function, (x, w), target="cpu")(x, w), function(x, w))
    i, j = _words(rows, 96), _bytes(96, 64)
    wrapped = deplodock.compile(lambda i, j: i.to(torch.int8).int() @ j.int(), (i, j), target="cpu")
    assert torch.equal(wrapped(i, j), i.to(torch.int8).int() @ j.int())


def test_integers_are_multiplied_where_they_lie() -> None:
    """Sums of products of integers are products of matrices, of int8 by its words."""
    for name, section in (("products of int32", "vec<T>"), ("linear of int8", "words |= convert")):
        function, args = PROGRAMS[name]
        text = deplodock.compile(function, args, target="cpu").compilation.cpp
        kernel = text[text.index("static void k0(") :]
        assert re.search(r"panel_fma<\d+, \d+, \d+.*>\(\w+, &\w+\[", kernel), name
        assert section in text


def test_convolutions_read_pixels_where_they_lie() -> None:
    """Weights are copied once, panel by panel, also where steps and padding say which pixels there are."""
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
    """Tiles have several rows, of which each ends where the call says."""
    columns = torch.export.Dim("columns", min=1, max=256)
    program = deplodock.compile(
        lambda x: x.exp().sum(1), (_floats(9, 100),), target="cpu", dynamic_shapes=({1: columns},), schedule="block=4"
    )
    assert "- row < " in program.ir("cuda")
    for n in (1, 17, 64, 200):
        _close(program(_floats(9, n)), _floats(9, n).exp().sum(1))


def test_rows_that_end_in_different_places() -> None:
    """Windows of what is padded: each row of a tile ends elsewhere."""
    function, x = lambda x: F.pad(x, (0, 90)).unfold(0, 64, 70).sum(-1), torch.arange(2000.0)[:970]
    _close(deplodock.compile(function, (x,), target="cpu", schedule="block=16")(x), function(x))


def test_products_of_a_call() -> None:
    """The rows that there are, and no more, are read and multiplied: those behind them are NaN."""
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
    """The second loop loads x again, of which it reads the transpose, too: that is what the first loop has kept."""
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
    """A loop of each block begins with what is computed once for all of them, and nothing else reads that."""
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
    """Also where a block has one row."""
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
