"""Partial sums of contractions (`promotion_interval`): exact, of the promised precision, with copies in flight."""

from __future__ import annotations

import re

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
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

PROGRAM = """
func.func @main(%x: tensor<MxKxf32>, %w: tensor<KxNxf32>) -> tensor<MxNxf32> {
  %y = loop.nest (%i, %j) in [M, N] -> tensor<MxNxf32> SCHEDULE {
    %s = loop.reduce add (%k) in [K] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<MxKxf32>
      %b = loop.load %w[%k, %j] : tensor<KxNxf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<MxNxf32>
}
"""

CORES = "block = [16, 16], chunk = [32], thread = [2, 2], warps = 2, stages = 3, copy = cp_async"
PLAIN = "block = [16, 16], chunk = [32], thread = [2, 2], warps = 2"
MMA = "block = [16, 16], chunk = [32], warps = 1, atom = mma, f32_matmul_precision = bf16x3"
STORED = "block = [32, 16], chunk = [32], warps = 2, atom = mma, copy = cp_async, stages = 3, f32_matmul_precision = "
BOXES = "block = [64, 64], chunk = [64], warps = 4, atom = wgmma, copy = tma, stages = 3, f32_matmul_precision = "

SCHEDULES = {
    "cores": f"{CORES}, promotion_interval = 3",
    "cores, plain copies": f"{PLAIN}, promotion_interval = 4",
    "cores, one chunk": f"{CORES}, promotion_interval = 1",
    "cores, in shared memory": f"{CORES}, promotion_interval = 2, promotion_memory = shared",
    "mma": f"{MMA}, promotion_interval = 1",
    "mma, three chunks": f"{MMA}, promotion_interval = 3",
    "stored parts": f"{STORED}bf16x3_presplit, promotion_interval = 1",
    "stored parts, two chunks": f"{STORED}bf16x3_presplit, promotion_interval = 2",
    "wgmma": f"{BOXES}bf16x3_presplit, promotion_interval = 1",
    "wgmma, two chunks": f"{BOXES}bf16x3_presplit, promotion_interval = 2",
}


def text_of(m: int, n: int, k: int, schedule: str | None) -> str:
    attributes = "" if schedule is None else f"attributes {{schedule = #tile.schedule<{schedule}>}}"
    extents = {"M": str(m), "N": str(n), "K": str(k)}
    head, _, tail = re.sub("[MNK](?=[x,\\] ]|x)", lambda name: extents[name[0]], PROGRAM).partition("SCHEDULE")
    return head + attributes + tail


def lowered(m: int, n: int, k: int, schedule: str, target: str = "sm_90a") -> ModuleOp:
    module = parse_module(make_context(), text_of(m, n, k, schedule), "sums.mlir")
    run_passes(make_context(), module, parse_passes(f"loop-to-tile{{target={target}}},tile-to-kernel"))
    return module


def matrices(m: int, n: int, k: int) -> list[np.ndarray]:
    rng = np.random.default_rng(k)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n))]


def relative_error(got: np.ndarray, x: np.ndarray, w: np.ndarray) -> float:
    exact = x.astype(np.float64) @ w.astype(np.float64)
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_exactly_right(schedule: str) -> None:
    """The last of the chunks is not full, so the last partial sum is shorter."""
    shape = (40, 24, 32 * 10 + 8) if "chunk = [32]" in schedule else (40, 24, 64 * 4 + 8)
    x, w = matrices(*shape)
    module = lowered(*shape, schedule)
    (want,) = run(parse_module(make_context(), text_of(*shape, None), "sums.mlir"), [x, w], "exact")
    found = simulate(module, [x, w], domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], want)
    counts = found.report.launches[-1]
    assert counts.wavefronts == counts.ideal_wavefronts


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_printed_text(schedule: str) -> None:
    """The emulated CUDA has no race and the error of short sums. The machine code has no spills."""
    k = 640
    x, w = matrices(40, 24, k)
    module = lowered(40, 24, k, schedule)
    text = print_cuda(module)
    (y,), reports = run_cuda_on_cpu(text, make_plan(module), [x, w], seeds=(0, 1, 2))
    assert not reports, str(reports[0])
    several = "atom" in schedule and "promotion_interval = 1" not in schedule
    assert relative_error(y, x, w) < (8e-7 if several else 4.5e-7)
    for arch in ("sm_90a",) if "wgmma" in schedule else ("sm_80", "sm_90a"):
        kernels = compile_cubin(text, arch).kernels
        assert all(found.spills == 0 for found in kernels.values())


