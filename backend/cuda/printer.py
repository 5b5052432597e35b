"""A module at the kernel level as one CUDA C++ text: device functions, the only place with inline assembly, and one
`extern "C" __global__` function for each `kernel.func`."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from ...dialects.kernel import FuncOp, MmaOp, SharedOp, WgmmaOp
from ...dialects.kernel.copies import SWIZZLED_ALIGNMENT
from ..cpp import reductions, statements
from ..cpp.writer import Writer, declare_shared, header, helper_section, parameters, text_of_kernels
from . import asynchronous, tensor_cores


class Statements(statements.Statements):
    """Prints the statements of a block of a GPU's kernel."""

    printers = {**statements.PRINTERS, **reductions.PRINTERS, **asynchronous.PRINTERS, **tensor_cores.PRINTERS}


def print_cuda(module: ModuleOp) -> str:
    """Returns the CUDA C++ of all kernels of a module at the kernel level. Raises CompileError, with operation and
    place, for anything that has no CUDA."""
    return text_of_kernels(module, helper_section, _print_kernel)


def _print_kernel(func: FuncOp, name: str) -> tuple[str, set[str]]:
    writer = Writer(func)
    given = ", ".join(parameters(writer, func))
    if buffers := [op for op in func.walk() if isinstance(op, SharedOp)]:
        # All kernels of a text declare the same array, also those without swizzled boxes.
        writer.line(f"extern __shared__ __align__({SWIZZLED_ALIGNMENT}) unsigned char smem[];")
        declare_shared(writer, buffers, "smem")
    Statements(writer, func.body.block).print()
    clusters = f"__cluster_dims__({func.cluster_size}, 1, 1) " if func.cluster_size > 1 else ""
    head = f'extern "C" __global__ void {clusters}{_launch_bounds(func)} {name}({given}) {{'
    return "\n".join([*header(func), head, *writer.lines, "}"]) + "\n", writer.helpers


def _launch_bounds(func: FuncOp) -> str:
    """The threads of a block and, where somebody asks for it, how many blocks a multiprocessor has to have room for.
    Partitions need that number, or ptxas ignores `setmaxnreg`; large blocks and tensor cores, or it spills in order to
    fit more onto one multiprocessor."""
    partitions = func.partitions is not None and func.partitions.partition_registers
    crowded = func.threads > 512 or any(isinstance(op, MmaOp | WgmmaOp) for op in func.walk())
    resident = func.resident or int(bool(partitions or crowded))
    return f"__launch_bounds__({func.threads}{f', {resident}' if resident else ''})"
