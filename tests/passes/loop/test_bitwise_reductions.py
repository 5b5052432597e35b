"""Reductions of integers by bitwise operations, at once and in chunks, by the executors of loop, kernel and CUDA."""

from __future__ import annotations

import numpy as np
import pytest

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

PROGRAM = """
func.func @main(%x: tensor<37x300xi32>) -> tensor<37xi32> {
  %y = loop.nest (%i) in [37] -> tensor<37xi32> {
    %m = loop.reduce KIND (%k) in [300] -> i32 {
      %a = loop.load %x[%i, %k] : tensor<37x300xi32>
      loop.yield %a : i32
    }
    loop.yield %m : i32
  }
  func.return %y : tensor<37xi32>
}
"""
KINDS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@pytest.mark.parametrize("schedule", ["", "block=1 chunk=64 warps=2"], ids=["planned", "chunks"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_executor(kind: str, schedule: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31 - 1, (37, 300)).astype(np.int32)
    if kind != "xor":  # all bits of 300 random numbers are 0, or 1, in common with almost nothing
        x = np.where(rng.random((37, 300)) < 0.99, np.int32(-1 if kind == "and" else 0), x)
    wanted = KINDS[kind].reduce(x, axis=1)
    assert len({*wanted.tolist()}) > 2
    ctx = make_context()
    module = parse_module(ctx, PROGRAM.replace("KIND", kind), f"{kind}.mlir")
    np.testing.assert_array_equal(np.asarray(run(module.clone(), [x])[0]), wanted)
    planned = f"plan-schedules{{{schedule}}}," if schedule else ""
    run_passes(ctx, module, parse_passes(f"{planned}loop-to-tile,tile-to-kernel"))
    np.testing.assert_array_equal(simulate(module, [x]).outputs[0], wanted)
    cuda = print_cuda(module)
    outputs, reports = EmulatedProgram(cuda, make_plan(module), compile_many([cuda])[0]).run([x], seeds=(0,))
    assert not reports
    np.testing.assert_array_equal(outputs[0], wanted)
