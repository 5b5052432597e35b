"""The simulator of kernels: a correct kernel with a reduction over a block, and each kind of bug planted in it."""

from __future__ import annotations

import numpy as np
import pytest

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ExecutionError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

RNG = np.random.default_rng(1)


def module(text: str):
    return parse_module(make_context(), text, "test.mlir")


# Each block divides its row by the row's sum: 64 threads, 4 elements each, 250 of 256 in bounds.
ROW = """
kernel.func @k0(%x: memref<6x250xf32>, %y: memref<6x250xf32>) grid [6] warps 2 {
  %zero = payload.constant 0.0 : f32
  %c4 = arith.constant 4 : index
  %c0 = arith.constant 0 : index
  %i = kernel.id block
  %t = kernel.id thread
  %lane = kernel.id lane
  %warp = kernel.id warp
  %j = arith.muli %t, %c4 : index
  %v = kernel.load %x[%i, %j] regs [[0, 1], [0, 2]] vec 2 where 0 <= %j < 250 steps [[0], [2]] else %zero
       : memref<6x250xf32> -> vector<4xf32>
  %s4 = kernel.reduce_registers add %v over [0, 1] : vector<4xf32> -> vector<1xf32>
  %s5 = kernel.shuffle_xor %s4 by 16 : vector<1xf32>
  %a5 = arith.addf %s4, %s5 : vector<1xf32>
  %s6 = kernel.shuffle_xor %a5 by 8 : vector<1xf32>
  %a6 = arith.addf %a5, %s6 : vector<1xf32>
  %s7 = kernel.shuffle_xor %a6 by 4 : vector<1xf32>
  %a7 = arith.addf %a6, %s7 : vector<1xf32>
  %s8 = kernel.shuffle_xor %a7 by 2 : vector<1xf32>
  %a8 = arith.addf %a7, %s8 : vector<1xf32>
  %s9 = kernel.shuffle_xor %a8 by 1 : vector<1xf32>
  %a9 = arith.addf %a8, %s9 : vector<1xf32>
  %first = payload.cmp eq %lane, %c0 : index
  %b = kernel.shared : memref<2xf32, "shared">
  kernel.store %a9, %b[%warp] if %first : memref<2xf32, "shared">, vector<1xf32>
  kernel.barrier
  %p = kernel.load %b[%c0] regs [[1]] vec 2 : memref<2xf32, "shared"> -> vector<2xf32>
  %q = kernel.reduce_registers add %p over [0] : vector<2xf32> -> vector<1xf32>
  %r = kernel.shuffle_registers %q from [0, 0, 0, 0] : vector<1xf32> -> vector<4xf32>
  %o = arith.divf %v, %r : vector<4xf32>
  kernel.store %o, %y[%i, %j] regs [[0, 1], [0, 2]] vec 2 where 0 <= %j < 250 steps [[0], [2]]
       : memref<6x250xf32>, vector<4xf32>
}
func.func @main(%x: memref<6x250xf32>, %y: memref<6x250xf32>) {
  kernel.launch @k0(%x, %y) : memref<6x250xf32>, memref<6x250xf32>
  func.return
}
"""
AS_TENSOR = """
func.func @main(%x: tensor<6x250xf32>) -> tensor<6x250xf32> {
  %s = tensor.reduce add %x over [1] : tensor<6x250xf32> -> tensor<6xf32>
  %b = tensor.index_map %s[d0] : tensor<6xf32> -> tensor<6x250xf32>
  %y = arith.divf %x, %b : tensor<6x250xf32>
  func.return %y : tensor<6x250xf32>
}
"""


def rows():
    return RNG.random((6, 250)).astype(np.float32)


def findings(text: str, *args) -> dict[str, str]:
    _, report = simulate(module(text), list(args))
    return {f.kind: str(f) for f in report.findings}


def objections(text: str, *args) -> dict[str, str]:
    """Returns the emulator's reports on the printed CUDA by kind, because the simulator does not order accesses."""
    program = module(text)
    run_passes(make_context(), program, parse_passes("kernel-allocate-shared"))
    _, reports = run_cuda_on_cpu(print_cuda(program), make_plan(program), list(args), (0,))
    return {r.kind: str(r) for r in reports}


