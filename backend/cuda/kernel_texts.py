"""Division of a module's CUDA text into one text for each kernel, and the file format of their machine code.

Kernels are compiled, cached and loaded separately. The text of a kernel has its code and the helpers that it calls. It
has no comments and no name, so that equal kernels of one or several modules have equal texts and are compiled once.
The kernel's entry name in machine code is a hash of its text.

The machine code of a module is one file: a line of JSON with entry name, offset and size of each cubin, then the
cubins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...errors import ExecutionError
from ..cpp.writer import HELPERS_MARK, KERNELS_MARK
from ..host.build_cache import digest

_HEAD = re.compile(r'^extern "C" __global__ void (?:__\w+__\([^)]*\) )*(\w+)\(', re.MULTILINE)
_DECLARED = re.compile(r"struct (?:__\w+__\(\d+\) )?(\w+)|(\w+)\s*\(")
_WORD = re.compile(r"\w+")

KERNEL_FILE = "kernel.cu"
"""Name of the file to which line numbers in machine code refer (`KernelText.with_lines`)."""

ENTRY = "k_[0-9a-f]{16}"
"""Regular expression of the names of kernels in machine code, which profilers show: hashes of their texts."""


@dataclass(frozen=True)
class KernelText:
    """Text that is compiled separately.

    Attributes:
        text: CUDA C++ of helpers, then of the kernel.
        entries: name of a kernel in the module -> its name in machine code.
        line: line of the module's text at which the kernel's code begins.
        helpers: number of lines of the helpers in `text`.
    """

    text: str
    entries: Mapping[str, str]
    line: int = 1
    helpers: int = 0

    def with_lines(self, name: str, first: int | None = None) -> str:
        """Returns the text with a `#line` directive, so that compiler messages refer to lines of the file `name`.

        Args:
            name: the file.
            first: number of the first line of the kernel's code; by default its number in the module's text.
        """
        lines = self.text.splitlines(keepends=True)
        directive = f'#line {self.line if first is None else first} "{name}"\n'
        return "".join([*lines[: self.helpers], directive, *lines[self.helpers :]])


@lru_cache(64)
def kernel_texts(source: str) -> tuple[KernelText, ...]:
    """Returns the texts of the kernels of a module, in order.

    A text that does not have the sections of the printer, such as one written by hand, is returned as one text.
    """
    head, helpers_mark, after_head = source.partition(HELPERS_MARK)
    section, kernels_mark, kernels = after_head.partition(KERNELS_MARK)
    line = (head + helpers_mark + section + kernels_mark).count("\n") + 1
    texts: list[KernelText] = []
    definitions = _definitions(section)
    for kernel in re.split(r"(?<=^}\n)\n", kernels, flags=re.MULTILINE) if kernels_mark else ():
        code = re.sub(r"\A(?:(?://|#line ).*\n|\n)+", "", kernel)
        names = _HEAD.findall(code)
        if len(names) != 1:
            texts = []
            break
        used = _used(definitions, code)
        anonymous = _HEAD.sub(lambda m: m[0][: m.start(1) - m.start()] + "kernel(", code)
        entry = "k_" + digest(used, anonymous)[:16]
        named = _HEAD.sub(lambda m, entry=entry: m[0][: m.start(1) - m.start()] + f"{entry}(", code)
        begin = line + kernel[: len(kernel) - len(code)].count("\n")
        texts.append(KernelText(used + named, {names[0]: entry}, begin, used.count("\n")))
        line += kernel.count("\n") + 1
    return tuple(texts) or (KernelText(source, {name: name for name in _HEAD.findall(source)}),)


def entries(source: str) -> dict[str, str]:
    """Returns a mapping from the name of each kernel in a module's text to its entry name in machine code."""
    return {name: entry for text in kernel_texts(source) for name, entry in text.entries.items()}


def _definitions(section: str) -> list[tuple[str, str | None]]:
    """Returns the definitions of a section of helpers, each with the name that it declares.

    The name is None for text that every kernel needs, such as preprocessor directives.
    """
    definitions: list[tuple[str, str | None]] = []
    current, depth = "", 0
    for line in section.splitlines(keepends=True):
        current, depth = current + line, depth + line.count("{") - line.count("}")
        if depth == 0 and line.rstrip().endswith(("}", ";")):
            match = None if current.startswith("#") else _DECLARED.search(current)
            definitions.append((current, match and (match[1] or match[2])))
            current = ""
    return [*definitions, (current, None)] if current.strip() else definitions


def _used(definitions: list[tuple[str, str | None]], code: str) -> str:
    """Returns the definitions that the kernel `code` needs, directly or through others, in the order of the section."""
    words, todo = set(_WORD.findall(code)), list(definitions)
    while more := [d for d in todo if d[1] is None or d[1] in words]:
        todo = [d for d in todo if d not in more]
        for text, _ in more:
            words |= set(_WORD.findall(text))
    return "".join(d[0] for d in definitions if d not in todo)


_MARK = b"deplodock kernels "


@dataclass(frozen=True)
class MachineCode:
    """Machine code of a kernel: the cubin, and the kernel's entry name in it."""

    cubin: bytes
    entry: str


def pack(kernels: Mapping[str, MachineCode]) -> bytes:
    """Returns the content of a file with all kernels. Equal cubins are stored once."""
    offsets: dict[bytes, int] = {}
    size = 0
    for code in kernels.values():
        if code.cubin not in offsets:
            offsets[code.cubin] = size
            size += len(code.cubin)
    head = {name: [code.entry, offsets[code.cubin], len(code.cubin)] for name, code in kernels.items()}
    return _MARK + json.dumps(head, sort_keys=True).encode() + b"\n" + b"".join(offsets)


def unpack(data: bytes) -> dict[str, MachineCode]:
    """Returns the kernels of a file by name. Raises ExecutionError if `pack` has not written the data."""
    head, _, cubins = data.removeprefix(_MARK).partition(b"\n")
    try:
        if not data.startswith(_MARK):
            raise ValueError
        kernels = {n: MachineCode(cubins[begin : begin + size], e) for n, (e, begin, size) in json.loads(head).items()}
        if any(len(kernels[n].cubin) != size or begin < 0 for n, (_, begin, size) in json.loads(head).items()):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise ExecutionError(
            "expected machine code that deplodock has saved, but got other data; compile the program again",
            operator="cubin",
        ) from None
    return kernels
