"""Printed kernels through NVRTC for every target: spills, wide accesses, the compiler's log, and the build cache."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import TESTS

import deplodock
from deplodock.backend.cpp.writer import HELPERS_MARK, KERNELS_MARK
from deplodock.backend.cuda.kernel_texts import MachineCode, kernel_texts, pack, unpack
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime import nvrtc
from deplodock.backend.cuda.runtime.disassembly import disassemble, parse_listing
from deplodock.backend.cuda.runtime.nvrtc import KernelUse, check_arch, compile_cubin, kernel_uses
from deplodock.backend.host.build_cache import CacheWarning
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError, ExecutionError, TargetError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.target.architectures import TARGETS
from deplodock.target.model import occupancy

PROGRAMS = TESTS / "programs" / "kernels.mlir"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def printed() -> str:
    ctx = make_context()
    module = parse_module(ctx, PROGRAMS.read_text(), PROGRAMS.name)
    run_passes(ctx, module, parse_passes("cse,dce,kernel-allocate-shared,kernel-insert-barriers"))
    return print_cuda(module)


@pytest.mark.parametrize("arch", TARGETS)
def test_every_target(arch: str) -> None:
    compiled = compile_cubin(printed(), arch, cached=False)
    assert set(compiled.kernels) == {"k0", "k1", "k2"}
    for use in compiled.kernels.values():
        assert use.registers > 8
        assert use.spills == use.stack == 0
    assert not compiled.warnings
    code = disassemble(compiled.cubin)
    assert all(kernel.spills == 0 for kernel in code.values())
    rms, gemm, narrow = code["k0"], code["k1"], code["k2"]
    assert rms.widths("LDG") == {128: 4}
    assert rms.widths("STG") == {128: 2}
    assert rms.count("SHFL") == 5
    assert gemm.count("FFMA") == 16 * 16  # sixteen steps, unrolled, of a four by four tile
    assert gemm.widths("LDS") == {128: 32}
    assert narrow.widths("LDG") == {128: 1}
    assert narrow.widths("STG") == {128: 1}


INDICES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": lambda x, i: x[torch.clamp((i + 1).long(), 0, 4) + torch.arange(2)].sum(0),
    "minimum": lambda x, i: x[torch.minimum(torch.arange(4), i.long())].sum(0),
    "division": lambda x, i: x[torch.arange(4) % i.long() + torch.arange(4).int() % i].sum(0),
}


@pytest.mark.parametrize("name", INDICES)
def test_counters_as_indices_of_64_bits(name: str) -> None:
    """A loop counter is an int. As an operand of overloaded functions for 64-bit indices it needs a cast."""
    x, i = torch.empty(1).expand(70000, 40000), torch.tensor(2, dtype=torch.int32)
    compile_cubin(deplodock.compile(INDICES[name], (x, i), target="sm_90a").ir("cuda"), "sm_90a", cached=False)


def test_the_cache(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] = 1.0f; }'
    first = compile_cubin(source, "sm_90a")
    (file,) = (tmp_path / "deplodock" / "cubin").iterdir()
    assert os.stat(file.parent).st_mode & 0o077 == 0
    assert compile_cubin(source, "sm_90a") == first  # the log holds the compile time: this one was not compiled again
    assert compile_cubin(source, "sm_80").cubin != first.cubin
    assert len(list(file.parent.iterdir())) == 2
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # damaged: compiled again, and repaired
    with pytest.warns(CacheWarning, match="it is made again"):
        assert compile_cubin(source, "sm_90a").cubin == first.cubin
    again = compile_cubin(source, "sm_90a")
    assert again.cubin == first.cubin


def test_a_cache_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "deplodock").mkdir(mode=0o700)
    (tmp_path / "deplodock" / "cubin").mkdir()
    (tmp_path / "deplodock" / "cubin").chmod(0o777)
    with pytest.warns(CacheWarning, match="is kept in"):
        compile_cubin('extern "C" __global__ void k() {}', "sm_90a")
    assert not list((tmp_path / "deplodock" / "cubin").iterdir())


def test_equal_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal kernels of one or several modules are compiled once, whatever their names and positions."""
    done: list[str] = []
    real = nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda text, *how: done.append(text) or real(text, *how))
    text = printed()
    first = compile_cubin(text, "sm_90a")
    assert len(done) == 3
    head, _, kernels = text.partition(KERNELS_MARK)
    k0, _, k2 = re.split(r"(?<=^}\n)\n", kernels, flags=re.MULTILINE)
    given = (k2.replace(" k2(", " k0("), k0.replace(" k0(", " k1("), "// elsewhere\n" + k0.replace(" k0(", " k2("))
    unused = "inline int unused() { return 1; }\n"
    compile_cubin(head + KERNELS_MARK + "\n".join(given), "sm_90a", cached=False)
    assert len(done) == 5
    monkeypatch.setattr(nvrtc, "_nvrtc", pytest.fail)
    again = compile_cubin(head + unused + KERNELS_MARK + "\n".join(given), "sm_90a")
    assert len(done) == 5
    old, new = unpack(first.cubin), unpack(again.cubin)
    assert new == {"k0": old["k2"], "k1": old["k0"], "k2": old["k0"]}
    assert again.kernels["k2"] == first.kernels["k0"] != first.kernels["k2"]


