"""Printer of C++ for CPUs for a module at the kernel level.

Like the CUDA text, the text has helpers and one function for each kernel. The function of a kernel `k0` runs a range of
blocks in a loop; values that are equal for all blocks are computed before the loop. `k0_grid` runs all blocks of a
launch in parallel with OpenMP. Shared memory is a thread-local buffer. `run` executes all launches of a call, which the
runtime encodes as an array of numbers (`host.hpp`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from ...dialects.kernel import FuncOp, SharedOp, kernel_names
from ...dialects.support.locations import refused
from ...dialects.support.printing import PrintedText
from ...errors import CompileError
from ..cpp.device import HELPERS, Helper, read_helpers
from ..cpp.writer import declare_shared, kernel_text, parameters, text_of_kernels
from ..dtypes import STRUCTS
from .groups import VectorStatements
from .writer import VectorWriter

_HERE = Path(__file__).parent


def print_cpp(module: ModuleOp) -> str:
    """Returns the C++ of all kernels of a module at the kernel level.

    Raises:
        CompileError: for an operation without C++, with its location.
    """
    return cpp_with_owners(module).text


def cpp_with_owners(module: ModuleOp) -> PrintedText:
    """Returns the text of `print_cpp` with the operations of each line."""
    max_buffers = max((len(op.body.block.args) for op in module.body.ops if isinstance(op, FuncOp)), default=1)
    grids = ", ".join(f"{name}_grid" for name in kernel_names(module).values())
    declared = f"Grid {grids};\n" if grids else ""
    entry = (_HERE / "host.hpp").read_text().replace("DECLARED\n", declared).replace("GRIDS", grids or "nullptr")
    kernels = text_of_kernels(module, helper_section, _print_kernel)
    return kernels.followed_by("\n" + entry.replace("BUFFERS", str(max_buffers)))


def print_kernel(func: FuncOp, name: str) -> str:
    """Returns the text of one kernel with the given C++ name, without the helpers that it calls."""
    return _print_kernel(func, name)[0].text


def _print_kernel(func: FuncOp, name: str) -> tuple[PrintedText, set[str]]:
    if func.threads != 1:
        raise refused(
            func, f"expected blocks of 1 thread for a CPU, but got {func.threads}; compile with lanes = 1", CompileError
        )
    writer = VectorWriter(func)
    block, begin, end, memory = (writer.names.mint(name) for name in ("block", "begin", "end", "shared"))
    for reserved in sorted({*_OURS}):
        writer.names.mint(reserved)
    writer.ids = {"block": block, "thread": "0", "lane": "0", "warp": "0"}
    arguments = parameters(writer, func)
    declare_shared(writer, [op for op in func.walk() if isinstance(op, SharedOp)], memory)
    VectorStatements(writer, func.body.block).print_blocks(block, begin, end)
    blocks = [f"const int {begin}", f"const int {end}", f"unsigned char* const {memory}"]
    head = f"static void {name}({', '.join([*blocks, *arguments])}) {{"
    asserts = any(key.startswith("asserted") for key in writer.helpers)
    return kernel_text(func, head, writer, _grid(func, name, arguments, asserts)), writer.helpers


def _grid(func: FuncOp, name: str, arguments: list[str], asserts: bool) -> str:
    """Returns the C++ function that runs all blocks of a kernel. Its parameter `a` has the buffers, `n` the sizes.

    Args:
        func: the kernel.
        name: C++ name of the kernel.
        arguments: C++ parameters of the kernel: buffers, then sizes.
        asserts: whether the kernel has assertions.
    """
    buffers = len(func.body.block.args)
    kinds = [parameter.rsplit(" ", 1)[0].replace("__restrict__", "").strip() for parameter in arguments]
    passed = [f"({k}){f'a[{i}]' if i < buffers else f'n[{i - buffers}]'}" for i, k in enumerate(kinds)]
    shared = 0 if func.shared is None else func.shared.data
    first = f"alignas(64) static thread_local unsigned char memory[{shared}]; " if shared else ""
    first += "failure = message; " if asserts else ""
    call = f"{name}({', '.join(['begin', 'end', 'memory' if shared else 'nullptr', *passed])});"
    return (
        f"void {name}_grid(char* const* a, const long long* n, int blocks, int threads, char* message) {{\n"
        f"  all_blocks(blocks, threads, [=](int begin, int end) {{ {first}{call} }});\n}}"
    )


_PRELUDE = "".join(f.read_text() for f in (_HERE.parent / "emulator" / "device_math.h", _HERE / "vector.hpp"))
"""Text before the helpers: the vector types and functions that all kernels use."""

_HELPERS = read_helpers((_HERE / "functions.hpp").read_text())
_HELPERS |= {c: Helper(c, f"{HELPERS[c].cuda}\nSTORED({c}, {word})") for c, word in STRUCTS.items()}

_OURS = re.findall(r"\b([a-z]\w*)(?=[(<])", _PRELUDE + "".join(helper.cuda for helper in _HELPERS.values()))
_OURS += ["lanes", "locality", "mask", "failure", "first", "i", "l", "n", "row"]
"""Identifiers of the prelude, the helpers and the printer, which variables of kernels must not have."""


def helper_section(keys: Iterable[str]) -> str:
    """Returns the prelude, and the definitions of the helpers in `keys` and of all helpers that these call.

    Each definition is after the definitions that it needs.
    """
    definitions: dict[str, str] = {}

    def add(key: str) -> None:
        helper = _HELPERS.get(key) or HELPERS[key]
        for needed in helper.needs:
            add(needed)
        definitions.setdefault(key, helper.host or helper.cuda)

    for key in sorted(keys):
        add(key)
    return "\n".join([_PRELUDE.replace("#pragma once\n", ""), *definitions.values()]) + "\n"
