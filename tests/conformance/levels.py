"""Executes torch-level programs at a lower level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cpu.runtime import CpuProgram
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedModule, EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.errors import ExecutionError
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.passes.pipelines import parse_passes

from .opdb import TooLarge, largest

LEVELS = ("tensor", "loop", "tile", "kernel", "cuda", "cpu")

_STEPS = ("torch-to-tensor", "tensor-to-loop", "loop-to-tile", "tile-to-kernel")

MOST_WORK = 1 << 16
"""Largest number of elements of a value at the levels `kernel` and `cuda`, whose executors are slow."""

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Level:
    """A level at which programs are executed: its pipelines, target and executor.

    The executor is the reference interpreter, at the kernel level the simulator, and for CUDA the emulator. A report of
    the simulator counts as an error.
    """

    name: str
    target: str = "sm_90a"

    def __call__(self, module: ModuleOp, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the results of one torch-level program."""
        self.lower(module)
        (program,) = self.build([module])
        return program(args)

    def lower(self, module: ModuleOp) -> None:
        """Lowers a torch-level module to this level. Raises TooLarge."""
        count = min(LEVELS.index(self.name), len(_STEPS) - 1) + 1
        for name in _STEPS[:count]:
            for p in parse_passes(name, {"target": "cpu" if self.name == "cpu" else self.target}):
                p.apply(Context(), module)
            if name == _STEPS[0] and self.name != "cpu" and largest(module) > MOST_WORK:
                raise TooLarge
        module.verify()

    def build(self, modules: Sequence[ModuleOp]) -> list[Run]:
        """Returns functions that run lowered modules. The C++ compiler builds a few of them in the time of one."""
        if self.name == "cpu":
            return [_on_this_machine(m) for m in modules]
        if self.name != "cuda" or not modules:
            return [lambda args, m=m: self._interpret(m, args) for m in modules]
        sources = [print_cuda(m) for m in modules]
        built = compile_many(sources)
        return [_Emulated(*row) for row in zip(sources, modules, built, strict=True)]

    def _interpret(self, module: ModuleOp, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.name != "kernel":
            return run(module, args)
        result = simulate(module, args)
        result.report.raise_errors()
        return result.outputs


def _on_this_machine(module: ModuleOp) -> Run:
    """Returns a function that runs a module as C++ on this machine."""
    program = CpuProgram(module, print_cpp(module))
    return lambda args: [to_numpy(t) for t in program.run([to_torch(a) for a in args])]


@dataclass(frozen=True)
class _Emulated:
    """A module as CUDA, compiled for the emulator."""

    source: str
    module: ModuleOp
    built: EmulatedModule

    def __call__(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs, reports = EmulatedProgram(self.source, make_plan(self.module), self.built).run(args, seeds=(0,))
        if reports:
            raise ExecutionError(str(reports[0]))
        return outputs


def down_to(level: str, target: str = "sm_90a") -> Level:
    """Returns the level with this name for a target."""
    return Level(level, target)