def planted(old: str, new: str, times: int = 1) -> dict[str, str]:
    assert ROW.count(old) >= times
    return findings(ROW.replace(old, new, times), rows())


def test_a_clean_kernel():
    x = rows()
    (y,), report = simulate(module(ROW), [x])
    assert not report.findings, str(report)
    np.testing.assert_allclose(y, x / x.sum(axis=1, keepdims=True), rtol=1e-5)
    (counts,) = report.launches
    assert counts.blocks == 6
    assert counts.loaded == {0: x.nbytes}
    assert counts.stored == {1: x.nbytes}
    assert counts.barriers == 1
    assert counts.flops == 6 * 64 * (3 + 5 + 1 + 4)
    assert (counts.wavefronts, counts.ideal_wavefronts) == (6, 6)  # two one-lane stores, two broadcasts in two halves


def test_exact_equals_the_tensor_level():
    x = rows()
    (got,), _ = simulate(module(ROW), [x], domain="exact")
    np.testing.assert_array_equal(got, run(module(AS_TENSOR), [x], "exact")[0])
    (wrong,), _ = simulate(module(ROW.replace("%a7, %s8", "%a7, %a7")), [x], domain="exact")
    assert np.all(wrong != got)


def test_a_dropped_barrier_is_a_race():
    text = ROW.replace("  kernel.barrier\n", "")
    assert not findings(text, rows())
    assert not objections(ROW, rows())
    assert "race" in objections(text, rows())


def test_a_missing_store_is_an_uninitialised_read():
    found = planted("payload.cmp eq %lane, %c0", "payload.cmp lt %lane, %c0")
    assert "shared memory that was never written" in found["uninitialised"]


def test_an_access_off_by_one_is_out_of_bounds():
    found = planted("< 250 steps [[0], [2]] else", "< 251 steps [[0], [2]] else")
    assert "coordinate 1 is 250, outside 0..249" in found["out-of-bounds"]
    found = planted("%b[%c0] regs", "%b[%c4] regs")
    assert "coordinate 0 is 4, outside 0..1" in found["out-of-bounds"]


def test_a_wide_access_at_an_odd_place_is_misaligned():
    text = ROW.replace(
        "regs [[0, 1], [0, 2]] vec 2 where 0 <= %j < 250 steps [[0], [2]]",
        "regs [[0, 1], [0, 2]] vec 4 where 0 <= %j < 250 steps [[0], [0]]",
    )
    found = findings(text, rows())
    assert "an access of 16 bytes" in found["misaligned"]


def test_a_barrier_that_some_threads_skip_is_divergent():
    barrier = "  scf.if %first {\n    kernel.barrier\n  }\n"
    found = planted("  kernel.barrier\n", barrier)
    assert "does not reach a barrier" in found["divergent"]
    assert "kernel.barrier" in found["divergent"]


def test_a_barrier_that_whole_blocks_skip_is_not():
    text = ROW.replace(
        "  kernel.barrier\n",
        "  kernel.barrier\n  %even = payload.cmp lt %i, %c4 : index\n  scf.if %even {\n    kernel.barrier\n  }\n",
    )
    assert not findings(text, rows())


def test_threads_that_write_one_element_differently_conflict():
    found = planted("kernel.store %o, %y[%i, %j]", "kernel.store %o, %y[%c0, %j]")
    assert "writes an element that another writes differently" in found["conflict"]
    assert "1250 elements of result 0 are never written, the first is [1, 0]" in found["unwritten"]


def test_equal_duplicate_stores_are_counted_not_reported():
    text = ROW.replace("%b[%warp] if %first", "%b[%warp]")
    _, report = simulate(module(text), [rows()])
    assert not report.findings