def test_a_helper_is_part_of_the_kernels_that_call_it() -> None:
    helpers = "struct A { int x; };\nstatic __device__ int one(A a) {\n  return a.x;\n}\n"
    helpers += "static __device__ int two() { return 2; }\n"
    head = 'extern "C" __global__ void __launch_bounds__(32, 1) '
    kernels = [
        f"// first\n{head}k0(int* p) {{\n  *p = one(A());\n}}\n",
        f"// b\n// c\n{head}k1(int* p) {{\n  *p = two();\n}}\n",
    ]
    source = HELPERS_MARK + helpers + "\n" + KERNELS_MARK + "\n".join(kernels)
    one, two = kernel_texts(source)
    assert "two" not in one.text
    assert "struct A" in one.text
    assert "one" not in two.text
    assert "struct A" not in two.text
    lines = source.splitlines()
    for text in (one, two):
        assert lines[text.line - 1].startswith('extern "C"')
    changed = kernel_texts(source.replace("return a.x", "return a.x + 1"))
    assert changed[0].entries != one.entries
    assert changed[1].entries == two.entries
    with pytest.raises(CompileError, match=rf"text.cu:{two.line + 1}: .*refuses the text"):
        compile_cubin(source.replace("two();", "three();"), "sm_90a", "text.cu")


def test_machine_code_is_checked() -> None:
    code = {"k0": MachineCode(b"abc", "k_1"), "k1": MachineCode(b"abc", "k_1"), "k2": MachineCode(b"", "k_2")}
    data = pack(code)
    assert unpack(data) == code
    assert data.count(b"abc") == 1
    for wrong in (b"", b"\x7fELF", data[:-1], data.replace(b"[", b"{", 1), b"deplodock kernels []\n"):
        with pytest.raises(ExecutionError, match="expected machine code"):
            unpack(wrong)


def test_errors() -> None:
    with pytest.raises(CompileError, match="refuses the text.*identifier"):
        compile_cubin('extern "C" __global__ void k() { nothing; }', "sm_90a", cached=False)
    for arch in ("sm_90a; rm", "compute_90", "sm_12345", "", "sm_90 --help"):
        with pytest.raises(TargetError):
            check_arch(arch)


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k0' for 'sm_90a'
ptxas info    : Function properties for k0
ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 31 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'k1' for 'sm_90a'
ptxas info    : Function properties for k1
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


def test_the_log() -> None:
    uses = kernel_uses(LOG)
    assert uses == {"k0": KernelUse(31, 16, 24, 8, 128), "k1": KernelUse(12)}
    assert uses["k0"].spills == 40


