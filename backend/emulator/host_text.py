"""The printed CUDA as the host compiler reads it.

The text of kernels and helpers stays as it is printed; device.h gives its words a meaning. Only four things change:
helpers whose body is inline assembly get their host text, `extern __shared__` becomes a pointer to the block's, arrays
of a thread lie at addresses that are aligned as they ask for and no better (where a host's stack happens to have them
says nothing), and `extern "C"` goes, so that several programs fit into one translation unit. Line numbers are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ExecutionError
from ...target.model import launch_registers
from ..cpp.device import host_text_of
from ..dtypes import DTYPES

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
    """The declaration of the block's shared memory, as a pointer to it."""
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
    """The file name that debug information gives to a program of a translation unit."""
    return f"source{number}.cu"


def _replace_assembly(source: str) -> str:
    """Put the host text in the place of every helper that holds inline assembly."""
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
