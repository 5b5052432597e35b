"""Machine code of programs: `--ir ptx|sass|asm`, and the resources and hot loops that `-v` and `--profile` show."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

import deplodock
from deplodock.backend.cpu import disassembly as asm
from deplodock.backend.cuda.resources import compiled_resources, expected_resources
from deplodock.backend.cuda.runtime import disassembly as sass, nvrtc
from deplodock.backend.cuda.runtime.nvrtc import KernelUse, compile_cubin
from deplodock.backend.disassembly import Code, Loop
from deplodock.errors import CompileError, ExecutionError
from deplodock.frontend import machine_code as machine
from deplodock.frontend.compilation import Compilation
from deplodock.frontend.kernels import kernels_of
from deplodock.frontend.machine_code import KernelMachineCode, machine_code
from deplodock.target.architectures import TARGETS
from deplodock.tools.cli import main

needs_nvrtc = pytest.mark.skipif(find_spec("cuda") is None, reason="needs NVRTC and nvdisasm")
needs_objdump = pytest.mark.skipif(
    shutil.which("objdump") is None or shutil.which("g++") is None, reason="needs g++ and objdump"
)


def lowered(target: str, module: torch.nn.Module | None = None, dtype: torch.dtype = torch.bfloat16) -> Compilation:
    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 128, bias=False, dtype=dtype) if module is None else module
    return deplodock.compile(linear, (torch.randn(128, 128, dtype=dtype),), target=target).compilation


@pytest.fixture(scope="module")
def ampere() -> Compilation:
    return lowered("sm_80")


def hot_loop(kernel: KernelMachineCode) -> Loop:
    assert kernel.code is not None
    assert kernel.code.hot_loop is not None
    return kernel.code.hot_loop


@needs_nvrtc
def test_sass_of_a_matmul(ampere: Compilation) -> None:
    """The hot loop has the tensor-core instructions. Each instruction has the line of CUDA from which it comes."""
    program = machine_code(ampere, kernels_of(ampere), lines=True)
    (kernel,) = program.kernels.values()
    loop, lines = hot_loop(kernel), ampere.cuda.splitlines()
    assert kernel.code is not None
    assert loop.count("HMMA") == kernel.code.count("HMMA") > 0
    assert set(loop.widths("LDGSTS")) == {128}
    assert 128 in loop.widths("LDSM")
    assert loop.stall_cycles > len(loop)
    for i in kernel.code.instructions:
        if i.operation == "HMMA":
            assert i.line is not None
            assert "mma" in lines[i.line - 1]
    assert kernel.resources is not None
    assert kernel.expected is not None
    assert kernel.resources.shared == kernel.expected.shared > 0
    assert kernel.resources.spilled == 0
    text = ampere.text("sass")
    marked = [line for line in text.splitlines() if line.startswith(">") and "//" not in line]
    assert len(marked) == len(loop)
    assert sum("HMMA" in line for line in marked) == loop.count("HMMA")
    assert f"// k0: hot loop: {loop.described()}\n" in text
    shown = next(re.finditer(r"// (\d+): (.*)", text[text.index("k0:\n") :]))
    assert ampere.text("cuda").splitlines()[int(shown[1]) - 1].strip() == shown[2]


@needs_nvrtc
def test_ptx_and_wide_loads() -> None:
    compilation = lowered("sm_90a", torch.nn.RMSNorm(128), torch.float32)
    ptx = compilation.text("ptx")
    assert ".visible .entry k0(" in ptx
    assert "ld.global.nc.v4.f32" in ptx
    (kernel,) = machine_code(compilation).kernels.values()
    assert kernel.code is not None
    assert set(kernel.code.widths("LDG")) == {128}
    assert kernel.code.hot_loop is None
    assert "no loop: " in kernel.described()[1]
    assert kernel.expected is None
    assert "predicted" not in kernel.described()[0]


SPILLS = """extern "C" __global__ void __launch_bounds__(1024, 2) k0(const float* x, float* y) {
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = x[threadIdx.x + i * 1024];
  for (int n = 0; n < 100; ++n)
    for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + 1) % 64] + a[(i + 17) % 64];
  for (int i = 0; i < 64; ++i) y[threadIdx.x + i * 1024] = a[i];
}
"""


@needs_nvrtc
def test_spills_are_reported() -> None:
    compiled = compile_cubin(SPILLS, "sm_90a", lines=True)
    resources = compiled_resources(TARGETS["sm_90a"], 1024, 0, compiled.kernels["k0"])
    code = sass.disassemble(compiled.cubin, SPILLS)["k0"]
    assert resources.registers <= 32
    assert resources.spilled > 64
    assert code.spills > 0
    assert code.hot_loop is not None
    assert {i.line for i in code.hot_loop.instructions if i.operation == "FFMA"} == {5}
    shown, hot = KernelMachineCode("k0", code, resources).described()
    assert f", {resources.spilled} B spilled, {resources.stack} B of stack, " in shown
    assert f"LDL.{max(code.hot_loop.widths('LDL'))} x " in hot


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limit"),
    [
        (256, 32, 0, 8, "threads"),
        (128, 168, 0, 3, "registers"),
        (64, 16, 0, 32, "threads"),
        (32, 16, 0, 32, "blocks"),
        (256, 32, 100 * 1024, 2, "shared memory"),
        (256, 32, 300 * 1024, 0, "shared memory"),
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    """Rows of NVIDIA's occupancy calculator for compute capability 9.0."""
    r = compiled_resources(TARGETS["sm_90a"], threads, shared, KernelUse(registers))
    assert (r.blocks_per_sm, r.limit, r.occupancy) == (blocks, limit, blocks * threads / 2048)
    expected = expected_resources(TARGETS["sm_90a"], threads, registers, shared, blocks)
    text = KernelMachineCode("k0", None, r, expected).described()[0]
    assert f"{blocks} blocks on an SM ({blocks} predicted)" in text