def test_a_loop_carries_a_race_around():
    """Each iteration writes, waits and reads, but nothing orders the next iteration's write after the read."""
    loop = """
    kernel.func @k0(%x: memref<64xf32>, %y: memref<64xf32>) grid [1] warps 2 {{
      %t = kernel.id thread
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c3 = arith.constant 3 : index
      %c63 = arith.constant 63 : index
      %b = kernel.shared : memref<64xf32, "shared">
      %v = kernel.load %x[%t] : memref<64xf32> -> vector<1xf32>
      %m = arith.subi %c63, %t : index
      %r = scf.for %k = %c0 to %c3 step %c1 iter_args(%a = %v) -> (vector<1xf32>) {{
        kernel.store %a, %b[%t] : memref<64xf32, "shared">, vector<1xf32>
        kernel.barrier
        %l = kernel.load %b[%m] : memref<64xf32, "shared"> -> vector<1xf32>
        %n = arith.addf %a, %l : vector<1xf32>
        {end}
        scf.yield %n : vector<1xf32>
      }}
      kernel.store %r, %y[%t] : memref<64xf32>, vector<1xf32>
    }}
    func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {{
      kernel.launch @k0(%x, %y) : memref<64xf32>, memref<64xf32>
      func.return
    }}"""
    x = RNG.standard_normal(64).astype(np.float32)
    assert "race" in objections(loop.format(end=""), x)
    assert not objections(loop.format(end="kernel.barrier"), x)
    (y,), report = simulate(module(loop.format(end="kernel.barrier")), [x])
    assert not report.findings
    np.testing.assert_allclose(y, 4 * (x + x[::-1]), rtol=1e-5)


OVERLAP = """
kernel.func @k0(%x: memref<64xf32>, %y: memref<64xf32>) grid [1] warps 2 shared 384 {{
  %t = kernel.id thread
  %a = kernel.shared at 0 : memref<64xf32, "shared">
  %b = kernel.shared at {at} : memref<32xf32, "shared">
  %c32 = arith.constant 32 : index
  %v = kernel.load %x[%t] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %a[%t] : memref<64xf32, "shared">, vector<1xf32>
  kernel.barrier
  %low = payload.cmp lt %t, %c32 : index
  kernel.store %v, %b[%t] if %low : memref<32xf32, "shared">, vector<1xf32>
  kernel.barrier
  %r = kernel.load %a[%t] : memref<64xf32, "shared"> -> vector<1xf32>
  kernel.store %r, %y[%t] : memref<64xf32>, vector<1xf32>
}}
func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {{
  kernel.launch @k0(%x, %y) : memref<64xf32>, memref<64xf32>
  func.return
}}"""


def test_overlapping_buffers():
    x = RNG.standard_normal(64).astype(np.float32)
    assert not findings(OVERLAP.format(at=256), x)
    texts = [print_cuda(module(OVERLAP.format(at=at))) for at in (256, 128)]
    found = [run_cuda_on_cpu(t, make_plan(module(OVERLAP.format(at=256))), [x], (0,))[0][0] for t in texts]
    np.testing.assert_array_equal(found[0], x)
    assert (found[1] != x).any(), "the emulator's buffers lie where they say, the simulator's do not"
    assert "ends at byte 512 of 384" in findings(OVERLAP.format(at=384), x)["out-of-bounds"]


CONFLICTS = """
kernel.func @k0(%x: memref<32x{pitch}xf32>, %y: memref<32xf32>) grid [1] warps 1 {{
  %t = kernel.id thread
  %p = arith.constant {pitch} : index
  %o = arith.muli %t, %p : index
  %c0 = arith.constant 0 : index
  %v = kernel.load %x[%t, %c0] : memref<32x{pitch}xf32> -> vector<1xf32>
  %b = kernel.shared : memref<{size}xf32, "shared">
  kernel.store %v, %b[%o] : memref<{size}xf32, "shared">, vector<1xf32>
  kernel.store %v, %y[%t] : memref<32xf32>, vector<1xf32>
}}
func.func @main(%x: memref<32x{pitch}xf32>, %y: memref<32xf32>) {{
  kernel.launch @k0(%x, %y) : memref<32x{pitch}xf32>, memref<32xf32>
  func.return
}}"""