@pytest.mark.parametrize(
    ("schedule", "k", "least", "most"),
    [
        # cuBLAS on an H200: 4.1e-7 for 3,584 terms, where one sum erred 1.07e-6.
        (CORES, 3584, 9e-7, 1.3e-6),
        (f"{CORES}, promotion_interval = 14", 3584, 2e-7, 6.1e-7),
        # cuBLAS on an H200: 5.7e-7 for 1,024 terms, where one sum erred 6.7e-6.
        (MMA, 1024, 6e-6, 1.2e-5),
        (f"{MMA}, promotion_interval = 1", 1024, 5e-8, 2e-7),
        (f"{BOXES}bf16x3_presplit", 1024, 6e-6, 7.5e-6),
        (f"{BOXES}bf16x3_presplit, promotion_interval = 1", 1024, 5e-8, 2e-7),
    ],
)
def test_partial_sums_bound_the_error(schedule: str, k: int, least: float, most: float) -> None:
    x, w = matrices(64, 16, k)
    module = lowered(64, 16, k, schedule)
    (y,), reports = run_cuda_on_cpu(print_cuda(module), make_plan(module), [x, w], seeds=(0,))
    assert not reports, str(reports[0])
    assert least < relative_error(y, x, w) < most


def test_nothing_is_drained_between_partial_sums() -> None:
    """The loop over partial sums adds no barrier and no wait for copies to its inner loop."""
    for schedule in (CORES, f"{CORES}, promotion_interval = 3", SCHEDULES["cores, in shared memory"]):
        (func,) = [o for o in lowered(16, 16, 992, schedule).walk() if isinstance(o, kernel.FuncOp)]
        names = [op.name for op in func.walk()]
        assert names.count("kernel.barrier") == 1
        assert names.count("kernel.async_wait") == 2  # in each iteration, and behind the last one


def planned(m: int, n: int, k: int, target: str, precision: str = "ieee") -> ScheduleAttr:
    module = parse_module(make_context(), text_of(m, n, k, None), "sums.mlir")
    passes = f"plan-schedules{{target={target} f32_matmul_precision={precision}}}"
    run_passes(make_context(), module, parse_passes(passes))
    (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    schedule = nest.attributes["schedule"]
    assert isinstance(schedule, ScheduleAttr)
    return schedule


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_the_planner_bounds_sums_of_f32(target: str) -> None:
    """A register accumulates at most a quarter of a long sum, or a whole short one."""
    for m, n, k in ((2048, 4096, 4096), (32, 3584, 18944), (512, 2048, 2048)):
        s = planned(m, n, k, target).data
        chunks = k // s.split_k // s.chunk[0]
        assert s.atom == "fma"
        assert s.chunk[0] * min(chunks, s.promotion_interval or chunks) <= k // 4
    assert planned(512, 512, 256, target).data.promotion_interval == 0
    text = str(planned(2048, 4096, 4096, target)).removeprefix("#tile.schedule<").removesuffix(">")
    module = lowered(2048, 4096, 4096, text, target)
    assert all(k.spills == 0 for k in compile_cubin(print_cuda(module), target).kernels.values())
    assert planned(512, 512, 1024, target, "bf16x3").data.promotion_interval == 1
