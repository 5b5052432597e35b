"""Translation of printed CUDA for the host compiler, and compilation to cached shared objects.

`device.h` defines the keywords and functions of CUDA as C++.
The text changes in four places, and keeps its line numbers:

- Helpers with inline assembly are replaced by their host text.
- `extern __shared__` becomes a pointer to the memory of the block.
- Arrays of a thread get exactly the alignment that they request, so that a missing alignment is found.
- `extern "C"` is removed, so that several programs fit into one translation unit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from ...errors import ExecutionError
from ...target.model import launch_registers
from ..cpp.device import host_text_of
from ..dtypes import DTYPES
from ..host.build_cache import cached_file, digest
from ..host.compiler import compiler, output_of, run_compiler

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__cluster_dims__\((?P<cluster>\d+)[^)]*\)\s*)?'
    r"(?:__launch_bounds__\((?P<threads>\d+)(?:\s*,\s*(?P<blocks>\d+))?[^)]*\)\s*)?(?P<name>[A-Za-z_]\w*)\s*\("
)
_HELPER = re.compile(r"^(?:template <[^>]*> )?static __device__ (?:[^\n]*\}|.*?\n\})$", re.MULTILINE | re.DOTALL)
_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\((\d+)\)\s*)?([\w\s]*\w)\s+(\w+)\s*\[\s*\]\s*;")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*", re.MULTILINE)
_ARRAY = re.compile(
    r"(^[ \t]+|[;{}][ \t]*)(?:__align__\((\d+)\)\s+)?"
    rf"({'|'.join(dict.fromkeys(row.c for row in DTYPES.values() if row.c))})\s+(\w+)\[(\d+)\](\s*=\s*\{{\}})?;"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Bounds:
    """Launch bounds of a kernel.

    Attributes:
        cluster: number of blocks of a cluster.
        registers: registers per thread at the launch, or 0 if the compiler chooses the number.
    """

    cluster: int
    registers: int


def kernel_names(source: str) -> tuple[str, ...]:
    """Returns the names of the kernels of a printed text, in order."""
    return tuple(kernel_bounds(source))


def kernel_bounds(source: str) -> dict[str, Bounds]:
    """Returns the launch bounds of the kernels of a printed text, by name, in order."""
    bounds: dict[str, Bounds] = {}
    for match in _KERNEL.finditer(_COMMENT.sub("", source)):
        if match["name"] in bounds:
            raise ExecutionError(f"expected different names of kernels, but the CUDA text has {match['name']} twice")
        registers = launch_registers(int(match["threads"]), int(match["blocks"])) if match["blocks"] else 0
        bounds[match["name"]] = Bounds(int(match["cluster"] or 1), registers)
    return bounds


def host_text(source: str, *, standalone: bool = False) -> str:
    """Translates a program for the host.

    Args:
        source: the CUDA text.
        standalone: whether it is a standalone program, which includes headers of the CUDA runtime.

    Raises:
        ExecutionError: for inline assembly without a host text.
    """
    text = _replace_assembly(source)
    if _INCLUDE.search(text) and not standalone:
        raise ExecutionError("expected a CUDA text without #include, because the emulator has no CUDA headers")
    text = _SHARED.sub(_shared, text)
    text = "\n".join(line if line.startswith("struct") else _ARRAY.sub(_placed, line) for line in text.split("\n"))
    text = re.sub(r'extern\s+"C"\s+__global__', "__global__", text)
    if standalone:
        for n, b in kernel_bounds(source).items():
            text += f"static const EmuBounds emu_{n}((const void*){n}, {b.cluster}, {b.registers});\n"
    return text


def _placed(array: re.Match[str]) -> str:
    """Rewrites the declaration of an array of a thread, so that it has the requested alignment and no more.

    A larger alignment would hide misaligned accesses.
    """
    before, alignment, element, name, size, start = array.groups(default="")
    alignment = alignment or f"alignof({element})"
    declaration = f"EmuArray<{element}, {size}, {alignment}> emu_{name}{start};"
    return f"{before}{declaration} {element} (&{name})[{size}] = emu_{name}.array;"


def _shared(memory: re.Match[str]) -> str:
    alignment, element, name = memory.groups()
    return f"{element}* const {name} = ({element}*)emu_shared_start({alignment or f'alignof({element})'});"


def translation_unit(sources: Sequence[str]) -> str:
    """Returns one C++ text of several programs, each in its own namespace.

    The text has a function `emu_<program>_<kernel>` for each kernel.
    """
    parts = ['#include "device.h"']
    for number, source in enumerate(sources):
        parts += [f"namespace source{number} {{", f'#line 1 "{source_name(number)}"', host_text(source), "}"]
        head = f'extern "C" __attribute__((visibility("default"))) void emu_{number}_'
        parts += [f"{head}{n}(void** a) {{ emu_call(source{number}::{n}, a); }}" for n in kernel_names(source)]
    return "\n".join([*parts, ""])


def source_name(number: int) -> str:
    return f"source{number}.cu"


def _replace_assembly(source: str) -> str:
    text = _HELPER.sub(lambda helper: _host_helper(helper[0]), source)
    if re.search(r"\basm\b", _COMMENT.sub("", text)):
        raise ExecutionError("inline assembly outside of a helper cannot be emulated")
    return text


def _host_helper(text: str) -> str:
    """Returns the host text of a helper, with the same number of lines."""
    if not re.search(r"\basm\b", text):
        return text
    host = host_text_of(text)
    if host is None:
        name = text.split("(")[0].split()[-1]
        raise ExecutionError("is inline assembly that the emulator has no host text for", operator=name)
    return " ".join(line.strip() for line in host.splitlines()) + "\n" * text.count("\n")


_HERE = Path(__file__).parent
PLAIN = ("-U_FORTIFY_SOURCE",)
"""Option that disables _FORTIFY_SOURCE, which some distributions enable by default.

