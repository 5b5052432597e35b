"""Launch plans, and standalone programs: they pass on the host, fail with a planted bug, and compile with nvcc."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support.scaled_rows import KERNEL, MAIN, module

import deplodock
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime import CudaProgram
from deplodock.backend.emulator import run_cuda_on_cpu, run_standalone_on_cpu
from deplodock.backend.host.launch_plan import Buffer, make_plan
from deplodock.errors import CompileError, ExecutionError
from deplodock.extras.standalone import SAMPLES, emit_standalone, make_input, sample_step

FLAGS = ("-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a")
"""As the file says. Given `-arch=sm_90a` alone, nvcc 13 also makes PTX for compute_90, which has no wgmma."""


def _tensor_level(times: int) -> str:
    lines = ["func.func @main(%x0: tensor<4x256xf32>) -> tensor<4x256xf32> {"]
    for i in range(times):
        lines += [
            f"  %q{i} = arith.mulf %x{i}, %x{i} : tensor<4x256xf32>",
            f"  %s{i} = tensor.reduce add %q{i} over [1] : tensor<4x256xf32> -> tensor<4xf32>",
            f"  %b{i} = tensor.index_map %s{i}[d0] : tensor<4xf32> -> tensor<4x256xf32>",
            f"  %x{i + 1} = arith.divf %x{i}, %b{i} : tensor<4x256xf32>",
        ]
    return "\n".join([*lines, f"  func.return %x{times} : tensor<4x256xf32>", "}"])


@pytest.fixture(scope="module")
def program():
    """Returns a program at the kernel level and at the tensor level."""
    return module(KERNEL + MAIN), module(_tensor_level(5))


@pytest.fixture(scope="module")
def text(program):
    kernels, tensors = program
    return emit_standalone(kernels, tensors, print_cuda(kernels))


def test_plan(program):
    plan = make_plan(program[0])
    assert [(b.name, b.first, b.last, b.offset, b.written) for b in plan.buffers] == [
        ("x", 0, 0, 0, False),
        ("y", 4, 4, 0, True),
        ("t", 0, 1, 0, True),
        ("u", 1, 2, 4096, True),
        ("v", 2, 3, 0, True),
        ("w", 3, 4, 4096, True),
    ]
    assert (plan.arguments, plan.inputs, plan.arena_bytes, plan.peak_bytes) == (2, 1, 8192, 12288)
    assert [(x.kernel, x.grid, x.threads, x.shared, x.buffers) for x in plan.launches] == [
        ("k0", (4,), (64,), 8, (0, 2)),
        ("k0", (4,), (64,), 8, (2, 3)),
        ("k0", (4,), (64,), 8, (3, 4)),
        ("k0", (4,), (64,), 8, (4, 5)),
        ("k0", (4,), (64,), 8, (5, 1)),
    ]


def test_plan_runs_on_the_emulator(program):
    x = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    (y,), reports = run_cuda_on_cpu(print_cuda(program[0]), make_plan(program[0]), [x])
    assert not reports
    want = x.astype(np.float64)
    for _ in range(5):
        want = want / (want * want).sum(1, keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("builtin.module {}", "has no @main"),
        ("func.func @main(%x: tensor<4xf32>) {\n  func.return\n}", "expected memrefs as parameters of @main"),
        ("func.func @main(%x: memref<?xf32>) {\n  func.return\n}", "expected a symbol for each"),
        ("func.func @main() {\n  %c = arith.constant 0 : index\n  func.return\n}", "test.mlir:2.*arith.constant"),
        (
            "func.func @main(%x: memref<4xf32>) {\n  kernel.launch @no(%x) : memref<4xf32>\n  func.return\n}",
            "@no, which does not exist",
        ),
        (
            KERNEL
            + "func.func @main(%x: memref<4xf32>) {\n  kernel.launch @scale(%x) : memref<4xf32>\n  func.return\n}",
            "expected buffers of the types",
        ),
    ],
)
def test_plan_refuses(text, message):
    with pytest.raises(CompileError, match=message):
        make_plan(module(text))


def test_names_in_a_plan_are_ours():
    hostile = "func.func @main(%K0: memref<4xf32>, %k0: memref<4xf32>, %1: memref<4xf32>) {\n  func.return\n}"
    assert [b.name for b in make_plan(module(hostile)).buffers] == ["k0", "k0_1", "buffer"]


def test_standalone_passes_on_the_host(text):
    done = run_standalone_on_cpu(text)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "PASS", "")


@pytest.mark.parametrize(
    ("old", "new", "failure"),
    [
        ("m <= 16", "m <= 8", "result 0: "),
        ("__syncthreads();", "", "race"),
        ("+ col], o)", "+ (col ^ 4)], o)", "fingerprint"),
        ("row * 256 + col], o)", "(row ^ 1) * 256 + col], o)", "fingerprint"),
        ("lane * 4 + warp", "lane * 4 + 4 + warp", "out-of-bounds"),
    ],
)
def test_standalone_with_a_bug_fails(text, old, new, failure):
    assert old in text
    done = run_standalone_on_cpu(text.replace(old, new))
    assert done.returncode != 0
    assert "PASS" not in done.stdout
    assert failure in done.stdout + done.stderr


TYPES = """
kernel.func @k(%a: memref<300xf16>, %b: memref<300xbf16>, %c: memref<300xi64>, %d: memref<300xi1>,
               %e: memref<300xf16>, %f: memref<300xbf16>, %g: memref<300xi64>, %h: memref<300xi1>) grid [10] warps 1 {
  %lane = kernel.id lane
  %block = kernel.id block
  %c30 = arith.constant 30 : index
  %base = arith.muli %block, %c30 : index
  %i = arith.addi %base, %lane : index
  %z16 = payload.constant 0.0 : f16
  %zb = payload.constant 0.0 : bf16
  %zi = payload.constant 0 : i64
  %z1 = payload.constant false : i1
  %va = kernel.load %a[%i] where 0 <= %lane < 30 else %z16 : memref<300xf16> -> vector<1xf16>
  kernel.store %va, %e[%i] where 0 <= %lane < 30 : memref<300xf16>, vector<1xf16>
  %vb = kernel.load %b[%i] where 0 <= %lane < 30 else %zb : memref<300xbf16> -> vector<1xbf16>
  kernel.store %vb, %f[%i] where 0 <= %lane < 30 : memref<300xbf16>, vector<1xbf16>
  %vc = kernel.load %c[%i] where 0 <= %lane < 30 else %zi : memref<300xi64> -> vector<1xi64>
  kernel.store %vc, %g[%i] where 0 <= %lane < 30 : memref<300xi64>, vector<1xi64>
  %vd = kernel.load %d[%i] where 0 <= %lane < 30 else %z1 : memref<300xi1> -> vector<1xi1>
  kernel.store %vd, %h[%i] where 0 <= %lane < 30 : memref<300xi1>, vector<1xi1>
}
func.func @main(%a: memref<300xf16>, %b: memref<300xbf16>, %c: memref<300xi64>, %d: memref<300xi1>,
                %e: memref<300xf16>, %f: memref<300xbf16>, %g: memref<300xi64>, %h: memref<300xi1>) {
  kernel.launch @k(%a, %b, %c, %d, %e, %f, %g, %h) : memref<300xf16>, memref<300xbf16>, memref<300xi64>,
    memref<300xi1>, memref<300xf16>, memref<300xbf16>, memref<300xi64>, memref<300xi1>
  func.return
}
"""


def test_standalone_of_every_kind_of_type():
    same = "tensor<300xf16>, tensor<300xbf16>, tensor<300xi64>, tensor<300xi1>"
    copy = module(
        "func.func @main(%a: tensor<300xf16>, %b: tensor<300xbf16>, %c: tensor<300xi64>, %d: tensor<300xi1>)\n"
        f"    -> ({same}) {{\n  func.return %a, %b, %c, %d : {same}\n}}"
    )
    kernels = module(TYPES)
    text = emit_standalone(kernels, copy, print_cuda(kernels))
    done = run_standalone_on_cpu(text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("largest error 0 of") == 2
    assert done.stdout.count("equal") == 2
    for old, new in [("h[", "h[299 - "), ("g[", "g[299 - "), ("f[", "f[299 - "), ("e[", "e[299 - ")]:
        start = text.index("__global__")
        broken = text[:start] + text[start:].replace(old, new, 1)
        assert broken != text
        assert run_standalone_on_cpu(broken).returncode == 1


def test_results_must_match_in_number(program):
    none = module("func.func @main(%x: tensor<4x256xf32>) {\n  func.return\n}")
    with pytest.raises(ExecutionError, match="0 results at the tensor level, 1 at the kernel level"):
        emit_standalone(program[0], none, "")


def test_inputs_are_exact_and_differ():
    for dtype, unit in (("f32", 2**-24), ("f16", 2**-10), ("bf16", 2**-7)):
        values = make_input(Buffer("x", (1000,), dtype), 0).astype(np.float64)
        assert np.all(values / unit == np.round(values / unit))
        assert -1 <= values.min() < -0.9 < 0.9 < values.max() < 1
        assert np.any(values != make_input(Buffer("x", (1000,), dtype), 1).astype(np.float64))
    assert set(make_input(Buffer("x", (100,), "i32"), 0).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000, 65536, 99999])
def test_samples_are_in_different_places(size):
    count = min(size, SAMPLES)
    assert len({i * sample_step(size) % size for i in range(count)}) == count


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_builds_it(text, tmp_path):
    (tmp_path / "program.cu").write_text(text)
    command = ["nvcc", *FLAGS, "-o", str(tmp_path / "program"), str(tmp_path / "program.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


WITH_MAPS = {
    "linear": (torch.nn.functional.linear, [(256, 256), (128, 256)], torch.bfloat16),
    "attention": (_attention, [(1, 1, 128, 64)] * 3, torch.float16),
}


@pytest.fixture(scope="module", params=WITH_MAPS)
def with_maps(request):
    """Returns the compilation of a program with tensor maps, and its standalone text."""
    function, shapes, dtype = WITH_MAPS[request.param]
    args = tuple(torch.randn(s, dtype=dtype) for s in shapes)
    boxes = "block=64,64 chunk=64 warps=4 atom=wgmma copy=tma stages=2" if request.param == "linear" else None
    compiled = deplodock.compile(function, args, target="sm_90a", schedule=boxes).compilation
    assert any(x.maps for x in make_plan(compiled.at("kernel")).launches)
    return compiled, emit_standalone(compiled.at("kernel"), compiled.at("tensor"), compiled.cuda)


def test_standalone_with_tensor_maps(with_maps):
    done = run_standalone_on_cpu(with_maps[1])
    assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["PASS"], "")


def test_standalone_with_a_wrong_tensor_map_fails(with_maps):
    found = re.search(r"(map0 = tensor_map\(\d+, \d+, \w+, \{)(\d+)(, \d+)", with_maps[1])
    assert found is not None
    half = f"{found[1]}{int(found[2]) // 2}{found[3]}"
    done = run_standalone_on_cpu(with_maps[1].replace(found[0], half))
    assert done.returncode != 0


def test_standalone_encodes_what_the_runtime_does(with_maps, stub_cuda):
    """The standalone text encodes tensor maps with the arguments that the runtime passes to the driver."""
    from stub_cuda.libcuda import MAPS

    compiled, text = with_maps
    before = len(MAPS)
    plan = make_plan(compiled.at("kernel"))
    args = [torch.from_numpy(make_input(b, i).view(np.int16)).cuda() for i, b in enumerate(plan.input_buffers)]
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[plan.input_buffers[0].dtype]
    CudaProgram(compiled.at("kernel"), compiled.cuda).run([a.view(dtype) for a in args])
    numbers = [
        f"{m.type}, {len(m.box)}, * {{{_joined(m.extents)}}}, {{{_joined(m.strides)}}}, {{{_joined(m.box)}}}, "
        f"{m.swizzle}, {m.promotion}"
        for m in MAPS[before:]
    ]
    printed = re.findall(r"tensor_map\((\d+, \d+,) \w+, (.*)\);", text)
    assert sorted({f"{head} * {rest}" for head, rest in printed}) == sorted(set(numbers))


def _joined(numbers):
    return ", ".join(map(str, numbers))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("with_maps", ["attention"], indirect=True)
def test_nvcc_builds_it_with_tensor_maps(with_maps, tmp_path):
    (tmp_path / "program.cu").write_text(with_maps[1])
    command = ["nvcc", *FLAGS, "-o", str(tmp_path / "program"), str(tmp_path / "program.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.fixture(scope="module")
def cpp() -> tuple[str, list[str]]:
    """Returns a standalone C++ program of several kernels and types, and the compiler command in its first lines."""
    f = deplodock.compile(_mixed, (torch.randn(40, 64).bfloat16(), torch.randn(64, 48).bfloat16()), target="cpu")
    text = emit_standalone(f.compilation.at("kernel"), f.compilation.at("tensor"), f.compilation.cpp, cpu=True)
    (command,) = re.findall(r"^//   (g\+\+ .*)$", text, re.M)
    return text, command.split()


def _mixed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.softmax(torch.nn.functional.gelu(x @ w).float(), -1)
    return y, y.argmax(0)


def _built_and_run(text: str, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "FILE.cpp").write_text(text)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([str(folder / "program")], capture_output=True, text=True, check=False)


def test_a_program_for_the_cpu_checks_and_times_itself(cpp: tuple[str, list[str]], tmp_path: Path) -> None:
    done = _built_and_run(*cpp, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "PASS" in done.stdout
    assert re.search(r"time: [\d.e+]+ us, the median of \d+ calls on \d+ threads", done.stdout)


def test_a_planted_bug_of_the_cpu_is_found(cpp: tuple[str, list[str]], tmp_path: Path) -> None:
    text, command = cpp
    head, mark, kernels = text.partition("// --- kernels")
    wrong = re.sub(r"store\((&\w+\[[^;]*), ", r"store(\1, 1.5f * ", kernels, count=1)
    assert wrong != kernels
    done = _built_and_run(head + mark + wrong, command, tmp_path)
    assert done.returncode == 1
    assert "FAIL" in done.stdout