@needs_objdump
@pytest.mark.auto
def test_the_hot_loop_of_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The loop of `exp(x) * y` has 256-bit vectors, fused multiply-adds, two loads and one store."""
    command = ["compile", "-c", "torch.exp(torch.randn(4096)) * torch.randn(4096)", "--ir", "asm"]
    command += ["--target", "cpu{isa=avx2 cores=1}", "-v"]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    (kernel,) = printed["machine_code"]["kernels"].values()
    loop = kernel["hot_loop"]
    assert loop["vector_bits"] == 256
    assert loop["operations"]["fma"] >= 5
    assert loop["accesses"]["load"]["256"] >= 2
    assert loop["accesses"]["store"] == {"256": 1}
    assert loop["local_accesses"] == 0
    assert f"  hot loop: {loop['instructions']} instructions, vectors of 256 bits; fma x " in err
    marked = [line for line in printed["text"].splitlines() if line.startswith(">")]
    assert sum("vfmadd" in line or "vfnmadd" in line for line in marked) == loop["operations"]["fma"]
    assert any("// " in line and "expf(" in line for line in marked)
    assert len([line for line in marked if "//" not in line]) == loop["instructions"]


X86 = """
build.so:     file format elf64-x86-64

0000000000001000 <void panel<2>(float*, float const*)>:
    1000:\tvfmadd231ps zmm1,zmm2,ZMMWORD PTR [rsi]
    1006:\tvmovups YMMWORD PTR [rsp-0x20],ymm3
    100c:\tvbroadcastss zmm2,DWORD PTR [rdi+0x4]
    1010:\tadd    QWORD PTR [rdx],0x1
    1014:\tcmp    QWORD PTR [rsp+0x8],rsi
    1018:\tjne    1000 <void panel<2>(float*, float const*)>
    101a:\tlea    rax,[rip+0x10]        # 2000 <x>
    101e:\tprefetcht0 BYTE PTR [rax]
    1022:\tret

0000000000001100 <k3(int, int, float const*) [clone .constprop.0]>:
k3(int, int, float const*) [clone .constprop.0]:
/build/text-part0.cpp:12
    1100:\ttest   edi,edi
    1102:\tje     1120 <k3(int, int, float const*) [clone .constprop.0]+0x20>
/build/text-part0.cpp:3
inlined by /build/text-part0.cpp:13 (k3)
    1104:\tcall   1000 <void panel<2>(float*, float const*)>
    1109:\tjmp    1100 <k3(int, int, float const*) [clone .constprop.0]>
    1120:\tret

0000000000001200 <k30(int, int, float const*)>:
    1200:\tret
