"""Results that are stored in parts through shared memory and TMA: right, without conflicts; bugs are detected."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from support.warpgroup_products import TO_KERNEL, TO_TILE, Product
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, make_context, tile
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.dialects.tile.copies import SliceOp, TmaStoreOp
from deplodock.errors import DeplodockError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

PROGRAM = """
func.func @main(%x: tensor<{m}x{k}xbf16>, %w: tensor<{n}x{k}xbf16>, %r: tensor<{rm}x{rn}x{type}>, %b: tensor<{n}xf32>)
    -> tensor<{rm}x{rn}x{type}> {{
  %y = loop.nest ({order}) in [{rm}, {rn}] -> tensor<{rm}x{rn}x{type}> attributes {{schedule = #tile.schedule<
      block = {block}, chunk = [64], warps = {warps}, atom = wgmma, copy = tma, stages = {stages},
      num_ctas = {num_ctas}>}} {{
    %s = loop.reduce add (%k) in [{k}] -> f32 {{
      %0 = loop.load %x[%i, %k] : tensor<{m}x{k}xbf16>
      %1 = payload.cast %0 : bf16 -> f32
      %2 = loop.load %w[%j, %k] : tensor<{n}x{k}xbf16>
      %3 = payload.cast %2 : bf16 -> f32
      %4 = arith.mulf %1, %3 : f32
      loop.yield %4 : f32
    }}
    %5 = loop.load %r[{beside}] : tensor<{rm}x{rn}x{type}>
    {widen}
    %7 = arith.addf %s, %6 : f32
    %8 = loop.load %b[%j] : tensor<{n}xf32>
    %9 = arith.addf %7, %8 : f32
    {narrow}
    loop.yield %10 : {type}
  }}
  func.return %y : tensor<{rm}x{rn}x{type}>
}}
"""


class Residual(Product):
    """A matmul plus residual plus bias, with the result in row-major or column-major order."""

    across = turned = False

    def parse(self) -> ModuleOp:
        """Returns the parsed loop nest."""
        wide, rows = self.type == "f32", (self.n, self.m) if self.across else (self.m, self.n)
        text = PROGRAM.format(
            **{"m": self.m, "n": self.n, "k": self.k, "rm": rows[0], "rn": rows[1], "type": self.type},
            order="%j, %i" if self.across else "%i, %j",
            beside="%j, %i" if self.across or self.turned else "%i, %j",
            widen="%zero = payload.constant 0.0 : f32\n    %6 = arith.addf %5, %zero : f32"
            if wide
            else f"%6 = payload.cast %5 : {self.type} -> f32",
            narrow="%zero2 = payload.constant 0.0 : f32\n    %10 = arith.addf %9, %zero2 : f32"
            if wide
            else f"%10 = payload.cast %9 : f32 -> {self.type}",
            block=list(self.block[::-1] if self.across else self.block),
            **{"warps": self.warps, "stages": self.stages, "num_ctas": self.persistent},
        )
        return parse_module(make_context(), text, "residual.mlir")

    def inputs(self) -> list[np.ndarray]:
        """Returns operands of small integers, for which every sum is exact."""
        rng = np.random.default_rng(self.m + self.n)
        shape = (self.n, self.m) if self.across else (self.m, self.n)
        kind = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}[self.type]
        narrow = [rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((self.m, self.k), (self.n, self.k))]
        return [*narrow, rng.integers(-3, 4, shape).astype(kind), rng.integers(-3, 4, self.n).astype(np.float32)]


class Across(Residual):
    """The result is stored in column-major order, so the block computes it transposed."""

    across = True


class Turned(Residual):
    """The residual is stored in column-major order, so a warpgroup also loads parts that others need."""

    turned = True


PRODUCTS: dict[str, Product] = {
    "two parts": Residual(136, 200, 72, (128, 128), 64, 8, "tma", 2),
    "four parts, persistent": Residual(136, 264, 72, (128, 256), 64, 8, "tma", 2, persistent=3),
    "one warpgroup": Residual(72, 136, 72, (64, 128), 64, 4, "tma", 2, type="f16"),
    "no box": Residual(72, 132, 72, (64, 128), 64, 4, "tma", 2),
    "f32": Residual(72, 136, 72, (64, 128), 64, 4, "tma", 2, type="f32"),
    "turned": Turned(136, 136, 72, (128, 128), 64, 8, "tma", 2),
    "columns": Across(72, 136, 72, (128, 128), 64, 8, "tma", 2),
}
BOXES = {"turned": 2, "two parts": 2, "four parts, persistent": 4, "one warpgroup": 2, "columns": 2}
"""How many boxes leave for a tile."""


@cache
def emulated() -> dict[str, EmulatedProgram]:
    """Returns all matmuls, built for the emulator together."""
    modules = {name: p.lowered() for name, p in PRODUCTS.items()}
    texts = {name: print_cuda(m) for name, m in modules.items()}
    built = compile_many(list(texts.values()))
    return {n: EmulatedProgram(texts[n], make_plan(modules[n]), b) for n, b in zip(PRODUCTS, built, strict=True)}


@pytest.mark.parametrize("name", PRODUCTS)
def test_tiles(name: str) -> None:
    """At the tile level the result is exact, and tiles that pass through shared memory are at most 128 bytes wide."""
    p = PRODUCTS[name]
    module = p.tiles()
    ops = list(module.walk())
    assert sum(isinstance(o, TmaStoreOp) for o in ops) == BOXES.get(name, 0)
    parts = [o for o in ops if isinstance(o, SliceOp)]
    assert bool(parts) == ("f32" not in name)
    for op in ops:
        if isinstance(op, tile.ConvertLayoutOp | tile.StageOp):
            shape, size = op.result.type.get_shape(), 4 if p.type == "f32" else 2  # pyright: ignore
            assert shape[1] * size <= 128
    (wanted,), (found,) = run(p.parse(), p.inputs(), "exact"), run(module, p.inputs(), "exact")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", PRODUCTS)
def test_emulated(name: str) -> None:
    """The emulated CUDA is right for any order in which asynchronous operations finish."""
    p = PRODUCTS[name]
    (wanted,) = run(p.parse(), p.inputs(), "typed")
    (found,), reports = emulated()[name].run(p.inputs(), (0, 1, 7))
    assert [str(r) for r in reports] == []
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("name", ["columns", "no box"])
def test_simulated(name: str) -> None:
    """The simulated kernel is exact in the exact domain, and accesses shared memory without bank conflicts."""
    p = PRODUCTS[name]
    (wanted,) = run(p.parse(), p.inputs(), "exact")
    found = simulate(p.lowered(), p.inputs(), domain="exact")
    found.report.raise_errors()
    np.testing.assert_array_equal(found.outputs[0], wanted)
    (counts,) = found.report.launches
    assert counts.wavefronts == counts.ideal_wavefronts


@pytest.mark.parametrize("name", ["four parts, persistent"])
def test_machine_code(name: str) -> None:
    """Parts are written to shared memory by stmatrix and stored by TMA, without spills."""
    p = PRODUCTS[name]
    compiled = compile_cubin(print_cuda(p.lowered()), "sm_90a")
    (use,) = compiled.kernels.values()
    assert use.spills == use.stack == 0
    assert not compiled.warnings
    code = disassemble(compiled.cubin)["k0"]
    assert code.count("UTMASTG") == BOXES[name]
    assert code.count("STSM") == p.block[0] // 64 * p.block[1] // 16 if p.block[0] == 64 else p.block[1] // 16
    assert code.count("STG") == code.spills == 0


def test_four_stages() -> None:
    """The largest tile with four stages and the parts of the result fit in shared memory."""
    module = Product(256, 256, 512, (128, 256), 64, 8, "tma", 4).lowered()
    (function,) = (o for o in module.ops if isinstance(o, kernel.FuncOp))
    assert function.shared is not None
    assert function.shared.data <= 227 * 1024


BUGS = {
    "no fence before the box": ("kernel.fence_async", "", "fence_async();", ""),
    "no wait before a buffer is filled again": ("kernel.bulk_wait 1 read", "", "bulk_wait_read<1>();", ""),
    "a wait that leaves one group too many": (
        "kernel.bulk_wait 1 read",
        "kernel.bulk_wait 2 read",
        "bulk_wait_read<1>",
        "bulk_wait_read<2>",
    ),
    "no wait at the end": ("kernel.bulk_wait 0 read", "", "bulk_wait_read<0>();", ""),
    "no barriers": ("kernel.group_barrier 1 warps 4", "", "group_barrier<128>(1);", ""),
    "another swizzle": ("xor steps [16, 32]", "xor steps [32, 16]", "^ (i * 2)", "^ (i * 2 ^ 8)"),
    "the group is never closed": ("kernel.bulk_commit", "", "bulk_commit();", ""),
}
"""Name -> a mistake in the IR and in the CUDA: what becomes what."""


BROKEN = Product(64, 200, 64, (64, 256), 64, 4, "tma", 1)


@cache
def broken() -> dict[str, EmulatedProgram]:
    """Returns a program for the emulator for each bug in the CUDA text, built together."""
    sound = BROKEN.lowered()
    source = print_cuda(sound)
    texts = [source.replace(old, new) for _, _, old, new in BUGS.values()]
    assert source not in texts
    found = zip(texts, compile_many(texts), strict=True)
    return {bug: EmulatedProgram(t, make_plan(sound), b) for bug, (t, b) in zip(BUGS, found, strict=True)}


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_are_noticed(bug: str) -> None:
    """For a bug in the IR or in the CUDA the emulator reports an error or computes wrong results."""
    old, new, _, _ = BUGS[bug]
    (wanted,) = run(BROKEN.parse(), BROKEN.inputs(), "typed")
    text = print_module(BROKEN.lowered())
    assert old in text
    try:
        module = parse_module(make_context(), text.replace(old, new), "broken.mlir")
        outputs, reports = EmulatedProgram(print_cuda(module), make_plan(module)).run(BROKEN.inputs(), (0, 1))
        assert reports or _differ(outputs[0], wanted)
    except DeplodockError as error:
        assert str(error)  # noqa: PT017
    outputs, reports = broken()[bug].run(BROKEN.inputs(), (0, 1))
    assert reports or _differ(outputs[0], wanted)


def _differ(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool((found.astype(np.float32) != wanted.astype(np.float32)).any())


LENGTHS = """
#s0 = #payload.symbol<s0[1:1025]>
!A = tensor<?x64xbf16, #payload.extents<#s0, 64>>
!Y = tensor<?x72xbf16, #payload.extents<#s0, 72>>
func.func @main(%a: !A, %b: tensor<72x64xbf16>) -> !Y {
  %c = loop.nest (%i, %j) in [#s0, 72] -> !Y
      attributes {schedule = #tile.schedule<block = [64, 128], chunk = [64], warps = 4, atom = wgmma, copy = tma>} {
    %0 = loop.reduce add (%k) in [64] -> f32 {
      %1 = loop.load %a[%i, %k] : !A
      %2 = payload.cast %1 : bf16 -> f32
      %3 = loop.load %b[%j, %k] : tensor<72x64xbf16>
      %4 = payload.cast %3 : bf16 -> f32
      %5 = arith.mulf %2, %4 : f32
      loop.yield %5 : f32
    }
    %6 = payload.cast %0 : f32 -> bf16
    loop.yield %6 : bf16
  }
  func.return %c : !Y
}
"""


def test_a_number_of_rows_known_at_run_time() -> None:
    """TMA stores end at the end of the buffer, whose size is dynamic."""
    module = parse_module(make_context(), LENGTHS, "lengths.mlir")
    run_passes(make_context(), module, parse_passes(f"{TO_TILE},{TO_KERNEL}"))
    text = print_cuda(module)
    assert text.count("tma_store2(&") == 2
    program = EmulatedProgram(text, make_plan(module))
    for n in (1, 130):
        rng = np.random.default_rng(n)
        a, b = (rng.integers(-3, 4, (rows, 64)).astype(ml_dtypes.bfloat16) for rows in (n, 72))
        want = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16).astype(np.float32)
        (got,), reports = program.run([a, b], seeds=(0,))
        assert not reports
        np.testing.assert_array_equal(got.astype(np.float32), want)
        found = simulate(module, [a, b])
        found.report.raise_errors()
        np.testing.assert_array_equal(found.outputs[0].astype(np.float32), want)


TRANSPOSED = """
#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
    warp = [[16, 0], [32, 0], [64, 0]]>
#wide = #tile.layout<reg = [[1, 0], [2, 0], [4, 0], [0, 16], [0, 32]],
    lane = [[8, 0], [16, 0], [32, 0], [0, 1], [0, 2]], warp = [[0, 4], [0, 8], [64, 0]]>
tile.kernel @k0(%x: memref<128x64xf16>, %y: memref<64x128xf16>) blocks () in [] warps 8
    attributes {schedule = #tile.schedule<block = [128, 64], warps = 8, copy = tma>} {
  %o = tile.load %x[d0, d1] : memref<128x64xf16> -> tensor<128x64xf16, #acc>
  %w = tile.convert_layout %o : tensor<128x64xf16, #acc> -> tensor<128x64xf16, #wide>
  tile.store %w, %y[d1, d0] : tensor<128x64xf16, #wide>, memref<64x128xf16>
}
func.func @main(%x: tensor<128x64xf16>) -> tensor<64x128xf16> {
  %y = tile.launch @k0(%x) : (tensor<128x64xf16>) -> tensor<64x128xf16>
  func.return %y : tensor<64x128xf16>
}
"""


def test_a_tile_that_leaves_transposed() -> None:
    """Rows of the tile are columns of the buffer: stmatrix transposes, and each warpgroup stores a part of its own."""
    module = parse_module(make_context(), TRANSPOSED, "transposed.mlir")
    run_passes(make_context(), module, parse_passes(f"tile-tma-epilogue,{TO_KERNEL}"))
    (store,) = (o for o in module.walk() if isinstance(o, kernel.StMatrixOp))
    assert store.trans is not None
    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64) % 2048
    found = simulate(module, [x.astype(np.float16)])
    found.report.raise_errors()
    np.testing.assert_array_equal(found.outputs[0], x.T)
    (counts,) = found.report.launches
    assert counts.wavefronts == counts.ideal_wavefronts
    text = print_cuda(module)
    assert "group_barrier<128>(1 + threadIdx.x / 128)" in text
    (got,), reports = EmulatedProgram(text, make_plan(module)).run([x.astype(np.float16)], seeds=(0,))
    assert not reports
    np.testing.assert_array_equal(got, x.T)


def test_parts_of_programs_without_schedules() -> None:
    """Results are stored by TMA only if the schedule has `copy = tma`."""
    p = Product(72, 136, 72, (64, 128), 64, 4, "cp_async", 2)
    module = p.parse()
    run_passes(make_context(), module, parse_passes(f"{TO_TILE},{TO_KERNEL}"))
    assert not any(isinstance(o, kernel.TmaStoreOp) for o in module.walk())
