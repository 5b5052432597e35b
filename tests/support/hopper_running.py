"""Runs the programs of `hopper_programs` in every executor, on inputs in which every element matters."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, Report
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import Report as SimReport, simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes, verify_module
from deplodock.passes.pipelines import parse_passes
from support.hopper_programs import Gemm

SEEDS = (0, 1, 7)
"""Everything asynchronous as late as it can, at once, at random."""


def allocated(text: str) -> ModuleOp:
    """The module of a text, with its shared buffers in their places."""
    module = parse_module(make_context(), text, "test.mlir")
    verify_module(module)
    run_passes(make_context(), module, parse_passes("kernel-allocate-shared"))
    return module


def inputs(gemm: Gemm) -> list[np.ndarray]:
    """Small integers, so that every sum is exact."""
    rng = np.random.default_rng(5)
    shapes = ((gemm.m, gemm.k), (gemm.n, gemm.k))
    return [rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in shapes]


def wanted(gemm: Gemm) -> np.ndarray:
    """What the program computes, in float32."""
    a, b = (x.astype(np.float32) for x in inputs(gemm))
    return (a @ b.T).astype(ml_dtypes.bfloat16).astype(np.float32)


def wrong(gemm: Gemm, found: Sequence[np.ndarray]) -> int:
    """How many elements are not what they should be."""
    return int(np.count_nonzero(found[0].astype(np.float32) != wanted(gemm)))


def emulate(
    gemm: Gemm, source: str | None = None, text: str | None = None, seeds: Sequence[int] = SEEDS
) -> tuple[list[np.ndarray], list[Report]]:
    """The results and reports of the emulator; `source` replaces the CUDA, `text` the IR."""
    module = allocated(gemm.text() if text is None else text)
    return EmulatedProgram(source or print_cuda(module), make_plan(module)).run(inputs(gemm), seeds)


def simulated(gemm: Gemm, text: str | None = None, domain: str = "typed") -> tuple[list[np.ndarray], SimReport]:
    """The results and the report of the simulator."""
    module = allocated(gemm.text() if text is None else text)
    result = simulate(module, inputs(gemm), domain=domain)
    return result.outputs, result.report
