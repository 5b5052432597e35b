"""Executing a torch-level program at any level below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.errors import ExecutionError
from deplodock.passes.pipelines import parse_passes

from .opdb import Executor, TooLarge, largest

LEVELS = ("tensor", "loop", "tile", "kernel", "cuda")

_STEPS = ("torch-to-tensor", "tensor-to-loop", "loop-to-tile", "tile-to-kernel")

MOST_WORK = 1 << 16
"""The thread-level executors are slow: programs with a larger value are skipped there."""


def down_to(level: str) -> Executor:
    """Lower by the named pipelines, then run: by the reference interpreter, at the kernel level by the simulator, and
    as CUDA by the emulator. Whatever the simulator reports is an error."""

    def execute(module: ModuleOp, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        count = min(LEVELS.index(level), len(_STEPS) - 1) + 1
        for name in _STEPS[:count]:
            for p in parse_passes(name):
                p.apply(Context(), module)
            if name == _STEPS[0] and largest(module) > MOST_WORK:
                raise TooLarge
        module.verify()
        if level == "kernel":
            result = simulate(module, args)
            result.report.raise_errors()
            return result.outputs
        if level == "cuda":
            outputs, reports = run_cuda_on_cpu(print_cuda(module), make_plan(module), args, seeds=(0,))
            if reports:
                raise ExecutionError(str(reports[0]))
            return outputs
        return run(module, args)

    return execute