def test_spills_are_seen() -> None:
    """An array with an index that is unknown at compile time is in local memory, and counts."""
    source = """extern "C" __global__ void k(float* y, int n) {
      float a[64];
      for (int i = 0; i < 64; ++i) a[i] = y[i];
      a[n] = 1.0f;
      for (int i = 0; i < n; ++i) y[i] = a[(i * 7) % 64];
    }"""
    compiled = compile_cubin(source, "sm_90a", cached=False)
    assert compiled.kernels["k"].stack == 256
    assert disassemble(compiled.cubin)["k"].spills > 0


LISTING = """\t.section\t.text.k0,"ax",@progbits
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/              @!P1 STG.E.64 desc[UR4][R2.64], R4 ;
        /*0030*/                   LDG.E.U16 R4, desc[UR4][R2.64] ;
        /*0040*/                   STL [R1], R4 ;
"""


def test_the_listing() -> None:
    code = parse_listing(LISTING)["k0"]
    assert code.widths("LDG") == {16: 1, 128: 1}
    assert code.widths("STG") == {64: 1}
    assert code.spills == 1
    assert code.count("LDC") == 1


LOOPS = """\t.section\t.text.k0,"ax",@progbits
.L_x_0:
        /*0000*/                   FADD R1, R1, R2 ;          /* 0x0000000000000000 */
                                                              /* 0x0000080000000000 */
.L_x_1:
        /*0010*/                   HGMMA.64x8x16.F32 R4, R5 ; /* 0x0000000000000000 */
                                                              /* 0x0000200000000000 */
        /*0020*/               @P0 BRA `(.L_x_1) ;            /* 0x0000000000000000 */
                                                              /* 0x00000a0000000000 */
        /*0030*/              @!P1 BRA `(.L_x_0) ;            /* 0x0000000000000000 */
                                                              /* 0x00000a0000000000 */
        /*0040*/                   BRA `(.L_x_1) ;            /* 0x0000000000000000 */
                                                              /* 0x00000a0000000000 */
"""


def test_innermost_loops_of_a_listing() -> None:
    """An unconditional branch back, as code that spins on a barrier has, is not the end of a loop."""
    outer, loop = parse_listing(LOOPS)["k0"].loops
    assert (len(outer), len(outer.outer)) == (4, 2)
    assert (len(loop), loop.count("HGMMA"), loop.stall_cycles) == (2, 1, 5)
    assert parse_listing(LISTING)["k0"].loops == []


def test_occupancy() -> None:
    target = TARGETS["sm_90a"]
    assert occupancy(target, 256, 32, 0) == 8
    assert occupancy(target, 256, 64, 0) == 4
    assert occupancy(target, 32, 16, 0) == 32
    assert occupancy(target, 64, 140, 0) == 6  # three warps fit into each of four partitions, not 14 into all
    assert occupancy(target, 256, 32, 100 * 1024) == 2
    assert occupancy(target, 256, 32, 300 * 1024) == 0
    assert occupancy(target, 1024, 128, 0) == 0


@pytest.mark.parametrize(("version", "uncached"), [((13, 0), True), ((12, 4), False)])
def test_a_text_that_nvrtc_knows_has_a_log(
    version: tuple[int, int], uncached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC 13 has a cache and an empty log for a cached text. A flag disables the cache; older versions lack it."""
    compiled = set[str]()

    def compile_as_nvrtc_does(source: str, flags: tuple[str, ...], *_: str) -> bytes:
        known = source in compiled and "-no-cache" not in flags and version >= (13, 0)
        compiled.add(source)
        assert ("-no-cache" in flags) == uncached
        (entry,) = re.findall(r"void .*?(k_\w+)\(", source)
        log = f"Compiling entry function '{entry}'\nUsed 8 registers"
        return (b"" if known else log.encode()) + b"\0cubin"

    monkeypatch.setattr(nvrtc, "_compile", compile_as_nvrtc_does)
    monkeypatch.setattr(nvrtc, "compiler_build", lambda: (version, "a build"))
    source = f'{HELPERS_MARK}\n{KERNELS_MARK}extern "C" __global__ void k0(float* x) {{\n  x[0] = 1.0f;\n}}\n'
    for _ in range(2):
        assert compile_cubin(source, "sm_90a", cached=False).kernels["k0"].registers == 8
