"""Random layouts, also ones that no pass would choose: loads, conversions, indices, reductions and stores."""

from __future__ import annotations

import random

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.interpreter.domains import Array
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.layouts import format_bases
from deplodock.dialects.layouts.linear import LANES, Linear, pack, unpack
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ScheduleError
from deplodock.passes.pipelines import parse_passes

SHAPE = (8, 32)

PROGRAM = """
tile.kernel @k0(%x: memref<8x32xf32>, %y: memref<8x32xf32>, %z: memref<{kept}xf32>) blocks () in [] warps {warps} {{
  %a = tile.load %x[d0, d1] : memref<8x32xf32> -> tensor<8x32xf32, {a}>
  %b = tile.convert_layout %a : tensor<8x32xf32, {a}> -> tensor<8x32xf32, {b}>
  %i = tile.affine d0 * 100 + d1 : tensor<8x32xindex, {b}>
  %l = payload.cast %i : tensor<8x32xindex, {b}> -> tensor<8x32xi64, {b}>
  %f = payload.cast %l : tensor<8x32xi64, {b}> -> tensor<8x32xf32, {b}>
  %o = arith.addf %b, %f : tensor<8x32xf32, {b}>
  tile.store %o, %y[d0, d1] : tensor<8x32xf32, {b}>, memref<8x32xf32>
  %c = tile.convert_layout %o : tensor<8x32xf32, {b}> -> tensor<8x32xf32, {c}>
  %r = tile.reduce add %c over [{d}] : tensor<8x32xf32, {c}> -> tensor<{kept}xf32, {r}>
  tile.store %r, %z[d0] : tensor<{kept}xf32, {r}>, memref<{kept}xf32>
}}
func.func @main(%x: tensor<8x32xf32>) -> (tensor<8x32xf32>, tensor<{kept}xf32>) {{
  %y, %z = tile.launch @k0(%x) : (tensor<8x32xf32>) -> (tensor<8x32xf32>, tensor<{kept}xf32>)
  func.return %y, %z : tensor<8x32xf32>, tensor<{kept}xf32>
}}
"""


def random_layout(rng: random.Random, warp_bits: int, mixed: bool) -> Linear:
    """Returns a layout of shuffled unit bases, with zero bases to fill the block. `mixed` XORs bases with others."""
    bits = [1 << i for i in range(8)]
    bits += [0] * max(rng.randrange(3), 5 + warp_bits - len(bits))
    rng.shuffle(bits)
    if mixed:
        for _ in range(6):
            i, j = rng.sample(range(len(bits)), 2)
            bits[i] ^= bits[j]
    bases = [unpack(SHAPE, b) for b in bits]
    threads = 5 + warp_bits
    return Linear(SHAPE, tuple(bases[threads:]), tuple(bases[:5]), tuple(bases[5:threads]))


def text(layout: Linear) -> str:
    reg, lane, warp = (format_bases(b) for b in (layout.reg, layout.lane, layout.warp))
    return f"#tile.layout<reg = {reg}, lane = {lane}, warp = {warp}>"


def lowered(program: str) -> ModuleOp:
    ctx = make_context()
    module = parse_module(ctx, program, "test.mlir")
    for p in parse_passes("convert-tile-to-kernel,cse,dce,kernel-allocate-shared,kernel-insert-barriers"):
        p.apply(ctx, module)
        module.verify()
    return module


