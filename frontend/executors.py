"""Who runs a compiled program: the GPU, or one of the levels on the host.

`cuda`       the cubin on the GPU, through CuPy, on torch's stream and memory
`emulator`   the printed CUDA text, compiled by the host compiler, one fiber a thread
`simulator`  the kernel level, all threads of a block as NumPy arrays, with reports
`reference`  the tensor level in NumPy: the fastest without a GPU
`cpu`        the C++ of a program for the target `cpu`, on the cores of this machine
`auto`       `cpu` for that target, else `cuda` where there is a device, else `reference`

The target `auto` is the GPU where there is one, else `cpu` where there is a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp

from ..backend.cuda.runtime.nvrtc import compiler_build
from ..backend.host.compiler import compiler
from ..backend.host.timing import Span
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

EXECUTORS = ("auto", "cuda", "cpu", "emulator", "simulator", "reference")

AUTO = "auto"
"""The target of a program for which nobody names one."""

DEFAULT_GPU = "sm_90a"
"""The GPU of texts, and of programs that an interpreter runs, where nobody names one."""

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Trace = Callable[[Sequence[torch.Tensor]], list[Span]]
OnArrays = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Executor:
    """`run` takes the tensors of all arguments of `@main` and gives its results. `why` says why it was chosen.

    `program` is what runs on hardware, if something does; its `trace` does the same and tells when each kernel ran.
    """

    name: str
    why: str
    run: Run
    program: CpuProgram | CudaProgram | None = None

    @property
    def trace(self) -> Trace | None:
        """That of what runs on hardware; None for interpreters."""
        return None if self.program is None else self.program.trace

    def refresh(self) -> None:
        """Drops what the program keeps of its weights from call to call."""
        from ..backend.cpu.runtime import CpuProgram

        if isinstance(self.program, CpuProgram):
            self.program.forget_constants()


def target_for(executor: str = "auto") -> str:
    """Returns the target that `AUTO` is for a program that `executor` runs: the target that runs compiled code on this
    machine, or a GPU for the executors that interpret the program of one."""
    if executor == "cpu":
        return "cpu"
    target = auto_target() if executor in ("auto", "cuda") else DEFAULT_GPU
    return DEFAULT_GPU if executor == "cuda" and target == "cpu" else target


def auto_target() -> str:
    """The GPU where a program for it can run, else the CPU where there is a C++ compiler. Where there is neither, a
    GPU, whose programs the reference runs."""
    if cuda_missing() is None:
        try:
            return arch_of(torch.cuda.get_device_capability())
        except TargetError:  # a device that there is no code for
            pass
    return DEFAULT_GPU if compiler_missing() else "cpu"


def make_executor(name: str, compilation: Compilation, cuda_graphs: bool = False) -> Executor:
    """The executor called `name` for a program; `auto` chooses. With `cuda_graphs` a GPU runs the launches of a call as
    a CUDA graph. Raises CompileError for an unknown name and ExecutionError where `cuda` is asked for and there is
    none."""
    if name == "auto" and on_cores(compilation.target):
        if missing := compiler_missing():
            return Executor("reference", missing, _interpreted("reference", compilation))
        return _made("cpu", "the target is this machine", compilation, False)
    missing = check_executor(name, compilation.cubin is not None)
    if name == "auto":
        why = f"no GPU to run on: {missing}" if missing else "a CUDA device is there"
        if missing:
            why += f"; {compiler_missing() or 'the target cpu would run on the cores here'}"
        name = "reference" if missing else "cuda"
    else:
        why = "asked for"
    return _made(name, why, compilation, cuda_graphs)


def _made(name: str, why: str, compilation: Compilation, cuda_graphs: bool) -> Executor:
    if name in _INTERPRETERS:
        return Executor(name, why, _interpreted(name, compilation))
    if name == "cuda":
        from ..backend.cuda.runtime import CudaProgram

        saved = None if compilation.cubin is None else (compilation.target, compilation.cubin)
        kernels, text = compilation.at("kernel"), compilation.cuda
        program = CudaProgram(kernels, text, saved, compilation.eager, cuda_graphs)
    else:
        program = cpu_program(compilation.target, compilation.at("kernel"), compilation.cpp, compilation.eager)
    return Executor(name, why, program.run, program)


def check_executor(name: str, compiled: bool = False) -> str | None:
    """Before anything is compiled for it: why `auto` would not be `cuda`, None where it would or is not asked for;
    `compiled` says that there is machine code already. Raises as `make_executor`."""
    if name not in EXECUTORS:
        raise CompileError(f"unknown executor {name!r}; there are {', '.join(EXECUTORS)}")
    missing = cuda_missing(compiled) if name in ("auto", "cuda") else None
    if name == "cuda" and missing:
        raise ExecutionError(f"no CUDA to run on: {missing}")
    return missing


def cuda_missing(compiled: bool = False) -> str | None:
    """Why no CUDA program can run here, in a few words; None where it can. One that is `compiled` needs no NVRTC."""
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
    """Why no program for `cpu` can run here, in a few words; None where it can."""
    try:
        compiler()
    except ExecutionError:
        return "no C++ compiler with OpenMP for the CPU: neither g++ nor clang++ with libomp is installed"
    return None


def cpu_program(
    target: str, kernels: ModuleOp | CpuPlan, text: str | Path, eager: Mapping[str, EagerCall] | None = None
) -> CpuProgram:
    """What runs a program for `target`, some cores: its kernel level, or what has to be known of that, and its C++ or
    what was built of it. Raises TargetError if the processor has not the instruction set, ExecutionError if there is
    no compiler."""
    from ..backend.cpu.build import build
    from ..backend.cpu.runtime import CpuProgram

    found = resolve_target(target)
    assert found.core is not None
    if found.core.isa in ISAS and not has_isa(found.core.isa):
        raise TargetError(f"this processor ({processor()}) does not have {found.core.isa}", argument="target")
    binary = text if isinstance(text, Path) else build(text, found.core.march)
    return CpuProgram(kernels, binary, eager, cores=None if target == CPU.name else found.sms)


def _interpreted(name: str, compilation: Compilation) -> Run:
    compute = _INTERPRETERS[name](compilation, _on_arrays(compilation))
    return lambda args: [to_torch(a) for a in compute([to_numpy(t) for t in args])]


def _reference(compilation: Compilation, eager: Mapping[str, OnArrays]) -> OnArrays:
    from ..backend import reference

    if compilation.level == "kernel":
        raise CompileError("the reference runs no kernel level; the executors simulator and emulator do")
    module = compilation.at("tensor" if compilation.level == "torch" else compilation.level)
    return lambda arrays: reference.run(module, arrays, eager=eager)


def _simulator(compilation: Compilation, eager: Mapping[str, OnArrays]) -> OnArrays:
    from ..backend.simulator import simulate

    module = compilation.at("kernel")

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
            raise ExecutionError(str(reports[0]))
        return outputs

    return run


def _on_arrays(compilation: Compilation) -> dict[str, OnArrays]:
    """What is left to PyTorch, as functions of arrays."""

    def on_arrays(call: EagerCall) -> OnArrays:
        return lambda arrays: [to_numpy(t) for t in call([to_torch(a) for a in arrays])]

    return {name: on_arrays(call) for name, call in compilation.eager.items()}


_INTERPRETERS: dict[str, Callable[[Compilation, Mapping[str, OnArrays]], OnArrays]] = {
    "reference": _reference,
    "simulator": _simulator,
    "emulator": _emulator,
}