_FORTIFY_SOURCE aborts the process at a longjmp to another stack, and replaces memcpy by a function whose accesses are
not checked.
"""

_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=default", *PLAIN)
_DEVICE_FLAGS = (
    *("-std=c++17", "-O1", "-gdwarf-4", "-g1", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    *PLAIN,
    # Every memory access calls the runtime, which defines the functions of -fsanitize=thread.
    *("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"),
    # The sanitizers report indices outside of a thread's array, which the runtime does not know, misaligned accesses to
    # any memory, and undefined arithmetic of integers.
    "-fsanitize=bounds,alignment,integer-divide-by-zero,shift-exponent",
    # The arithmetic of CUDA: integers wrap around, only explicit calls fuse multiply and add, pointers may be cast.
    *("-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-delete-null-pointer-checks"),
    # Uninitialised variables contain a conspicuous pattern. Without tail calls, return addresses identify the line.
    *("-ftrivial-auto-var-init=pattern", "-fno-optimize-sibling-calls"),
)


_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack")
_compile = partial(run_compiler, emulator=True)


def build_library(sources: Sequence[str]) -> Path:
    """Builds the shared object of some programs. It needs the shared object of `runtime_library`.

    Raises:
        ExecutionError: if the text does not compile.
    """
    return _build(translation_unit(sources), ".so", *_LINK)


def build_standalone(source: str) -> Path:
    """Builds the executable of a standalone program. Raises ExecutionError if the text does not compile."""
    return _build(host_text(source, standalone=True), "", str(_runtime_object()), "-ldl")


def _build(text: str, suffix: str, *link_flags: str) -> Path:
    """Compiles and links a text. Returns the cached file."""
    name = digest(text, _runtime_object().stem, suffix, *_DEVICE_FLAGS) + suffix

    def make(target: Path) -> None:
        unit, compiled = target.parent / "unit.cpp", target.parent / "unit.o"
        unit.write_text(text)
        _compile(*_DEVICE_FLAGS, f"-I{_HERE}", "-c", str(unit), "-o", str(compiled))
        _compile(str(compiled), *link_flags, "-lm", "-o", str(target))

    return cached_file("emulator", name, make)


def runtime_library() -> Path:
    """Builds the shared object of the runtime, which launches kernels and checks their accesses."""
    runtime = _runtime_object()
    arguments = (*_LINK, str(runtime), "-ldl", "-o")
    return cached_file("emulator", f"{runtime.stem}.so", lambda target: _compile(*arguments, str(target)))


@cache
def _runtime_object() -> Path:
    """Compiles the runtime. Its name is the digest of its sources and of the compiler."""
    files = sorted(p for p in _HERE.iterdir() if p.suffix in (".h", ".cpp"))
    key = digest(output_of(compiler(emulator=True), "--version"), *_RUNTIME_FLAGS, *(p.read_text() for p in files))
    arguments = (*_RUNTIME_FLAGS, "-c", str(_HERE / "runtime.cpp"), "-o")
    return cached_file("emulator", f"{key}.o", lambda target: _compile(*arguments, str(target)))
