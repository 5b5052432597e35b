"""Runs the kernels of `hopper_programs.py` in the emulator and in the simulator."""

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
"""Seeds of the emulator: asynchronous operations finish as late as possible (0), at once (1), at random times (7)."""


def allocated(text: str) -> ModuleOp:
    """Parses and verifies a kernel-level module, and assigns addresses to its shared buffers."""
    module = parse_module(make_context(), text, "test.mlir")
    verify_module(module)
    run_passes(make_context(), module, parse_passes("kernel-allocate-shared"))
    return module


def inputs(gemm: Gemm) -> list[np.ndarray]:
    """Returns operands of small integers, for which every sum is exact."""
    rng = np.random.default_rng(5)
    shapes = ((gemm.m, gemm.k), (gemm.n, gemm.k))
    return [rng.integers(-3, 4, s).astype(ml_dtypes.bfloat16) for s in shapes]


def expected(gemm: Gemm) -> np.ndarray:
    """Returns the product of `inputs(gemm)`, rounded to bf16, as float32."""
    a, b = (x.astype(np.float32) for x in inputs(gemm))
    return (a @ b.T).astype(ml_dtypes.bfloat16).astype(np.float32)


def wrong(gemm: Gemm, outputs: Sequence[np.ndarray]) -> int:
    """Returns the number of wrong elements in the first output."""
    return int(np.count_nonzero(outputs[0].astype(np.float32) != expected(gemm)))


def emulate(
    gemm: Gemm, source: str | None = None, text: str | None = None, seeds: Sequence[int] = SEEDS
) -> tuple[list[np.ndarray], list[Report]]:
    """Runs a kernel in the emulator.

    Args:
        gemm: the kernel.
        source: CUDA to run instead of the printed kernel.
        text: IR to print instead of the kernel's.
        seeds: seeds of the asynchronous operations.

    Returns:
        The outputs, and the emulator's reports of errors.
    """
    module = allocated(gemm.text() if text is None else text)
    return EmulatedProgram(source or print_cuda(module), make_plan(module)).run(inputs(gemm), seeds)


def simulated(gemm: Gemm, text: str | None = None, domain: str = "typed") -> tuple[list[np.ndarray], SimReport]:
    """Runs a kernel in the simulator.

    Args:
        gemm: the kernel.
        text: IR to run instead of the kernel's.
        domain: scalar domain of the simulator.

    Returns:
        The outputs, and the simulator's report.
    """
    module = allocated(gemm.text() if text is None else text)
    result = simulate(module, inputs(gemm), domain=domain)
    return result.outputs, result.report