def check(program: str, args: list[Array]) -> None:
    expected = run(parse_module(make_context(), program, "test.mlir"), args, "exact")
    found = simulate(lowered(program), args, domain="exact")
    assert not found.report.findings, str(found.report)
    assert all(c.duplicates == 0 for c in found.report.launches)
    for got, wanted in zip(found.outputs, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


@pytest.mark.parametrize("seed", range(24))
def test_any_layout(seed: int) -> None:
    rng = random.Random(seed)
    warp_bits, d = rng.randrange(4), rng.randrange(2)
    a, b = (random_layout(rng, warp_bits, mixed=True) for _ in range(2))
    c = random_layout(rng, warp_bits, mixed=False)
    program = PROGRAM.format(
        warps=1 << warp_bits, a=text(a), b=text(b), c=text(c), d=d, kept=SHAPE[1 - d], r=text(c.drop([d]))
    )
    check(program, [X])


LOOP = """
tile.kernel @k0(%x: memref<36x32xf32>, %y: memref<8x32xf32>) blocks () in [] warps 2 {{
  %zero = payload.constant 0.0 : tensor<8x32xf32, {a}>
  %c0 = payload.constant {start} : index
  %c32 = payload.constant 24 : index
  %c6 = payload.constant {step} : index
  %s = scf.for %k = %c0 to %c32 step %c6 iter_args(%acc = %zero) -> (tensor<8x32xf32, {a}>) {{
    %t = tile.load %x[%k + d0, d1]
         : memref<36x32xf32> -> tensor<8x32xf32, {a}>
    %u = tile.load %x[d1, d0 + %k]
         : memref<36x32xf32> -> tensor<8x32xf32, {a}>
    %m = arith.mulf %t, %u : tensor<8x32xf32, {a}>
    %n = arith.addf %acc, %m : tensor<8x32xf32, {a}>
    scf.yield %n : tensor<8x32xf32, {a}>
  }}
  tile.store %s, %y[d0, d1] : tensor<8x32xf32, {a}>, memref<8x32xf32>
}}
func.func @main(%x: tensor<36x32xf32>) -> tensor<8x32xf32> {{
  %y = tile.launch @k0(%x) : (tensor<36x32xf32>) -> tensor<8x32xf32>
  func.return %y : tensor<8x32xf32>
}}
"""

ROWS_FIRST = Linear(SHAPE, ((1, 0), (2, 0)), ((4, 0), (0, 1), (0, 2), (0, 4), (0, 8)), ((0, 16),))


@pytest.mark.parametrize(("start", "step", "width"), [(0, 4, 4), (0, 6, 2), (3, 4, 1), (4, 3, 1), (2, 8, 2)])
def test_the_width_of_an_access_follows_the_loop(start: int, step: int, width: int) -> None:
    program = LOOP.format(a=text(ROWS_FIRST), start=start, step=step)
    x = np.random.default_rng(1).standard_normal((36, 32)).astype(np.float32)
    check(program, [x])
    widths = [op.vec.data for op in lowered(program).walk() if op.name == "kernel.load"]  # pyright: ignore
    assert widths == [1, width]


BAD = {
    "too few elements": (
        "reg = [], lane = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]], warp = []",
        "leaves out elements",
    ),
    "too many warps": ("reg = [], lane = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]], warp = [[1, 0]]", "1 warps"),
    "outside": ("reg = [], lane = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 32]], warp = []", "inside of the tile"),
}


@pytest.mark.parametrize("case", BAD)
def test_layouts_that_cannot_be_are_refused(case: str) -> None:
    layout, reason = BAD[case]
    program = PROGRAM.format(warps=1, a=f"#tile.layout<{layout}>", b=0, c=0, d=0, kept=32, r=0).split("%b =")[0] + "}"
    with pytest.raises(ScheduleError, match=reason) as error:
        lowered(program)
    assert error.value.location is not None


def test_a_tile_without_a_layout_is_refused() -> None:
    text_ = "tile.kernel @k0(%x: memref<8xf32>) blocks () in [] warps 1 { %c = payload.constant 1.0 : tensor<8xf32> }"
    with pytest.raises(ScheduleError, match="tile-assign-layouts"):
        lowered(text_)


def test_random_layouts_are_what_they_should_be() -> None:
    rng = random.Random(3)
    found = [random_layout(rng, 2, mixed=True) for _ in range(20)]
    assert all(layout.is_surjective for layout in found)
    assert any(not layout.is_injective for layout in found)
    assert any(
        len({pack(SHAPE, b) for b in layout.reg}) < len(layout.reg) or layout.redundant().reg for layout in found
    )
    assert LANES == 1 << len(found[0].lane)
