"""Printer of CUDA C++ for a module at the kernel level.

The text has the helpers (device functions, which contain all inline assembly) and one `extern "C" __global__` function
for each `kernel.func`.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from ...dialects.kernel import FuncOp, MmaOp, SharedOp, WgmmaOp
from ...dialects.kernel.copies import SWIZZLED_ALIGNMENT
from ...dialects.support.printing import PrintedText
from ..cpp import reductions, statements
from ..cpp.writer import Writer, declare_shared, helper_section, kernel_text, parameters, text_of_kernels
from . import asynchronous, tensor_cores


class Statements(statements.Statements):
    """Printer of the statements of one block of a GPU kernel."""

    printers = {**statements.PRINTERS, **reductions.PRINTERS, **asynchronous.PRINTERS, **tensor_cores.PRINTERS}


def print_cuda(module: ModuleOp) -> str:
    """Returns the CUDA C++ of all kernels of a module at the kernel level.

    Raises CompileError, with the operation and its source line, for operations that cannot be printed.
    """
    return cuda_with_owners(module).text


def cuda_with_owners(module: ModuleOp) -> PrintedText:
    """Returns the text of `print_cuda` with the operations of each line."""
    return text_of_kernels(module, helper_section, _print_kernel)


def print_kernel(func: FuncOp, name: str) -> str:
    """Returns the text of one kernel with the given C++ name, without the helpers that it calls."""
    return _print_kernel(func, name)[0].text


def _print_kernel(func: FuncOp, name: str) -> tuple[PrintedText, set[str]]:
    writer = Writer(func)
    arguments = ", ".join(parameters(writer, func))
    if buffers := [op for op in func.walk() if isinstance(op, SharedOp)]:
        # All kernels of a text declare the same array, so each uses the alignment of swizzled TMA tiles.
        writer.line(f"extern __shared__ __align__({SWIZZLED_ALIGNMENT}) unsigned char smem[];")
        declare_shared(writer, buffers, "smem")
    Statements(writer, func.body.block).print()
    clusters = f"__cluster_dims__({func.cluster_size}, 1, 1) " if func.cluster_size > 1 else ""
    head = f'extern "C" __global__ void {clusters}{_launch_bounds(func)} {name}({arguments}) {{'
    return kernel_text(func, head, writer), writer.helpers


def _launch_bounds(func: FuncOp) -> str:
    """Returns `__launch_bounds__` with the threads of a block and, if needed, the minimum number of blocks per SM.

    The kernel may request the minimum (`resident`). Otherwise it is 1 in two cases. Kernels with partitions need it, or
    ptxas ignores `setmaxnreg`. Large blocks and kernels with tensor cores need it, or ptxas spills registers to fit
    more blocks on an SM.
    """
    partitions = func.partitions is not None and func.partitions.partition_registers
    needs_registers = func.threads > 512 or any(isinstance(op, MmaOp | WgmmaOp) for op in func.walk())
    resident = func.resident or int(bool(partitions or needs_registers))
    return f"__launch_bounds__({func.threads}{f', {resident}' if resident else ''})"
