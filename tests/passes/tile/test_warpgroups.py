"""Matmuls by warpgroups (wgmma), with every kind of copy, from loop nests to the printed CUDA and machine code."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from support.emulation import emulated_kernels
from support.warpgroup_products import PRODUCTS, TO_KERNEL, TO_TILE
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, make_context, tile
from deplodock.dialects.layouts.linear import Linear
from deplodock.dialects.layouts.mma import Boxes, boxes_along, boxes_of, part_of_group, warpgroup_accumulator
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.copies import (
    ConsumerReleaseOp,
    ConsumerWaitOp,
    ProducerLoadOp,
    RingOp,
    TmaLoadOp,
    WarpSpecializeOp,
)
from deplodock.errors import ExecutionError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

DECLINED = ("rows that are not aligned",)
"""Nothing is a box."""


@cache
def emulated() -> dict[str, EmulatedProgram]:
    """Returns all matmuls, built for the emulator together."""
    return emulated_kernels({name: p.lowered() for name, p in PRODUCTS.items()})


@pytest.mark.parametrize("name", PRODUCTS)
def test_tiles(name: str) -> None:
    """The tile level is exact, and has warp partitions and circular buffers if operands are loaded by TMA."""
    p = PRODUCTS[name]
    module = p.tiles()
    assert any(isinstance(o, WarpSpecializeOp) for o in module.walk()) == (p.copy == "tma" and name not in DECLINED)
    assert sum(isinstance(o, TmaLoadOp) and o.multicast is not None for o in module.walk()) == (p.cluster > 1)
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


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "cp.async",
        "boxes, panels",
        "boxes, both across",
        "boxes for mma",
        "clusters",
        "clusters, patches",
        "clusters, persistent",
        "clusters for mma",
        "sums of a cluster",
        "sums of a cluster, parts of columns",
        "sums of a cluster, two warpgroups",
        "sums of a cluster for mma",
        "sums of a cluster on CUDA cores",
    ],
)
def test_simulated(name: str) -> None:
    """The simulated kernel is exact in the exact domain, with every necessary wait, arrival and fence."""
    p = PRODUCTS[name]
    (wanted,) = run(p.parse(), p.inputs(), "exact")
    found = simulate(p.lowered(), p.inputs(), domain="exact")
    found.report.raise_errors()
    np.testing.assert_array_equal(found.outputs[0], wanted)


@pytest.mark.parametrize(
    "name", ["cp.async", "boxes", "boxes, panels", "clusters", "clusters, patches", "sums of a cluster"]
)
def test_machine_code(name: str) -> None:
    """Machine code has the expected wgmma and TMA instructions, no spills, and no serialised wgmma."""
    p = PRODUCTS[name]
    compiled = compile_cubin(print_cuda(p.lowered()), "sm_90a")
    (use,) = compiled.kernels.values()
    assert use.spills == use.stack == 0
    assert not compiled.warnings
    code = disassemble(compiled.cubin)["k0"]
    assert code.count("HGMMA") == p.chunk // 16
    assert code.count("UTMALDG") == (0 if p.copy != "tma" else 2 if p.right == "nk" else 3)
    assert code.count("HMMA") == code.spills == 0


def _without(module: ModuleOp, kind: type) -> ModuleOp:
    op = next(o for o in module.walk() if isinstance(o, kind))
    op.detach()
    op.erase()
    return module


@pytest.mark.parametrize(
    ("mutate", "why"),
    [
        (lambda m: _without(m, ConsumerReleaseOp), "deadlock: none of 3 slots"),
        (lambda m: _without(m, ProducerLoadOp), "deadlock: takes more"),
        (lambda m: _taken_once_more(m), "deadlock: takes more"),
    ],
)
def test_mistakes_with_rings_are_noticed_over_tiles(mutate, why: str) -> None:
    """A misused circular buffer ends in a deadlock, which the tile interpreter reports."""
    p = PRODUCTS["boxes"]
    with pytest.raises(ExecutionError, match=why):
        run(mutate(p.tiles()), p.inputs(), "typed")


@pytest.mark.parametrize("name", ["plain", "boxes"])
def test_in_flight_over_tiles(name: str) -> None:
    """Accumulators of asynchronous matmuls have the same values after their wait."""
    p, module = PRODUCTS[name], PRODUCTS[name].tiles()
    run_passes(make_context(), module, parse_passes("tile-pipeline-dots"))
    assert any(isinstance(o, tile.DotAsyncOp) for o in module.walk())
    (found,), (wanted,) = (run(m, p.inputs(), "typed") for m in (module, p.tiles()))
    assert np.array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize(
    ("release", "why"),
    [
        (lambda o: ConsumerReleaseOp(o.ring, None, o.condition), "releases a group of a ring before an older one"),
        (lambda o: ConsumerReleaseOp(o.ring, 1), "releases a slot of a ring that it did not take"),
    ],
)
def test_late_releases_are_checked_over_tiles(release, why: str) -> None:
    """Stages of a circular buffer must be released in the order in which they were acquired."""
    module = PRODUCTS["boxes"].tiles()
    run_passes(make_context(), module, parse_passes("tile-pipeline-dots"))
    late = next(o for o in module.walk() if isinstance(o, ConsumerReleaseOp) and o.is_late)
    assert late.parent is not None
    late.parent.insert_op_before(release(late), late)
    late.detach()
    late.erase()
    with pytest.raises(ExecutionError, match=why):
        run(module, PRODUCTS["boxes"].inputs(), "typed")


def test_what_was_given_back_is_gone() -> None:
    """A stage that is released before the matmul reads it is NaN there."""
    p = PRODUCTS["boxes"]
    (found,) = run(_released_early(p.tiles()), p.inputs(), "typed")
    assert np.isnan(found.astype(np.float32)).all()


def _released_early(module: ModuleOp) -> ModuleOp:
    release = next(o for o in module.walk() if isinstance(o, ConsumerReleaseOp))
    dot = next(o for o in module.walk() if isinstance(o, tile.DotOp))
    release.detach()
    assert dot.parent is not None
    dot.parent.insert_op_before(release, dot)
    return module


def _taken_once_more(module: ModuleOp) -> ModuleOp:
    release = next(o for o in module.walk() if isinstance(o, ConsumerReleaseOp))
    assert release.parent is not None
    release.parent.insert_ops_after([ConsumerWaitOp(release.ring), ConsumerReleaseOp(release.ring)], release)
    return module


def test_a_ring_in_front_of_the_roles() -> None:
    """The operands of a matmul share one circular buffer."""
    rings = [o for o in PRODUCTS["boxes"].tiles().walk() if isinstance(o, RingOp)]
    assert [r.result.type.slots.data for r in rings] == [3]


def test_products_are_ordered_behind_what_threads_store() -> None:
    """If threads store operands, barriers before a matmul have a fence. With TMA only the final store needs one."""
    plain, boxes = (PRODUCTS[n].lowered() for n in ("cp.async", "boxes"))
    fences = [sum(isinstance(o, kernel.FenceAsyncOp) for o in m.walk()) for m in (plain, boxes)]
    stores = [sum(isinstance(o, kernel.TmaStoreOp) for o in m.walk()) for m in (plain, boxes)]
    assert fences[0] > 0
    assert fences[1] == stores[1] == 1
    assert stores[0] == 0


@pytest.mark.parametrize(("shape", "warps"), [((64, 8), 4), ((128, 64), 8), ((64, 256), 8), ((256, 128), 16)])
def test_accumulators(shape: tuple[int, int], warps: int) -> None:
    """The layout of accumulators is that of wgmma's matrix D in the PTX manual."""
    layout = warpgroup_accumulator(shape, warps)
    assert isinstance(layout, Linear)
    groups = warps // 4
    down = shape[0] // 64
    width = shape[1] * down // groups
    for warp in range(warps):
        for lane in (0, 5, 31):
            for r in range(layout.registers):
                row = 64 * (warp // 4 % down) + 16 * (warp % 4) + lane // 4 + 8 * (r >> 1 & 1)
                column = width * (warp // 4 // down) + 8 * (r // 4) + 2 * (lane % 4) + r % 2
                assert layout.apply(r, lane, warp) == (row, column)


@pytest.mark.parametrize(("shape", "warps"), [((32, 64), 4), ((128, 64), 4), ((64, 512), 4), ((64, 64), 2)])
def test_no_accumulator(shape: tuple[int, int], warps: int) -> None:
    assert isinstance(warpgroup_accumulator(shape, warps), str)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("fast", [0, 1])
def test_boxes(swizzle: int, fast: int) -> None:
    """The swizzle of a TMA tile XORs the position of 16-byte pieces with bits of the row's number."""
    shape, row = (128, 128), swizzle // 2
    boxes = boxes_along(shape, fast, 2, swizzle)
    assert boxes == Boxes(fast, row, swizzle)
    shared = boxes.layout(shape, 2)
    assert boxes_of(shared, 2) == boxes
    for along in range(0, 128, 3):
        for slow in range(0, 128, 5):
            start = (along // row * 128 + slow) * swizzle
            piece = along % row // 8 ^ (start // 128) % (swizzle // 16)
            coordinate = (along, slow) if fast == 0 else (slow, along)
            assert shared.place(coordinate) == start // 2 + piece * 8 + along % 8


NEST = """
  %{name} = loop.nest (%i, %j) in [72, {n}] -> tensor<72x{n}xbf16>
      attributes {{schedule = #tile.schedule<block = [64, 64], chunk = [64], atom = wgmma, copy = tma, stages = 2>}} {{
    %s = loop.reduce add (%k) in [136] -> f32 {{
      %0 = loop.load %x[%i, %k] : tensor<72x136xbf16>
      %1 = payload.cast %0 : bf16 -> f32
      %2 = loop.load %w_{name}[%j, %k] : tensor<{n}x136xbf16>
      %3 = payload.cast %2 : bf16 -> f32
      %4 = arith.mulf %1, %3 : f32
      loop.yield %4 : f32
    }}
    %5 = payload.cast %s : f32 -> bf16
    loop.yield %5 : bf16
  }}
"""


def test_products_with_roles_share_a_launch() -> None:
    """Two matmuls with warp partitions in one launch: each partition works for the matmul that its block belongs to."""
    nests = NEST.format(name="y", n=72) + NEST.format(name="z", n=136)
    text = (
        "func.func @main(%x: tensor<72x136xbf16>, %w_y: tensor<72x136xbf16>, %w_z: tensor<136x136xbf16>)"
        f" -> (tensor<72x72xbf16>, tensor<72x136xbf16>) {{{nests}"
        "  func.return %y, %z : tensor<72x72xbf16>, tensor<72x136xbf16>\n}"
    )
    rng = np.random.default_rng(0)
    shapes = ((72, 136), (72, 136), (136, 136))
    args = [rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in shapes]
    wanted = run(parse_module(make_context(), text, "two.mlir"), args, "typed")
    module = parse_module(make_context(), text, "two.mlir")
    run_passes(make_context(), module, parse_passes(f"{TO_TILE},{TO_KERNEL},host-horizontal-fusion,dce"))
    (function,) = (o for o in module.ops if isinstance(o, kernel.FuncOp))
    assert function.partitions is not None
    source = print_cuda(module)
    found, reports = EmulatedProgram(source, make_plan(module)).run(args, (0, 1, 7))
    assert [str(r) for r in reports] == []
    simulated = simulate(module, args)
    assert not simulated.report.findings
    for outputs in (found, simulated.outputs):
        for a, b in zip(outputs, wanted, strict=True):
            np.testing.assert_array_equal(a.astype(np.float32), b.astype(np.float32))
    assert not compile_cubin(source, "sm_90a").warnings


def test_parts_of_accumulators() -> None:
    """Threads have a part of the columns in a subset of their registers. A part of the rows does not exist."""
    whole = warpgroup_accumulator((128, 256), 8)
    assert isinstance(whole, Linear)
    part = whole.part(1, 64)
    assert part is not None
    for start in (0, 64, 192):
        registers = whole.registers_of(part, (0, start))
        for warp in range(0, 8, 3):
            for lane in (0, 7, 31):
                for r, source in enumerate(registers):
                    row, column = part.apply(r, lane, warp)
                    assert whole.apply(source, lane, warp) == (row, column + start)
    assert whole.part(0, 64) is None
    assert whole.part(1, 4) is None
    assert part_of_group((128, 256), whole.warp[2:]) == (64, 256)
    assert part_of_group((128, 256), ((32, 0),)) is None
    assert part_of_group((128, 256), ()) is None
