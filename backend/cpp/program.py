"""The text of a module at the kernel level: helpers, then a function for each kernel.

The text has two parts, each under a line of its own: `// --- helpers` and `// --- kernels`. Names are minted; names and
attributes of the input appear in comments only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...dialects.kernel import FuncOp, SharedOp, kernel_names, symbols_in, tensor_maps
from ...dialects.kernel.copies import is_written
from ...dialects.support.locations import blamed, refused
from ...dialects.support.printing import quantity
from ...errors import BorderError, CompileError
from .expressions import Expr
from .memory import memory_extents
from .writer import Writer, sanitise

HELPERS_MARK = "// --- helpers\n"
KERNELS_MARK = "// --- kernels\n"
HOST_MARK = "// --- host program\n"


def folded(text: str) -> str:
    """Returns a text with its kernels, and the number of lines in place of the helpers and the host program."""
    stamp, _, rest = text.partition(HELPERS_MARK)
    helpers, _, rest = rest.partition(KERNELS_MARK)
    kernels, _, host = rest.partition(HOST_MARK)
    parts = [stamp, _fold(HELPERS_MARK, helpers), KERNELS_MARK, kernels, _fold(HOST_MARK, host)]
    return "".join(parts)


def _fold(mark: str, section: str) -> str:
    lines = len(section.strip().splitlines())
    return f"{mark.rstrip()}: {lines} lines, shown by --helpers\n" if lines else ""


def text_of_kernels(
    module: ModuleOp, section: Callable[[set[str]], str], print_kernel: Callable[[FuncOp, str], tuple[str, set[str]]]
) -> str:
    """Returns the text of a module: a section of helpers, then the kernels. `print_kernel` returns the text of a kernel
    and its helpers. A CompileError names the kernel and its place if it names nothing closer."""
    names = kernel_names(module)
    helpers, kernels = set[str](), list[str]()
    for op in module.body.ops:
        if not isinstance(op, FuncOp):
            _check_host(op)
            continue
        with blamed(op):
            text, used = print_kernel(op, names[op.sym_name.data])
        kernels.append(text)
        helpers |= used
    return HELPERS_MARK + section(helpers) + "\n" + KERNELS_MARK + "\n".join(kernels)


_HOST = ("payload.constant", "scf.for", "scf.yield")
"""What loops of launches consist of besides launches."""


def _check_host(function: Operation) -> None:
    """Raises BorderError for anything but kernels and host functions that launch them: the text would miss it."""
    for op in function.walk():
        if op.dialect_name() not in ("kernel", "func") and op.name not in _HOST:
            advice = "run tensor-to-loop,loop-to-tile,tile-to-kernel on a program of the tensor level"
            raise refused(op, f"is not of the kernel level: {advice}", BorderError)


def header(func: FuncOp) -> list[str]:
    shared = func.shared.data if func.shared is not None else 0
    grid = " * ".join(map(str, func.grid_shape))
    shape = f"{quantity(grid, 'block')} of {func.threads} threads" if func.threads > 1 else quantity(grid, "task")
    shape += f" in clusters of {func.cluster_size}" if func.cluster_size > 1 else ""
    lines = [sanitise(f"{func.sym_name.data}: {shape}" + (f", {shared} bytes of shared memory" if shared else ""))]
    lines += [sanitise(f"{key} = {value}") for key, value in sorted(func.attributes.items())]
    return [f"// {line}" for line in lines]


def parameters(writer: Writer, func: FuncOp) -> list[str]:
    """Returns the parameters of a kernel: buffers, tensor maps and sizes."""
    texts: list[str] = []
    for argument in func.body.block.args:
        memory_extents(argument.type)
        pointer = f"{'' if is_written(argument) else 'const '}{writer.type_of(argument)}*"
        texts.append(f"{pointer} __restrict__ {writer.name(argument, 'p')}")
    for op in tensor_maps(func):
        writer.use("TensorMap")
        texts.append(f"const __grid_constant__ TensorMap {writer.name(op.result, 'boxes')}")
    for symbol in symbols_in(func):
        name = writer.names.mint(symbol.hint, "n")
        writer.sizes[symbol] = Expr(name)
        texts.append(f"{writer.index} {name}")
    return texts


def declare_shared(writer: Writer, buffers: Iterable[SharedOp], memory: str) -> None:
    """Declares the buffers in shared memory as pointers into all of it, the array `memory`."""
    for op in buffers:
        if op.offset is None:
            raise refused(op, "shared memory has no place yet: run kernel-allocate-shared", CompileError)
        c, start = writer.type_of(op.result), f"({memory} + {op.offset.data})" if op.offset.data else memory
        writer.line(f"{c}* const {writer.name(op.result, 'buf')} = ({c}*){start};")
