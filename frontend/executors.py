"""Executors: the ways to run a compiled program.

| executor | runs |
|---|---|
| `cuda` | the cubin on the GPU, through CuPy, on PyTorch's stream and memory |
| `cpu` | the printed C++ on this machine, for the target `cpu` |
| `emulator` | the printed CUDA, compiled by the host compiler, with one fiber for each thread |
| `simulator` | the kernel level in NumPy, the threads of a block as array axes; reports illegal accesses |
| `reference` | the tensor level in NumPy; the fastest executor for GPU targets without a GPU |
| `auto` | `cpu` for the target `cpu`, else `cuda` if there is a device, else `reference` |

`KINDS` lists them with the level of IR that each one reads. A program is compiled to that level (`lower_for`), and
further only for texts and reports of lower levels.

The target `auto` is the local GPU, else `cpu` if there is a C++ compiler, else `DEFAULT_GPU`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp

from ..backend.cuda.runtime.nvrtc import compiler_build
from ..backend.host.compiler import compiler
from ..backend.host.timing import Span
from ..dialects import LEVELS
from ..errors import CompileError, ExecutionError, TargetError
from ..target.architectures import CPU, ISAS
from ..target.attribute import arch_of, on_cores
from ..target.host import has_isa, processor, resolve_target
from .capture.arrays import to_numpy, to_torch
from .capture.eager_fallback import EagerCall
from .compilation import Compilation

if TYPE_CHECKING:
    from ..backend.cpu.runtime import CpuPlan, CpuProgram
    from ..backend.cuda.runtime import CudaProgram

AUTO = "auto"
"""Name that stands for the target of this machine (`auto_target`)."""

DEFAULT_GPU = "sm_90a"
"""Default GPU of programs that only an interpreter runs."""

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Trace = Callable[[Sequence[torch.Tensor]], list[Span]]
OnArrays = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Executor:
    """Runs one compiled program.

    Attributes:
        name: one of `EXECUTORS`, except `auto`.
        why: reason for the choice of the executor, for the user.
        run: function that takes the tensors of all arguments of `@main` and returns its results.
        program: the compiled code that `cuda` or `cpu` runs; None for interpreters.
        level: level of the IR that the executor reads.
    """

    name: str
    why: str
    run: Run
    program: CpuProgram | CudaProgram | None = None
    level: str = "kernel"

    @property
    def trace(self) -> Trace | None:
        """Function that runs the program and returns the time span of each kernel; None for interpreters."""
        return None if self.program is None else self.program.trace

    def refresh(self) -> None:
        """Drops the values that a CPU program has computed from its weights, such as packed weights."""
        from ..backend.cpu.runtime import CpuProgram

        if isinstance(self.program, CpuProgram):
            self.program.forget_constants()


def target_for(executor: str = "auto") -> str:
    """Returns the target that `auto` stands for if `executor` runs the program.

    For `auto` it is the target of this machine, for `cpu` the CPU, and for the other executors a GPU.
    """
    if executor == "cpu":
        return "cpu"
    target = auto_target() if executor in ("auto", "cuda") else DEFAULT_GPU
    return DEFAULT_GPU if executor == "cuda" and target == "cpu" else target


def auto_target() -> str:
    """Returns the local GPU if programs can run on it, else `cpu` if there is a C++ compiler.

    Without both it returns `DEFAULT_GPU`, whose programs the reference interprets.
    """
    if cuda_missing() is None:
        try:
            return arch_of(torch.cuda.get_device_capability())
        except TargetError:  # deplodock has no target for this device.
            pass
    return DEFAULT_GPU if compiler_missing() else "cpu"


def make_executor(name: str, compilation: Compilation, cuda_graphs: bool = False) -> Executor:
    """Returns the executor of a program.

    Args:
        name: one of `EXECUTORS`.
        compilation: the program.
        cuda_graphs: whether the launches of a call run as one CUDA graph on a GPU.

    Raises:
        CompileError: unknown executor.
        ExecutionError: `cuda`, but no CUDA program can run here.
    """
    if name == "auto" and on_cores(compilation.target):
        if missing := compiler_missing():
            return _make("reference", missing, compilation, False)
        return _make("cpu", "the target is this machine", compilation, False)
    missing = check_executor(name, compilation.cubin is not None)
    if name == "auto":
        why = f"no GPU to run on: {missing}" if missing else "a CUDA device is there"
        if missing:
            why += f"; {compiler_missing() or 'the target cpu would run on the cores here'}"
        name = "reference" if missing else "cuda"
    else:
        why = "asked for"
    return _make(name, why, compilation, cuda_graphs)


def _make(name: str, why: str, compilation: Compilation, cuda_graphs: bool) -> Executor:
    if (interpret := KINDS[name].interpret) is not None:
        on_tensors = partial(_on_tensors, interpret(compilation, _on_arrays(compilation)))
        return Executor(name, why, on_tensors, level=level_for(name, compilation))
    if name == "cuda":
        from ..backend.cuda.runtime import CudaProgram

        saved = None if compilation.cubin is None else (compilation.target, compilation.cubin)
        kernels, text = compilation.at("kernel"), compilation.cuda
        program = CudaProgram(kernels, text, saved, compilation.eager, cuda_graphs)
    else:
        program = cpu_program(compilation.target, compilation.at("kernel"), compilation.cpp, compilation.eager)
    return Executor(name, why, program.run, program)


def check_executor(name: str, compiled: bool = False) -> str | None:
    """Checks that an executor exists and can run here, before anything is compiled for it.

    With the name `auto` it returns why no CUDA program can run here, or None if one can. For other names it returns
    None. `compiled`: whether machine code exists already. Raises the errors of `make_executor`.
    """
    _kind(name)
    missing = cuda_missing(compiled) if name in ("auto", "cuda") else None
    if name == "cuda" and missing:
        raise ExecutionError(f"no CUDA to run on: {missing}")
    return missing


def cuda_missing(compiled: bool = False) -> str | None:
    """Returns why no CUDA program can run here, or None if one can. NVRTC is needed unless the program is
    `compiled`."""
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    try:
        import cupy  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return "CuPy is not installed (pip install 'deplodock[cuda]')"
    try:
        if not compiled:
            compiler_build()
    except ExecutionError as error:
        return error.reason
    return None


def compiler_missing() -> str | None:
    """Returns why no program for `cpu` can run here, or None if one can."""
    try:
        compiler()
    except ExecutionError:
        return "no C++ compiler with OpenMP for the CPU: neither g++ nor clang++ with libomp is installed"
    return None


def cpu_program(
    target: str, kernels: ModuleOp | CpuPlan, text: str | Path, eager: Mapping[str, EagerCall] | None = None
) -> CpuProgram:
    """Returns the executable form of a CPU program, and builds its shared library if necessary.

    Args:
        target: name of a CPU target.
        kernels: the program at the kernel level, or its saved plan.
        text: the C++ source, or the path of a shared library that was built from it.
        eager: name of a function of the program -> the operator that PyTorch computes in its place.

    Raises:
        TargetError: this processor does not have the instruction set of the target.
        ExecutionError: there is no C++ compiler.
    """
    from ..backend.cpu.build import build
    from ..backend.cpu.runtime import CpuProgram

    machine = resolve_target(target)
    assert machine.core is not None
    if machine.core.isa in ISAS and not has_isa(machine.core.isa):
        raise TargetError(f"this processor ({processor()}) does not have {machine.core.isa}", argument="target")
    binary = text if isinstance(text, Path) else build(text, machine.core.march)
    return CpuProgram(kernels, binary, eager, cores=None if target == CPU.name else machine.sms)


def _reference(compilation: Compilation, eager: Mapping[str, OnArrays]) -> OnArrays:
    from ..backend import reference

    if compilation.level == "kernel":
        raise CompileError(
            "expected a program above the kernel level, but got one at it; use the executor simulator or emulator"
        )
    module = lower_for("reference", compilation)
    return lambda arrays: reference.run(module, arrays, eager=eager)


def _simulator(compilation: Compilation, eager: Mapping[str, OnArrays]) -> OnArrays:
    from ..backend.simulator import simulate

    module = lower_for("simulator", compilation)

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        result = simulate(module, arrays, eager=eager)
        result.report.raise_errors()
        return result.outputs

    return run


def _emulator(compilation: Compilation, eager: Mapping[str, OnArrays]) -> OnArrays:
    from ..backend.emulator import run_cuda_on_cpu
    from ..backend.host.launch_plan import make_plan

    source, plan = compilation.cuda, make_plan(compilation.at("kernel"))

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs, reports = run_cuda_on_cpu(source, plan, arrays, eager=eager)
        if reports:
            place = f"{reports[0].file}:{reports[0].line}" if reports[0].file else None
            raise ExecutionError(str(reports[0]), location=place)
        return outputs

    return run


def _on_tensors(compute: OnArrays, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [to_torch(a) for a in compute([to_numpy(t) for t in args])]


def _on_arrays(compilation: Compilation) -> dict[str, OnArrays]:
    """Returns the operators that PyTorch computes, as functions of NumPy arrays."""

    def on_arrays(call: EagerCall) -> OnArrays:
        return lambda arrays: [to_numpy(t) for t in call([to_torch(a) for a in arrays])]

    return {name: on_arrays(call) for name, call in compilation.eager.items()}


@dataclass(frozen=True)
class Kind:
    """Entry of `KINDS`.

    Attributes:
        level: level of IR that the executor reads. `compile` lowers a program to this level.
        interpret: for an interpreter, function that returns a program as a function of NumPy arrays.
    """

    level: str = "kernel"
    interpret: Callable[[Compilation, Mapping[str, OnArrays]], OnArrays] | None = None


KINDS = {
    # A machine without a GPU refuses the same programs as a machine with one.
    "auto": Kind(),
    "cuda": Kind(),
    "cpu": Kind(),
    "emulator": Kind(interpret=_emulator),
    "simulator": Kind(interpret=_simulator),
    "reference": Kind("tensor", _reference),
}
"""Executor -> its kind."""

EXECUTORS = tuple(KINDS)
"""Names of the executors."""


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise CompileError(f"unknown executor {name!r}; there are {', '.join(EXECUTORS)}")
    return KINDS[name]


def level_for(name: str, compilation: Compilation) -> str:
    """Returns the level at which an executor reads a program: the level of its kind, but at most the level at
    which the program begins.

    Raises:
        CompileError: unknown executor.
    """
    return max(_kind(name).level, compilation.level, key=LEVELS.index)


def lower_for(name: str, compilation: Compilation) -> ModuleOp:
    """Lowers a program to the level that an executor reads, so that errors are raised before a call.

    Args:
        name: one of `EXECUTORS`.
        compilation: the program.

    Returns:
        the module at that level.

    Raises:
        CompileError: unknown executor, or an operator or option that a pass above that level does not support.
    """
    return compilation.at(level_for(name, compilation))
