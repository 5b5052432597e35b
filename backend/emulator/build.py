"""The printed CUDA as the host compiler reads it, and the shared objects that it makes of it, each once.

The text of kernels and helpers stays as it is printed; device.h gives its words a meaning. Only four things change:
helpers whose body is inline assembly get their host text, `extern __shared__` becomes a pointer to the block's, arrays
of a thread lie at addresses that are aligned as they ask for and no better (where a host's stack happens to have them
says nothing), and `extern "C"` goes, so that several programs fit into one translation unit. Line numbers are kept.
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
    """What the head of a kernel says: blocks of a cluster, and registers that a thread has at the launch; 0 where the
    launch bounds leave that to the compiler."""

    cluster: int
    registers: int


def kernel_names(source: str) -> tuple[str, ...]:
    """The kernels of a printed text, in order."""
    return tuple(kernel_bounds(source))


def kernel_bounds(source: str) -> dict[str, Bounds]:
    """What the heads of the kernels of a printed text say, by their names, in the order of the text."""
    found: dict[str, Bounds] = {}
    for match in _KERNEL.finditer(_COMMENT.sub("", source)):
        if match["name"] in found:
            raise ExecutionError("two kernels of one name in the CUDA text")
        registers = launch_registers(int(match["threads"]), int(match["blocks"])) if match["blocks"] else 0
        found[match["name"]] = Bounds(int(match["cluster"] or 1), registers)
    return found


def host_text(source: str, *, standalone: bool = False) -> str:
    """One program's text for the host. Raises ExecutionError for inline assembly without a host text.

    A standalone program includes headers, of which the emulator has the CUDA runtime's.
    """
    text = _replace_assembly(source)
    if _INCLUDE.search(text) and not standalone:
        raise ExecutionError("the emulator knows no header that CUDA text may include")
    text = _SHARED.sub(_shared, text)
    text = "\n".join(line if line.startswith("struct") else _ARRAY.sub(_placed, line) for line in text.split("\n"))
    text = re.sub(r'extern\s+"C"\s+__global__', "__global__", text)
    if standalone:
        for n, b in kernel_bounds(source).items():
            text += f"static const EmuBounds emu_{n}((const void*){n}, {b.cluster}, {b.registers});\n"
    return text


def _placed(array: re.Match[str]) -> str:
    """A declaration of an array in registers, as one that is aligned to what it asks for and to nothing more."""
    before, alignment, element, name, size, start = array.groups(default="")
    alignment = alignment or f"alignof({element})"
    kept = f"EmuArray<{element}, {size}, {alignment}> emu_{name}{start};"
    return f"{before}{kept} {element} (&{name})[{size}] = emu_{name}.array;"


def _shared(memory: re.Match[str]) -> str:
    alignment, element, name = memory.groups()
    return f"{element}* const {name} = ({element}*)emu_shared_start({alignment or f'alignof({element})'});"


def translation_unit(sources: Sequence[str]) -> str:
    """All programs in one text, each in a namespace, with a function `emu_<number>_<name>` for each kernel."""
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
    """What stands for a helper on the host, on as many lines."""
    if not re.search(r"\basm\b", text):
        return text
    host = host_text_of(text)
    if host is None:
        name = text.split("(")[0].split()[-1]
        raise ExecutionError("is inline assembly that the emulator has no host text for", operator=name)
    return " ".join(line.strip() for line in host.splitlines()) + "\n" * text.count("\n")


_HERE = Path(__file__).parent
PLAIN = ("-U_FORTIFY_SOURCE",)
"""Undoes a default of some distributions, with which g++ checks longjmp, which then aborts the process where one
thread's stack is left for another's, and replaces memcpy by a function whose accesses are not seen."""

_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=default", *PLAIN)
_DEVICE_FLAGS = (
    *("-std=c++17", "-O1", "-gdwarf-4", "-g1", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    *PLAIN,
    # Every memory access becomes a call of the runtime, which defines what -fsanitize=thread only declares.
    *("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"),
    # An index outside of a thread's own array, which is no memory of the runtime, calls it too, and so does any access,
    # to whatever memory, at an address that is not aligned to its type, and what C++ leaves undefined for integers.
    "-fsanitize=bounds,alignment,integer-divide-by-zero,shift-exponent",
    # The arithmetic of CUDA: integers wrap, nothing is contracted that isn't written so, pointers may be cast.
    *("-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-delete-null-pointer-checks"),
    # A variable that is read before it is written reads as something that shows; return addresses name the line.
    *("-ftrivial-auto-var-init=pattern", "-fno-optimize-sibling-calls"),
)


_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack")
_compile = partial(run_compiler, emulator=True)


def build_library(sources: Sequence[str]) -> Path:
    """The shared object for these programs, to be used with that of `runtime_library`.

    Raises ExecutionError if the text does not compile.
    """
    return _build(translation_unit(sources), ".so", *_LINK)


def build_standalone(source: str) -> Path:
    """The executable of a standalone program. Raises ExecutionError if the text does not compile."""
    return _build(host_text(source, standalone=True), "", str(_runtime_object()), "-ldl")


def _build(text: str, suffix: str, *how: str) -> Path:
    """What is linked of a text and what the flags `how` say besides."""
    name = digest(text, _runtime_object().stem, suffix, *_DEVICE_FLAGS) + suffix

    def make(target: Path) -> None:
        unit, compiled = target.parent / "unit.cpp", target.parent / "unit.o"
        unit.write_text(text)
        _compile(*_DEVICE_FLAGS, f"-I{_HERE}", "-c", str(unit), "-o", str(compiled))
        _compile(str(compiled), *how, "-lm", "-o", str(target))

    return cached_file("emulator", name, make)


def runtime_library() -> Path:
    """The shared object that launches kernels, and that the code of all programs calls."""
    runtime = _runtime_object()
    how = (*_LINK, str(runtime), "-ldl", "-o")
    return cached_file("emulator", f"{runtime.stem}.so", lambda target: _compile(*how, str(target)))


@cache
def _runtime_object() -> Path:
    """The compiled runtime; its name is the digest of its sources and of the compiler."""
    files = sorted(p for p in _HERE.iterdir() if p.suffix in (".h", ".cpp"))
    key = digest(output_of(compiler(emulator=True), "--version"), *_RUNTIME_FLAGS, *(p.read_text() for p in files))
    how = (*_RUNTIME_FLAGS, "-c", str(_HERE / "runtime.cpp"), "-o")
    return cached_file("emulator", f"{key}.o", lambda target: _compile(*how, str(target)))
