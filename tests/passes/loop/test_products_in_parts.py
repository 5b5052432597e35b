"""f32 matmuls on tensor cores with each operand split into three bf16 parts (`bf16x3`), as exact as f32 sums."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, loop, make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

M, N, K = 40, 24, 328

PROGRAM = """
func.func @main(%x: tensor<40x328xf32>, %w: tensor<328x24xf32>) -> tensor<40x24xf32> {
  %y = loop.nest (%i, %j) in [40, 24] -> tensor<40x24xf32> ATTRIBUTES {
    %s = loop.reduce add (%k) in [328] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<40x328xf32>
      %b = loop.load %w[%k, %j] : tensor<328x24xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<40x24xf32>
}
"""

PARTS = "block = [32, 16], chunk = [32], warps = 2, atom = mma, f32_matmul_precision = bf16x3, promotion_interval = 1"
PRESPLIT = "f32_matmul_precision = bf16x3_presplit, promotion_interval = 1"
STORED = f"block = [32, 16], chunk = [32], warps = 2, atom = mma, copy = cp_async, stages = 2, {PRESPLIT}"
BOXES = f"block = [64, 64], chunk = [64], warps = 4, atom = wgmma, copy = tma, stages = 2, {PRESPLIT}"
PLAIN = "block = [32, 16], chunk = [32], thread = [2, 2], warps = 2"


def lowered(schedule: str | None, passes: str = "loop-to-tile,tile-to-kernel") -> ModuleOp:
    attributes = "" if schedule is None else f"attributes {{schedule = #tile.schedule<{schedule}>}}"
    module = parse_module(make_context(), PROGRAM.replace("ATTRIBUTES", attributes), "parts.mlir")
    run_passes(make_context(), module, parse_passes(passes))
    return module


def matrices(kind: str) -> list[np.ndarray]:
    """Returns operands: normal numbers, numbers of very different magnitudes, or terms that cancel."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((M, K)), rng.standard_normal((K, N))
    if kind == "sizes":
        x, w = x * 2.0 ** rng.integers(-40, 40, x.shape), w * 2.0 ** rng.integers(-40, 40, w.shape)
    if kind == "cancelling":
        x[:, 1::2], w[1::2] = x[:, ::2], -w[::2] * (1 + 2.0**-20)
    return [x.astype(np.float32), w.astype(np.float32)]


def errors(got: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns the errors against float64, relative to the sum of the terms' magnitudes."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    return np.abs(got - x @ w) / (np.abs(x) @ np.abs(w))


@pytest.mark.parametrize("schedule", [PARTS, STORED, BOXES])
@pytest.mark.parametrize("kind", ["ordinary", "sizes", "cancelling"])
def test_no_worse_than_sums_in_f32(kind: str, schedule: str) -> None:
    x, w = matrices(kind)
    found, plain = (simulate(lowered(s), [x, w]) for s in (schedule, PLAIN))
    assert not found.report.findings, str(found.report)
    counts = found.report.launches[-1]
    assert counts.wavefronts == counts.ideal_wavefronts
    own, usual = errors(found.outputs[0], x, w), errors(plain.outputs[0], x, w)
    assert own.mean() <= 1.25 * usual.mean()
    assert own.max() <= 2 * usual.max()
    if kind == "cancelling":
        return
    narrow = x.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert errors(narrow @ w, x, w).mean() > 30 * usual.mean()


@pytest.mark.parametrize("schedule", [PARTS, STORED, BOXES])
def test_exactly_right(schedule: str) -> None:
    x, w = matrices("ordinary")
    module = lowered(schedule)
    products = sum(isinstance(op, kernel.MmaOp | kernel.WgmmaOp) for op in module.walk())
    assert products in (6, 12)  # six, and six where a border is apart
    want = run(parse_module(make_context(), PROGRAM.replace("ATTRIBUTES", ""), "parts.mlir"), [x, w], "exact")
    np.testing.assert_array_equal(simulate(module, [x, w], domain="exact").outputs[0], want[0])


@pytest.mark.parametrize("schedule", [PARTS, STORED, BOXES])
def test_the_printed_text(schedule: str) -> None:
    x, w = matrices("sizes")
    module = lowered(schedule)
    text = print_cuda(module)
    outputs, reports = run_cuda_on_cpu(text, make_plan(module), [x, w])
    assert not reports, str(reports[0])
    assert errors(outputs[0].astype(np.float64), x, w).max() < 1e-6
    kernels = compile_cubin(text, "sm_90a" if schedule is BOXES else "sm_80").kernels
    assert all(k.spills == 0 for k in kernels.values())


def test_only_with_permission() -> None:
    """The planner splits f32 operands only if `f32_matmul_precision` permits it."""
    for options, mma in (("", False), ("{f32_matmul_precision=bf16x3}", True)):
        module = lowered(None, f"plan-schedules{options},loop-to-tile,tile-to-kernel")
        assert any(isinstance(op, kernel.MmaOp | kernel.WgmmaOp) for op in module.walk()) == mma


def test_parts_are_stored_where_that_is_faster() -> None:
    """Large operands are split once into stored parts. Blocks of a small matmul split the operands that they read."""
    for size, stored in ((4096, True), (128, False)):
        text = PROGRAM.replace("40", str(size)).replace("24", str(size)).replace("328", str(size))
        module = parse_module(make_context(), text.replace("ATTRIBUTES", ""), "parts.mlir")
        run_passes(
            make_context(), module, parse_passes("plan-schedules{f32_matmul_precision=bf16x3},loop-split-f32-operands")
        )
        nests = [op for op in module.walk() if isinstance(op, loop.NestOp)]
        assert len(nests) == (3 if stored else 1)
        assert "f32_matmul_precision = bf16x3" in str(nests[-1].attributes["schedule"])


def test_a_sum_of_three_is_not_in_parts() -> None:
    """A sum of bf16 numbers may be too large for one bf16 part, so it is split like any f32 operand."""
    text = PROGRAM.replace("ATTRIBUTES", f"attributes {{schedule = #tile.schedule<{PARTS}>}}").replace(
        "      %p = arith.mulf %a, %b : f32",
        "      %n = payload.cast %a : f32 -> bf16\n      %c = payload.cast %n : bf16 -> f32\n"
        "      %d = arith.addf %c, %c : f32\n      %e = arith.addf %d, %c : f32\n      %p = arith.mulf %e, %b : f32",
    )
    module = parse_module(make_context(), text, "parts.mlir")
    run_passes(make_context(), module, parse_passes("loop-to-tile,tile-to-kernel"))
    x, w = matrices("ordinary")
    narrow = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert errors(simulate(module, [x, w]).outputs[0], 3 * narrow, w).max() < 1e-6


def test_products_that_wait_for_their_operands_overlap() -> None:
    """Six wgmma add to the same accumulators, two of them after a wait for TMA. ptxas must not serialise them."""
    text = re.sub(r"(?<!\d)(40|24|328)(?!\d)", "1024", PROGRAM.replace("ATTRIBUTES", ""))
    module = parse_module(make_context(), text, "parts.mlir")
    run_passes(
        make_context(),
        module,
        parse_passes("plan-schedules{f32_matmul_precision=bf16x3},loop-split-f32-operands,plan-schedules"),
    )
    run_passes(make_context(), module, parse_passes("loop-to-tile,tile-to-kernel"))
    assert sum(isinstance(op, kernel.WgmmaOp) for op in module.walk()) >= 6
    assert not compile_cubin(print_cuda(module), "sm_90a").warnings