@pytest.mark.parametrize(
    ("pitch", "wavefronts", "sectors"), [(1, 1, 4), (2, 2, 8), (8, 8, 32), (32, 32, 32), (33, 1, 32)]
)
def test_bank_conflicts_and_sectors(pitch: int, wavefronts: int, sectors: int):
    text = CONFLICTS.format(pitch=pitch, size=32 * pitch)
    _, report = simulate(module(text), [RNG.standard_normal((32, pitch)).astype(np.float32)])
    (counts,) = report.launches
    assert (counts.wavefronts, counts.ideal_wavefronts) == (wavefronts, 1)
    assert (counts.sectors, counts.ideal_sectors) == (sectors + 4, 8)


FMA = """
kernel.func @k0(%a: memref<8x2xf32>, %b: memref<4xf32>, %y: memref<32x8xf32>, %z: memref<32x4xi64>) grid [1] warps 1 {
  %t = kernel.id thread
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %g = arith.andi %t, %c3 : index
  %l = kernel.load %a[%g, %c0] regs [[0, 1]] vec 2 : memref<8x2xf32> -> vector<2xf32>
  %r = kernel.load %b[%c0] regs [[1], [2]] vec 4 : memref<4xf32> -> vector<4xf32>
  %acc = payload.constant 1.0 : vector<8xf32>
  %o = kernel.outer_fma %l, %r, %acc rows [1] cols [0, 2] : vector<2xf32>, vector<4xf32>, vector<8xf32>
  kernel.store %o, %y[%t, %c0] regs [[0, 1], [0, 2], [0, 4]] vec 4 : memref<32x8xf32>, vector<8xf32>
  %i = kernel.indices %t steps [10, 100] : vector<4xindex>
  %n = payload.cast %i : vector<4xindex> -> vector<4xi64>
  kernel.store %n, %z[%t, %c0] regs [[0, 1], [0, 2]] : memref<32x4xi64>, vector<4xi64>
}
func.func @main(%a: memref<8x2xf32>, %b: memref<4xf32>, %y: memref<32x8xf32>, %z: memref<32x4xi64>) {
  kernel.launch @k0(%a, %b, %y, %z) : memref<8x2xf32>, memref<4xf32>, memref<32x8xf32>, memref<32x4xi64>
  func.return
}
"""


def test_registers_are_numbered_by_bits():
    a, b = RNG.standard_normal((8, 2)).astype(np.float32), RNG.standard_normal(4).astype(np.float32)
    (y, z), report = simulate(module(FMA), [a, b])
    assert not report.findings
    for t in (0, 5, 31):
        want = [1 + a[t % 4, (r >> 1) & 1] * b[(r & 1) | (r >> 2) << 1] for r in range(8)]
        np.testing.assert_allclose(y[t], want, rtol=1e-6)
        np.testing.assert_array_equal(z[t], [t, t + 10, t + 100, t + 110])


def test_host_program_with_a_temporary():
    text = ROW.replace(
        "  kernel.launch @k0(%x, %y) : memref<6x250xf32>, memref<6x250xf32>\n",
        "  %h = kernel.alloc : memref<6x250xf32>\n"
        "  kernel.launch @k0(%x, %h) : memref<6x250xf32>, memref<6x250xf32>\n"
        "  kernel.launch @k0(%h, %y) : memref<6x250xf32>, memref<6x250xf32>\n",
    )
    x = rows()
    (y,), report = simulate(module(text), [x])
    assert not report.findings
    np.testing.assert_allclose(y, x / x.sum(axis=1, keepdims=True), rtol=1e-5)
    swapped = text.replace("@k0(%x, %h)", "@k0(%h, %y)")
    assert "global memory that was never written" in findings(swapped, x)["uninitialised"]


def test_some_blocks_only_and_refusals():
    x = rows()
    (y,), report = simulate(module(ROW), [x], max_blocks=2)
    assert not report.findings
    assert np.isnan(y[2:]).all()
    assert not np.isnan(y[:2]).any()
    with pytest.raises(ExecutionError, match=r"argument 0 of @main: expected float32\[6, 250\]"):
        simulate(module(ROW), [x[:3]])
    _, report = simulate(module(ROW.replace("%b[%c0] regs", "%b[%c4] regs")), [x])
    with pytest.raises(ExecutionError, match=r"test.mlir:28:3: out-of-bounds: thread 0 .*: %p = kernel.load"):
        report.raise_errors()
