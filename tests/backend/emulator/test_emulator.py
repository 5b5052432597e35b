"""The emulator on hand-written CUDA: correct kernels pass, and each kind of bug is reported with its line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.emulated_text import kernel, one_launch

from deplodock.backend.cpp.device import HELPERS
from deplodock.backend.cpp.writer import helper_section
from deplodock.backend.emulator import EmulatedProgram, build, compile_many, run_cuda_on_cpu
from deplodock.backend.emulator.build import host_text, kernel_names
from deplodock.backend.host.launch_plan import Buffer, Launch, LaunchPlan
from deplodock.errors import ExecutionError

LOAD = "static __device__ void ld4(float* r, const float* p) { *(float4*)r = *(const float4*)p; }\n"

ROW_SUM = (
    LOAD
    + """
extern "C" __global__ void __launch_bounds__(128) k0(const float* __restrict__ x, float* __restrict__ y) {
  extern __shared__ __align__(128) unsigned char smem[];
  float* part = (float*)smem;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  __align__(16) float v[4];
  ld4(v, &x[blockIdx.x * 512 + threadIdx.x * 4]);
  float s;
  #pragma unroll
  for (int i = 0; i < 4; ++i) s = i == 0 ? v[i] : s + v[i];
  for (int m = 1; m < 32; m *= 2) s += __shfl_xor_sync(~0u, s, m);
  if (lane == 0) part[warp] = s;
  __syncthreads();
  float t = 0.0f;
  for (int i = 0; i < 4; ++i) t += part[i];
  if (threadIdx.x == 0) y[blockIdx.x] = t;
}
"""
)


ONES = np.ones(128, np.float32)
SMALL = one_launch([(128,)], [(128,)], shared=512)

BROKEN = {
    "race by a dropped barrier": ("s[t] = x[t];\ny[t] = s[t ^ 1];", "race", 4),
    "race around a loop": (
        "float a = 0;\nfor (int i = 0; i < 3; ++i) {\n  s[t] = x[t];\n  __syncthreads();\n  a += s[t ^ 64];\n}\n"
        "y[t] = a;",
        "race",
        5,
    ),
    "write after others read": ("s[t] = x[t];\n__syncthreads();\nfloat a = s[0];\ns[t] = a;\ny[t] = a;", "race", 6),
    "two threads write one place": ("y[t / 2] = x[t];\ny[64 + t / 2] = x[t];", "race", 3),
    "a shuffle orders no memory": ("s[t] = x[t];\n__shfl_xor_sync(~0u, 1.0f, 1);\ny[t] = s[t ^ 1];", "race", 5),
    "beyond a buffer": ("y[t] = x[t + 1];", "out-of-bounds", 3),
    "before a buffer": ("y[t] = x[t - 1];", "out-of-bounds", 3),
    "far beyond a buffer": ("y[t] = x[2000000000];", "out-of-bounds", 3),
    "store beyond a buffer": ("y[t + (t == 127)] = x[t];", "out-of-bounds", 3),
    "beyond shared memory": ("s[t + 1] = x[t];\ny[t] = x[t];", "out-of-bounds", 3),
    "before shared memory": ("s[t - 1] = x[t];\ny[t] = x[t];", "out-of-bounds", 3),
    "no pointer of the kernel's": ("y[t] = *(const float*)(t * 4 + 4096ll);", "out-of-bounds", 3),
    "beyond an array in registers": (
        "float v[3];\nfor (int i = 0; i < 4; ++i) {\n  v[i] = x[t];\n}\ny[t] = v[t % 3];",
        "out-of-bounds",
        5,
    ),
    "uninitialised shared memory": ("if (t > 0) s[t] = x[t];\n__syncthreads();\ny[t] = s[t];", "uninitialised", 5),
    "reads its own result": ("y[t] += x[t];", "uninitialised", 3),
    "misaligned vector": ("float4 v = *(const float4*)&x[t & 63];\ny[t] = v.x;", "misaligned", 3),
    "misaligned store": ("*(float2*)&y[t < 127 ? t : 0] = make_float2(1, 2);", "misaligned", 3),
    "misaligned registers": (
        "struct { float a; float r[4]; } v;\n*(float4*)v.r = *(const float4*)&x[t / 4 * 4];\ny[t] = v.r[t % 4];",
        "misaligned",
        4,
    ),
    "divergent barrier": ("if (t < 64) __syncthreads();\ny[t] = x[t];", "divergent barrier", 0),
    "barriers in two branches": (
        "if (t < 64) {\n  __syncthreads();\n} else {\n  __syncthreads();\n}\ny[t] = x[t];",
        "divergent barrier",
        0,
    ),
    "barrier in a loop of uneven length": (
        "for (int i = 0; i < 1 + t / 64; ++i) __syncthreads();\ny[t] = x[t];",
        "divergent barrier",
        0,
    ),
    "shuffle with missing lanes": (
        "float a = x[t];\nif (t % 32 < 31) a += __shfl_xor_sync(~0u, a, 1);\ny[t] = a;",
        "deadlock",
        0,
    ),
    "shuffle against a barrier": (
        "float a = x[t];\nif (t % 32) a = __shfl_xor_sync(~0u, a, 1);\nelse __syncthreads();\ny[t] = a;",
        "deadlock",
        0,
    ),
    "shuffles in two places": (
        "float a = x[t];\nif (t & 1) a += __shfl_xor_sync(~0u, a, 1);\nelse\n  a -= __shfl_xor_sync(~0u, a, 1);\n"
        "y[t] = a;",
        "divergent shuffle",
        0,
    ),
    "shuffle from a lane outside the mask": (
        "float a = x[t];\nif (t % 32 < 16) a = __shfl_sync(0xffffu, a, 20);\ny[t] = a;",
        "shuffle",
        0,
    ),
    "division by zero": ("y[t] = (float)(100 / (int)(x[t] - 1.0f));", "arithmetic", 3),
    "shift by too much": ("y[t] = (float)(100 << (int)(x[t] + 31.0f));", "arithmetic", 3),
    "never ends": ("for (int i = 0;; ++i) y[t] = x[t];", "too long", 0),
    "part of the result is missing": ("if (t < 100) y[t] = x[t];", "unwritten", 0),
    "the emulator aborts": ("s[t] = x[t];\n__syncthreads();\nif (t == 70) __builtin_abort();", "internal", 0),
}


@pytest.fixture(scope="module")
def broken():
    """Returns every kernel with a bug, compiled together."""
    return dict(zip(BROKEN, compile_many([kernel(body) for body, _, _ in BROKEN.values()]), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_mistake_is_reported(broken, name, monkeypatch):
    monkeypatch.setattr("deplodock.backend.emulator.ACCESS_LIMIT", 100_000)
    body, kind, line = BROKEN[name]
    _, reports = EmulatedProgram(kernel(body), SMALL, broken[name]).run([ONES])
    assert reports, "nothing was reported"
    found = [(r.kind, n) for r in reports for n in (r.line, r.other_line)]
    assert (kind, line) in found, str(reports[0])


def test_clean_row_sum():
    x = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    plan = one_launch([(3, 512)], [(3,)], grid=3, shared=16)
    (y,), reports = run_cuda_on_cpu(ROW_SUM, plan, [x], seeds=(0, 1, 7))
    assert not reports
    np.testing.assert_allclose(y, x.astype(np.float64).sum(1), rtol=0, atol=1e-4)


def test_dropped_barrier_is_a_race_whatever_ran_first():
    text = ROW_SUM.replace("  __syncthreads();\n", "\n")
    assert text != ROW_SUM
    plan = one_launch([(3, 512)], [(3,)], grid=3, shared=16)
    for seed in (0, 1, 2, 3):
        _, reports = run_cuda_on_cpu(text, plan, [np.ones((3, 512), np.float32)], seeds=(seed,))
        assert {"race"} <= {r.kind for r in reports} <= {"race", "uninitialised"}


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = x[t];\n__syncwarp();\ny[t] = s[t ^ 1];",
        "s[t] = x[t];\n__syncwarp();\nfloat a = s[t / 32 * 32] + s[t];\n__syncwarp();\ns[t] = a;\ny[t] = a;",
        "float a = x[t];\na = __shfl_down_sync(~0u, a, 4) + __shfl_up_sync(~0u, a, 4);\ny[t] = a;",
        "y[t] = __ballot_sync(~0u, x[t] > 0) == ~0u && __any_sync(~0u, t == 5) == (t < 32);",
        "__shared__ float v[128];\nv[t] = x[t];\n__syncthreads();\ny[127 - t] = v[t ^ 127];",
        "s[t] = 0;\n__syncthreads();\natomicAdd(&s[0], x[t]);\n__syncthreads();\ny[t] = s[0];",
    ],
)
def test_clean_synchronisation(body):
    _, reports = run_cuda_on_cpu(kernel(body), SMALL, [ONES], seeds=(0, 1, 5))
    assert not [str(r) for r in reports]


def test_a_warp_barrier_orders_only_its_warp():
    _, reports = run_cuda_on_cpu(kernel("s[t] = x[t];\n__syncwarp();\ny[t] = s[t ^ 32];"), SMALL, [ONES])
    assert reports[0].kind == "race"


def test_blocks_are_not_ordered_but_launches_are():
    text = kernel("y[t] = x[t] + blockIdx.x;")
    two_blocks = one_launch([(128,)], [(128,)], grid=2, shared=512)
    _, reports = run_cuda_on_cpu(text, two_blocks, [ONES])
    assert reports[0].kind == "race"
    assert (reports[0].block, reports[0].other_block) == (1, 0)
    chain = LaunchPlan(
        (Buffer("x", (128,), "f32"), Buffer("y", (128,), "f32", written=True), Buffer("t", (128,), "f32")),
        (Launch("k0", (1,), (128,), 512, (0, 2)), Launch("k0", (1,), (128,), 512, (2, 1))),
        arguments=2,
        inputs=1,
    )
    (y,), reports = run_cuda_on_cpu(kernel("y[t] = x[t ^ 127] * 2.0f;"), chain, [np.arange(128, dtype=np.float32)])
    assert not reports
    np.testing.assert_array_equal(y, 4 * np.arange(128, dtype=np.float32))


def test_readers_in_global_memory():
    both = "float* x, float* y"
    ordered = kernel("float a = x[0];\n__syncthreads();\nif (t == 0) x[0] = a;\ny[blockIdx.x * 128 + t] = a;", both)
    _, reports = run_cuda_on_cpu(ordered, SMALL, [ONES])
    assert not [str(r) for r in reports]
    two_blocks = one_launch([(128,)], [(256,)], grid=2, shared=512)
    _, reports = run_cuda_on_cpu(ordered, two_blocks, [ONES], seeds=(0,))
    assert [(r.kind, r.line, r.other_block) for r in reports] == [("race", 3, 0), ("race", 5, 0)]
    unordered = kernel("float a = x[0];\nif (t == 5) x[0] = a + 1;\ny[t] = a;", both)
    _, reports = run_cuda_on_cpu(unordered, SMALL, [ONES], seeds=(0,))
    assert (reports[0].kind, reports[0].line) == ("race", 4)


def test_every_helper_of_the_printer_compiles():
    text = helper_section(HELPERS)
    assert "asm" in text
    compile_many([text])


def test_report_names_place_and_partner():
    _, reports = run_cuda_on_cpu(kernel("s[t] = x[t];\ny[t] = s[t ^ 1];"), SMALL, [ONES], seeds=(0,))
    race = next(r for r in reports if r.kind == "race")
    assert str(race).startswith("race in k0, line 3: `s[t] = x[t];`: writes byte 4 of shared memory, which another ")
    assert (race.thread, race.other_thread, race.other_line) == (1, 0, 4)


def test_line_of_the_kernel_not_of_the_helper():
    text = LOAD + kernel("float v[4];\nld4(v, &x[t * 4]);\ny[t] = v[0];").replace(
        "float v[4]", "__align__(16) float v[4]"
    )
    _, reports = run_cuda_on_cpu(text, SMALL, [ONES])
    assert (reports[0].kind, reports[0].source) == ("out-of-bounds", "ld4(v, &x[t * 4]);")


def test_deadlock_says_who_waits_where():
    body = "float a = x[t];\nif (t % 32) a = __shfl_xor_sync(~0u, a, 1);\nelse __syncthreads();\ny[t] = a;"
    _, reports = run_cuda_on_cpu(kernel(body), one_launch([(128,)], [(128,)], threads=32, shared=512), [ONES])
    assert reports[0].text == (
        "thread 0 in __syncthreads (line 5); threads 1-31 in __shfl_xor_sync (line 4) with mask 0xffffffff"
    )


def test_narrow_neighbours_do_not_race():
    text = kernel("y[t] = x[t];", "const bool* x, bool* y")
    plan = one_launch([(128,)], [(128,)], dtype="i1", shared=0)
    (y,), reports = run_cuda_on_cpu(text, plan, [np.arange(128) % 3 == 0])
    assert not reports
    np.testing.assert_array_equal(y, np.arange(128) % 3 == 0)


def test_arguments_must_fit_the_plan():
    program = EmulatedProgram(kernel("y[t] = x[t];"), SMALL)
    with pytest.raises(ExecutionError, match=r"x0: is float32\[3\], not f32\[128\]"):
        program.run([ONES[:3]])
    with pytest.raises(ExecutionError, match="y0 is a result"):
        program.run([ONES, ONES])
    with pytest.raises(ExecutionError, match="the kernel k7 of the plan"):
        EmulatedProgram(kernel(""), one_launch([], [], name="k7"))


def test_text_that_cannot_be_emulated_is_refused():
    asm = 'static __device__ float f(float a) { float r; asm("neg.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }\n'
    with pytest.raises(ExecutionError, match="f: is inline assembly that the emulator has no host text for"):
        host_text(asm + kernel("y[t] = f(x[t]);"))
    with pytest.raises(ExecutionError, match="outside of a helper"):
        host_text(kernel('asm volatile("bar.sync 0;");'))
    with pytest.raises(ExecutionError, match="header"):
        host_text("#include <cuda_bf16.h>\n" + kernel(""))
    with pytest.raises(ExecutionError, match=r"g\+\+: does not compile the text: .*undeclared_thing"):
        compile_many([kernel("undeclared_thing();")])


FORTIFIED = """#!/bin/sh
exec g++ -D_FORTIFY_SOURCE=2 "$@"
"""


def test_a_compiler_that_checks_longjmp(tmp_path, request):
    """Regression: g++ of Ubuntu sets `_FORTIFY_SOURCE`, whose check of longjmp aborted emulated barriers.

    Checks the compiler's flags; `--kernels all` also builds and runs a kernel.
    """
    for flags in (build._RUNTIME_FLAGS, build._DEVICE_FLAGS):
        command = ["g++", "-D_FORTIFY_SOURCE=2", *flags, "-dM", "-E", "-x", "c++", os.devnull]
        macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "__OPTIMIZE__" in macros
        assert "_FORTIFY_SOURCE" not in macros
    if request.config.getoption("--kernels") == "all":
        (wrapper := tmp_path / "fortified").write_text(FORTIFIED)
        wrapper.chmod(0o700)
        script = "import numpy as np\nfrom test_emulator import *\n"
        script += (
            "print(run_cuda_on_cpu(ROW_SUM, one_launch([(3, 512)], [(3,)], 3, shared=16), [np.ones((3, 512), 'f')]))"
        )
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = os.environ | {"CXX": str(wrapper), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": paths}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert "512." in done.stdout, done.stderr


def test_no_host_compiler(monkeypatch, tmp_path):
    from deplodock.backend.host.compiler import compiler

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiler.cache_clear()
    try:
        with pytest.raises(ExecutionError, match=r"g\+\+ is needed"):
            compiler(emulator=True)
    finally:
        compiler.cache_clear()


def test_kernel_names_ignore_comments():
    assert kernel_names('// extern "C" __global__ void k9(\n' + kernel("")) == ("k0",)