"""


def test_x86_is_counted() -> None:
    """A kernel includes the functions that it calls. The stack, broadcasts, and updates of memory are told apart."""
    code = asm.parse_listing(X86, {"k3": range(10, 20)})["k3"]
    assert [f.name for f in code.functions] == ["k3", "panel<2>"]
    assert [i.line for i in code.functions[0].instructions] == [12, 12, 13, 13, 13]
    (outer,), (inner,) = (f.loops for f in code.functions)
    assert len(outer) == 4
    assert code.hot_loop == inner
    accesses = {"load": {32: 1, 512: 1}, "stack store": {256: 1}, "update": {64: 1}, "stack load": {64: 1}}
    assert inner.accesses == accesses
    assert (inner.operations, inner.vector_bits, inner.spills) == ({"fma": 1}, 512, 2)
    arm = asm.parse_listing(X86.replace("elf64-x86-64", "elf64-littleaarch64"), {"k3": range(0)})["k3"]
    assert not arm.counted
    assert KernelMachineCode("k3", arm).described() == ["instructions are counted for x86-64 only"]


def sass_of(*lines: str) -> Code:
    """Returns the code of a kernel from instructions and labels, such as `.L_1:`."""
    numbered = (line if line.endswith(":") else f"/*{16 * n:04x}*/ {line} ;" for n, line in enumerate(lines))
    return sass.parse_listing("\n".join([".section .text.k0", *numbered]))["k0"]


ADDS = ["FADD R1, R1, R2"] * 40
MAIN = [".L_2:", "FFMA R1, R2, R3, R1", "FFMA R1, R2, R3, R1", "LDS R2, [R4]", "@P0 BRA `(.L_2)"]


def test_the_hot_loop_is_chosen() -> None:
    """Most matmuls of tiles, else the largest share of multiply-adds, else the most work, which counts by depth."""
    adds = [".L_1:", *ADDS, "@P0 BRA `(.L_1)"]
    tiles = [".L_3:", "HMMA.16816.F32 R1, R2, R3, R1", "@P1 BRA `(.L_3)"]
    for code, length in (([*adds, *MAIN, *tiles], 2), ([*adds, *MAIN], 4), ([*adds, ".L_3:", "@P1 BRA `(.L_3)"], 41)):
        loop = sass_of(*code, "EXIT").hot_loop
        assert loop is not None
        assert len(loop) == length
    nested = sass_of(".L_0:", *ADDS[:9], ".L_1:", *ADDS[:5], "@P0 BRA `(.L_1)", "@P1 BRA `(.L_0)", "EXIT")
    assert [(loop.depth, len(loop), len(loop.outer)) for loop in nested.loops] == [(0, 16, 10), (1, 6, 6)]
    assert nested.hot_loop == nested.loops[1]
    assert sass_of(*ADDS, "EXIT").hot_loop is None


def test_code_after_a_loop_may_jump_back_into_it() -> None:
    """A jump into the middle of a loop, under a condition or not, ends no loop: the flow may enter above its target."""
    body = [".L_0:", "@!P1 BRA `(.L_9)", ".L_1:", "FADD R1, R1, R2", "@P0 BRA `(.L_0)", "EXIT"]
    spin = [".L_9:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R2], R3"]
    for back in (["@P1 BRA `(.L_1)", "EXIT"], ["@!P1 BRA `(.L_9)", "BRA `(.L_1)"]):
        loops = sass_of(*body, *spin, *back).loops
        assert [i.opcode for i in loops[0].instructions] == ["BRA", "FADD", "BRA"]
        assert [len(loop) for loop in loops[1:]] == ([] if "EXIT" in back else [2])


def test_a_missing_tool_says_what_to_install(ampere: Compilation, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ExecutionError("NVRTC is not available (no library): pip install cuda-bindings nvidia-cuda-nvrtc")

    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    asm.objdump.cache_clear()
    with pytest.raises(ExecutionError, match=r"objdump is not available: install binutils"):
        asm.objdump()
    sass.nvdisasm.cache_clear()
    monkeypatch.setattr(sass, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[]))
    with pytest.raises(ExecutionError, match="nvdisasm is not available: pip install nvidia-cuda-nvdisasm"):
        sass.nvdisasm()
    if find_spec("cuda") is not None:
        with pytest.raises(ExecutionError, match="nvdisasm is not available"):
            ampere.text("sass")
        (kernel,) = machine_code(ampere).kernels.values()
        assert kernel.code is None
        assert kernel.resources is not None
    monkeypatch.setattr(nvrtc, "compiler_build", missing)
    monkeypatch.setattr(machine, "compile_cubin", lambda *_, **__: missing())
    monkeypatch.setattr(machine, "nvrtc_version", missing)
    assert machine.longest_kernels(ampere, []).described() == [
        "machine code: NVRTC is not available (no library): pip install cuda-bindings nvidia-cuda-nvrtc"
    ]
    for level, target in (("asm", "sm_80"), ("sass", "cpu"), ("ptx", "cpu")):
        with pytest.raises(CompileError, match=f"expected the level .* for {target}, but got {level}"):
            (ampere if target != "cpu" else lowered("cpu")).text(level)


@needs_nvrtc
def test_only_the_longest_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Softmax(0), torch.nn.Linear(32, 64))
    compilation = deplodock.compile(module, (torch.randn(64, 64),), target="sm_90a").compilation
    kernels = kernels_of(compilation)
    longest = max(kernels, key=lambda k: k.predicted * k.launches)
    assert len(kernels) == 2
    monkeypatch.setattr(machine, "MOST_KERNELS", 1)
    program = machine.longest_kernels(compilation, kernels)
    assert [*program.kernels] == [longest.name]
    (note,) = program.notes
    assert note == "1 shorter kernel not compiled; --ir sass compiles all"
