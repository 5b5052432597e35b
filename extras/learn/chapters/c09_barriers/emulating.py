"""Emulator for answers. Its runtime is compiled when this module is imported, before the limits of an answer begin."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from .....backend.check_each import input_types, make_inputs
from .....backend.cuda.printer import print_cuda
from .....backend.emulator import compile_many, run_cuda_on_cpu
from .....backend.host.launch_plan import make_plan
from .....errors import CompileError
from ...verdicts import Wrong

_EMPTY = 'extern "C" __global__ void __launch_bounds__(32) empty() {}\n'

try:
    compile_many([_EMPTY])
    REASON = ""
except CompileError as error:
    REASON = error.reason
"""Reason why there is no emulator, or an empty text."""


def emulated(program: ModuleOp) -> str:
    """Compiles the CUDA text of a program for this machine, and runs it with two orders of threads.

    Returns:
        a sentence about the run.

    Raises:
        Wrong: the emulator reports an error.
    """
    if REASON:
        return f"the emulator did not run: {REASON}"
    reports = run_cuda_on_cpu(print_cuda(program), make_plan(program), make_inputs(input_types(program)))[1]
    if reports:
        raise Wrong(f"the simulator reports nothing, but the emulator does: {reports[0]}")
    return "the emulator, which runs the CUDA text with threads in two orders, reports no error"
